"""Refunds: what is owed to a customer goes back to him, once, however long it takes.

    begin   receipt, log row, intent and attempt, by the saga                  ── one transaction for many
    send    one call to the provider, with a deadline                         ── no transaction is open
    record  the answer, the log, the ledger and the event that waited for it  ── one transaction for many

From `begin` on the financial sweeper owns it: whoever dies anywhere leaves a row that becomes due, and the sweeper goes
on from what is stored. The deciders are in `core.refund`.
"""

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Literal, Self
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tallystick.core.idempotency import Tenant
from tallystick.core.order import order_id as id_of
from tallystick.core.order import order_name, order_unknown
from tallystick.core.outcome import Rejected
from tallystick.core.payment import Entry, Hold, Resend
from tallystick.core.provider import Absent, Answer, Done, Found, Looked, Lookup, Refused, Sending, Undecided, Unknown
from tallystick.core.refund import after_answer, after_look, after_refusal, next_step, patience
from tallystick.core.settlement import NOTHING_SENT, Failed, LookUp, Transferred
from tallystick.engine.group_commit import GroupCommit
from tallystick.engine.port import Contended, Lost
from tallystick.errors import RestoredDatabase, TallystickError, Unreachable
from tallystick.flows import sending
from tallystick.flows.evidence import answered, kept, looked_up, now_after
from tallystick.flows.sending import Sender
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits
from tallystick.store import backorder
from tallystick.store import refund as store
from tallystick.store.database import Database
from tallystick.store.intent import Answered
from tallystick.store.refund import Begun, Books, Claimed, Debt, ReceiptRow, RecordWork, Result, Terms
from tallystick.store.webhook import Claimed as ClaimedEvent

log = structlog.get_logger("tallystick.refund")

