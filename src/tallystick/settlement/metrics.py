"""Figures of settlements for Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class SettlementFigures(msgspec.Struct, frozen=True):
    """What the database has counted of settlements, over all processes and all days; None: never asked.

    `oldest_seconds` is the age of the oldest processing one by provider, `timeout_seconds` after which such a one is
    taken over. `stopped` are providers that nothing is sent to, since they have shown that a life of this database was
    lost. `is_current` False: the database cannot be asked now, and these are of an earlier time.
    """

    counts: Mapping[str, int] | None
    oldest_seconds: Mapping[str, float]
    timeout_seconds: Mapping[str, float]
    waiting: Mapping[str, int]
    is_current: bool
    stopped: frozenset[str] = frozenset()


NO_FIGURES: Final = SettlementFigures(None, {}, {}, {}, is_current=False)


# The name of a counter, of the count it shows, and its help. The paper's figures, in its order.
_SETTLEMENT_COUNTERS: Final = (
    ("tally_settlement_claims", "claimed", "Settlements claimed to be sent (pass 1)."),
    ("tally_settlement_reclaims", "reclaimed", "Overdue settlements taken over (pass 2)."),
    ("tally_settlement_doubles", "doubles", "Settlements that a provider moved more than once."),
    ("tally_settlement_reviews", "disputed", "Settlements that a person had to look at."),
    ("tally_settlement_key_collisions", "key_collisions", "Keys that stood for another instruction."),
    ("tally_settlement_late_answers", "late_answers", "Answers that came after their claim was lost."),
)
_SETTLEMENT_OUTCOMES: Final = ("transferred", "failed", "disputed")
_LOOKUPS: Final = ("found", "absent", "undecided")


class SettlementCounts(Collector):
    """Figures of the database, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        self.figures = NO_FIGURES

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
        yield GaugeMetricFamily(
            "tally_settlement_figures_current",
            "0 while the database cannot be asked: counts are then old, and gauges are left out.",
            value=float(figures.is_current),
        )
        yield self._timeouts(figures)
        if figures.counts is not None:
            yield from self._counters(figures.counts)
        if figures.is_current:
            yield from self._gauges(figures)

    def _timeouts(self, figures: SettlementFigures) -> Metric:
        found = GaugeMetricFamily(
            "tally_settlement_timeout_seconds", "After how long a settlement is stuck.", labels=["provider"]
        )
        for provider, seconds in sorted(figures.timeout_seconds.items()):
            found.add_metric([provider], seconds)
        return found

    def _counters(self, counts: Mapping[str, int]) -> Iterator[Metric]:
        outcomes = CounterMetricFamily("tally_settlements", "Settlements decided, by outcome.", labels=["outcome"])
        for outcome in _SETTLEMENT_OUTCOMES:
            outcomes.add_metric([outcome], counts.get(outcome, 0))
        yield outcomes
        lookups = CounterMetricFamily(
            "tally_settlement_lookups", "Questions to providers' books, by what they showed.", labels=["found"]
        )
        for found in _LOOKUPS:
            lookups.add_metric([found], counts.get(f"looked_up.{found}", 0))
        yield lookups
        for name, counted, told in _SETTLEMENT_COUNTERS:
            yield CounterMetricFamily(name, told, value=counts.get(counted, 0))

    def _gauges(self, figures: SettlementFigures) -> Iterator[Metric]:
        stopped = GaugeMetricFamily(
            "tally_provider_stopped",
            "1 while its books show payments that this database lost: what no key protects waits for their reading.",
            labels=["provider"],
        )
        for provider in sorted({*figures.timeout_seconds, *figures.stopped}):
            stopped.add_metric([provider], float(provider in figures.stopped))
        yield stopped
        oldest = GaugeMetricFamily(
            "tally_settlement_oldest_processing_seconds",
            "Age of the oldest processing settlement.",
            labels=["provider"],
        )
        # A provider without one has none that is old.
        for provider in sorted({*figures.timeout_seconds, *figures.oldest_seconds}):
            oldest.add_metric([provider], figures.oldest_seconds.get(provider, 0.0))
        yield oldest
        waiting = GaugeMetricFamily(
            "tally_settlement_waiting", "Settlements that wait, up to a bound of counting.", labels=["status"]
        )
        for status, count in sorted(figures.waiting.items()):
            waiting.add_metric([status], count)
        yield waiting
