"""Figures of waiting for orders, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.checkout.status.flow import OrderStatuses


class OrderStatusCounts(Collector):
    """This process's own, read when asked."""

    def __init__(self, statuses: OrderStatuses) -> None:
        """Nothing is counted twice."""
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        statuses = self._statuses
        yield GaugeMetricFamily(
            "tally_order_status_waiting", "Callers who wait for an order to change.", value=statuses.waiting
        )
        yield GaugeMetricFamily(
            "tally_order_status_listening",
            "1 while the database's notifications are proven to be heard; 0: nothing is answered from memory.",
            value=float(statuses.is_listening),
        )
        answers = CounterMetricFamily(
            "tally_order_status_answers",
            "Statuses told without waiting: from memory, from the database, from it because memory was not trusted.",
            labels=["source"],
        )
        for source, count in (
            ("memory", statuses.hits),
            ("database", statuses.misses),
            ("distrusted", statuses.distrusted),
        ):
            answers.add_metric([source], count)
        yield answers
        yield CounterMetricFamily(
            "tally_order_status_found_by_poll",
            "Changes that were waited for and not announced in time.",
            value=statuses.found_by_poll,
        )
