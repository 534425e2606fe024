"""What is shown of the log that webhooks go to first, and of what could not be brought from it into the database."""

from collections.abc import Iterator
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.eventlog.port import Backlog


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
