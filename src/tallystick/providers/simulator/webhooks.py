"""Webhooks: each event to the dialect's endpoint, signed, again and again by the provider's own schedule.

A delivery is a row of the books, so it survives a restart; only a 2xx ends it well (docs/providers.md 2.10). Gaps
run on the simulated clock; the deadline of one attempt is real time, and so is the time it is signed with, because
receivers compare that with their own clock. Attempts never block the API, nor one dialect's those of another.

    pending ──> delivered     2xx
       │    ──> failed        the schedule is used up, or it was a forgery, which nobody repeats
       └──────> pending       anything else: due again after the next gap
    lost                      a fault: never sent
"""

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick import queries
from tallystick.providers.simulator import tricks
from tallystick.providers.simulator.books import Books
from tallystick.providers.simulator.clock import Clock
from tallystick.providers.simulator.dialect import Dialect
from tallystick.providers.simulator.faults import Faults, Strike
from tallystick.providers.simulator.posting import Answered, NotDelivered, Posting
from tallystick.providers.simulator.records import Event, from_microseconds, to_microseconds
from tallystick.providers.simulator.wise.webhook import CLIENT_ERROR_TRIES

_SQL: Final = queries.load(__package__, "webhooks.sql")
# Attempts under way at once, of each dialect: a receiver that stores many in one commit answers them together.
MOST_AT_ONCE: Final = 64
# Real seconds without a new attempt of a dialect after one that failed: while a receiver is down, knocking costs more
# than the calls that have something to tell. Whoever asked for everything due (`drain`) does not wait.
AFTER_FAILURE: Final = 0.05
# Real seconds after an attempt that the books did not take. It stays due, and would be made again at once.
AFTER_UNRECORDED: Final = 1.0
# Seconds the receiver has: docs/providers.md 3 and 4 (10 s), 5 (5 s); Stripe's is not published (2.10).
ANSWER_SECONDS: Final = {"stripe": 10.0, "adyen": 10.0, "square": 10.0, "wise": 5.0}
# docs/providers.md 5, Delivery.
HONOUR_RETRY_AFTER: Final = frozenset({"wise"})
_GOOD: Final = range(200, 300)
_CLIENT_ERRORS: Final = range(400, 500)
# One queue per endpoint: a failed head holds back the rest (docs/providers.md 3, Retry).
IN_ORDER: Final = frozenset({"adyen"})
_LOG: Final = logging.getLogger(__name__)


class Delivery(msgspec.Struct, frozen=True):
    """One attempt that is due."""

    number: int
    dialect: str
    event_id: str
    trick: str
    attempts: int


