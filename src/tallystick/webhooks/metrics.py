"""Figures of webhooks for Prometheus: what this process received, what is stored, and the log that it lies in first."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.webhooks.log.port import Backlog
from tallystick.webhooks.store import Figures


class LogFigures(msgspec.Struct, frozen=True, kw_only=True):
    """`backlog` None: the log is the database. Figures that are not current are left out: alerts must not be quiet."""

    backlog: Backlog | None = None
    poison: int = 0
    is_current: bool = False


NO_LOG: Final = LogFigures()


class LogCounts(Collector):
    """Of the log and the database, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        """Nothing was asked yet."""
        self.figures = NO_LOG

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        figures = self.figures
        yield GaugeMetricFamily(
            "tally_webhook_log_current",
            "0 while Kafka or the database cannot be asked: the figures of the log are then left out.",
            value=float(figures.is_current),
        )
        if not figures.is_current:
            return
        backlog = figures.backlog
        yield GaugeMetricFamily(
            "tally_webhook_log_lag",
            "Records in Kafka that the database does not have yet; 0 without Kafka.",
            value=0 if backlog is None else backlog.behind,
        )
        yield CounterMetricFamily(
            "tally_webhook_log_read",
            "Records of Kafka that the database has; 0 without Kafka.",
            value=0 if backlog is None else backlog.read,
        )
        yield GaugeMetricFamily(
            "tally_webhook_poison", "Records set aside that a person must look at, up to a bound.", value=figures.poison
        )


class EventFigures(msgspec.Struct, frozen=True):
    """What is known of webhook events. Old figures are not shown: an alert on a backlog must not be quiet by them."""

    counted: Figures | None = None
    is_current: bool = False


NO_EVENTS: Final = EventFigures()


class EventCounts(Collector):
    """Figures of the database, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        self.figures = NO_EVENTS

    def collect(self) -> Iterator[Metric]:
        figures = self.figures.counted if self.figures.is_current else None
        yield GaugeMetricFamily(
            "tally_webhook_figures_current",
            "0 while the database cannot be asked: the gauges of events are then left out.",
            value=float(figures is not None),
        )
        if figures is None:
            return
        for name, told, value in (
            ("oldest_unprocessed_seconds", "Age of the oldest event that is not finished.", figures.oldest_seconds),
            ("unprocessed", "Events that wait, up to a bound of counting.", figures.unprocessed),
            ("in_processing", "Events under a lease, up to a bound of counting.", figures.in_processing),
            ("dead_letters", "Events that a person must look at, up to a bound of counting.", figures.dead_letters),
            ("bodies_without_a_day", "Bodies in the default partition, up to a bound.", figures.bodies_without_a_day),
        ):
            yield GaugeMetricFamily(f"tally_webhook_{name}", told, value=value)


class Received(Protocol):
    """What a receiver counts, by the provider's name."""

    stored: Counter[str]
    repeated: Counter[str]
    refused: Counter[tuple[str, str]]


class ReceiverCounts(Collector):
    """Read from the receiver when asked, so that the hot path does not count twice."""

    def __init__(self, receiver: Received) -> None:
        self._receiver = receiver

    def collect(self) -> Iterator[Metric]:
        for name, told, counted in (
            ("tally_webhook_stored", "Events stored by this receiver.", self._receiver.stored),
            (
                "tally_webhook_repeated",
                "Events told again, acknowledged and not stored twice.",
                self._receiver.repeated,
            ),
        ):
            family = CounterMetricFamily(name, told, labels=["provider"])
            for provider, count in sorted(counted.items()):
                family.add_metric([provider], count)
            yield family
        refused = CounterMetricFamily(
            "tally_webhook_refused", "Webhooks not acknowledged, by reason.", labels=["provider", "reason"]
        )
        for (provider, reason), count in sorted(self._receiver.refused.items()):
            refused.add_metric([provider, reason], count)
        yield refused
