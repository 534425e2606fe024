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
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tallystick.authority import approvals
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout import backorder_store as backorder
from tallystick.checkout.order.rules import order_id as id_of
from tallystick.checkout.order.rules import order_name, order_unknown
from tallystick.checkout.payment.rules import Entry, Hold, Resend
from tallystick.checkout.refund import store
from tallystick.checkout.refund.review import flow as refund_review
from tallystick.checkout.refund.review.flow import Asked, RefundReviewView
from tallystick.checkout.refund.review.rules import (
    IN_FLIGHT,
    Decision,
    RefundStanding,
    Wanted,
    books_on_failure,
    doubt,
    doubt_on_keeping,
    evidence_fault,
    is_next_generation,
    on_its_way,
    permitted,
)
from tallystick.checkout.refund.rules import (
    LONGEST_PAUSE,
    NOT_GIVEN_BACK,
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
    Debt,
    ReceiptRow,
    RecordWork,
    RefundResult,
    RefundRow,
    RefundTerms,
)
from tallystick.commit.group import GroupCommit
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken, RestoredDatabase, TallystickError, Unreachable
from tallystick.keys.derived import refund_part
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.decisions import Decision as DecidedApproval
from tallystick.ledger.decisions import Reviewed, once
from tallystick.ledger.outcome import Rejected
from tallystick.movement import asking
from tallystick.movement.asking import AskedAbout, unshown
from tallystick.movement.evidence import answered, kept, looked_up, now_after
from tallystick.movement.flow import Outgoing, Sender
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
from tallystick.movement.terms import terms_of
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Absent, Answer, Done, Found, Looked, Lookup, NotShown, Undecided
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.inbox import ClaimedEvent

log = structlog.get_logger("tallystick.refund")

Jitter = Callable[[], float]
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


