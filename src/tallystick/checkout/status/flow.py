"""How orders stand, for those who ask and those who wait: one reader, one listener and one poll for all of them.

    ask ───────> memory, while notifications are heard ──> or the reader
    wait ──────> the reader, then a watch on the order   ──> answered when what the reader sees has changed
    reader       everything that is asked for, in one statement for each tenant; batches one after the other, so what
                 it sees of an order never goes backwards
    listener     hears what commits changed (`checkout.status.announcer`), and proves that it hears       ── the speed
    poll         compares all orders that are waited for with the database, in one statement    ── the guarantee

Nobody who waits holds a connection to the database. Memory is never the truth: see `checkout.status.cache`.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Self
from uuid import uuid4

import asyncpg
import structlog

from tallystick.checkout.order.rules import order_id, order_unknown
from tallystick.checkout.status import store
from tallystick.checkout.status.announcer import Announcer
from tallystick.checkout.status.cache import Cache
from tallystick.checkout.status.rules import OrderStatus, is_answer, waiting_fault
from tallystick.checkout.status.store import OrderName
from tallystick.commit.group import GroupCommit
from tallystick.commit.port import Lost
from tallystick.database.pool import GONE, Connection, Database
from tallystick.errors import Busy, ShareUsed, TallystickError, Unreachable
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.order_status")

# Names of channels: only the one who listens on it knows it.
_ECHOES: Final = "tally_echo_"


class Watch:
    """An order that somebody waits for: how it was last seen, and by how many it is watched."""

    __slots__ = ("latest", "mark", "news", "watchers")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.watchers = 0
        self.latest: OrderStatus | None = None
        # Of what was read; None: the next poll has it read, whatever its mark.
        self.mark: str | None = None
        self.news = asyncio.Event()

    def see(self, found: OrderStatus) -> None:
        """Wake those who wait, if it is another than before."""
        if self.latest is None or found.version != self.latest.version:
            self.latest = found
            self.wake()

    def wake(self) -> None:
        """Let everybody look, each at most once."""
        self.news.set()
        self.news = asyncio.Event()


class ReadWork:
    """Group commit's work: read how orders stand, for all who ask."""

    def __init__(self, reader: store.Reader, cache: Cache, watches: dict[OrderName, Watch], limits: Limits) -> None:
        """What is read is kept, and shown to those who wait for it."""
        self._reader = reader
        self._cache = cache
        self._watches = watches
        self._limits = limits

    async def commit(self, items: Sequence[OrderName], *, patient: bool) -> Sequence[OrderStatus | None]:  # noqa: ARG002
        """Each order, as it stood after it was asked for; None where there is none. Nothing is locked."""
        places = set(items)
        # Before the read: a change that is announced from here on may not be in what we see.
        now = steady()
        tickets = {place: self._cache.ticket(place, now) for place in places}
        found = await self._read(places)
        now = steady()
        for place, seen in found.items():
            self._cache.put(place, tickets[place], seen, now)
            watch = self._watches.get(place)
            if watch is not None:
                watch.see(seen)
        return [found.get(place) for place in items]

    async def _read(self, places: set[OrderName]) -> dict[OrderName, OrderStatus]:
        try:
            async with asyncio.timeout(self._limits.transaction_seconds):
                return await self._reader.read(places)
        except (Unreachable, TimeoutError) as error:
            # Tried again for a while, like every batch.
            raise Lost(str(error) or type(error).__name__, commit_sent=False) from error


