"""Group commit: many callers, few transactions.

Callers queue; a lane takes everything that waits (bounded) and runs one transaction for all of it; then each
caller gets his own answer. Nobody waits for company: a lone item is taken at once, and while lanes work the next
batch gathers by itself. Where lanes are `joining`, a second one begins only when enough has gathered to be worth a
commit of its own, or when the first takes long (a lock, a slow disk): two small transactions cost more than one. Where
they are `paced` as well, small batches keep time: once several came together, the next begin at beats.

    submit ──> queue ──> lane ──> work.commit(batch) ──> answers
                 ^                     │ Contended   ──> again, stepping around what is held
                 │                     │ Lost        ──> again: the keys make it safe
                 └── set aside ────────┤ any error   ──> split in halves until the culprit is alone
                                       └ SET_ASIDE   ──> back to the queue after a rest

Nothing here knows what an item is. Work must be safe to run again: it recognises what it did before.
"""

import asyncio
import traceback
from collections.abc import Callable, Collection, Hashable, Sequence
from enum import Enum
from typing import Final, Generic, Literal, Protocol, TypeVar

import structlog

from tallystick.audit.author import sign
from tallystick.commit.fair_queue import FairQueue
from tallystick.commit.port import Contended, Lost
from tallystick.errors import Busy, InFlight, OutcomeUnknown, Unreachable, require
from tallystick.settings import LIMITS, Limits

Item = TypeVar("Item", contravariant=True)  # noqa: PLC0105 - the protocol reads better
Answer = TypeVar("Answer", covariant=True)  # noqa: PLC0105 - like Item
Answer_ = TypeVar("Answer_", contravariant=True)  # noqa: PLC0105 - like Item
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

Footprint = Collection[Hashable]

# A batch of this many costs each of its items little of the commit: a lingering lane waits no longer.
_WORTH_A_COMMIT: Final = 100

log = structlog.get_logger("tallystick.commit")


class SetAside(Enum):
    """An item blocked by somebody else's transaction, to be tried again after a rest."""

    SET_ASIDE = "set aside"


SET_ASIDE: Final = SetAside.SET_ASIDE


class Work(Protocol[Item, Answer]):
    """What a lane does with a batch."""

    async def commit(self, items: Sequence[Item], *, patient: bool) -> Sequence[Answer | Literal[SetAside.SET_ASIDE]]:
        """Run one transaction for all items and answer each, in order, after COMMIT.

        Impatient: never wait for a lock; answer SET_ASIDE for what is held. Raises Contended or Lost when the
        whole batch should run again, anything else when an item is poisonous.
        """


class Answered(Protocol[Answer_]):
    """Who is told what became of an item: a future, or somebody who wants no event loop between commit and answer.

    Told once, in the lane that worked on the batch: what it raises there would be taken for the batch's own fault.
    """

    def done(self) -> bool:
        """Whether it was told already, or no longer wants to know."""

    def set_result(self, result: Answer_, /) -> None:
        """It is committed."""

    def set_exception(self, exception: Exception, /) -> None:
        """It is not, or nobody knows."""


def _no_footprint(_item: object) -> Footprint:
    return ()


class _Waiting(Generic[I, A]):
    __slots__ = ("answered", "asked_at", "blocked", "commit_sent", "footprint", "item", "settled", "source")

    def __init__(self, item: I, source: Hashable, footprint: Footprint, answered: Answered[A], asked_at: float) -> None:
        self.item = item
        self.source = source
        self.footprint = footprint
        self.answered = answered
        self.asked_at = asked_at
        self.settled = False
        # Somebody else's transaction was in the way at least once.
        self.blocked = False
        # A COMMIT that held this item was on its way when the connection broke.
        self.commit_sent = False


