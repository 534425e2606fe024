"""Figures of who is connected, for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.http.crowd import Crowd
from tallystick.http.refusals import Refusals
from tallystick.http.tenant_rate import TenantRate


class CrowdCounts(Collector):
    """This process's own, read when asked."""

    def __init__(self, crowd: Crowd, refusals: Refusals) -> None:
        """Nothing is counted twice."""
        self._crowd = crowd
        self._refusals = refusals

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        crowd = self._crowd
        yield GaugeMetricFamily("tally_connections", "Connections that are open.", value=len(crowd.members))
        yield GaugeMetricFamily(
            "tally_connections_most",
            "Connections that may be open: by our limit, and by that on files.",
            value=crowd.most,
        )
        closed = CounterMetricFamily(
            "tally_connections_closed",
            "Connections closed by us: silent, late, replies unread, malformed, crowded out by others, no room.",
            labels=["reason"],
        )
        for reason in ("silent", "late", "unread", "malformed", "crowded", "no_room"):
            closed.add_metric([reason], crowd.closed[reason])
        yield closed
        yield CounterMetricFamily(
            "tally_refusals_held",
            "Refusals without a key that had to wait, because their address had so many.",
            value=self._refusals.held,
        )


class RateCounts(Collector):
    """Over all tenants: anybody may read it, and the log names them."""

    def __init__(self, rate: TenantRate) -> None:
        self._rate = rate

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "tally_rate_exceeded", "Calls refused because their tenant asked too often.", value=self._rate.refused
        )
