"""Whether this process lives, and whether it can serve. No key needed, and nothing secret in the answers."""

import asyncio
from collections.abc import Iterable
from typing import Any, Generic

import msgspec
import structlog

from tallystick.app import Service
from tallystick.database.pool import plight
from tallystick.errors import Unreachable, require
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.metrics import Metrics
from tallystick.ledger.outcome import Rejected
from tallystick.room import Check, F, Figures
from tallystick.settings import LIMITS

# Shorter than a load balancer's own patience (often 5 s), so that the reason still reaches whoever looks.
_CHECK_SECONDS = 2.0
# How long it stands that the database is away: a loop of questions must not become one of connections.
_AWAY_SECONDS = 0.2
# Scrapers come every 15 s or so; anybody may, as often as he likes, and the database is asked no oftener than this.
_FIGURES_SECONDS = 5.0
_EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"

log = structlog.get_logger("tallystick.http")


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """`failed` names the checks that fail; `checks` is there when asked for with `verbose`."""

    status: str
    failed: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


class Vitals:
    """The endpoints that watch the service itself."""

    def __init__(self, service: Service, metrics: Metrics, figures: Iterable[Figures[Any]] = ()) -> None:
        """Asks the database only when asked itself. `figures`: what rooms show of it."""
        self._service = service
        self._metrics = metrics
        self._asking: asyncio.Task[Check] | None = None
        self._away_at = -_AWAY_SECONDS
        self._figures: dict[str, _Remembered[Any]] = {}
        for one in figures:
            require(one.unread not in self._figures, f"two figures are called {one.unread}")
            self._figures[one.unread] = _Remembered(one)
            metrics.show(one.shown)
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
        checks = (await self._database_once(), self._queue(), *await self._checks_of_rooms())
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
        for one in self._figures.values():
            one.of.shown.figures = one.of.now(await one.read())
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
        # Anybody may ask: however many do, the database is asked by one at a time; one that is away, so often a second.
        now = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now - self._away_at >= _AWAY_SECONDS):
            self._asking = asyncio.create_task(self._database())
            self._asking.add_done_callback(self._note_if_away)
        return await asyncio.shield(self._asking)

    def _note_if_away(self, asked: "asyncio.Task[Check]") -> None:
        if not asked.cancelled() and asked.exception() is None and not asked.result().ok:
            self._away_at = asyncio.get_running_loop().time()

    async def _database(self) -> Check:
        try:
            async with asyncio.timeout(_CHECK_SECONDS), self._service.database.aside("health") as connection:
                await connection.execute("SELECT 1")
        except TimeoutError:
            return Check("database", ok=False, detail=f"did not answer within {_CHECK_SECONDS:g} s")
        except Unreachable as error:
            return Check("database", ok=False, detail=plight(error) or "cannot be reached")
        return Check("database", ok=True, detail="answers")

    async def _checks_of_rooms(self) -> tuple[Check, ...]:
        found = [one.of.ready(await one.read()) for one in self._figures.values() if one.of.ready is not None]
        return tuple(check for check in found if check is not None)

    def _queue(self) -> Check:
        waiting = self._service.engine.group.waiting
        return Check("queue", ok=waiting < LIMITS.queue, detail=f"{waiting} of {LIMITS.queue} places taken")


class _Remembered(Generic[F]):
    """A room's figures, remembered for a few seconds. Never fails: it says that they are old (`is_current`)."""

    def __init__(self, of: Figures[F]) -> None:
        self.of = of
        self._last = of.first
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
                self._last = await self.of.ask(self._last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other counts are worth showing
            log.warning(self.of.unread, error=str(error) or type(error).__name__)
            self._last = msgspec.structs.replace(self._last, is_current=False)