Jitter = Callable[[], float]
Decision = Literal["refund", "keep", "confirm"]
# An adapter whose provider shows no refunds by their id says so with this code.
_NOT_SHOWN: Final = "no_lookup"
# Told which orders a commit has changed, after it.
Changed = Callable[[Sequence[tuple[Tenant, UUID]]], None]
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
        self.terms = Terms(
            books={name: _books(adapter) for name, adapter in providers.items()},
            lease=timedelta(seconds=limits.payment_lease_seconds),
            leave_seconds=limits.send_seconds,
        )
        self._recorder: GroupCommit[Result, bool] = GroupCommit(RecordWork(database), limits=limits)
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

    async def _all(self, begun: Sequence[Begun], *, began: float) -> list[Entry]:
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
        again = [one for one, step in zip(claimed, steps, strict=True) if isinstance(step, Resend)]
        entries: list[Entry] = [step for step in steps if not isinstance(step, Resend)]
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

    async def fill_backorders(self) -> int:
        """Give stock that is free again to those who paid for it and wait. How many were filled."""
        return await backorder.fill(self._database, self._limits.backorder_chunk)

    async def decide(
        self, tenant: Tenant, order_id: str, payment_intent_id: str, decision: Decision, *, refund_id: str | None = None
    ) -> Rejected | str:
        """A person decides about a payment that waits for him.

            refund   give it back: one in REVIEW, or one whose refund FAILED, under another key
            keep     it may stay: one in REVIEW
            confirm  it went back already, as `refund_id` of the provider's: nothing is sent

        How it stands then: REFUND or KEPT. A refund is begun in the commit of the decision, then sent.
        """
        uuid = id_of(order_id)
        if uuid is None:
            return order_unknown(order_id)
        if not payment_intent_id.isprintable():
            # No provider's id is like that, and no database could be asked for it.
            return _no_payment(order_id, payment_intent_id)
        try:
            if decision == "confirm":
                return await self._confirmed(tenant, uuid, payment_intent_id, refund_id or "")
            return await self._decided(tenant, uuid, payment_intent_id, decision)
        except RestoredDatabase:
            return Rejected(
                "database_restored",
                "This database was restored, copied or promoted: what it does not know may have been given back.",
                "Run `tally recover`, then send the same request again. Nothing was sent.",
            )

    async def _decided(
        self, tenant: Tenant, order_id: UUID, payment_intent_id: str, decision: Decision
    ) -> Rejected | str:
        async with self._database.stepping() as connection:
            found = await store.decide(connection, tenant, order_id, payment_intent_id)
            if found is None:
                return _no_payment(order_name(order_id.bytes), payment_intent_id)
            receipt, refund = found
            if decision == "keep":
                if receipt["fate"] != "REVIEW":
                    return _needs_none(receipt["fate"], payment_intent_id)
                await store.keep(connection, tenant, receipt)
                return "KEPT"
            if receipt["provider"] not in self.terms.books:
                return _not_configured(receipt["provider"])
            generation = 0
            if receipt["fate"] == "REVIEW":
                await store.set_fate(connection, receipt, "REFUND")
            elif receipt["fate"] == "REFUND" and refund is not None and refund["status"] == "FAILED":
                generation = refund["attempt"] + 1
            else:
                return _needs_none(receipt["fate"], payment_intent_id)
            began = steady()
            begun = await store.begin(connection, [_debt(tenant, receipt, generation)], self.terms)
        await self._all(begun, began=began)
        return "REFUND"

    async def _confirmed(
        self, tenant: Tenant, order_id: UUID, payment_intent_id: str, refund_id: str
    ) -> Rejected | str:
        """What somebody gave back at the provider himself, or what nobody could be sure of, is completed by its id."""
        taken = [
            one
            for one in await store.receipts(self._database, tenant, order_id)
            if one.payment_intent_id == payment_intent_id
        ]
        if not taken:
            return _no_payment(order_name(order_id.bytes), payment_intent_id)
        (seen,) = taken
        if seen.provider not in self.terms.books:
            return _not_configured(seen.provider)
        # Before the transaction: nothing is asked of a provider while one is open.
        doubt = await self._doubt(seen, refund_id)
        if doubt is not None:
            return doubt
        async with self._database.stepping() as connection:
            found = await store.decide(connection, tenant, order_id, payment_intent_id)
            if found is None:
                return _no_payment(order_name(order_id.bytes), payment_intent_id)
            receipt, refund = found
            if await store.is_known(connection, seen.provider, refund_id):
                return _doubted(refund_id, "it is another refund of ours already")
            is_open = refund is not None and refund["status"] == "PENDING" and refund["reason"] is not None
            if receipt["fate"] == "REVIEW":
                await store.set_fate(connection, receipt, "REFUND")
            elif receipt["fate"] != "REFUND" or refund is None or not (is_open or refund["status"] == "FAILED"):
                return _needs_none(receipt["fate"], payment_intent_id)
            generation = 0 if refund is None else refund["attempt"] + (refund["status"] == "FAILED")
            debt = _debt(tenant, receipt, generation)
            if not is_open:
                # Logged like any other, and never sent: it is completed in this very commit.
                await store.begin(connection, [debt], self.terms)
            word = kept("confirmed", "by a person", refund_id)
            entry = Transferred(refund_id)
            result = Result(tenant=tenant, key=store.key_of(debt), claim_number=None, entry=entry, response=word)
            await store.record(connection, [result])
        self._changed([(tenant, order_id)])
        return "REFUND"

    async def _doubt(self, taken: ReceiptRow, refund_id: str) -> Rejected | None:
        """Why the provider's own books do not bear out that this refund gave that payment back."""
        if not refund_id or not refund_id.isprintable():
            return _doubted(refund_id, "there is no such id")
        answer: Answer
        try:
            answer = await self._providers[taken.provider].fetch("refund", refund_id)
        except TallystickError as error:
            answer = Unknown(code="fetch_failed", message=str(error))
        match answer:
            case Done(movement=movement):
                if movement.state in ("failed", "returned"):
                    return _doubted(refund_id, f"the provider says that it {movement.state}")
                given = movement.parent, movement.amount_micros, movement.currency
                if given != (taken.payment_intent_id, taken.amount_micros, taken.currency):
                    return _doubted(refund_id, "it gave back another payment, or another amount")
                return None
            case Unknown(code=code) if code == _NOT_SHOWN:
                # The person's word, then: he has seen what this provider shows to nobody else.
                return None
            case _:
                return _doubted(refund_id, f"the provider does not show it: {answer.code}")

    # --- what is due

    async def _claim(self, most: int) -> tuple[list[Claimed], float]:
        try:
            async with self._database.writing() as connection:
                # One that does not answer would only be asked in vain, and what is claimed waits.
                answering = [name for name, one in self._providers.items() if one.breaker.away(steady()) <= 0]
                claimed = await store.claim_due(connection, providers=answering, most=most, lease=self.terms.lease)
        except (Contended, Lost) as error:
            # Whether it was committed or not: what was claimed is due again later.
            raise Unreachable(str(error)) from error
        return claimed, steady()

    async def _next(self, one: Claimed, heard: float) -> Resend | Entry:
        """What a claimed refund comes to without a send. What cannot be stored stays as it is, and is due again."""
        adapter = self._providers[one.owed.provider]
        books = self.terms.books[one.owed.provider]
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
        said = _NOTHING
        if isinstance(step, LookUp):
            now = now_after(one.now, heard)
            step, said = await self._asked(adapter, one, now)
        if isinstance(step, Resend):
            return step
        await self._record(one, step, said)
        return step

    async def _asked(self, adapter: Provider, one: Claimed, now: datetime) -> tuple[Resend | Entry, _Said]:
        """Ask the provider's books; what they make of it, and the evidence. Dated before the question."""
        looked = await self._look_up(adapter, one, now)
        books = self.terms.books[one.owed.provider]
        step = after_look(
            one.owed,
            one.history,
            looked,
            lookup=books.lookup,
            now=now,
            facts=books.facts,
            patience=self._patience,
            jitter=self._jitter(),
        )
        return step, _looked(looked)

    async def _look_up(self, adapter: Provider, one: Claimed | Begun, now: datetime) -> Looked:
        first = one.history.first_sent_at or (one.attempt.first_sent_at if isinstance(one, Begun) else now)
        try:
            return await adapter.look_up(one.instruction, first_sent_at=first, now=now)
        except TallystickError as error:
            return Undecided(code="lookup_failed", message=str(error))

    async def _send_again(self, claimed: Sequence[Claimed], counts: Counter[str]) -> list[Entry]:
        if not claimed:
            return []
        began = steady()
        try:
            async with self._database.writing() as connection:
                begun = await store.send_again(connection, claimed, self.terms)
        except (Contended, Lost) as error:
            raise Unreachable(str(error)) from error
        counts["sent"] += len(begun)
        return await self._all(begun, began=began)

    async def _wake(self, provider: str) -> None:
        try:
            await store.wake(self._database, provider, _WOKEN)
        except TallystickError as error:
            # They are due by themselves, only later.
            log.warning("refunds_not_woken", provider=provider, reason=type(error).__name__)

    # --- a send

    async def _sent(self, begun: Begun, event: ClaimedEvent | None, *, began: float) -> Entry:
        """Send once, under a committed attempt, and record what came of it."""
        provider = begun.owed.provider
        adapter = self._providers[provider]
        heard = steady()
        # Counted from before the commit: this clock's not-after is never later than the database's.
        leave = Sending(
            first_sent_at=begun.attempt.first_sent_at,
            not_after=begun.attempt.not_after,
            sendable_until=began + self._limits.send_seconds,
        )
        async with self._turns[provider]:
            # Too late for its leave, it is told so by the adapter and nothing is written.
            answer: Answer = await sending.call(adapter, begun.instruction, leave)
        self._sender.heard(provider, answer)
        now = now_after(begun.now, heard)
        entry = after_answer(begun.owed, begun.history, answer, now=now, patience=self._patience, jitter=self._jitter())
        said = _answered(answer)
        if isinstance(entry, Failed) and isinstance(answer, Refused):
            entry, said = await self._refused(adapter, begun, entry, now, said)
        is_recorded = await self._record(begun, entry, said, Answered(begun.attempt, answer), event)
        await self._sender.tell_breaker(provider)
        return entry if is_recorded else Hold(now, begun.owed.tries)

    async def _refused(
        self, adapter: Provider, begun: Begun, refused: Failed, now: datetime, said: _Said
    ) -> tuple[Entry, _Said]:
        """A refusal is not believed before the books were asked: "already refunded" may be our own refund."""
        books = self.terms.books[begun.owed.provider]
        if books.lookup is Lookup.NONE:
            return refused, said
        looked = await self._look_up(adapter, begun, now)
        if isinstance(looked, Absent):
            return refused, said
        step = after_look(
            begun.owed,
            NOTHING_SENT,
            looked,
            lookup=books.lookup,
            now=now,
            facts=books.facts,
            patience=self._patience,
            jitter=self._jitter(),
        )
        return after_refusal(refused, step), _looked(looked)

    async def _record(
        self,
        one: Claimed | Begun,
        entry: Entry,
        said: _Said,
        answered: Answered | None = None,
        event: ClaimedEvent | None = None,
    ) -> bool:
        result = Result(
            tenant=one.tenant,
            key=one.owed.key,
            claim_number=one.owed.claim_number,
            entry=entry,
            response=said.response,
            answered=answered,
            event=event,
            failed_as=said.refund_id if isinstance(entry, Failed) else None,
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


_COUNTED: Final[Mapping[type, str]] = {Transferred: "completed", Failed: "failed", Hold: "waiting"}


def _books(adapter: Provider) -> Books:
    return Books(account=adapter.account, facts=adapter.facts, lookup=adapter.facts.lookup.get("refund", Lookup.NONE))


def _answered(answer: Answer) -> _Said:
    return _Said(answered(answer), answer.id if isinstance(answer, Done) else None)


def _looked(looked: Looked) -> _Said:
    only = looked.movements[0].id if isinstance(looked, Found) and len(looked.movements) == 1 else None
    return _Said(looked_up(looked), only)


def _no_payment(order_id: str, payment_intent_id: str) -> Rejected:
    return Rejected(
        "payment_unknown",
        f"{order_id} has no payment {payment_intent_id!r:.80}.",
        "GET /v1/orders/{id} shows its payments. Nothing was changed.",
    )


def _needs_none(fate: str, payment_intent_id: str) -> Rejected:
    return Rejected(
        "payment_decided",
        f"The payment {payment_intent_id!r:.80} needs no decision: it is {fate}.",
        "Only a payment in REVIEW, or one whose refund has FAILED or is not decided by the provider's books, waits for "
        "a person. Nothing was changed.",
    )


def _doubted(refund_id: str, why: str) -> Rejected:
    return Rejected(
        "refund_not_confirmed",
        f"The refund {refund_id!r:.80} is not taken for this payment's: {why}.",
        "Look the payment up in the provider's dashboard, and send the id of the refund that gave all of it back.",
    )


def _debt(tenant: Tenant, receipt: asyncpg.Record, generation: int) -> Debt:
    return Debt(
        tenant=tenant,
        order_id=UUID(bytes=receipt["order_id"].bytes),
        provider=receipt["provider"],
        payment_intent_id=receipt["payment_intent_id"],
        amount_micros=receipt["amount_micros"],
        currency=receipt["currency"],
        reason=receipt["reason"],
        generation=generation,
    )


def _not_configured(provider: str) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The provider {provider!r} is not configured here.",
        "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
    )
