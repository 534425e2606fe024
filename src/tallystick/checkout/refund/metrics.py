"""Figures of refunds for Prometheus: what is owed, how long it took, and what a person must look at."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.checkout.refund.store import RefundFigures
from tallystick.checkout.saga.rules import BREAKS

# The bounds of tally.compensation_time; the rest is above them all.
_BOUNDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
_CLASSES: Final = ("paid", "backordered", "late", "order_cancelled", "second_payment", "amount_differs", "failed")


class SagaFigures(msgspec.Struct, frozen=True):
    """What the database knows, over all processes and all days. `is_current` False: it cannot be asked."""

    refunds: RefundFigures
    breaks: int
    reviews: int
    counts: Mapping[str, int]
    is_current: bool


NO_REFUNDS: Final = SagaFigures(
    RefundFigures(pending=0, oldest_seconds=0.0, times=(), p50_seconds=None, p99_seconds=None),
    0,
    0,
    {},
    is_current=False,
)


class SagaCounts(Collector):
    """The database's, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.figures = NO_REFUNDS

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        figures = self.figures
        yield GaugeMetricFamily(
            "tally_refunds_figures_current",
            "0 while the database cannot be asked: the other figures of refunds are then left out.",
            value=float(figures.is_current),
        )
        if not figures.is_current:
            return
        refunds = figures.refunds
        for name, told, value in (
            ("tally_refunds_pending", "Refunds that are owed, up to a bound of counting.", refunds.pending),
            (
                "tally_refunds_oldest_pending_seconds",
                "How long ago the oldest of them became owed; 0: there is none.",
                refunds.oldest_seconds,
            ),
            (
                "tally_payment_breaks",
                "What nothing here explains and nobody has resolved, up to a bound.",
                figures.breaks,
            ),
            ("tally_payment_reviews", "Payments that wait for a person's decision, up to a bound.", figures.reviews),
        ):
            yield GaugeMetricFamily(name, told, value=value)
        yield from self._times(refunds)
        yield self._told(figures.counts)

    def _times(self, refunds: RefundFigures) -> Iterator[Metric]:
        counted = {le: count for le, count, _ in refunds.times}
        buckets, total = [], 0
        for bound in _BOUNDS:
            total += counted.get(bound, 0)
            buckets.append((str(bound), total))
        buckets.append(("+Inf", sum(counted.values())))
        yield HistogramMetricFamily(
            "tally_time_to_compensate_seconds",
            "From the arrival of a webhook about money that did not fit, to its refund being COMPLETED.",
            buckets=buckets,
            sum_value=sum(seconds for _, _, seconds in refunds.times),
        )
        recent = GaugeMetricFamily(
            "tally_time_to_compensate_recent_seconds",
            "The same over the newest refunds of the last day, by quantile.",
            labels=["quantile"],
        )
        for name, value in (("0.5", refunds.p50_seconds), ("0.99", refunds.p99_seconds)):
            if value is not None:
                recent.add_metric([name], value)
        yield recent

    def _told(self, counts: Mapping[str, int]) -> Metric:
        told = CounterMetricFamily(
            "tally_checkout_told", "What providers told of payments, by what it meant.", labels=["meant"]
        )
        for name in (*_CLASSES, "told_again", "ignored", *BREAKS):
            told.add_metric([name], counts.get(f"payment.{name}", 0) + counts.get(f"refund.{name}", 0))
        return told
