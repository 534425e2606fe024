"""Figures of providers for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.movement.flow import Sender


class ProviderCounts(Collector):
    """What providers answered, and whether they are thought to be down."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "tally_provider_answers", "Attempts, by provider and class of answer.", labels=["provider", "answer"]
        )
        for (provider, answer), count in sorted(self._sender.answers.items()):
            answers.add_metric([provider, answer], count)
        yield answers
        breakers = GaugeMetricFamily(
            "tally_provider_breaker_open", "1 while new sends are stopped or probing.", labels=["provider"]
        )
        for name, state in self._sender.breakers().items():
            breakers.add_metric([name], float(state != "closed"))
        yield breakers
