"""A charge that nobody answers for: what a person has seen at the provider closes it, with his evidence.

    never_charged   FAILED: nothing was taken. What turns up all the same is given back
    charged         COMPLETED under the provider's id; where the provider can be asked, only if its books say so

Decided once under an idempotency key. The provider is asked with no transaction open.
"""

from collections.abc import Mapping
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.checkout.order.rules import order_id as id_of
from tallystick.checkout.order.rules import order_unknown
from tallystick.checkout.order.store import Changed, OrderView, unannounced
from tallystick.checkout.payment.review import store
from tallystick.checkout.payment.review.store import Open
from tallystick.checkout.payment.rules import NEVER_CHARGED, Search, search_for
from tallystick.checkout.release.store import ProviderWord
from tallystick.database.pool import Connection, Database
from tallystick.keys.derived import hex64, is_reference
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.decisions import Reviewed, once
from tallystick.ledger.outcome import Rejected
from tallystick.movement import asking
from tallystick.movement.asking import unshown
from tallystick.providers.port import Provider
from tallystick.providers.words import Absent, Done, Event, Found, Lookup, Movement, NotShown, Undecided
from tallystick.settings import LIMITS, Limits

SeenOutcome = Literal["never_charged", "charged"]
_MOST_WORDS: Final = 4_000
_TYPE: Final = "tallystick.found_by_a_person"


class Resolved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person asked for, in the form its key is bound to."""

    subject: str
    outcome: SeenOutcome
    evidence: str
    payment_intent_id: str | None = None


class PaymentReviews:
    """Decisions about charges, for every tenant."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        *,
        changed: Changed = unannounced,
        limits: Limits = LIMITS,
    ) -> None:
        """`changed` is told of orders whose payment stands otherwise than before."""
        self._limits = limits
        self._database = database
        self._providers = providers
        self._changed = changed

    async def resolve(
        self,
        tenant: Tenant,
        name: str,
        *,
        outcome: SeenOutcome,
        evidence: str,
        payment_intent_id: str | None,
        by: str,
        idempotency_key: str,
    ) -> Reviewed | Rejected:
        """Close a charge that is PENDING. Raises InFlight, OutcomeUnknown and Unreachable; safe to repeat."""
        wanted = Resolved(subject=name, outcome=outcome, evidence=evidence, payment_intent_id=payment_intent_id)
        refusal = key_refusal(idempotency_key) or _fault(wanted)
        if refusal is not None:
            return refusal
        order_id = id_of(name)
        if order_id is None:
            return order_unknown(name)
        seen = await store.newest(self._database, tenant, order_id)
        movement: Movement | Rejected | None = None
        if seen is not None and seen.status == "PENDING":
            movement = await self._asked(seen, wanted)

        async def act(connection: Connection) -> OrderView | Rejected:
            charge = await store.locked(connection, tenant, order_id)
            fault = self._refusal(name, charge, movement, seen)
            if fault is not None or not isinstance(charge, Open):
                return fault or _none(name)
            return await self._resolved(connection, tenant, order_id, charge, wanted, movement, by)

        try:
            return await once(self._database, tenant, idempotency_key, wanted, act)
        finally:
            self._changed(tenant.number, [order_id])

    def _refusal(
        self, name: str, charge: Open | Rejected | None, movement: Movement | Rejected | None, seen: Open | None
    ) -> Rejected | None:
        """Why it cannot be closed, by what is stored under the lock. Nothing was changed."""
        if charge is None or isinstance(charge, Rejected):
            return charge or _none(name)
        if charge.status != "PENDING":
            return Rejected(
                "payment_decided",
                f"The charge of {name} is {charge.status}: there is nothing left to find out about it.",
                "GET /v1/orders/{id} tells how it stands.",
            )
        adapter = self._providers.get(charge.provider)
        may_be_on_its_way = (
            adapter is not None
            and charge.not_after is not None
            # By the time of the question, not of the lock: what was sent since was not asked about.
            and (
                seen is None
                or (seen.key, seen.claim_number) != (charge.key, charge.claim_number)
                or min(seen.now, charge.now) < charge.not_after + adapter.facts.settles_in
            )
        )
        if may_be_on_its_way:
            return Rejected(
                "payment_in_flight",
                f"The charge of {name} may still be on its way to {charge.provider}: what is seen there now proves "
                f"nothing.",
                "Look again, and send the same request with the same key, in a few minutes.",
            )
        return movement if isinstance(movement, Rejected) else None

    async def _resolved(  # noqa: PLR0917 - all of it belongs to one decision
        self,
        connection: Connection,
        tenant: Tenant,
        order_id: UUID,
        charge: Open,
        wanted: Resolved,
        movement: Movement | Rejected | None,
        by: str,
    ) -> OrderView:
        response = msgspec.json.encode({"what": "resolved", "by": by, **msgspec.to_builtins(wanted)})
        told: list[ProviderWord] = []
        if wanted.payment_intent_id is not None:
            made = movement if isinstance(movement, Movement) else _own(charge, wanted.payment_intent_id)
            if made.state == "moved":
                told = [ProviderWord(charge.provider, (_event(made, response),))]
        return await store.resolve(
            connection,
            tenant,
            order_id,
            charge,
            payment_intent_id=wanted.payment_intent_id,
            reason=NEVER_CHARGED if wanted.payment_intent_id is None else None,
            response=response,
            told=told,
        )

    async def _asked(self, charge: Open, wanted: Resolved) -> Movement | Rejected | None:
        """The provider's own word, where it can be asked. None: it cannot, and the person's stands."""
        adapter = self._providers.get(charge.provider)
        if adapter is None:
            return _unconfirmed(f"{charge.provider} is not configured here, so nobody can be asked.")
        account = charge.history.account
        if account not in (None, adapter.account):
            # Nobody here can ask that one. Who names it has looked there, and not at the books of this one.
            return None if account in wanted.evidence else _other_account(charge.provider, account, adapter.account)
        if wanted.payment_intent_id is None:
            return await self._is_absent(adapter, charge)
        answer = await asking.fetch(adapter, "charge", wanted.payment_intent_id)
        match answer:
            case Done(movement=movement):
                return self._matching(charge, movement)
            case NotShown():
                return None
            case Absent() | Undecided():
                return _unconfirmed(f"{charge.provider} did not show {wanted.payment_intent_id}: {unshown(answer)}.")

    async def _is_absent(self, adapter: Provider, charge: Open) -> Rejected | None:
        if adapter.facts.lookup.get("charge", Lookup.NONE) is Lookup.NONE:
            return None
        search = self._search(charge)
        looked = await asking.look_up(
            adapter, charge.instruction, search.others, since=search.since, now=charge.now, beyond_failed=True
        )
        if isinstance(looked, Undecided):
            # Called failed, it may be tried again under another key: beside one that is there.
            return _unconfirmed(f"{charge.provider} did not show whether it has it: {looked.code}.")
        if isinstance(looked, Found):
            made = next((one.id for one in looked.movements if one.state != "failed"), None)
            return None if made is None else _charged_after_all(charge.provider, made)
        return None

    def _search(self, charge: Open) -> Search:
        return search_for(
            charge.order,
            charge.history,
            attempt=charge.attempt,
            provider=charge.provider,
            most_attempts=self._limits.payment_attempts,
        )

    def _matching(self, charge: Open, movement: Movement) -> Movement | Rejected:
        """The payment, where it is this charge's: under its key, or under one that a lost life's attempt would have."""
        keys = charge.key, *self._search(charge).others
        # Whatever its amount: with another one than was asked for it is the saga's, as when a webhook tells of it.
        if not any(is_reference(key, movement.reference) for key in keys):
            return _unconfirmed(f"{movement.id} at {charge.provider} is another payment than this charge.")
        if movement.state == "failed":
            return _unconfirmed(f"{movement.id} at {charge.provider} has failed: it took nothing.")
        return movement


