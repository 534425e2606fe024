"""Refunds: what is owed to a customer goes back to him, once, however long it takes.

    begin   receipt, log row, intent and attempt, by the saga                  ── one transaction for many
    send    one call to the provider, with a deadline                         ── no transaction is open
    record  the answer, the log, the ledger and the event that waited for it  ── one transaction for many

From `begin` on the financial sweeper owns it: whoever dies anywhere leaves a row that becomes due, and the sweeper goes
on from what is stored. The deciders are in `checkout.refund.rules`.
"""

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from tallystick.checkout import backorder_store as backorder
from tallystick.checkout.order.rules import order_name
from tallystick.checkout.payment.rules import Entry, Hold, Resend
from tallystick.checkout.refund import store
from tallystick.checkout.refund.review.decisions import Changed, RefundDecisions
from tallystick.checkout.refund.rules import (
    LONGEST_PAUSE,
    after_answer,
    after_look,
    after_refusal,
    later_refund_keys,
    next_step,
    patience,
    refusal_code,
)
from tallystick.checkout.refund.store import (
    Begun,
    ClaimedRefund,
    RecordWork,
    RefundResult,
    RefundTerms,
)
from tallystick.commit.group import GroupCommit
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import Database
from tallystick.errors import TallystickError, Unreachable
from tallystick.movement import asking
from tallystick.movement.asking import AskedAbout
from tallystick.movement.evidence import answered, looked_up, now_after
from tallystick.movement.flow import Outgoing, Sender, terms_of
from tallystick.movement.life import orphans
from tallystick.movement.life import store as life
from tallystick.movement.rules import STOPPED_PAUSE, Absence
from tallystick.movement.steps import (
    MOVED_UNDER_ANOTHER_KEY,
    NOTHING_SENT,
    Failed,
    Happened,
    LookUp,
    made_until,
)
from tallystick.movement.store import Answered
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Absent, Answer, Done, Found, Looked, Lookup
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.inbox import ClaimedEvent

log = structlog.get_logger("tallystick.refund")

Jitter = Callable[[], float]
# A provider that answers again is told of so many at once.
_WOKEN: Final = 1_000


