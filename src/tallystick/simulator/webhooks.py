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
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from tallystick import queries
from tallystick.simulator import tricks
from tallystick.simulator.books import Books
from tallystick.simulator.clock import Clock
from tallystick.simulator.dialect import Dialect
from tallystick.simulator.faults import Faults, Strike
from tallystick.simulator.posting import Answered, Posting
from tallystick.simulator.records import Event, from_microseconds, to_microseconds
from tallystick.simulator.wise.webhook import CLIENT_ERROR_TRIES

_SQL: Final = queries.load(__package__, "webhooks.sql")
_INSERT: Final = _SQL["insert"]
# Attempts under way at once, of each dialect: a receiver that stores many in one commit answers them together.
MOST_AT_ONCE: Final = 64
# Real seconds without a new attempt of a dialect after one that failed: while a receiver is down, knocking costs more
# than the calls that have something to tell. Whoever asked for everything due (`drain`) does not wait.
AFTER_FAILURE: Final = 0.05
# Real seconds after an attempt that the books did not take: it stays due, and would be made again at once. And after
# they did not tell what is due: they would be asked again at once.
AFTER_UNRECORDED: Final = 1.0
# Seconds the receiver has: docs/providers.md 3 and 4 (10 s), 5 (5 s); Stripe's is not published (2.10).
ANSWER_SECONDS: Final = {"stripe": 10.0, "adyen": 10.0, "square": 10.0, "wise": 5.0}
# docs/providers.md 5, Delivery.
HONOUR_RETRY_AFTER: Final = frozenset({"wise"})
_GOOD: Final = range(200, 300)
_CLIENT_ERRORS: Final = range(400, 500)
# One queue per endpoint: a failed head holds back the rest (docs/providers.md 3, Retry).
IN_ORDER: Final = frozenset({"adyen"})
# Deliveries of a dialect that are begun without reading them back; while its receiver is down, the books keep them.
_MOST_FRESH: Final = 16 * MOST_AT_ONCE
_NOTHING: Final = (-1, -1)
# In place of a time: it must be asked for; there is none.
_UNKNOWN: Final = -1
_NEVER: Final = 2**63 - 1
_LOG: Final = logging.getLogger(__name__)


class Delivery(msgspec.Struct, frozen=True):
    """One attempt that is due."""

    number: int
    dialect: str
    event_id: str
    trick: str
    attempts: int
    due_at: int


class _Queue:
    """What is known of a dialect's deliveries without asking the books."""

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Future[Answered] | None] = {}
        # All that are due and not after this one, as (due_at, number), were begun.
        self.begun = _NOTHING
        # Whether the books have no other that is due, apart from the fresh.
        self.is_read = False
        # Those that were added after all others, oldest first.
        self.fresh: deque[Delivery] = deque()

    def add(self, delivery: Delivery) -> None:
        """One that is due, after all others: as soon as it is committed it can be begun."""
        if self.is_read and len(self.fresh) < _MOST_FRESH:
            self.fresh.append(delivery)
        else:
            self.read_again(from_the_start=False)

    def read_again(self, *, from_the_start: bool) -> None:
        """One was added after those that were begun, or, from the start, maybe before them."""
        self.is_read = False
        self.fresh.clear()
        if from_the_start:
            self.begun = _NOTHING


