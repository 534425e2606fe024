"""Settling: one tick pays what is pending and recovers what is stuck.

    pass 1   claim ──> intent and attempt ──> in transit         one transaction for a chunk
             send every one of it                                 no transaction is open
             record answers, states and postings                  one transaction for a group of answers
    pass 2   claim again what is overdue; ask the provider's books; decide; perhaps send again, same key

Killed anywhere, it loses nothing: what was claimed is claimed again when it is overdue. Two ticks never share a row,
and one that was paused past its claim can no longer write. The deciders are in `movement.steps`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Self, TypeVar
from uuid import uuid4

import msgspec
import structlog

from tallystick.commit.group import GroupCommit
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import Connection, Database
from tallystick.errors import RestoredDatabase, Unreachable
from tallystick.movement import asking
from tallystick.movement import store as intents
from tallystick.movement.evidence import Evidence, now_after
from tallystick.movement.flow import Outgoing, Sender, terms_of
from tallystick.movement.life import store as life
from tallystick.movement.rules import (
    Absence,
    AlreadyDone,
    AskFirst,
    Attempt,
    OtherAccount,
    OtherInstruction,
    OtherKey,
    PastHorizon,
    StillSending,
    Withheld,
)
from tallystick.movement.steps import (
    MOVED_UNDER_ANOTHER_KEY,
    NEVER_WRITTEN,
    NOTHING_SENT,
    UNPROVEN,
    Disputed,
    Failed,
    History,
    LookUp,
    Patience,
    Send,
    Verdict,
    Wait,
    after_answer,
    after_first_look,
    after_look,
    next_step,
)
from tallystick.movement.store import Answered, Asking
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Found,
    Looked,
    Lookup,
    Undecided,
)
from tallystick.recovery.reading import Reader
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.review import store as review
from tallystick.settlement.rules import status_after
from tallystick.settlement.tick import store as settling
from tallystick.settlement.tick.store import ClaimedSettlement, RecordWork, SettlementResult

log = structlog.get_logger("tallystick.settlement")

T = TypeVar("T")

# A transaction that others beat to a lock is simply run again.
_CONTENDED_ROUNDS: Final = 20
# Recording, after the last answer.
_RECORD_SECONDS: Final = 5.0
# A list of what was paid since a life may have been lost serves the chunks of so long: it may have a thousand pages.
_LISTED_FOR: Final = timedelta(seconds=10)
# Of what can be sent within the permit at the provider's rate, this much is claimed at once.
_SHARE_OF_RATE: Final = 0.5


class Ticked(msgspec.Struct, frozen=True, kw_only=True):
    """What one tick did. `waiting` are processing still; `late` lost their claim: only the evidence was kept.

    `cleared`: proven absent and not sent, because this run only asks.
    """

    claimed: int = 0
    reclaimed: int = 0
    sent: int = 0
    looked_up: int = 0
    transferred: int = 0
    failed: int = 0
    disputed: int = 0
    waiting: int = 0
    cleared: int = 0
    late: int = 0
    is_complete: bool = True

    @property
    def reclaims_are_frequent(self) -> bool:
        """The cold path should be cold: more than one in twenty means that something is wrong."""
        return self.reclaimed >= _FEW_RECLAIMS and self.reclaimed * 20 > self.claimed + self.reclaimed


_FEW_RECLAIMS: Final = 10


class Settler:
    """Pays for every tenant, over every configured provider. Holds no state between ticks."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        sender: Sender,
        *,
        patience: Mapping[str, Patience],
        by: str,
        limits: Limits = LIMITS,
    ) -> None:
        """`patience` by provider; `by` names this worker in the rows it claims."""
        self._database = database
        self._providers = providers
        self._sender = sender
        self._patience = patience
        self._by = by
        self._limits = limits
        self._reader = Reader(database, providers, limits=limits)

    async def tick(self, *, budget_seconds: float | None = None, most: int | None = None) -> Ticked:
        """Pass 1 and pass 2 over every provider. Raises RestoredDatabase before anything is claimed.

        With a budget it stops claiming early enough to finish what it holds. `most` bounds the rows of each pass.
        """
        try:
            async with asyncio.timeout(self._limits.transaction_seconds), self._database.owning() as connection:
                await _require_here(connection)
        except TimeoutError as error:
            raise Unreachable("the database does not answer") from error
        # For ticks of a schedule too, beside which no worker reads.
        await self._reader.run_once()
        async with _Run(self, budget_seconds, most, may_send=True) as run:
            await _all(run.both_passes(name) for name in self._providers)
        return run.ticked()

    async def ask(self, *, budget_seconds: float | None = None) -> Ticked:
        """Pass 2 without sending: what is proven absent is left for a tick. For a database that was restored."""
        async with _Run(self, budget_seconds, None, may_send=False) as run:
            await _all(run.recover_stuck(name) for name in self._providers)
        return run.ticked()


