"""Figures of orders for Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class OrderFigures(msgspec.Struct, frozen=True):
    """What the database has counted of orders, over all processes and all days; None: never asked.

    `overdue_seconds` is how long the oldest reservation is past its deadline, `grace_seconds` after which it is swept.
    `sold_out` is this process's own: refusals are written nowhere. `is_current` False: the database cannot be asked
    now, and its figures are of an earlier time.
    """

    counts: Mapping[str, int] | None
    pending: int
    overdue_seconds: float
    grace_seconds: float
    sold_out: int
    is_current: bool


NO_ORDERS: Final = OrderFigures(None, 0, 0.0, 0.0, 0, is_current=False)

# The name of a counter, of the count it shows, and its help.
_COUNTERS: Final = (
    ("tally_orders_reserved", "reserved", "Reservations made."),
    ("tally_orders_paid", "paid", "Orders paid."),
    ("tally_orders_cancelled", "cancelled", "Reservations that somebody gave up."),
    ("tally_orders_swept", "cancelled_by_sweeper", "Reservations that nobody paid in time."),
)


class OrderCounts(Collector):
    """All but `sold_out` are the database's, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.figures = NO_ORDERS

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        figures = self.figures
        yield CounterMetricFamily(
            "tally_orders_sold_out", "Attempts that this process refused as sold out.", value=figures.sold_out
        )
        yield GaugeMetricFamily(
            "tally_orders_figures_current",
            "0 while the database cannot be asked: counts are then old, and gauges are left out.",
            value=float(figures.is_current),
        )
        yield GaugeMetricFamily(
            "tally_orders_grace_seconds",
            "How long after its deadline a reservation is swept.",
            value=figures.grace_seconds,
        )
        if figures.counts is not None:
            for name, counted, told in _COUNTERS:
                yield CounterMetricFamily(name, told, value=figures.counts.get(counted, 0))
        if figures.is_current:
            yield GaugeMetricFamily(
                "tally_orders_pending",
                "Reservations that hold stock, up to a bound of counting.",
                value=figures.pending,
            )
            yield GaugeMetricFamily(
                "tally_orders_oldest_overdue_seconds",
                "For how long the oldest pending reservation has been past its deadline; 0: none is.",
                value=figures.overdue_seconds,
            )
