"""Whether this process lives, and whether it can serve. No key needed, and nothing secret in the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
import structlog

from tallystick.app import Service, patience
from tallystick.core.outcome import Rejected
from tallystick.errors import Unreachable
from tallystick.settings import LIMITS
from tallystick.store import intake, order, payment, payment_break, refund, settlement, webhook, whereabouts
from tallystick.store.database import plight
from tallystick.web.call import Call, Reply, json_reply
from tallystick.web.metrics import NO_FIGURES, Metrics, SettlementFigures
from tallystick.web.order_metrics import NO_ORDERS, OrderFigures
from tallystick.web.payment_metrics import NO_PAYMENTS, PaymentFigures
from tallystick.web.refund_metrics import NO_REFUNDS, SagaFigures
from tallystick.web.webhook_metrics import NO_LOG, LogFigures

# Shorter than a load balancer's own patience (often 5 s), so that the reason still reaches whoever looks.
_CHECK_SECONDS = 2.0
# Scrapers come every 15 s or so; anybody may, as often as he likes, and the database is asked no oftener than this.
_FIGURES_SECONDS = 5.0
_EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"

log = structlog.get_logger("tallystick.web")


class Check(msgspec.Struct, frozen=True):
    """One thing this process needs."""

    name: str
    ok: bool
    detail: str
    # Not needed: requests are served without it, so a load balancer must not take this process out for it.
    needed: bool = True


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`failed` names the checks that fail; `checks` is there when asked for with `verbose`."""

    status: str
    failed: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


class Vitals:
    """The endpoints that watch the service itself."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        """Asks the database only when asked itself."""
        self._service = service
        self._metrics = metrics
        self._asking: asyncio.Task[Check] | None = None
        self._figures = _of_settlements(service)
        self._orders = _of_orders(service)
        self._events = _of_events(service)
        self._payments = _of_payments(service)
        self._refunds = _of_refunds(service)
        self._log = _of_log(service)
        self._told = b""
        self._anew = float(LIMITS.metrics_burst)
        self._told_at = 0.0

    async def live(self, call: Call) -> Reply | Rejected:
        """The event loop turns: that is all."""
        query = call.query()
        return query if isinstance(query, Rejected) else json_reply(200, Health("alive"))

    async def ready(self, call: Call) -> Reply | Rejected:
        """Ready, or the names of the checks that fail."""
        query = call.query("verbose")
        if isinstance(query, Rejected):
            return query
        checks = (await self._database_once(), self._queue(), *await self._log_checks())
        failed = tuple(check.name for check in checks if check.needed and not check.ok)
        health = Health("not ready" if failed else "ready", failed, checks if "verbose" in query else ())
        return json_reply(503 if failed else 200, health)

    async def metrics(self, call: Call) -> Reply | Rejected:
        """Counts for Prometheus. Who asks far oftener than a scraper is told what was written last."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        if not self._may_write():
            return Reply(200, self._told, _EXPOSITION)
        self._metrics.settlements(await self._figures.read())
        orders = await self._orders.read()
        self._metrics.orders(msgspec.structs.replace(orders, sold_out=self._service.orders.sold_out))
        events = await self._events.read()
        self._metrics.events(events.figures if events.is_current else None)
        self._metrics.payments(await self._payments.read())
        self._metrics.refunds(await self._refunds.read())
        self._metrics.log(await self._log.read())
        self._told = self._metrics.exposition()
        return Reply(200, self._told, _EXPOSITION)

    def _may_write(self) -> bool:
        """So often at once, and then so often a second. The first is always written: there is nothing else to tell."""
        now = asyncio.get_running_loop().time()
        grown = self._anew + (now - self._told_at) * LIMITS.metrics_per_second
        self._anew, self._told_at = min(grown, float(LIMITS.metrics_burst)), now
        if self._told and self._anew < 1:
            return False
        self._anew -= 1
        return True

    async def _database_once(self) -> Check:
        # Anybody may ask: however many do, the database is asked by one at a time.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._database())
        return await asyncio.shield(self._asking)

    async def _database(self) -> Check:
        try:
            async with asyncio.timeout(_CHECK_SECONDS), self._service.database.aside("health") as connection:
                await connection.execute("SELECT 1")
        except TimeoutError:
            return Check("database", ok=False, detail=f"did not answer within {_CHECK_SECONDS:g} s")
        except Unreachable as error:
            return Check("database", ok=False, detail=plight(error) or "cannot be reached")
        return Check("database", ok=True, detail="answers")

    async def _log_checks(self) -> tuple[Check, ...]:
        if self._service.intake is None:
            return ()
        figures = await self._log.read()
        if not figures.is_current or figures.backlog is None:
            detail = "cannot be reached: webhooks are answered with 503, everything else is served"
            return (Check("kafka", ok=False, detail=detail, needed=False),)
        detail = f"answers; {figures.backlog.behind} records are not in the database yet"
        return (Check("kafka", ok=True, detail=detail, needed=False),)

    def _queue(self) -> Check:
        waiting = self._service.engine.group.waiting
        return Check("queue", ok=waiting < LIMITS.queue, detail=f"{waiting} of {LIMITS.queue} places taken")