class _Run:
    """One tick."""

    def __init__(self, settler: Settler, budget_seconds: float | None, most: int | None, *, may_send: bool) -> None:
        self._settler = settler
        self._limits = settler._limits  # noqa: SLF001 - its own tick
        self._database = settler._database  # noqa: SLF001
        self._by = settler._by  # noqa: SLF001
        self._sender = settler._sender  # noqa: SLF001
        self._began = steady()
        self._budget_seconds = budget_seconds
        # Rows that each pass may still claim; None: any number.
        self._left = {"claimed": most, "reclaimed": most}
        self._may_send = may_send
        self._left_out: set[int] = set()
        # What each provider was read to have paid since a life may have been lost.
        self._listed: dict[str, asking.Listed] = {}
        self._counts: Counter[str] = Counter()
        # One lane: a group grows while the one before it commits. Nobody waits for a single answer.
        limits = replace(
            self._limits, lanes=1, wait_seconds=self._limits.drain_seconds, queue_per_source=10**6, queue=10**6
        )
        self._recorder: GroupCommit[SettlementResult, bool] = GroupCommit(
            RecordWork(self._database, self._by), limits=limits, linger_seconds=limits.settlement_linger_seconds
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._recorder)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.__aexit__(*exception)  # type: ignore[arg-type]

    def ticked(self) -> Ticked:
        return Ticked(**self._counts, is_complete=not self._is_out_of_time())

    async def both_passes(self, provider: str) -> None:
        """Pass 1, then pass 2; where pass 1 is long, pass 2 comes in between: a backlog must not starve the stuck."""
        paying = asyncio.ensure_future(self.pay_pending(provider))
        try:
            while not paying.done():
                await asyncio.wait([paying], timeout=self._turn_seconds())
                await self.recover_stuck(provider)
        except asyncio.CancelledError:
            paying.cancel()
            raise
        finally:
            await _all([paying])

    # --- pass 1

    async def pay_pending(self, provider: str) -> None:
        """Claim and send, a few chunks at a time, until nothing is pending or the time is over."""
        cursor = _Cursor()
        await _all(self._lane(provider, cursor) for _ in range(self._limits.settlement_lanes))
        # It may have closed by the mere passing of time.
        await self._sender.tell_breaker(provider)

    async def _lane(self, provider: str, cursor: "_Cursor") -> None:
        while size := self._chunk(provider, "claimed", self._limits.settlement_chunk):
            if self._adapter(provider).breaker.away(steady()) > 0:
                # What is claimed from a provider that is down would only wait: it can wait as pending.
                return
            if not await self._can_be_asked(provider):
                return
            began = steady()
            try:
                claimed = await self._retried(partial(self._claim, provider, cursor, size, began))
            except settling.PostingRefused as refused:
                # A tenant whose books are damaged stops himself, and nobody else.
                log.error("tenant_left_out", tenant=refused.tenant.name, reason=str(refused))
                self._left_out.add(refused.tenant.number)
                continue
            if not claimed.rows:
                return
            begun = await self._finish(provider, claimed)
            if claimed.asked and not begun:
                # Nothing may be sent yet: what is claimed beside these would only wait, too.
                return

    async def _can_be_asked(self, provider: str) -> bool:
        """Whether its books can be read for what a lost life may have paid, where that must come before a send."""
        unread = await life.unread(self._database, provider)
        return unread is None or (await self._listing(provider, unread)).movements is not None

    async def _claim(self, provider: str, cursor: "_Cursor", most: int, began: float) -> "_Chunk":
        """One transaction: nothing is sent without it."""
        adapter, token = self._adapter(provider), uuid4()
        async with self._database.writing() as connection:
            await _require_here(connection)
            # Until the provider's books are read, whatever is sent is asked about first: no more is claimed than can be
            # asked about at once. Claimed as fast as nothing is sent, a whole backlog would wait one by one in pass 2.
            is_unread = await life.unread_in(connection, provider) is not None
            rows = await settling.claim(
                connection,
                provider,
                after=cursor.after,
                most=min(most, self._limits.settlement_stuck_chunk) if is_unread else most,
                stuck_after=self._patience(provider).stuck_after,
                token=token,
                by=self._by,
                without=self._left_out,
            )
            heard = steady()
            if not rows:
                return _Chunk([], [], [], began, heard)
            if is_unread:
                rows = [msgspec.structs.replace(row, ask_first=True) for row in rows]
            asked = [row for row in rows if row.ask_first]
            histories = await settling.histories(connection, provider, asked)
            refused = [(row, no) for row in rows if not row.ask_first and (no := adapter.refusal(row.instruction))]
            unworded = {row.number for row, _ in refused}
            sendable = [row for row in rows if not row.ask_first and row.number not in unworded]
            begun = (
                await intents.begin(connection, [self._asking(row, adapter) for row in sendable]) if sendable else []
            )
            await settling.post_claims(connection, rows, token=token, by=self._by)
        cursor.after = max(cursor.after, *(row.number for row in rows))
        self._counts["claimed"] += len(rows)
        pairs = [(row, attempt, NOTHING_SENT, row.tries) for row, attempt in zip(sendable, begun, strict=True)]
        decided: list[tuple[ClaimedSettlement, Verdict]] = [(row, Failed(no.code)) for row, no in refused]
        return _Chunk(rows, pairs, decided, began, heard, [(row, histories[row.number]) for row in asked])

    async def _finish(self, provider: str, chunk: "_Chunk") -> int:
        """Send and record all of a chunk. How many could be sent."""
        futures = [self._record(SettlementResult(claimed=row, verdict=verdict)) for row, verdict in chunk.decided]
        sends = [
            self._send(row, attempt, history, tries=tries, chunk=chunk)
            for row, attempt, history, tries in chunk.sends
            if isinstance(attempt, Attempt)
        ]
        for row, withheld, _history, tries in chunk.sends:
            if not isinstance(withheld, Attempt):
                # Once it must be asked about, it is, whoever looks at it next.
                ask_first = isinstance(withheld, AskFirst)
                verdict = self._withheld(row, withheld, tries, provider)
                futures.append(self._record(SettlementResult(claimed=row, verdict=verdict, ask_first=ask_first)))
        cleared = 0
        if chunk.asked:
            histories = {row.number: history for row, history in chunk.asked}
            cleared = await self._recover(provider, [row for row, _ in chunk.asked], histories, chunk.heard)
        answered = await asyncio.gather(*sends)
        await self._noted([*futures, *(future for future, _ in answered)])
        for future, answer in answered:
            if not future.result() and isinstance(answer, Done):
                # The claim was lost meanwhile. What somebody believed instead may be wrong: the provider has it.
                await review.observe(self._database, provider, answer.movement)
        return len(sends) + cleared

    async def _send(
        self, row: ClaimedSettlement, attempt: Attempt, history: History, *, tries: int, chunk: "_Chunk"
    ) -> tuple["asyncio.Future[bool]", Answer]:
        sent = await self._sender.send(
            Outgoing(
                attempt=attempt,
                instruction=row.instruction,
                history=history,
                since=row.created_at,
                now=row.now,
                began=chunk.began,
                heard=chunk.heard,
            )
        )
        answer = sent.stands
        self._counts["sent"] += not (isinstance(answer, Busy) and answer.code in NEVER_WRITTEN)
        verdict = after_answer(history, answer, tries=tries, now=sent.at, patience=self._patience(row.provider))
        return self._record(SettlementResult(claimed=row, verdict=verdict, answered=Answered(attempt, answer))), answer

    # --- pass 2

    async def recover_stuck(self, provider: str) -> None:
        """Take over what is overdue, ask, decide; until nothing is overdue or the time is over."""
        due_before: datetime | None = None
        while size := self._chunk(provider, "reclaimed", self._limits.settlement_stuck_chunk):
            rows, histories, heard = await self._retried(partial(self._reclaim, provider, size, due_before))
            if not rows:
                return
            # What becomes due while this runs is for the next time, so that this ends.
            due_before = due_before or min(row.now for row in rows)
            self._counts["reclaimed"] += len(rows)
            await self._recover(provider, rows, histories, heard)

    async def _reclaim(
        self, provider: str, most: int, due_before: datetime | None
    ) -> tuple[list[ClaimedSettlement], dict[int, History], float]:
        async with self._database.writing() as connection:
            rows, histories = await settling.reclaim(
                connection,
                provider,
                most=most,
                stuck_after=self._patience(provider).stuck_after,
                token=uuid4(),
                by=self._by,
                due_before=due_before,
                only_asked=not self._may_send,
            )
            return rows, histories, steady()

    async def _recover(
        self, provider: str, rows: Sequence[ClaimedSettlement], histories: Mapping[int, History], heard: float
    ) -> int:
        """Ask, decide, record; send what may be sent. How many that were."""
        named = await self._named(provider, rows)
        decided = await asyncio.gather(
            *(self._decide(provider, row, histories[row.number], heard, named) for row in rows)
        )
        futures = []
        sends: list[_Clear] = []
        for row, (step, evidence, absence) in zip(rows, decided, strict=True):
            if not isinstance(step, Send):
                # Only proof of absence answers the question for good: whatever is decided may be disputed and retried.
                result = SettlementResult(claimed=row, verdict=step, evidence=evidence, ask_first=row.ask_first)
                futures.append(self._record(result))
            elif self._may_send:
                sends.append(_Clear(row, step.tries, evidence, absence))
            else:
                # Proven absent: a tick may send it, once all the others were asked.
                cleared = Wait(self._now(row, heard), step.tries)
                self._counts["cleared"] += 1
                futures.append(self._record(SettlementResult(claimed=row, verdict=cleared, evidence=evidence)))
        begun = 0
        if sends:
            chunk = await self._retried(partial(self._begin_again, provider, sends, histories, heard))
            begun = await self._finish(provider, chunk)
        await self._noted(futures)
        return begun

    async def _named(self, provider: str, rows: Sequence[ClaimedSettlement]) -> asking.Listed | None:
        """What the provider has by name, while a life may have been lost: for rows that it may have paid."""
        is_asked = any(row.ask_first for row in rows)
        unread = await life.unread(self._database, provider) if is_asked else None
        return None if unread is None else await self._listing(provider, unread)

    async def _listing(self, provider: str, unread: life.Unread) -> asking.Listed:
        """What the provider shows, once for several chunks. One that was not read to its end is read again."""
        known = self._listed.get(provider)
        is_good = known is not None and known.movements is not None and known.known_until == unread.known_until
        if known is None or not is_good or unread.now - known.read_at > _LISTED_FOR:
            listing = asking.listed(self._adapter(provider), unread.known_until, unread.began_at, now=unread.now)
            self._listed[provider] = known = await listing
        return known

    async def _decide(
        self, provider: str, row: ClaimedSettlement, history: History, heard: float, named: asking.Listed | None
    ) -> tuple[Send | Verdict, tuple[Evidence, ...], Absence | None]:
        adapter = self._adapter(provider)
        lookup = adapter.facts.lookup[adapter.purpose(row.instruction)]
        facts, patience, now = adapter.facts, self._patience(provider), self._now(row, heard)
        if not row.ask_first:
            step = next_step(
                history,
                tries=row.tries,
                account=adapter.account,
                lookup=lookup,
                now=now,
                facts=facts,
                patience=patience,
            )
            if not isinstance(step, LookUp):
                return step, (), None
        elif lookup is Lookup.NONE:
            return Disputed(UNPROVEN), (), None
        # Once for each payout, whether it is asked for by itself or read from the list for all of them.
        self._counts["looked_up"] += 1
        shown = await self._sender.ask(
            provider,
            row.instruction,
            history,
            since=_asked_from(row, history),
            now=now,
            # What may have run was sent under this key. Where nothing is known to have, another generation may have
            # moved.
            others=() if history.may_have_run else row.later_keys,
            listed=named if row.ask_first else None,
            name=row.name,
        )
        looked = shown.looked
        evidence: tuple[Evidence, ...] = (_evidence(looked),)
        # Dated before the question: what the books did not show then may have come since.
        if history.first_sent_at is None:
            after = after_first_look(
                history,
                looked,
                amount_micros=row.amount_micros,
                currency=row.currency,
                lookup=lookup,
                now=now,
                facts=facts,
                patience=patience,
            )
        else:
            after = after_look(
                history,
                looked,
                tries=row.tries,
                amount_micros=row.amount_micros,
                currency=row.currency,
                lookup=lookup,
                now=now,
                facts=facts,
                patience=patience,
            )
        if shown.moved_as is not None:
            after = Disputed(MOVED_UNDER_ANOTHER_KEY)
        if after == Disputed(MOVED_UNDER_ANOTHER_KEY):
            moved_as = shown.moved_as or history.moved_as or ""
            evidence += (Evidence(what="contradicted", found=moved_as, detail="made under another key"),)
        return after, evidence, shown.absence

    async def _begin_again(
        self,
        provider: str,
        sends: Sequence["_Clear"],
        histories: Mapping[int, History],
        heard: float,
    ) -> "_Chunk":
        """One transaction: still mine? then the evidence that it may be sent, and the next attempt."""
        adapter = self._adapter(provider)
        tries = {clear.row.number: clear.tries for clear in sends}
        absences = {clear.row.number: clear.absence for clear in sends}
        began = steady()
        async with self._database.writing() as connection:
            await _require_here(connection)
            mine = await settling.begin_again(
                connection,
                [(clear.row, clear.tries) for clear in sends],
                stuck_after=self._patience(provider).stuck_after,
            )
            kept = {row.number for row in mine}
            listed = [row for row in mine if (proof := absences[row.number]) and proof.listed_since]
            changed = await settling.policies_since(connection, listed) if listed else {}
            wanted = [self._asking(row, adapter, absences[row.number], changed.get(row.number)) for row in mine]
            begun = await intents.begin(connection, wanted) if mine else []
            await settling.add_events(
                connection,
                [
                    (clear.row.tenant.number, clear.row.number, item.what, self._by, msgspec.json.encode(item))
                    for clear in sends
                    for item in clear.evidence
                    if clear.row.number in kept
                ],
            )
        pairs = [
            (row, attempt, histories[row.number], tries[row.number]) for row, attempt in zip(mine, begun, strict=True)
        ]
        return _Chunk(list(mine), pairs, [], began, heard)

    # --- both

    def _record(self, result: SettlementResult) -> "asyncio.Future[bool]":
        verdict = "waiting" if isinstance(result.verdict, Wait) else status_after(result.verdict)
        future = self._recorder.submit(result, source=result.claimed.tenant.number)
        future.add_done_callback(lambda done: self._count(verdict, done))
        return future

    def _count(self, verdict: str, done: "asyncio.Future[bool]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._counts[verdict if done.result() else "late"] += 1

    async def _noted(self, futures: Sequence["asyncio.Future[bool]"]) -> None:
        """Wait until results are durable. Those that cannot be stored are found again: their rows are overdue later."""
        done = await asyncio.gather(*futures, return_exceptions=True)
        failures = [one for one in done if isinstance(one, BaseException)]
        if failures:
            # Not in the words a caller would be told: these payouts were sent.
            log.error("results_not_recorded", results=len(failures), reason=type(failures[0]).__name__)
            raise failures[0]

    async def _retried(self, transaction: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(_CONTENDED_ROUNDS):
            try:
                return await transaction()
            except Contended:
                await asyncio.sleep(self._limits.deferral_seconds * attempt)
            except Lost as lost:
                # Whether it was committed or not: what was claimed and not sent is overdue later.
                raise Unreachable(str(lost)) from lost
        raise Unreachable("the settlements are held by other transactions")

    def _asking(
        self,
        row: ClaimedSettlement,
        adapter: Provider,
        absence: Absence | None = None,
        policy_since: datetime | None = None,
    ) -> Asking:
        return Asking(
            tenant=row.tenant,
            terms=terms_of(row.provider, adapter, adapter.purpose(row.instruction)),
            instruction=row.instruction,
            token=uuid4(),
            permit_seconds=self._limits.send_seconds,
            since=row.created_at,
            mark=f"settlement/{row.name}",
            absence=absence,
            covers_policy=True,
            policy_since=policy_since,
            subject=row.id,
        )

    def _withheld(self, row: ClaimedSettlement, withheld: Withheld, tries: int, provider: str) -> Verdict:
        now = row.now
        match withheld:
            case StillSending(until):
                return Wait(until, tries)
            case AskFirst(from_):
                # Pass 2 asks: absence counts from then on.
                return Wait(max(from_, now), tries)
            case AlreadyDone() | PastHorizon():
                # Pass 2 reads all that was sent, asks the provider's books where it must, and decides.
                return Wait(now, tries)
            case OtherAccount():
                return Disputed("sent_with_another_account")
            case OtherKey():
                return Disputed("another_live_key")
            case OtherInstruction():
                log.error("key_collision", settlement=row.name, provider=provider)
                return Disputed("key_collision")

    def _adapter(self, provider: str) -> Provider:
        return self._settler._providers[provider]  # noqa: SLF001

    def _patience(self, provider: str) -> Patience:
        return self._settler._patience[provider]  # noqa: SLF001

    def _now(self, row: ClaimedSettlement, heard: float) -> datetime:
        """The database's time, carried on by this machine's steady clock: its wall clock may be wrong by a day.

        `heard` is when the database's time came here: never earlier than it was read, so this is never ahead of it.
        """
        return now_after(row.now, heard)

    def _chunk(self, provider: str, counted: str, largest: int) -> int:
        """How many rows to claim next; 0: no more in this tick."""
        if self._is_out_of_time():
            return 0
        adapter = self._adapter(provider)
        # What cannot be written within its permit would be claimed for nothing.
        rate = adapter.requests_per_second / adapter.facts.requests_per_transfer
        rate *= self._limits.send_seconds * _SHARE_OF_RATE
        size = max(1, min(largest, int(rate / self._limits.settlement_lanes)))
        left = self._left[counted]
        if left is None:
            return size
        # Taken before the claim: another lane may be claiming at this very moment.
        size = min(size, left)
        self._left[counted] = left - size
        return size

    def _turn_seconds(self) -> float:
        longest = self._limits.settlement_turn_seconds
        return longest if self._budget_seconds is None else min(longest, self._budget_seconds / 4)

    def _is_out_of_time(self) -> bool:
        if self._budget_seconds is None:
            return False
        longest = max((p.facts.answer_seconds for p in self._settler._providers.values()), default=0.0)  # noqa: SLF001
        needed = min(self._limits.send_seconds + longest + _RECORD_SECONDS, self._budget_seconds / 2)
        return steady() - self._began + needed >= self._budget_seconds


class _Cursor:
    """How far the lanes of a tick have claimed."""

    def __init__(self) -> None:
        self.after = 0


class _Clear(msgspec.Struct, frozen=True):
    """A row that may be sent, as far as was seen; and what was seen."""

    row: ClaimedSettlement
    tries: int
    evidence: tuple[Evidence, ...]
    absence: Absence | None


class _Chunk(msgspec.Struct):
    """Claimed rows, with what is to be done about each.

    By the steady clock: `began` before the transaction, so that the permit ends no later than the database says;
    `heard` after the database's time was read, so that nothing is believed to be over too early.
    """

    rows: list[ClaimedSettlement]
    sends: list[tuple[ClaimedSettlement, Attempt | Withheld, History, int]]
    decided: list[tuple[ClaimedSettlement, Verdict]]
    began: float
    heard: float
    asked: list[tuple[ClaimedSettlement, History]] = []


def _asked_from(row: ClaimedSettlement, history: History) -> datetime:
    """From when on the books are asked for it. The first of them: it may be older than its row (`History.since`)."""
    return min(at for at in (history.first_sent_at, history.since, row.created_at) if at is not None)


async def _require_here(connection: Connection) -> None:
    """In the transaction that lets something be sent: a standby may have taken over since the tick began."""
    if not await life.notice(connection):
        raise RestoredDatabase


async def _all(tasks: Iterable[Awaitable[None]]) -> None:
    """Let all of them finish, whatever happens to one; then say what happened."""
    done = await asyncio.gather(*tasks, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one


def _evidence(looked: Looked) -> Evidence:
    match looked:
        case Found():
            ids = ", ".join(f"{m.id} {m.status}" for m in looked.movements)
            return Evidence(what="looked_up", found="found", detail=ids, exchanges=looked.evidence)
        case Absent():
            return Evidence(what="looked_up", found="absent", detail=looked.lookup, exchanges=looked.evidence)
        case Undecided():
            return Evidence(
                what="looked_up",
                found="undecided",
                detail=f"{looked.code}: {looked.message}",
                exchanges=looked.evidence,
            )