def _own(charge: Open, payment_intent_id: str) -> Movement:
    """What the person says, where the provider cannot be asked."""
    return Movement(
        provider=charge.provider,
        purpose="charge",
        id=payment_intent_id,
        amount_micros=charge.instruction.amount_micros,
        currency=charge.instruction.currency,
        state="moved",
        status="as_a_person_found",
        reference=hex64(charge.key),
    )


def _event(movement: Movement, body: bytes) -> Event:
    return Event(
        provider=movement.provider,
        type=_TYPE,
        dedup_key=f"{_TYPE}:{movement.id}",
        change_key=f"{_TYPE}:{movement.id}",
        object_id=movement.id,
        occurred_at=None,
        movement=movement,
        body=body,
    )


def _fault(wanted: Resolved) -> Rejected | None:
    if wanted.outcome == "charged" and not wanted.payment_intent_id:
        return Rejected(
            "payment_intent_id_missing",
            f"The charge of {wanted.subject} would be called made, and nobody says as which payment.",
            "Send the provider's id of the payment as payment_intent_id.",
        )
    if wanted.outcome == "never_charged" and wanted.payment_intent_id:
        return Rejected(
            "payment_intent_id_unwanted",
            f"The charge of {wanted.subject} would be called never made, and a payment of it is named.",
            "Leave payment_intent_id out, or say that it was charged.",
        )
    if not wanted.evidence.strip():
        return Rejected(
            "evidence_missing",
            f"The charge of {wanted.subject} would be closed without a word on what shows it.",
            "Say what you looked at and what it showed: the provider's dashboard, a statement, a reply of theirs.",
        )
    if len(wanted.evidence) > _MOST_WORDS or "\0" in wanted.evidence:
        return Rejected(
            "evidence_invalid", "The evidence is not text that can be kept.", f"Send up to {_MOST_WORDS} characters."
        )
    return None


def _none(name: str) -> Rejected:
    return Rejected("payment_unknown", f"{name} was never charged.", "There is nothing to find out about it.")


def _other_account(provider: str, sent_with: str, configured: str) -> Rejected:
    return Rejected(
        "payment_not_confirmed",
        f"It was sent with another account of {provider}, {sent_with!r}, than the one that is configured here, "
        f"{configured!r}, whose books would not show it. Nothing was changed.",
        f"Start a worker with that account: it asks by itself. Where that is gone for good, look in its dashboard, and "
        f"name {sent_with!r} in your evidence.",
    )


def _charged_after_all(provider: str, payment_intent_id: str) -> Rejected:
    return Rejected(
        "payment_not_confirmed",
        f"{provider} has it, as {payment_intent_id}: it was charged. Nothing was changed.",
        f"Send outcome `charged` with payment_intent_id {payment_intent_id}; `never_charged` stays refused.",
    )


def _unconfirmed(what: str) -> Rejected:
    return Rejected(
        "payment_not_confirmed",
        f"{what} Nothing was changed.",
        "Compare the id, the amount and our key at the provider; when it can be asked again, send the same request.",
    )