class _Asking(msgspec.Struct, frozen=True):
    """When the books were about to be asked, on the steady clock, and the claims that the refunds had then."""

    at: float
    claims: Mapping[bytes, int]


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

    async def decide(
        self,
        tenant: Tenant,
        order_id: str,
        payment_intent_id: str,
        decision: Decision,
        *,
        refund_id: str | None = None,
        part: str | None = None,
        evidence: str | None = None,
    ) -> Rejected | ApprovalView | str:
        """A person decides about a payment, or a refund of it, that waits for him.

        `part` is the key under which it was asked for; without one it is all of a payment that did not fit.

            refund   give it back: one in REVIEW; one whose refund FAILED, under another key; one that waits, now
            keep     it may stay: one in REVIEW
            confirm  it went back already, as `refund_id` of the provider's: nothing is sent
            failed   it did not go back and will not, as `evidence` shows: nothing is sent

        How it stands then: REFUND. A refund is begun in the commit of the decision, then sent. The other three need a
        second person: what is returned is the approval that waits for him (`approve`).
        """
        uuid = id_of(order_id)
        if uuid is None:
            return order_unknown(order_id)
        if not payment_intent_id.isprintable():
            # No provider's id is like that, and no database could be asked for it.
            return _no_payment(order_id, payment_intent_id)
        if part is not None and key_refusal(part) is not None:
            return _no_part(order_id, part)
        try:
            if decision == "refund":
                return await self._begun(tenant, uuid, payment_intent_id, part)
            asked = Asked(
                order_name(uuid.bytes),
                payment_intent_id,
                (refund_id or "") if decision == "confirm" else None,
                "",
                part,
                evidence,
            )
            return evidence_fault(decision, evidence) or await self._ask(tenant, uuid, decision, asked)
        except RestoredDatabase:
            return _RESTORED

    async def approve(
        self, tenant: Tenant, view: ApprovalView, *, is_approved: bool, reason: str, by: str, idempotency_key: str
    ) -> Reviewed | Rejected:
        """A second person agrees that a payment stays, or that it went back, or did not; or disagrees. Once a key.

        What the provider's books say is asked once more before it counts.
        """
        asked, wanted = refund_review.read(view), refund_review.wanted_of(view)
        order_id = id_of(asked.order)
        if order_id is None:
            raise InvariantBroken("an approval of an order that has no id")
        began = await self._beginning(tenant, order_id, asked)
        if is_approved:
            says = await self._says(tenant, order_id, wanted, asked)
            if isinstance(says, Rejected):
                return says

        async def act(connection: Connection) -> RefundReviewView | Rejected:
            locked = await approvals.lock_approval(connection, tenant, view.id)
            if locked is None:
                return approvals.approval_unknown(view.id)
            refusal = approvals.undecidable(locked, is_approved=is_approved, by=by)
            if refusal is not None:
                return refusal
            if is_approved:
                done = await self._act(connection, tenant, order_id, wanted, asked, f"{view.asked_by} and {by}", began)
                if isinstance(done, Rejected):
                    return done
            return await refund_review.decided(connection, locked, is_approved=is_approved, by=by, reason=reason)

        decision = DecidedApproval(subject=view.id, action="approve" if is_approved else "reject", reason=reason)
        try:
            reviewed = await once(self._database, tenant, idempotency_key, decision, act)
        except RestoredDatabase:
            return _RESTORED
        self._changed([(tenant, order_id)])
        return reviewed

    async def _begun(self, tenant: Tenant, order_id: UUID, payment_intent_id: str, part: str | None) -> Rejected | str:
        async with self._database.stepping() as connection:
            found = await self._found(connection, tenant, order_id, payment_intent_id, part)
            if isinstance(found, Rejected):
                return found
            receipt, refund = found
            if receipt["provider"] not in self.terms.providers:
                return _not_configured(receipt["provider"])
            standing = _standing(receipt, refund, part)
            if "refund" not in permitted(standing):
                return _needs_none(standing, payment_intent_id)
            if refund is not None and not is_next_generation(standing):
                key = refund["idempotency_key"]
                if not await store.let_go(connection, tenant, key):
                    await store.due_now(connection, tenant, key)
                return "REFUND"
            if receipt["fate"] == "REVIEW":
                await store.set_fate(connection, receipt, "REFUND")
            began = steady()
            debt = _debt(tenant, receipt, _generation(refund), _since(receipt, refund))
            begun = await store.begin(connection, [debt], self.terms)
        await self._all(begun, began=began)
        return "REFUND"

    @staticmethod
    async def _found(
        connection: Connection, tenant: Tenant, order_id: UUID, payment_intent_id: str, part: str | None
    ) -> tuple[asyncpg.Record, asyncpg.Record | None] | Rejected:
        """The payment and its newest refund, or the part's, locked."""
        digest = None if part is None else refund_part(part)
        found = await store.decide(connection, tenant, order_id, payment_intent_id, digest)
        if found is None:
            return _no_payment(order_name(order_id.bytes), payment_intent_id)
        if part is not None and found[1] is None:
            return _no_part(order_name(order_id.bytes), part)
        return found

    async def _ask(self, tenant: Tenant, order_id: UUID, wanted: Wanted, asked: Asked) -> Rejected | ApprovalView:
        """Ask a second person. Nothing is changed but that."""
        began = await self._beginning(tenant, order_id, asked)
        says = await self._says(tenant, order_id, wanted, asked)
        if isinstance(says, Rejected):
            return says
        asked = msgspec.structs.replace(asked, provider_says=says)
        async with self._database.stepping() as connection:
            found = await self._open(connection, tenant, order_id, wanted, asked, began)
            if isinstance(found, Rejected):
                return found
            return await refund_review.ask(connection, tenant, order_id, wanted, asked)

    async def _open(  # noqa: PLR0917 - like `_act`
        self, connection: Connection, tenant: Tenant, order_id: UUID, wanted: Wanted, asked: Asked, began: _Asking
    ) -> tuple[asyncpg.Record, asyncpg.Record | None] | Rejected:
        """The payment and its newest refund, locked, if it can still be decided so."""
        found = await self._found(connection, tenant, order_id, asked.payment_intent_id, asked.part)
        if isinstance(found, Rejected):
            return found
        receipt, refund = found
        if wanted == "confirm" and await store.is_known(connection, receipt["provider"], asked.refund_id or ""):
            return _doubted(asked.refund_id or "", "it is another refund of ours already")
        standing = _standing(receipt, refund, asked.part)
        if wanted not in permitted(standing):
            return _needs_none(standing, asked.payment_intent_id)
        if wanted == "failed" and refund is not None:
            return await self._may_fail(connection, tenant, refund["idempotency_key"], began) or found
        return found

    async def _beginning(self, tenant: Tenant, order_id: UUID, asked: Asked) -> _Asking:
        """Who has the refund in hand before the books are asked: what is sent after that was not asked about."""
        at, claims = steady(), {}
        for one in await store.read(self._database, tenant, order_id):
            if (one.view.payment_intent_id, one.asked_under) == (asked.payment_intent_id, asked.part):
                async with self._database.owning() as connection:
                    standing = await store.standing(connection, tenant, one.key)
                if standing is not None:
                    claims[one.key] = standing.owed.claim_number
        return _Asking(at, claims)

    async def _may_fail(self, connection: Connection, tenant: Tenant, key: bytes, began: _Asking) -> Rejected | None:
        """Why it cannot be called failed yet, by what was sent. Under its lock: nobody sends it again before we commit.

        Raises RestoredDatabase: another life of this database may be sending it.
        """
        if not await life.notice(connection):
            raise RestoredDatabase
        one = await store.standing(connection, tenant, key)
        if one is None:
            raise InvariantBroken("a refund that is locked is not there")
        books = self.terms.providers.get(one.owed.provider)
        if books is None:
            return _not_configured(one.owed.provider)
        if began.claims.get(key) != one.owed.claim_number:
            return IN_FLIGHT
        # By the time from before the books were asked: what was sent since was not asked about.
        asked_at = one.now - timedelta(seconds=steady() - began.at)
        alone_since = await life.alone_since(connection, one.owed.provider)
        # Nor what a life of this database sent that was lost.
        if asked_at < alone_since + timedelta(seconds=self._limits.send_seconds) + books.facts.settles_in:
            return IN_FLIGHT
        return on_its_way(one.history, now=asked_at, in_flight=books.facts.settles_in)

    async def _act(  # noqa: PLR0917 - what two persons have decided
        self,
        connection: Connection,
        tenant: Tenant,
        order_id: UUID,
        wanted: Wanted,
        asked: Asked,
        persons: str,
        began: _Asking,
    ) -> Rejected | None:
        """Do what two persons agreed on, in the commit of the approval."""
        found = await self._open(connection, tenant, order_id, wanted, asked, began)
        if isinstance(found, Rejected):
            return found
        receipt, refund = found
        if wanted == "keep":
            await store.keep(connection, tenant, receipt)
            return None
        if receipt["fate"] == "REVIEW":
            await store.set_fate(connection, receipt, "REFUND")
        if refund is not None and refund["status"] == "PENDING":
            key = refund["idempotency_key"]
        else:
            # Logged like any other, and never sent: it is completed in this very commit.
            debt = _debt(tenant, receipt, _generation(refund), _since(receipt, refund))
            await store.begin(connection, [debt], self.terms)
            key = store.key_of(debt)
        said = f"by {persons}; the provider says: {asked.provider_says}"
        if wanted == "confirm":
            entry: Entry = Happened(asked.refund_id or "")
            word = kept("confirmed", said, asked.refund_id or "")
        else:
            entry = Failed(NOT_GIVEN_BACK)
            word = kept("failed", f"{said}; seen: {asked.evidence}", "")
        await store.record(
            connection, [RefundResult(tenant=tenant, key=key, claim_number=None, entry=entry, response=word)]
        )
        return None

    async def _says(self, tenant: Tenant, order_id: UUID, wanted: Wanted, asked: Asked) -> str | Rejected:
        """What the provider's own books say of it: of the refund that is named or meant, or of the payment that stays.

        Before any transaction: nothing is asked of a provider while one is open.
        """
        taken = [
            one
            for one in await store.receipts(self._database, tenant, order_id)
            if one.payment_intent_id == asked.payment_intent_id
        ]
        if not taken:
            return _no_payment(asked.order, asked.payment_intent_id)
        (seen,) = taken
        provider = self._providers.get(seen.provider)
        if wanted != "keep":
            if provider is None:
                return _not_configured(seen.provider)
            refunds = [
                one
                for one in await store.read(self._database, tenant, order_id)
                if (one.view.payment_intent_id, one.asked_under) == (asked.payment_intent_id, asked.part)
            ]
            if asked.part is not None and not refunds:
                return _no_part(asked.order, asked.part)
            newest = max(refunds, key=lambda one: one.generation, default=None)
            if wanted == "confirm":
                return await self._doubt(seen, newest, asked.refund_id or "") or "it gave this back"
            return await self._not_there(tenant, newest)
        return "nothing: it is not configured here" if provider is None else await _may_stay(provider, seen)

    async def _not_there(self, tenant: Tenant, refund: RefundRow | None) -> str | Rejected:
        """What the provider's books say to it that this refund did not happen."""
        if refund is None:
            return "nothing: no refund was asked of it"
        async with self._database.owning() as connection:
            one = await store.standing(connection, tenant, refund.key)
        if one is None:
            raise InvariantBroken("a refund that was read is not there")
        books = self.terms.providers[one.owed.provider]
        looked = await self._look_up(one, one.now)
        return books_on_failure(
            looked, one.history, account=books.account, can_be_asked=books.lookup is not Lookup.NONE
        )

    async def _doubt(self, taken: ReceiptRow, refund: RefundRow | None, refund_id: str) -> Rejected | None:
        """Why the provider's own books do not bear out that this refund gave that payment, or part of it, back."""
        if not refund_id or not refund_id.isprintable():
            return _doubted(refund_id, "there is no such id")
        answer = await asking.fetch(self._providers[taken.provider], "refund", refund_id)
        match answer:
            case Done(movement=movement):
                why = doubt(
                    movement,
                    payment_intent_id=taken.payment_intent_id,
                    amount_micros=taken.amount_micros if refund is None else refund.view.amount_micros,
                    currency=taken.currency,
                )
                async with self._database.owning() as connection:
                    known = await store.under_reference(connection, taken.provider, movement.reference)
                if known and (refund is None or refund.key not in known):
                    # Parts may be equal in everything else.
                    why = why or "it bears the key of another refund of ours"
                return None if why is None else _doubted(refund_id, why)
            case NotShown():
                # The person's word, then: he has seen what this provider shows to nobody else.
                return None
            case Absent() | Undecided():
                return _doubted(refund_id, f"the provider does not show it: {unshown(answer)}")

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