class Webhooks:
    """What is sent, and what became of it."""

    def __init__(self, books: Books, clock: Clock, faults: Faults, dialects: Mapping[str, Dialect]) -> None:
        self._books = books
        self._clock = clock
        self._faults = faults
        self._dialects = dialects
        self._posting = Posting()
        self._queues = {name: _Queue() for name in dialects}
        # When the next of those will be due that are not yet, in microseconds.
        self._later_at = _UNKNOWN
        # How often something was undone in the books, when their fresh deliveries were last taken for stored.
        self._undone = books.undone
        # Attempts whose end is written before this turn's commit, with what is written; and those it makes safe.
        self._ended: list[tuple[Delivery, tuple[Any, ...]]] = []
        self._recorded: list[Delivery] = []
        # How many wait until nothing due is left.
        self._hurrying = 0
        # Until when, in the loop's time, a dialect rests.
        self._failed_until: dict[str, float] = {}
        # Whether one may be held back: those of an earlier run are in the books.
        self._may_hold = True
        self._unrecorded_until: dict[str, float] = {}
        # Why the books did not tell what is due, when they were last asked; and until when they are not asked again.
        self._untold: sqlite3.Error | None = None
        self._untold_until = 0.0
        self._is_stopped = False

    def announce(self, event: Event) -> None:
        """Queue the deliveries of a new event."""
        strike = self._struck(event)
        now = self._clock.now()
        if strike is not None and strike.fault.name == "webhook_two_events":
            self._insert(self._twin(event), tricks.Planned(), now)
        for planned in tricks.planned(strike):
            self._insert(event, planned, now)

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
        due_at = to_microseconds(now)
        if planned.after_seconds:
            due_at = to_microseconds(now + timedelta(seconds=planned.after_seconds))
            self._later_at = _UNKNOWN
            self._books.wake()
        number = self._books.next_number()
        values = (number, event.dialect, event.id, planned.trick, due_at, planned.state)
        self._books.put(_INSERT, number, values)
        queue = self._queues[event.dialect]
        if event.dialect in IN_ORDER or planned.after_seconds:
            queue.read_again(from_the_start=False)
        elif planned.state == "pending":
            queue.add(Delivery(number, event.dialect, event.id, planned.trick, 0, due_at))
        self._books.end_turn()

    def resend(self, dialect: str, event_id: str) -> None:
        """Send a stored event once more, by hand. Raises KeyError when there is none."""
        event = self._books.event(dialect, event_id)
        if event is None:
            raise KeyError(event_id)
        self._insert(event, tricks.Planned(), self._clock.now())

    def watch(self, error: sqlite3.Error | None) -> None:
        """A turn of the books has ended: what was recorded in it is safe, or undone, and what is due is begun."""
        recorded, self._recorded = self._recorded, []
        for delivery in recorded:
            del self._queues[delivery.dialect].under_way[delivery.number]
            if error is not None:
                self._not_recorded(delivery, error)
        loop = asyncio.get_running_loop()
        if loop.time() < self._untold_until:
            return
        try:
            self._start_due()
        except sqlite3.Error as trouble:
            _LOG.exception("the books do not tell what is due; they are asked again")
            self._untold, self._untold_until = trouble, loop.time() + AFTER_UNRECORDED
            for queue in self._queues.values():
                # Some were found, and not begun.
                queue.read_again(from_the_start=True)
            self._books.wake()
        else:
            self._untold = None

    def _start_due(self) -> None:
        """Begin every attempt that is due, as far as there is room."""
        now = to_microseconds(self._clock.now())
        if now >= self._later_at:
            self._read_later(now)
        if self._undone != self._books.undone:
            # Some of the fresh may be among what was undone.
            self._undone = self._books.undone
            for queue in self._queues.values():
                queue.read_again(from_the_start=False)
        for dialect, queue in self._queues.items():
            if (queue.fresh or not queue.is_read) and self._rest(dialect) <= 0:
                made_at, signed_at = self._clock.now(), self._clock.real_now()
                for delivery in self._ready(dialect, queue, now):
                    self._begin(delivery, queue, made_at=made_at, signed_at=signed_at)

    def rest(self) -> float | None:
        """How many real seconds the next resting dialect still rests; None: none does."""
        rests = [self._rest(dialect) for dialect in self._queues]
        return min((rest for rest in rests if rest > 0), default=None)

    def _rest(self, dialect: str) -> float:
        until = max(self._unrecorded_until.get(dialect, 0.0), self._untold_until)
        if not self._hurrying:
            until = max(until, self._failed_until.get(dialect, 0.0))
        return until - asyncio.get_running_loop().time() if until else 0.0

    def _read_later(self, now: int) -> None:
        """What was not due yet when it was last asked for may be due now."""
        # One that failed in this turn is due again later, and the books do not know it yet.
        self.record_ended()
        found = [self._books.read(_SQL["next"], (dialect, now)).fetchone()[0] for dialect in self._queues]
        self._later_at = min((later_at for later_at in found if later_at is not None), default=_NEVER)
        for queue in self._queues.values():
            queue.read_again(from_the_start=False)

    def _ready(self, dialect: str, queue: _Queue, now: int) -> list[Delivery]:
        if dialect in IN_ORDER:
            if queue.under_way:
                return []
            is_blocked = self._books.read(_SQL["blocked"], (dialect, now)).fetchone() is not None
            rows = [] if is_blocked else self._books.read(_SQL["head"], (dialect, now)).fetchall()
            queue.is_read = not rows
            return [Delivery(*row) for row in rows]
        room = MOST_AT_ONCE - len(queue.under_way)
        if room <= 0:
            return []
        ready: list[Delivery] = []
        while queue.fresh and len(ready) < room:
            ready.append(queue.fresh.popleft())
            queue.begun = ready[-1].due_at, ready[-1].number
        while not queue.is_read and len(ready) < room:
            # From the start, those under way are found once more: they are still due.
            limit = MOST_AT_ONCE if queue.begun == _NOTHING else room - len(ready)
            rows = self._books.read(_SQL["due"], (dialect, now, *queue.begun, limit)).fetchall()
            for delivery in (Delivery(*row) for row in rows):
                if delivery.number not in queue.under_way:
                    if len(ready) == room:
                        return ready
                    ready.append(delivery)
                queue.begun = delivery.due_at, delivery.number
            queue.is_read = len(rows) < limit
        return ready

    def _begin(self, delivery: Delivery, queue: _Queue, *, made_at: datetime, signed_at: datetime) -> None:
        event = self._books.event_body(delivery.dialect, delivery.event_id)
        endpoint = self._books.endpoint(delivery.dialect)
        # Only now: had the books not told one of these, it would be under way for ever.
        queue.under_way[delivery.number] = None
        if event is None or endpoint is None:
            self._end(delivery, made_at, None, "no endpoint")
            return
        dialect = self._dialects[delivery.dialect]
        try:
            notification = tricks.notification(dialect, event, endpoint, now=signed_at, trick=delivery.trick)
            seconds = ANSWER_SECONDS[delivery.dialect]
            answer = self._posting.post(endpoint.url, notification.headers, notification.body, seconds=seconds)
        except Exception as error:  # noqa: BLE001  whatever it is: as bad as a receiver that refuses, and as often tried
            _LOG.exception("delivery %d of %s could not be sent", delivery.number, delivery.dialect)
            self._end(delivery, made_at, None, f"not sent: {type(error).__name__}: {error}")
            return
        queue.under_way[delivery.number] = answer
        answer.add_done_callback(partial(self._told, delivery, made_at))

    def _told(self, delivery: Delivery, made_at: datetime, answer: "asyncio.Future[Answered]") -> None:
        if answer.cancelled():
            return
        trouble = answer.exception()
        if self._is_stopped:
            # The books are closed: it is told again after the next start.
            return
        if trouble is None:
            answered = answer.result()
            self._end(delivery, made_at, answered, f"HTTP {answered.status}")
        else:
            self._end(delivery, made_at, None, str(trouble))

    def _end(self, delivery: Delivery, made_at: datetime, answered: Answered | None, note: str) -> None:
        if answered is None or answered.status not in _GOOD:
            self._failed_until[delivery.dialect] = asyncio.get_running_loop().time() + AFTER_FAILURE
            # Somebody must see to it when the rest is over, whatever comes meanwhile.
            self._books.wake()
        values = self._outcome(delivery, answered, note, made_at)
        if self._may_hold:
            try:
                self._record_and_release(delivery, values)
            except sqlite3.Error as error:
                self._not_written(delivery, error)
            else:
                self._recorded.append(delivery)
        else:
            self._ended.append((delivery, values))
        self._books.end_turn()

    def record_ended(self) -> None:
        """Write how attempts ended, before the commit. That it fails is no concern of the calls of that turn."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        try:
            self._books.execute_alone(_SQL["record"], *(values for _, values in ended))
        except sqlite3.Error as error:
            for delivery, _ in ended:
                self._not_written(delivery, error)
        else:
            self._recorded += [delivery for delivery, _ in ended]

    def _not_written(self, delivery: Delivery, error: sqlite3.Error) -> None:
        del self._queues[delivery.dialect].under_way[delivery.number]
        self._not_recorded(delivery, error)

    def _not_recorded(self, delivery: Delivery, error: sqlite3.Error) -> None:
        dialect = delivery.dialect
        _LOG.error("attempt %d of %s was made and could not be recorded: %s", delivery.number, dialect, error)
        self._unrecorded_until[dialect] = asyncio.get_running_loop().time() + AFTER_UNRECORDED
        self._may_hold = True
        self._later_at = _UNKNOWN
        self._queues[dialect].read_again(from_the_start=True)
        self._books.wake()

    def _outcome(self, delivery: Delivery, answered: Answered | None, note: str, made_at: datetime) -> tuple[Any, ...]:
        """What is recorded of an attempt."""
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
        queue = self._queues[delivery.dialect]
        if state == "pending":
            self._later_at = _UNKNOWN
            queue.read_again(from_the_start=True)
        elif delivery.dialect in IN_ORDER:
            queue.read_again(from_the_start=False)
        return state, attempts, to_microseconds(due_at), note, trick, delivery.number

    def _record_and_release(self, delivery: Delivery, values: tuple[Any, ...]) -> None:
        """What was held back until this one was sent goes out."""
        with self._books.alone():
            self._books.execute(_SQL["record"], values)
            now = to_microseconds(self._clock.now())
            if self._books.execute(_SQL["release_held"], (now, delivery.dialect, delivery.number)).rowcount:
                self._queues[delivery.dialect].read_again(from_the_start=True)
            may_hold = self._books.execute(_SQL["held"]).fetchone() is not None
        self._may_hold = may_hold

    def _tries(self, dialect: str, answered: Answered | None, most: int) -> int:
        """Wise tries some client errors only three times; which ones is not told (docs/providers.md 5, Delivery)."""
        if dialect == "wise" and answered is not None and answered.status in _CLIENT_ERRORS:
            return min(most, int(self._books.switch(CLIENT_ERROR_TRIES)))
        return most

    def next_due_at(self) -> datetime | None:
        """When the next attempt that is not due yet will be."""
        if self._later_at == _UNKNOWN:
            self._read_later(to_microseconds(self._clock.now()))
        return None if self._later_at == _NEVER else from_microseconds(self._later_at)

    async def drain(self) -> None:
        """Return when nothing due is left. Each attempt has a deadline, so this has.

        Raises sqlite3.Error when the books do not take what is done, or do not tell what is due.
        """
        self._hurrying += 1
        try:
            while True:
                await self._books.committed()
                if self._untold is not None:
                    raise self._untold
                under_way = [answer for queue in self._queues.values() for answer in queue.under_way.values()]
                if not under_way:
                    return
                answers = [answer for answer in under_way if answer is not None]
                if answers:
                    await asyncio.wait(answers)
        finally:
            self._hurrying -= 1

    def stop(self) -> None:
        """Break off; what was not answered stays pending."""
        self._is_stopped = True
        self._posting.close()

    def report(self, *, dialect: str = "", state: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Deliveries, newest first."""
        names = ("number", "dialect", "event_id", "trick", "due_at", "attempts", "state", "note")
        rows = self._books.execute(_SQL["list"], (dialect, dialect, state, state, limit))
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, "due_at": from_microseconds(row["due_at"])} for row in found]
