"""Figures of payments for Prometheus."""

from collections.abc import Iterator
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class PaymentFigures(msgspec.Struct, frozen=True):
    """Charges whose outcome nobody knows yet, over all processes. `is_current` False: the database cannot be asked."""

    pending: int
    oldest_seconds: float
    is_current: bool


NO_PAYMENTS: Final = PaymentFigures(0, 0.0, is_current=False)


class PaymentCounts(Collector):
    """The database's, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.figures = NO_PAYMENTS

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        figures = self.figures
        yield GaugeMetricFamily(
            "tally_payments_figures_current",
            "0 while the database cannot be asked: the other gauges of payments are then left out.",
            value=float(figures.is_current),
        )
        if figures.is_current:
            yield GaugeMetricFamily(
                "tally_payments_pending",
                "Charges whose outcome nobody knows yet, up to a bound of counting.",
                value=figures.pending,
            )
            yield GaugeMetricFamily(
                "tally_payments_oldest_pending_seconds",
                "How long ago the oldest of them was begun; 0: there is none.",
                value=figures.oldest_seconds,
            )
