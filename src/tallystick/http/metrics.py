"""Metrics for Prometheus. Labels come from closed sets only: route templates, statuses and known codes."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from tallystick.http.problem import PROBLEMS

_OUTCOMES = frozenset({"committed", "duplicate", *PROBLEMS})
# Seconds. Half a millisecond is a lone operation on an idle machine; ten seconds is the bounded wait.
_DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """What this process counts."""

    def __init__(self, counts: Iterable[Collector] = ()) -> None:
        """A registry of its own: two services in one process must not share counts. `counts`: what rooms show."""
        self._registry = CollectorRegistry()
        for one in counts:
            self._registry.register(one)
        self._operations = Counter(
            "tally_operations", "Operations answered, by outcome.", ["outcome"], registry=self._registry
        )
        self._requests = Counter(
            "tally_http_requests", "HTTP requests answered.", ["route", "status"], registry=self._registry
        )
        self._durations = Histogram(
            "tally_http_request_seconds",
            "Seconds from the request's head to the last byte handed to the server.",
            ["route"],
            buckets=_DURATIONS,
            registry=self._registry,
        )
        # labels() costs more than counting; its results never change.
        self._by_outcome = {outcome: self._operations.labels(outcome) for outcome in (*_OUTCOMES, "other")}
        self._by_request: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def operation(self, outcome: str) -> None:
        """Count an operation: `committed`, `duplicate`, or the code of its problem."""
        self._by_outcome[outcome if outcome in _OUTCOMES else "other"].inc()

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request to a route."""
        found = self._by_request.get((route, status))
        if found is None:
            found = self._requests.labels(route, str(status)), self._durations.labels(route)
            self._by_request[route, status] = found
        counter, histogram = found
        counter.inc()
        histogram.observe(seconds)

    def show(self, one: Collector) -> None:
        """From now on this is shown too."""
        self._registry.register(one)

    def exposition(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