async def _may_stay(provider: Provider, taken: ReceiptRow) -> str | Rejected:
    """What the provider's books say to it that this payment is kept."""
    answer = await asking.fetch(provider, "charge", taken.payment_intent_id)
    match answer:
        case Done(movement=movement):
            why = doubt_on_keeping(movement, amount_micros=taken.amount_micros, currency=taken.currency)
            if why is not None:
                return _not_kept(taken.payment_intent_id, why)
            return f"the payment is {movement.status} ({movement.state})"
        case NotShown():
            return "nothing: it shows no payments by their id"
        case Absent() | Undecided():
            return _unasked(taken.payment_intent_id, unshown(answer))


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


def _no_payment(order_id: str, payment_intent_id: str) -> Rejected:
    return Rejected(
        "payment_unknown",
        f"{order_id} has no payment {payment_intent_id!r:.80}.",
        "GET /v1/orders/{id} shows its payments. Nothing was changed.",
    )


def _no_part(order_id: str, part: str) -> Rejected:
    return Rejected(
        "refund_part_unknown",
        f"Nothing of that payment of {order_id} was asked for under {part!r:.80}.",
        "GET /v1/orders/{id} shows its refunds, each with its `part`. Nothing was changed.",
    )


def _needs_none(standing: RefundStanding, payment_intent_id: str) -> Rejected:
    what = "payment" if standing.status is None else "part" if standing.is_part else "refund"
    return Rejected(
        "payment_decided",
        f"The {what} of {payment_intent_id!r:.80} needs no such decision: it is {standing.status or standing.fate}.",
        "Only a payment in REVIEW, or a refund with `waits_for_person`, waits for one; `keep` is for those in REVIEW, "
        "`failed` for refunds that are PENDING, and a part that FAILED is asked for again under a new key. Nothing was "
        "changed.",
    )


