"""Metrics for Prometheus. Labels come from closed sets only: route templates, statuses and known codes."""

from collections import Counter as Counted
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.engine.engine import Engine
from tallystick.flows.order_status import OrderStatuses
from tallystick.flows.sending import Sender
from tallystick.store.webhook import Figures as EventFigures
from tallystick.web.crowd import Crowd
from tallystick.web.crowd_metrics import CrowdCounts
from tallystick.web.order_metrics import OrderCounts, OrderFigures
from tallystick.web.order_status_metrics import OrderStatusCounts
from tallystick.web.payment_metrics import PaymentCounts, PaymentFigures
from tallystick.web.problem import PROBLEMS
from tallystick.web.refund_metrics import SagaCounts, SagaFigures
from tallystick.web.refusals import Refusals
from tallystick.web.tenant_rate import TenantRate
from tallystick.web.webhook_metrics import LogCounts, LogFigures

_OUTCOMES = frozenset({"committed", "duplicate", *PROBLEMS})
# Seconds. Half a millisecond is a lone operation on an idle machine; ten seconds is the bounded wait.
_DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


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


class WebhookCounts(Protocol):
    """What a receiver counts, by the provider's name."""

    stored: Counted[str]
    repeated: Counted[str]
    refused: Counted[tuple[str, str]]


class Metrics:
    """What this process counts."""

    def __init__(
        self,
        engine: Engine,
        sender: Sender,
        webhooks: "WebhookCounts | None" = None,
        statuses: OrderStatuses | None = None,
        crowd: Crowd | None = None,
        *,
        rate: TenantRate | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """A registry of its own: two services in one process must not share counts."""
        self._registry = CollectorRegistry()
        if statuses is not None:
            self._registry.register(OrderStatusCounts(statuses))
        if crowd is not None:
            self._registry.register(CrowdCounts(crowd, Refusals() if refusals is None else refusals))
        if rate is not None:
            self._registry.register(_RateCounts(rate))
        if webhooks is not None:
            self._registry.register(_WebhookCounts(webhooks))
        self._events = _EventCounts()
        self._registry.register(self._events)
        self._registry.register(_EngineCounts(engine))
        self._registry.register(_ProviderCounts(sender))
        self._settlements = _SettlementCounts()
        self._registry.register(self._settlements)
        self._orders = OrderCounts()
        self._registry.register(self._orders)
        self._payments = PaymentCounts()
        self._registry.register(self._payments)
        self._refunds = SagaCounts()
        self._registry.register(self._refunds)
        self._log = LogCounts()
        self._registry.register(self._log)
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

    def settlements(self, figures: SettlementFigures) -> None:
        """What to show of settlements from now on."""
        self._settlements.figures = figures

    def orders(self, figures: OrderFigures) -> None:
        """What to show of orders from now on."""
        self._orders.figures = figures

    def events(self, figures: EventFigures | None) -> None:
        """What to show of webhook events from now on; None: the database cannot be asked."""
        self._events.figures = figures

    def payments(self, figures: PaymentFigures) -> None:
        """What to show of payments from now on."""
        self._payments.figures = figures

    def refunds(self, figures: SagaFigures) -> None:
        """What to show of refunds from now on."""
        self._refunds.figures = figures

    def log(self, figures: LogFigures) -> None:
        """What to show of the webhooks' log from now on."""
        self._log.figures = figures

    def exposition(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)


class _EngineCounts(Collector):
    """Read from the engine when asked, so that the hot path does not count twice."""

    def __init__(self, engine: Engine) -> None:
        self._group = engine.group

    def collect(self) -> Iterator[Metric]:
        group = self._group
        yield GaugeMetricFamily("tally_engine_waiting", "Operations in the queue.", value=group.waiting)
        yield CounterMetricFamily("tally_engine_batches", "Transactions that answered a batch.", value=group.batches)
        yield CounterMetricFamily("tally_engine_answered", "Operations answered by batches.", value=group.answered)


class _RateCounts(Collector):
    """Over all tenants: anybody may read it, and the log names them."""

    def __init__(self, rate: TenantRate) -> None:
        self._rate = rate

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "tally_rate_exceeded", "Calls refused because their tenant asked too often.", value=self._rate.refused
        )


class _ProviderCounts(Collector):
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


class _WebhookCounts(Collector):
    """Read from the receiver when asked, so that the hot path does not count twice."""

    def __init__(self, receiver: WebhookCounts) -> None:
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


class _EventCounts(Collector):
    """Figures of the database, the same from every process: take their maximum, not their sum."""

    def __init__(self) -> None:
        self.figures: EventFigures | None = None

    def collect(self) -> Iterator[Metric]:
        figures = self.figures
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


class _SettlementCounts(Collector):
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