class SweptRefunds(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over the refunds that are due did."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    waiting: int = 0
    sent: int = 0


class _Said(msgspec.Struct, frozen=True):
    """What the provider said of a refund, as evidence, and its id of the one refund it spoke of."""

    response: bytes | None = None
    refund_id: str | None = None


_NOTHING: Final = _Said()


class Refunds:
    """Gives back for every tenant, over every configured provider. Use as an async context manager."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        sender: Sender,
        *,
        limits: Limits = LIMITS,
        jitter: Jitter = random.random,
        changed: Changed = lambda _orders: None,
    ) -> None:
        """The providers and the sender stay the caller's to close. `changed` is told what a commit has changed."""
        self._database = database
        self._providers = providers
        self._sender = sender
        self._limits = limits
        self._jitter = jitter
        self._changed = changed
        self._patience = patience(timedelta(seconds=limits.payment_stuck_seconds))
        self.terms = RefundTerms(
            providers={name: terms_of(name, adapter, "refund") for name, adapter in providers.items()},
            lease=timedelta(seconds=limits.payment_lease_seconds),
            permit_seconds=limits.send_seconds,
        )
        # What persons decide.
        self.decisions = RefundDecisions(
            database,
            providers,
            self.terms,
            limits=limits,
            changed=changed,
            send=self._all,
            look_up=self._look_up,
        )
        self._recorder: GroupCommit[RefundResult, bool] = GroupCommit(RecordWork(database), limits=limits)
        # For each provider: one that hangs must not keep the others waiting.
        self._turns = {name: asyncio.Semaphore(limits.refunds_at_once) for name in providers}
        self._flights: set[asyncio.Task[Entry]] = set()

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._recorder.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record what was answered; what is not by then, the sweeper finishes."""
        if self._flights:
            _, late = await asyncio.wait(self._flights, timeout=self._limits.drain_seconds)
            for flight in late:
                flight.cancel()
        await self._recorder.__aexit__(kind, error, trace)

    def launch(
        self, begun: Sequence[tuple[ClaimedEvent | None, Begun]], *, began: float
    ) -> "list[asyncio.Task[Entry]]":
        """Send refunds whose attempts are committed, and record what came of each, with the event that waits for it.

        `began` is from before that commit, on the steady clock. What a task returns is durable: a completed refund in
        one commit with its event; a Hold stays with the financial sweeper. They go on when nobody waits for them.
        """
        flights = [
            asyncio.create_task(self._sent(refund, event, began=began), name="refund") for event, refund in begun
        ]
        self._flights.update(flights)
        for flight in flights:
            flight.add_done_callback(self._flights.discard)
        return flights

    async def _all(self, begun: Sequence[Begun], began: float) -> list[Entry]:
        # A broken invariant, and nothing else, is raised by one of them: after the others have ended.
        flights = self.launch([(None, one) for one in begun], began=began)
        await asyncio.gather(*flights, return_exceptions=True)
        return [flight.result() for flight in flights]

    async def sweep(self, *, most: int | None = None) -> SweptRefunds:
        """One run of the financial sweeper: ask about, or send again, what is owed and due.

        Raises RestoredDatabase before anything is claimed, and Unreachable. Safe beside the saga and other sweepers,
        and to kill at any moment.
        """
        counts: Counter[str] = Counter()
        claimed, heard = await self._claim(min(most or self._limits.refund_chunk, self._limits.refund_chunk))
        counts["claimed"] = len(claimed)
        steps = await asyncio.gather(*(self._next(one, heard) for one in claimed))
        again = [
            (one, absence) for one, (step, absence) in zip(claimed, steps, strict=True) if isinstance(step, Resend)
        ]
        entries: list[Entry] = [step for step, _ in steps if not isinstance(step, Resend)]
        entries += await self._send_again(again, counts)
        for entry in entries:
            counts[_COUNTED[type(entry)]] += 1
        back = {one.owed.provider for one in claimed if one.owed.tries > 0}
        if counts["completed"] and back:
            for provider in back:
                await self._wake(provider)
        return SweptRefunds(**counts)

    async def sweep_all(self, *, most: int | None = None) -> SweptRefunds:
        """Runs until nothing is due, or so many were claimed."""
        total: Counter[str] = Counter()
        while most is None or total["claimed"] < most:
            swept = msgspec.structs.asdict(await self.sweep(most=None if most is None else most - total["claimed"]))
            total.update(swept)
            if not swept["claimed"]:
                break
        return SweptRefunds(**total)

    async def ask(self) -> AskedAbout:
        """Ask about every refund that is marked to be asked about and due, and send nothing. For a restored database.

        What the books have is COMPLETED, with its ledger and its event; what they prove absent is left to the sweeper.
        Raises Unreachable. Safe beside others, and to kill at any moment.
        """
        counts: Counter[str] = Counter()
        due_before: datetime | None = None
        while True:
            claimed, heard = await self._claim(self._limits.refund_chunk, only_asked=True, due_before=due_before)
            if not claimed:
                return AskedAbout(**counts)
            # What becomes due while this runs is for the next time, so that this ends.
            due_before = due_before or min(one.now for one in claimed)
            await asyncio.gather(*(self._only_asked(one, heard, counts) for one in claimed))

    async def fill_backorders(self) -> int:
        """Give stock that is free again to those who paid for it and wait. How many were filled."""
        return await backorder.fill(self._database, self._limits.backorder_chunk)

    # --- what is due

    async def _claim(
        self, most: int, *, only_asked: bool = False, due_before: datetime | None = None
    ) -> tuple[list[ClaimedRefund], float]:
        try:
            async with self._database.writing() as connection:
                # One that does not answer would only be asked in vain, and what is claimed waits.
                answering = [
                    name for name, one in self._providers.items() if only_asked or one.breaker.away(steady()) <= 0
                ]
                claimed = await store.claim_due(
                    connection,
                    providers=answering,
                    most=most,
                    lease=self.terms.lease,
                    only_asked=only_asked,
                    due_before=due_before,
                )
        except (Contended, Lost) as error:
            # Whether it was committed or not: what was claimed is due again later.
            raise Unreachable(str(error)) from error
        return claimed, steady()

    async def _next(self, one: ClaimedRefund, heard: float) -> tuple[Resend | Entry, Absence | None]:
        """What a claimed refund comes to without a send. What cannot be stored stays as it is, and is due again."""
        step, said, absence = await self._decided(one, heard)
        if isinstance(step, Resend) and _is_first_of_a_part(one):
            step = await self._unless_given_back(one, step, now_after(one.now, heard), is_sending=True)
        if isinstance(step, Resend):
            return step, absence
        await self._record(one, step, said)
        return step, None

    async def _unless_given_back(
        self, one: ClaimedRefund, step: Resend, now: datetime, *, is_sending: bool
    ) -> Resend | Hold:
        """A part's first send: a lost life may have been refused under this key, and have given it back under another.

        That other key is the caller's, and unknown here: only the books, read to their end, show it.
        """
        owed = one.owed
        unread = await life.unread(self._database, owed.provider) if is_sending else None
        moved = await orphans.given_back(
            self._database,
            owed.provider,
            owed.payment_intent_id,
            amount_micros=owed.amount_micros,
            currency=owed.currency,
        )
        if moved is not None:
            return Hold(now + LONGEST_PAUSE, step.tries, MOVED_UNDER_ANOTHER_KEY)
        return step if unread is None else Hold(now + STOPPED_PAUSE, step.tries)

    async def _only_asked(self, one: ClaimedRefund, heard: float, counts: Counter[str]) -> None:
        step, said, absence = await self._decided(one, heard)
        counts["looked_up"] += said is not _NOTHING
        if isinstance(step, Resend) and _is_first_of_a_part(one):
            step = await self._unless_given_back(one, step, now_after(one.now, heard), is_sending=False)
        if isinstance(step, Resend):
            # The sweeper may send it, once all the others were asked.
            step = Hold(now_after(one.now, heard), step.tries)
            one = msgspec.structs.replace(one, owed=msgspec.structs.replace(one.owed, ask_first=False))
        if await self._record(one, step, said) and not (isinstance(step, Hold) and one.owed.ask_first):
            counts["found" if absence is None else "absent"] += 1

    async def _decided(self, one: ClaimedRefund, heard: float) -> tuple[Resend | Entry, _Said, Absence | None]:
        """What it comes to before anything is sent; what the books said of it, and their proof."""
        books = self.terms.providers[one.owed.provider]
        step = next_step(
            one.owed,
            one.history,
            account=books.account,
            lookup=books.lookup,
            now=now_after(one.now, heard),
            facts=books.facts,
            patience=self._patience,
            jitter=self._jitter(),
        )
        if isinstance(step, LookUp):
            return await self._asked(one, now_after(one.now, heard))
        return step, _NOTHING, None

    async def _asked(self, one: ClaimedRefund, now: datetime) -> tuple[Resend | Entry, _Said, Absence | None]:
        """Ask the provider's books; what they make of it, and the evidence. Dated before the question."""
        # What may have run was sent under this key. Where nothing is known to have, another generation may have moved.
        shown = await self._sender.ask(
            one.owed.provider,
            one.instruction,
            one.history,
            since=_asked_from(one),
            created=one.owed.since,
            now=now,
            others=() if one.history.may_have_run else later_refund_keys(one.owed),
        )
        if shown.moved_as is not None:
            return Hold(now + LONGEST_PAUSE, one.owed.tries + 1, MOVED_UNDER_ANOTHER_KEY), _looked(shown.looked), None
        books = self.terms.providers[one.owed.provider]
        step = after_look(
            one.owed,
            one.history,
            shown.looked,
            lookup=books.lookup,
            now=now,
            facts=books.facts,
            patience=self._patience,
            jitter=self._jitter(),
        )
        return step, _looked(shown.looked), shown.absence

    async def _look_up(self, one: ClaimedRefund | Begun, now: datetime) -> Looked:
        """What the books say of it after a refusal, or for a person who says that it did not happen."""
        adapter = self._providers[one.owed.provider]
        # What may have run was sent under this key. Where nothing is known to have, another generation may have moved.
        is_known = one.history.may_have_run or isinstance(one, Begun)
        others = () if is_known else later_refund_keys(one.owed)
        since = _asked_from(one)
        # What was sent just now is no part of the history yet.
        history = NOTHING_SENT if isinstance(one, Begun) else one.history
        until = made_until(history, since=one.owed.since, now=now, facts=adapter.facts)
        return await asking.look_up(adapter, one.instruction, others, since=since, now=now, until=until)

    async def _send_again(
        self, claimed: Sequence[tuple[ClaimedRefund, Absence | None]], counts: Counter[str]
    ) -> list[Entry]:
        if not claimed:
            return []
        began = steady()
        try:
            async with self._database.writing() as connection:
                begun = await store.send_again(connection, claimed, self.terms)
        except (Contended, Lost) as error:
            raise Unreachable(str(error)) from error
        counts["sent"] += len(begun)
        return await self._all(begun, began)

    async def _wake(self, provider: str) -> None:
        try:
            await store.wake(self._database, provider, _WOKEN)
        except TallystickError as error:
            # They are due by themselves, only later.
            log.warning("refunds_not_woken", provider=provider, reason=type(error).__name__)

    # --- a send

    async def _sent(self, begun: Begun, event: ClaimedEvent | None, *, began: float) -> Entry:
        """Send once, under a committed attempt, and record what came of it."""
        outgoing = Outgoing(
            attempt=begun.attempt,
            instruction=begun.instruction,
            history=begun.history,
            since=begun.owed.since,
            now=begun.now,
            began=began,
            heard=steady(),
        )
        async with self._turns[begun.owed.provider]:
            # Too late for its permit, it is told so by the adapter and nothing is written.
            sent = await self._sender.send(outgoing)
        answer, now = sent.stands, sent.at
        entry = after_answer(begun.owed, begun.history, answer, now=now, patience=self._patience, jitter=self._jitter())
        said = _answered(answer)
        code = refusal_code(answer)
        if code is not None:
            entry, said = await self._refused(begun, entry, said, code=code, now=now)
        is_recorded = await self._record(begun, entry, said, Answered(begun.attempt, answer), event)
        return entry if is_recorded else Hold(now, begun.owed.tries)

    async def _refused(
        self, begun: Begun, refused: Entry, said: _Said, *, code: str, now: datetime
    ) -> tuple[Entry, _Said]:
        """A refusal is not believed before the books were asked: "already refunded" may be our own refund."""
        books, tries = self.terms.providers[begun.owed.provider], begun.owed.tries
        if books.lookup is Lookup.NONE:
            return after_refusal(refused, Resend(tries), code=code, tries=tries, now=now), said
        looked = await self._look_up(begun, now)
        step = after_look(
            begun.owed,
            NOTHING_SENT if isinstance(refused, Failed) else begun.history,
            looked,
            lookup=books.lookup,
            now=now,
            facts=books.facts,
            patience=self._patience,
            jitter=self._jitter(),
        )
        entry = after_refusal(refused, step, code=code, tries=tries, now=now)
        return entry, said if isinstance(looked, Absent) else _looked(looked)

    async def _record(
        self,
        one: ClaimedRefund | Begun,
        entry: Entry,
        said: _Said,
        answered: Answered | None = None,
        event: ClaimedEvent | None = None,
    ) -> bool:
        result = RefundResult(
            tenant=one.tenant,
            key=one.owed.key,
            claim_number=one.owed.claim_number,
            entry=entry,
            response=said.response,
            answered=answered,
            event=event,
            failed_as=said.refund_id if isinstance(entry, Failed) else None,
            ask_first=one.owed.ask_first,
        )
        order = order_name(one.owed.order_id.bytes)
        if isinstance(entry, Failed):
            log.error("refund_failed", order=order, reason=entry.reason, next="tally breaks list")
        elif isinstance(entry, Hold) and entry.reason is not None:
            log.warning("refund_needs_a_person", order=order, reason=entry.reason, next="tally explain ORDER")
        try:
            is_recorded = await self._recorder.submit(result, source=one.tenant.number)
        except Exception:  # noqa: BLE001 - whatever it is: the money is where the answer says, and the row becomes due
            log.error("refund_not_recorded", key=one.owed.key.hex(), trace=traceback.format_exc())
            return False
        if is_recorded and not isinstance(entry, Hold):
            self._changed([(one.tenant, one.owed.order_id)])
        return is_recorded


def _is_first_of_a_part(one: ClaimedRefund) -> bool:
    return one.owed.part is not None and one.history.first_sent_at is None


def _asked_from(one: ClaimedRefund | Begun) -> datetime:
    return min(one.history.first_sent_at or one.owed.since, one.owed.since)


_COUNTED: Final[Mapping[type, str]] = {Happened: "completed", Failed: "failed", Hold: "waiting"}


def _answered(answer: Answer) -> _Said:
    return _Said(answered(answer), answer.id if isinstance(answer, Done) else None)


def _looked(looked: Looked) -> _Said:
    only = looked.movements[0].id if isinstance(looked, Found) and len(looked.movements) == 1 else None
    return _Said(looked_up(looked), only)
