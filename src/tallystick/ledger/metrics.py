"""Figures of the engine for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.ledger.flow import Engine


class EngineCounts(Collector):
    """Read from the engine when asked, so that the hot path does not count twice."""

    def __init__(self, engine: Engine) -> None:
        self._group = engine.group

    def collect(self) -> Iterator[Metric]:
        group = self._group
        yield GaugeMetricFamily("tally_engine_waiting", "Operations in the queue.", value=group.waiting)
        yield CounterMetricFamily("tally_engine_batches", "Transactions that answered a batch.", value=group.batches)
        yield CounterMetricFamily("tally_engine_answered", "Operations answered by batches.", value=group.answered)
