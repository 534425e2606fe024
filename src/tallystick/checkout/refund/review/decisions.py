"""What a person decides about a payment that did not fit, or a refund that waits: one alone, or two.

`refund` is one person's word, and begins a refund in its commit. `keep`, `confirm` and `failed` need a second person;
what the provider's books say is asked before either counts. How it is kept is in `checkout.refund.review.flow`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick.authority import approvals
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.order.rules import order_id as id_of
from tallystick.checkout.order.rules import order_name, order_unknown
from tallystick.checkout.payment.rules import Entry
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
from tallystick.checkout.refund.rules import NOT_GIVEN_BACK
from tallystick.checkout.refund.store import (
    Begun,
    ClaimedRefund,
    Debt,
    ReceiptRow,
    RefundResult,
    RefundRow,
    RefundTerms,
)
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.keys.derived import refund_part
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.decisions import Decision as DecidedApproval
from tallystick.ledger.decisions import Reviewed, once
from tallystick.ledger.outcome import Rejected
from tallystick.movement import asking
from tallystick.movement.asking import unshown
from tallystick.movement.evidence import kept
from tallystick.movement.life import store as life
from tallystick.movement.steps import Failed, Happened
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Absent, Done, Looked, Lookup, NotShown, Undecided
from tallystick.settings import LIMITS, Limits

# Told which orders a commit has changed, after it.
Changed = Callable[[Sequence[tuple[Tenant, UUID]]], None]
# Sends what is begun, whose commit began then.
Send = Callable[[Sequence[Begun], float], Awaitable[object]]
LookUp = Callable[[ClaimedRefund | Begun, datetime], Awaitable[Looked]]


class _Asking(msgspec.Struct, frozen=True):
    """When the books were about to be asked, on the steady clock, and the claims that the refunds had then."""

    at: float
    claims: Mapping[bytes, int]


class RefundDecisions:
    """Of every tenant, over every configured provider."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        terms: RefundTerms,
        *,
        send: Send,
        look_up: LookUp,
        changed: Changed,
        limits: Limits = LIMITS,
    ) -> None:
        """`send` and `look_up` are the refunds' own; `changed` is told what a commit has changed."""
        self._database = database
        self._providers = providers
        self._terms = terms
        self._send = send
        self._look_up = look_up
        self._changed = changed
        self._limits = limits

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
            if receipt["provider"] not in self._terms.providers:
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
            begun = await store.begin(connection, [debt], self._terms)
        await self._send(begun, began)
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
        books = self._terms.providers.get(one.owed.provider)
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
            await store.begin(connection, [debt], self._terms)
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
        books = self._terms.providers[one.owed.provider]
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