F = TypeVar("F", bound=msgspec.Struct)


class _Figures(Generic[F]):
    """The database's counts, remembered for a few seconds. Never fails: it says that they are old (`is_current`)."""

    def __init__(self, first: F, ask: Callable[[F], Awaitable[F]], event: str) -> None:
        """`ask` gives the figures that follow; `event` is logged when they cannot be had."""
        self._last = first
        self._ask_database = ask
        self._event = event
        self._asked_at = -_FIGURES_SECONDS
        self._asking: asyncio.Task[None] | None = None

    async def read(self) -> F:
        if self._asking is None or self._asking.done():
            now = asyncio.get_running_loop().time()
            if now - self._asked_at < _FIGURES_SECONDS:
                return self._last
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask())
        await asyncio.shield(self._asking)
        return self._last

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                self._last = await self._ask_database(self._last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other counts are worth showing
            log.warning(self._event, error=str(error) or type(error).__name__)
            self._last = msgspec.structs.replace(self._last, is_current=False)


def _of_settlements(service: Service) -> _Figures[SettlementFigures]:
    waits = patience(service.settings, service.providers)
    timeouts = {name: waits[name].stuck_after.total_seconds() for name in waits}

    async def ask(last: SettlementFigures) -> SettlementFigures:
        counts, ages, waiting = await settlement.figures(service.database)
        stopped = frozenset(await whereabouts.stopped(service.database))
        return msgspec.structs.replace(
            last, counts=counts, oldest_seconds=ages, waiting=waiting, stopped=stopped, is_current=True
        )

    return _Figures(msgspec.structs.replace(NO_FIGURES, timeout_seconds=timeouts), ask, "settlement_figures_unread")


def _of_orders(service: Service) -> _Figures[OrderFigures]:
    async def ask(last: OrderFigures) -> OrderFigures:
        counts, pending, overdue = await order.figures(service.database)
        return msgspec.structs.replace(last, counts=counts, pending=pending, overdue_seconds=overdue, is_current=True)

    grace = service.settings.reservation_grace_seconds
    return _Figures(msgspec.structs.replace(NO_ORDERS, grace_seconds=grace), ask, "order_figures_unread")


class _Events(msgspec.Struct, frozen=True):
    """What is known of webhook events. Old figures are not shown: an alert on a backlog must not be quiet by them."""

    figures: webhook.Figures | None = None
    is_current: bool = False


def _of_events(service: Service) -> _Figures[_Events]:
    async def ask(_last: _Events) -> _Events:
        return _Events(await webhook.figures(service.database), is_current=True)

    return _Figures(_Events(), ask, "event_figures_unread")


def _of_log(service: Service) -> _Figures[LogFigures]:
    async def ask(_last: LogFigures) -> LogFigures:
        poison = await intake.count_poison(service.database)
        return LogFigures(backlog=await service.log.backlog(), poison=poison, is_current=True)

    return _Figures(NO_LOG, ask, "log_figures_unread")


def _of_payments(service: Service) -> _Figures[PaymentFigures]:
    async def ask(_last: PaymentFigures) -> PaymentFigures:
        return PaymentFigures(*await payment.figures(service.database), is_current=True)

    return _Figures(NO_PAYMENTS, ask, "payment_figures_unread")


def _of_refunds(service: Service) -> _Figures[SagaFigures]:
    async def ask(_last: SagaFigures) -> SagaFigures:
        counts, _, _ = await order.figures(service.database)
        return SagaFigures(
            await refund.figures(service.database),
            *await payment_break.figures(service.database),
            counts,
            is_current=True,
        )

    return _Figures(NO_REFUNDS, ask, "refund_figures_unread")