def _doubted(refund_id: str, why: str) -> Rejected:
    return Rejected(
        "refund_not_confirmed",
        f"The refund {refund_id!r:.80} is not taken for this payment's: {why}.",
        "Look the payment up in the provider's dashboard, and send the id of the refund that gave just this back.",
    )


def _not_kept(payment_intent_id: str, why: str) -> Rejected:
    return Rejected(
        "refund_not_confirmed",
        f"That {payment_intent_id!r:.80} stays with the tenant the provider does not bear out: {why}.",
        "Look the payment up in the provider's dashboard. If it was not taken, or another amount of it, have it given "
        "back (`refund`), or confirm what gave it back by its id. Nothing was changed.",
    )


def _unasked(payment_intent_id: str, code: str) -> Rejected:
    return Rejected(
        "refund_not_confirmed",
        f"The provider was asked about {payment_intent_id!r:.80}, and does not show it: {code}.",
        "Send the same request when it answers again. Nothing was changed.",
    )


_RESTORED: Final = Rejected(
    "database_restored",
    "The database was restored: what it does not know may have been given back.",
    "Nothing was sent. Send the same request again when the operator's `tally recover` has ended.",
)


def _standing(receipt: asyncpg.Record, refund: asyncpg.Record | None, part: str | None) -> RefundStanding:
    return RefundStanding(
        fate=receipt["fate"],
        is_part=part is not None,
        status=None if refund is None else refund["status"],
        reason=None if refund is None else refund["reason"],
    )


def _generation(refund: asyncpg.Record | None) -> int:
    """The next one's number."""
    return 0 if refund is None else refund["attempt"] + 1


def _since(receipt: asyncpg.Record, refund: asyncpg.Record | None) -> datetime:
    """When it was first owed: now, or with the first generation of it."""
    since: datetime = receipt["now"] if refund is None else refund["since"]
    return since


def _debt(tenant: Tenant, receipt: asyncpg.Record, generation: int, since: datetime) -> Debt:
    return Debt(
        tenant=tenant,
        order_id=UUID(bytes=receipt["order_id"].bytes),
        provider=receipt["provider"],
        payment_intent_id=receipt["payment_intent_id"],
        amount_micros=receipt["amount_micros"],
        currency=receipt["currency"],
        reason=receipt["reason"],
        since=since,
        generation=generation,
    )


def _not_configured(provider: str) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The provider {provider!r} is not configured here.",
        "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
    )