class OrderStatuses:
    """Tells how orders stand, to every tenant. Use as an async context manager; leaving it answers those who wait."""

    def __init__(self, database: Database, announcer: Announcer, *, limits: Limits = LIMITS) -> None:
        """Listens from the first question on; the database stays the caller's to close."""
        self._database = database
        self._limits = limits
        self._watches: dict[OrderName, Watch] = {}
        self._cache = Cache(most=limits.status_kept, age_seconds=limits.status_age_seconds)
        self._session = store.Reader(database)
        # One lane: what is read later is never older.
        self._reader: GroupCommit[OrderName, OrderStatus | None] = GroupCommit(
            ReadWork(self._session, self._cache, self._watches, limits), limits=replace(limits, lanes=1)
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Future[OrderStatus | None]] = set()
        self._watched = asyncio.Event()
        self._is_stopping = False
        self.waiting = 0
        # By tenant.
        self._waiting_of: Counter[int] = Counter()
        # Answers from memory; from the database; and those from the database because memory was not trusted.
        self.hits = 0
        self.misses = 0
        self.distrusted = 0
        # Changes that nobody had announced by the time the poll came by.
        self.found_by_poll = 0
        self._own = announcer.signature
        announcer.listen(self._changed)

    async def __aenter__(self) -> Self:
        """Start the reader."""
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Answer who waits, stop."""
        self.stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reader.__aexit__(*exception)
        self._session.end()

    @property
    def is_listening(self) -> bool:
        """Whether a change that is announced anywhere would be heard of here."""
        return self._cache.is_trusted(steady())

    def stop_waiting(self) -> None:
        """Answer everybody who waits with what there is, and let nobody wait any more: the process is ending."""
        self._is_stopping = True
        for watch in self._watches.values():
            watch.wake()

    async def read(
        self, tenant: Tenant, name: str, *, wait_seconds: float = 0.0, after: str | None = None
    ) -> OrderStatus | Rejected:
        """How an order stands; with `wait_seconds`, as soon as it is worth telling (`checkout.status.rules`).

        Raises Busy when too many wait already, and Unreachable.
        """
        fault = waiting_fault(wait_seconds, after, longest_seconds=self._limits.status_wait_seconds)
        if fault is not None:
            return fault
        id_ = order_id(name)
        if id_ is None:
            return order_unknown(name)
        place = tenant.number, id_
        self._begin()
        if wait_seconds > 0:
            found = await self._waited(place, wait_seconds, after)
        elif after is None:
            found = self._remembered(place) or await self._fresh(place)
        else:
            # Who names a version has seen it: memory might show him an earlier one.
            found = await self._fresh(place)
        return order_unknown(name) if found is None else found

    # --- asking

    def _remembered(self, place: OrderName) -> OrderStatus | None:
        now = steady()
        kept = self._cache.get(place, now)
        if kept is not None:
            self.hits += 1
        elif self._cache.is_trusted(now):
            self.misses += 1
        else:
            self.distrusted += 1
        return kept

    async def _fresh(self, place: OrderName) -> OrderStatus | None:
        """By a read that begins after this call."""
        return await self._reader.submit(place, source=place[0])

    # --- waiting

    async def _waited(self, place: OrderName, wait_seconds: float, after: str | None) -> OrderStatus | None:
        if self.waiting >= self._limits.status_waiters:
            raise Busy(self._limits.retry_after_seconds)
        if self._waiting_of[place[0]] >= self._limits.status_waiters_per_tenant:
            raise ShareUsed(self._limits.retry_after_seconds)
        until = asyncio.get_running_loop().time() + wait_seconds
        # Watched before it is read: what changes after the read is seen.
        watch = self._watches.get(place)
        if watch is None:
            watch = self._watches[place] = Watch()
        watch.watchers += 1
        self.waiting += 1
        self._waiting_of[place[0]] += 1
        self._watched.set()
        try:
            found = await self._fresh(place)
            if found is None or is_answer(found, after):
                return found
            try:
                async with asyncio.timeout_at(until):
                    return await self._changed_from(watch, after or found.version)
            except TimeoutError:
                # The truth at the end of the wait, not what was last heard of it.
                return await self._fresh(place)
        finally:
            self.waiting -= 1
            self._waiting_of[place[0]] -= 1
            watch.watchers -= 1
            if not watch.watchers and self._watches.get(place) is watch:
                del self._watches[place]

    async def _changed_from(self, watch: Watch, version: str) -> OrderStatus | None:
        while True:
            news, latest = watch.news, watch.latest
            if latest is not None and (latest.version != version or self._is_stopping):
                return latest
            await news.wait()

    # --- what changed

    def _changed(self, places: Iterable[OrderName]) -> None:
        """These may have changed: forget them, and have those read that somebody waits for."""
        for place in places:
            self._cache.drop(place)
            if place in self._watches:
                self._ask(place)

    def _anything_changed(self) -> None:
        self._cache.drop_all()
        for place in self._watches:
            self._ask(place)

    def _ask(self, place: OrderName) -> None:
        try:
            asking = self._reader.submit(place, source=place[0])
        except Busy:
            # The poll asks again.
            return
        self._asking.add(asking)
        asking.add_done_callback(self._asked)

    def _asked(self, asking: "asyncio.Future[OrderStatus | None]") -> None:
        self._asking.discard(asking)
        if not asking.cancelled() and asking.exception() is not None:
            log.warning("changed_order_not_read", reason=type(asking.exception()).__name__)

    # --- the listener: the speed

    def _begin(self) -> None:
        """From the first question on: most processes are never asked one."""
        if not self._tasks and not self._is_stopping:
            self._tasks = [
                asyncio.create_task(self._listen(), name="order status listener"),
                asyncio.create_task(self._poll(), name="order status poll"),
            ]

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except (TallystickError, asyncpg.PostgresError, *GONE) as error:
                log.warning("not_listening", reason=str(error) or type(error).__name__)
            except Exception:  # noqa: BLE001 - whatever it was: without a listener all is slower, and nothing is wrong
                log.error("listener_failed", trace=traceback.format_exc())
            await asyncio.sleep(self._limits.status_echo_seconds)

    async def _hear(self) -> None:
        """Listen until the connection is lost, or hears nothing any more."""
        echoes, lost = _ECHOES + uuid4().hex, asyncio.Event()
        heard: asyncio.Queue[str] = asyncio.Queue()

        def deaf() -> None:
            # At once, not when somebody comes to look.
            self._cache.distrust()
            lost.set()
            # Whoever waits for the echo of a proof: there will be none.
            heard.put_nowait("")

        connection = await store.listen(
            self._database,
            echoes=echoes,
            heard=self._heard,
            echoed=heard.put_nowait,
            lost=deaf,
            within_seconds=self._limits.status_trust_seconds,
        )
        try:
            # What changed while nobody listened.
            self._anything_changed()
            number = 0
            while not lost.is_set():
                number += 1
                began = steady()
                await self._prove(echoes, str(number), heard, lost)
                if not lost.is_set():
                    self._cache.trust(began + self._limits.status_trust_seconds)
                await _rest(lost, self._limits.status_echo_seconds)
        finally:
            self._cache.distrust()
            _end(connection)

    async def _prove(self, echoes: str, word: str, heard: "asyncio.Queue[str]", lost: asyncio.Event) -> None:
        """Somebody else's notification reaches us, or we are `lost`: said over another connection, as everybody's are.

        That a connection answers is no proof: behind a pooler it may be another one that listens.
        """
        async with asyncio.timeout(self._limits.status_trust_seconds):
            await store.notify(self._database, [word], channel=echoes)
            while await heard.get() != word and not lost.is_set():
                pass

    def _heard(self, payload: str) -> None:
        if payload.startswith(self._own):
            # What this process changed it was told at once, after the commit: a second read would show the same. Where
            # nobody knows whether it was committed, what is kept is a second old at most, and the poll does the rest.
            return
        places = store.named(payload)
        if places is None:
            self._anything_changed()
        else:
            self._changed(places)

    # --- the poll: the guarantee

    async def _poll(self) -> None:
        while True:
            if not self._watches:
                self._watched.clear()
                await self._watched.wait()
            await asyncio.sleep(self._limits.status_poll_seconds)
            try:
                async with asyncio.timeout(self._limits.transaction_seconds):
                    await self._compare()
            except (TallystickError, TimeoutError, asyncpg.PostgresError) as error:
                log.warning("orders_not_polled", reason=str(error) or type(error).__name__)
            except Exception:  # noqa: BLE001 - whatever it was: those who wait must never be without a poll
                log.error("poll_failed", trace=traceback.format_exc())

    async def _compare(self) -> None:
        watches = dict(self._watches)
        marks = await store.marks(self._database, list(watches))
        moved = [place for place, mark in marks.items() if watches[place].mark != mark]
        before = {place: watches[place].latest for place in moved}
        found = await asyncio.gather(*(self._fresh(place) for place in moved))
        for place, seen in zip(moved, found, strict=True):
            # Only now: a read that failed is made up for by the next poll. The mark is older than what was read.
            watches[place].mark = marks[place]
            known = before[place]
            if known is not None and seen is not None and seen.version != known.version:
                self.found_by_poll += 1


async def _rest(lost: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await lost.wait()
    except TimeoutError:
        pass


def _end(connection: Connection) -> None:
    """Without a farewell: it may be frozen, and has nothing to say."""
    if not connection.is_closed():
        connection.terminate()