class Webhooks:
    """What is sent, and what became of it."""

    def __init__(self, books: Books, clock: Clock, faults: Faults, dialects: Mapping[str, Dialect]) -> None:
        self._books = books
        self._clock = clock
        self._faults = faults
        self._dialects = dialects
        self._posting = Posting()
        self._under_way: dict[str, dict[int, asyncio.Task[None]]] = {name: {} for name in dialects}
        # Until when, in the loop's time, a dialect rests.
        self._failed_until: dict[str, float] = {}
        # Whether one may be held back: those of an earlier run are in the books.
        self._may_hold = True
        self._unrecorded_until: dict[str, float] = {}

    def announce(self, event: Event) -> None:
        """Queue the deliveries of a new event."""
        strike = self._struck(event)
        now = self._clock.now()
        if strike is not None and strike.fault.name == "webhook_two_events":
            self._insert(self._twin(event), tricks.Planned(), now)
        for planned in tricks.planned(strike):
            self._insert(event, planned, now)
        self._books.wake()

    def _struck(self, event: Event) -> Strike | None:
        if not self._faults.has_webhooks:
            return None
        # Not the event's id, which depends on the order of arrival.
        identity = self._books.reference(event.dialect, event.object_id) or ""
        return self._faults.strike_webhook(event.dialect, event.type, identity)

    def _twin(self, event: Event) -> Event:
        """The same change under another event id (docs/providers.md 2.10)."""
        twin_id = self._books.next_id("evt_")
        body = {name: twin_id if value == event.id else value for name, value in event.body.items()}
        twin = msgspec.structs.replace(event, id=twin_id, body=body)
        self._books.store_event(twin)
        return twin

    def _insert(self, event: Event, planned: tricks.Planned, now: datetime) -> None:
        self._may_hold = self._may_hold or planned.trick == tricks.HELD
        due_at = to_microseconds(now + timedelta(seconds=planned.after_seconds))
        self._books.execute(_SQL["insert"], (event.dialect, event.id, planned.trick, due_at, planned.state))

    def resend(self, dialect: str, event_id: str) -> None:
        """Send a stored event once more, by hand. Raises KeyError when there is none."""
        event = self._books.event(dialect, event_id)
        if event is None:
            raise KeyError(event_id)
        self._insert(event, tricks.Planned(), self._clock.now())
        self._books.wake()

    def start_due(self, *, patiently: bool = True) -> float | None:
        """Begin every attempt that is due, as far as there is room. The books must be committed.

        Patiently: not where one has just failed. Returns how many real seconds the next resting dialect still rests.
        """
        now = to_microseconds(self._clock.now())
        waits = []
        for dialect in self._dialects:
            rest = self._rest(dialect, patiently=patiently)
            if rest > 0:
                waits.append(rest)
                continue
            for delivery in self._ready(dialect, now):
                task = asyncio.create_task(self._attempt(delivery), name=f"webhook {delivery.number} {dialect}")
                self._under_way[dialect][delivery.number] = task
        return min(waits, default=None)

    def _rest(self, dialect: str, *, patiently: bool) -> float:
        until = self._unrecorded_until.get(dialect, 0.0)
        if patiently:
            until = max(until, self._failed_until.get(dialect, 0.0))
        return until - asyncio.get_running_loop().time()

    def _ready(self, dialect: str, now: int) -> list[Delivery]:
        under_way = self._under_way[dialect]
        if dialect in IN_ORDER:
            if under_way or self._books.execute(_SQL["blocked"], (dialect, now)).fetchone() is not None:
                return []
            rows = self._books.execute(_SQL["head"], (dialect, now)).fetchall()
        elif len(under_way) >= MOST_AT_ONCE:
            return []
        else:
            # Those under way are still due, and may be the first.
            rows = self._books.execute(_SQL["due"], (dialect, now, MOST_AT_ONCE + len(under_way))).fetchall()
        found = [Delivery(*row) for row in rows if row[0] not in under_way]
        return found[: MOST_AT_ONCE - len(under_way)]

    async def _attempt(self, delivery: Delivery) -> None:
        made_at, dialect = self._clock.now(), delivery.dialect
        loop = asyncio.get_running_loop()
        try:
            answered, note = await self._send(delivery)
            if answered is None or answered.status not in _GOOD:
                self._failed_until[dialect] = loop.time() + AFTER_FAILURE
            self._record(delivery, answered, note, made_at)
            await self._books.committed()
        except sqlite3.Error:
            _LOG.exception("attempt %d of %s was made and could not be recorded", delivery.number, dialect)
            self._unrecorded_until[dialect] = loop.time() + AFTER_UNRECORDED
        finally:
            del self._under_way[dialect][delivery.number]
            self._books.wake()

    async def _send(self, delivery: Delivery) -> tuple[Answered | None, str]:
        event = self._books.event(delivery.dialect, delivery.event_id)
        endpoint = self._books.endpoint(delivery.dialect)
        if event is None or endpoint is None:
            return None, "no endpoint"
        dialect, now = self._dialects[delivery.dialect], self._clock.real_now()
        try:
            notification = tricks.notification(dialect, event.body, endpoint, now=now, trick=delivery.trick)
            seconds = ANSWER_SECONDS[delivery.dialect]
            answered = await self._posting.post(endpoint.url, notification.headers, notification.body, seconds=seconds)
        except NotDelivered as trouble:
            return None, str(trouble)
        except Exception as error:  # noqa: BLE001  whatever it is: as bad as a receiver that refuses, and as often tried
            _LOG.exception("delivery %d of %s could not be sent", delivery.number, delivery.dialect)
            return None, f"not sent: {type(error).__name__}: {error}"
        return answered, f"HTTP {answered.status}"

    def _record(self, delivery: Delivery, answered: Answered | None, note: str, made_at: datetime) -> None:
        attempts = delivery.attempts + 1
        gaps = self._dialects[delivery.dialect].retry_gaps_seconds
        due_at = made_at
        state = "delivered"
        if answered is None or answered.status not in _GOOD:
            tries = self._tries(delivery.dialect, answered, 1 + len(gaps))
            is_last = attempts >= tries or tricks.is_sent_once(delivery.trick)
            state = "failed" if is_last else "pending"
            gap = 0.0 if is_last else gaps[attempts - 1]
            if answered is not None and delivery.dialect in HONOUR_RETRY_AFTER:
                gap = max(gap, answered.retry_after_seconds or 0.0)
            due_at += timedelta(seconds=gap)
        # Only a first attempt is made wrong; what is left on a row that is done tells what it was.
        trick = "" if state == "pending" else delivery.trick
        values = (state, attempts, to_microseconds(due_at), note, trick, delivery.number)
        if not self._may_hold:
            self._books.execute_alone(_SQL["record"], values)
            return
        with self._books.alone():
            self._books.execute(_SQL["record"], values)
            now = to_microseconds(self._clock.now())
            self._books.execute(_SQL["release_held"], (now, delivery.dialect, delivery.number))
            may_hold = self._books.execute(_SQL["held"]).fetchone() is not None
        self._may_hold = may_hold

    def _tries(self, dialect: str, answered: Answered | None, most: int) -> int:
        """Wise tries some client errors only three times; which ones is not told (docs/providers.md 5, Delivery)."""
        if dialect == "wise" and answered is not None and answered.status in _CLIENT_ERRORS:
            return min(most, int(self._books.switch(CLIENT_ERROR_TRIES)))
        return most

    def next_due_at(self) -> datetime | None:
        """When the next attempt that is not due yet will be."""
        row = self._books.execute(_SQL["next"], (to_microseconds(self._clock.now()),)).fetchone()
        return None if row[0] is None else from_microseconds(row[0])

    async def drain(self) -> None:
        """Return when nothing due is left. Each attempt has a deadline, so this has."""
        while True:
            await self._books.committed()
            self.start_due(patiently=False)
            tasks = self._tasks()
            if not tasks:
                return
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """Break off; what was not answered stays pending."""
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._posting.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for of_dialect in self._under_way.values() for task in of_dialect.values()]

    def report(self, *, dialect: str = "", state: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Deliveries, newest first."""
        names = ("number", "dialect", "event_id", "trick", "due_at", "attempts", "state", "note")
        rows = self._books.execute(_SQL["list"], (dialect, dialect, state, state, limit))
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, "due_at": from_microseconds(row["due_at"])} for row in found]