class GroupCommit(Generic[I, A]):
    """A bounded queue in front of a few lanes. Use as an async context manager; leaving it drains the queue."""

    def __init__(
        self,
        work: Work[I, A],
        *,
        footprint: Callable[[I], Footprint] = _no_footprint,
        limits: Limits = LIMITS,
        linger_seconds: float = 0.0,
        in_order: bool = False,
        joining: bool = False,
        paced: bool = False,
    ) -> None:
        """`footprint` tells what an item will lock: lanes then take batches that do not meet in the database.

        `linger_seconds`: how long a lane lets a small batch grow. Only where nobody waits for a single answer.
        `in_order`: items that meet are worked on in the order they came, never by two lanes at once.
        `joining`: a lane begins beside one that works only for `limits.join_items` or after `limits.join_seconds`.
        Where Python has other things to do meanwhile; else the overlap is worth more than the larger batch.
        `paced`: after a batch of `limits.pace_items`, one of less than `limits.join_items` begins `limits.pace_seconds`
        after it began. Where some milliseconds of an answer matter less than what a commit costs.
        """
        self._join_items = limits.join_items if joining else 0
        self._pace_seconds = limits.pace_seconds if paced else 0.0
        self._in_order = in_order
        self._linger_seconds = linger_seconds
        self._work = work
        self._footprint = footprint
        # What the batches now being worked on will lock.
        self._busy: set[Hashable] = set()
        self._limits = limits
        self._queue: FairQueue[_Waiting[I, A]] = FairQueue(limits.queue, limits.queue_per_source)
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # When each lane that works began its batch.
        self._begun: dict[int, float] = {}
        # The next beat: until then a small batch gathers.
        self._paced_until = 0.0
        # Looks again at a small batch that was left to gather, and when: a handle of uvloop cannot always tell.
        self._reminder: asyncio.TimerHandle | None = None
        self._reminds_at = 0.0
        # Set aside, and not yet back in the queue.
        self._resting: set[_Waiting[I, A]] = set()
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = True
        # While somebody holds locks for long, lanes step around them instead of waiting each time.
        self._patient = True
        self.batches = 0
        self.answered = 0

    async def __aenter__(self) -> "GroupCommit[I, A]":
        """Start the lanes."""
        self._closing = False
        lanes = range(self._limits.lanes)
        self._tasks = [asyncio.create_task(self._lane(number), name=f"lane-{number}") for number in lanes]
        self._tasks.append(asyncio.create_task(self._sweep(), name="sweeper"))
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Refuse what comes now, answer what waits, stop."""
        self._closing = True
        # What was left to gather until the next beat is taken now.
        self._arrived.set()
        try:
            await asyncio.wait_for(self._idle.wait(), self._limits.drain_seconds)
        except TimeoutError:
            log.warning("drain_timeout", waiting=len(self._queue))
        finally:
            # Also when leaving is itself cancelled: no lane may go on behind our back.
            for task in self._tasks:
                task.cancel()
            if self._reminder is not None:
                self._reminder.cancel()
                self._reminder = None
            for waiting in (*self._queue.take(len(self._queue)), *self._resting):
                self._fail(waiting, Busy(self._limits.retry_after_seconds))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """How many items no lane has taken yet."""
        return len(self._queue)

    def submit(self, item: I, *, source: Hashable) -> "asyncio.Future[A]":
        """Queue an item; the future gets its answer. Raises Busy at once when there is no room.

        `source` is whom the item belongs to (a tenant): sources take turns.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self.submit_for(future, item, source=source)
        return future

    def submit_for(self, answered: Answered[A], item: I, *, source: Hashable) -> None:
        """`submit` for somebody who is told directly. Raises Busy at once, and tells nothing, when there is no room."""
        # Whatever can fail about a footprint fails here, before the item is anywhere.
        footprint = () if self._footprint is _no_footprint else self._footprint(item)
        meets_nothing = not footprint or self._busy.isdisjoint(footprint)
        waiting = _Waiting(item, source, footprint, answered, asyncio.get_running_loop().time())
        if self._closing or not self._queue.put(source, waiting):
            raise Busy(self._limits.retry_after_seconds)
        if not self._unanswered:
            self._idle.clear()
        self._unanswered += 1
        if meets_nothing and not self._arrived.is_set() and not self._is_left_to_gather():
            self._arrived.set()

    async def _lane(self, number: int) -> None:
        # A lane is nobody's, whoever opened it: items bring their authors.
        sign(None)
        while True:
            while not (batch := await self._gathered()):
                self._arrived.clear()
                await self._arrived.wait()
            locks = self._locks(batch)
            self._busy |= locks
            self._begun[number] = began = asyncio.get_running_loop().time()
            if self._pace_seconds and len(batch) >= self._limits.pace_items:
                self._paced_until = began + self._pace_seconds
            try:
                await self._settle(batch)
            except asyncio.CancelledError:
                # Cancelled around COMMIT, like a lost connection: nobody can say what became of them.
                for waiting in batch:
                    self._fail(waiting, OutcomeUnknown())
                raise
            except Exception:  # noqa: BLE001 - a lane must go on, whatever it was
                # As text: a log that shows local values would show what callers sent.
                log.error("lane_failed", trace=traceback.format_exc())
                for waiting in batch:
                    self._fail(waiting, OutcomeUnknown())
            finally:
                self._busy -= locks
                del self._begun[number]
                self._arrived.set()

    def _locks(self, batch: list[_Waiting[I, A]]) -> set[Hashable]:
        if self._footprint is _no_footprint:
            return set()
        return {lock for waiting in batch for lock in waiting.footprint}

    def _is_left_to_gather(self) -> bool:
        """Whether what waits is taken later: after the lanes that work, and not beside them, or at the next beat."""
        if len(self._queue) >= self._join_items:
            return False
        if self._begun:
            until = min(self._begun.values()) + self._limits.join_seconds
        else:
            until = 0.0 if self._closing else self._paced_until
        if self._reminder is not None and self._reminds_at <= until:
            return True
        loop = asyncio.get_running_loop()
        if until <= loop.time():
            return False
        if self._reminder is not None:
            self._reminder.cancel()
        self._reminder, self._reminds_at = loop.call_at(until, self._look_again), until
        return True

    def _look_again(self) -> None:
        self._reminder = None
        # Timers come up to a millisecond early.
        self._paced_until = 0.0
        self._arrived.set()

    async def _gathered(self) -> list[_Waiting[I, A]]:
        if not self._queue or self._is_left_to_gather():
            return []
        if self._linger_seconds and len(self._queue) < _WORTH_A_COMMIT and not self._closing:
            await asyncio.sleep(self._linger_seconds)
        return self._take()

    async def _sweep(self) -> None:
        """Tell those who wait too long, also when no lane is free to look at them."""
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            for waiting in self._queue.drop(self._is_overdue):
                self._tell_overdue(waiting)

    def _is_overdue(self, waiting: _Waiting[I, A]) -> bool:
        return asyncio.get_running_loop().time() - waiting.asked_at > self._limits.wait_seconds

    def _tell_overdue(self, waiting: _Waiting[I, A]) -> None:
        limits = self._limits
        self._fail(waiting, InFlight(limits.wait_seconds) if waiting.blocked else Busy(limits.retry_after_seconds))

    def _take(self) -> list[_Waiting[I, A]]:
        if not self._queue:
            return []
        most, busy = self._limits.batch, self._busy
        batch = self._queue.take(most, admits=lambda waiting: busy.isdisjoint(waiting.footprint)) if busy else []
        if batch or (busy and (self._in_order or len(self._queue) < most)):
            return batch
        # Everything that waits meets a running batch (a hot account): queue up behind it in the database, so
        # that the next batch begins the moment that one commits.
        return self._queue.take(most)

    async def _settle(self, batch: list[_Waiting[I, A]]) -> None:
        """Answer every item of the batch, one way or another."""
        outage = _Outage(self._limits, asyncio.get_running_loop().time())
        rounds = 0
        while batch := self._still_wanted(batch):
            patient = self._patient
            try:
                answers = await self._work.commit([waiting.item for waiting in batch], patient=patient)
            except Contended as contended:
                rounds += 1
                if self._step_around(batch, contended, patient=patient) and rounds < self._limits.contended_rounds:
                    continue
                await self._divide(batch)
                return
            except Lost as lost:
                pause = outage.pause(asyncio.get_running_loop().time())
                if self._tell_lost(batch, lost, is_over=pause is None):
                    return
                await asyncio.sleep(pause or 0)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to some item of this batch
                if len(batch) == 1:
                    self._fail(batch[0], error)
                else:
                    await self._divide(batch)
                return
            else:
                self._deliver(batch, answers, patient=patient)
                return

    def _step_around(self, batch: list[_Waiting[I, A]], contended: Contended, *, patient: bool) -> bool:
        """Run the whole batch again, without waiting for locks? False: that did not help, the hold is not visible."""
        for waiting in batch:
            waiting.blocked = True
        self._patient = self._patient and not contended.held
        return patient or not contended.held

    def _tell_lost(self, batch: list[_Waiting[I, A]], lost: Lost, *, is_over: bool) -> bool:
        for waiting in batch:
            waiting.commit_sent = waiting.commit_sent or lost.commit_sent
            if is_over:
                # One for each: who raises it adds his own traceback. Its cause says what ails the server.
                gone = Unreachable(str(lost))
                gone.__cause__ = lost
                self._fail(waiting, gone)
        return is_over

    async def _divide(self, batch: list[_Waiting[I, A]]) -> None:
        """Run the halves alone, so that one bad item harms no other; a lone one rests."""
        if len(batch) == 1:
            self._set_aside(batch)
            return
        middle = len(batch) // 2
        await self._settle(batch[:middle])
        await self._settle(batch[middle:])

    def _still_wanted(self, batch: list[_Waiting[I, A]]) -> list[_Waiting[I, A]]:
        """Without those whose caller has gone, or has waited as long as we let anybody wait."""
        wanted = []
        oldest = asyncio.get_running_loop().time() - self._limits.wait_seconds
        for waiting in batch:
            if waiting.answered.done():
                self._settled(waiting)
            elif waiting.asked_at < oldest:
                self._tell_overdue(waiting)
            else:
                wanted.append(waiting)
        return wanted

    def _deliver(self, batch: list[_Waiting[I, A]], answers: Sequence[A | SetAside], *, patient: bool) -> None:
        require(len(answers) == len(batch), "work answered another number of items than it was given")
        self.batches += 1
        blocked = []
        for waiting, answer in zip(batch, answers, strict=True):
            if answer is SET_ASIDE:
                blocked.append(waiting)
                continue
            if not waiting.answered.done():
                waiting.answered.set_result(answer)
            self._settled(waiting)
        self.answered += len(batch) - len(blocked)
        if blocked:
            self._set_aside(blocked)
        elif not patient:
            self._patient = True

    def _set_aside(self, blocked: list[_Waiting[I, A]]) -> None:
        for waiting in blocked:
            waiting.blocked = True
        self._resting.update(blocked)
        asyncio.get_running_loop().call_later(self._limits.deferral_seconds, self._put_back, blocked)

    def _put_back(self, blocked: list[_Waiting[I, A]]) -> None:
        self._resting.difference_update(blocked)
        # To the end of the line: thousands that wait for one account must not stand before everybody else.
        for waiting in self._still_wanted(blocked):
            self._queue.put_back(waiting.source, waiting)
        self._arrived.set()

    def _fail(self, waiting: _Waiting[I, A], error: Exception) -> None:
        if not waiting.answered.done():
            # Whatever stopped us later, the COMMIT that was lost may have succeeded.
            waiting.answered.set_exception(OutcomeUnknown() if waiting.commit_sent else error)
        self._settled(waiting)

    def _settled(self, waiting: _Waiting[I, A]) -> None:
        if not waiting.settled:
            waiting.settled = True
            self._unanswered -= 1
            if self._unanswered == 0:
                self._idle.set()


class _Outage:
    """How long, and how often, a batch is tried again while the database is away."""

    def __init__(self, limits: Limits, began: float) -> None:
        self._ends = began + limits.outage_seconds
        self._pause = limits.outage_first_pause_seconds
        self._longest = limits.outage_longest_pause_seconds

    def pause(self, now: float) -> float | None:
        """Seconds to rest before the next try; None: it is time to tell the callers."""
        if now >= self._ends:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        return pause
