"""Refunds over HTTP: what a tenant gives back, what a person decides about money that did not fit, and the policy."""

from datetime import datetime
from typing import Literal

import msgspec

from tallystick.app import Service
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout import policy_store as checkout_policy
from tallystick.checkout.policy_store import PolicyView
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending, RefundRefused
from tallystick.checkout.saga.rules import Policy
from tallystick.http.call import Call, Reply, json_reply, problem_reply
from tallystick.http.idempotency_key import REPLAYED, read_keyed
from tallystick.http.problem import refused
from tallystick.http.reading import read
from tallystick.ledger.outcome import Rejected


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is given back of a paid order. Without `amount_micros`: all that is left.

    `reason` is for whoever reads it in a year; the provider does not see it. With `restock` the order's pieces are for
    sale again.
    """

    reason: str
    amount_micros: int | None = None
    restock: bool = False


class RefundAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A refund that was asked for. COMPLETED: the provider has it. PENDING: it will, however long that takes."""

    order_id: str
    status: Literal["PENDING", "COMPLETED"]
    payment_intent_id: str
    refund_id: str | None
    amount_micros: int
    currency: str
    reason: str
    restock: bool
    created_at: datetime


class RefundDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a payment, or of a refund of it, that waits for a person.

    `part` names a part that was asked for, by its key; without one it is all of a payment that did not fit. `refund`
    gives it back, `keep` leaves it with the tenant; `confirm`: it went back already, as `refund_id`; `failed`: it did
    not and will not, as `evidence` shows.
    """

    payment_intent_id: str
    decision: Literal["refund", "keep", "confirm", "failed"]
    refund_id: str | None = None
    part: str | None = None
    evidence: str | None = None


class CheckoutPolicyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done with money that does not fit."""

    late: Literal["refund", "backorder"] = "refund"
    other_amount: Literal["refund", "review"] = "refund"


class CheckoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with money that does not fit. `changed_by` null: nobody has chosen, this is the default."""

    late: Literal["refund", "backorder"]
    other_amount: Literal["refund", "review"]
    changed_by: str | None
    changed_at: datetime | None


class Refunds:
    """The endpoints of refunds and of the checkout policy."""

    def __init__(self, service: Service) -> None:
        """Refunds go through the service's own flow."""
        self._database = service.database
        self._refunds = service.refunds
        self._payments = service.payments
        self._requests = service.refund_requests
        self._decode = msgspec.json.Decoder(RefundRequest).decode
        self._decode_decision = msgspec.json.Decoder(RefundDecision).decode
        self._decode_policy = msgspec.json.Decoder(CheckoutPolicyRequest).decode

    async def refund(self, call: Call) -> Reply | Rejected:
        """Give a paid order back, all or in part."""
        keyed = await read_keyed(call, self._decode)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        refunded = await self._requests.refund(
            call.access.tenant,
            call.path("id"),
            amount_micros=asked.amount_micros,
            reason=asked.reason,
            restock=asked.restock,
            idempotency_key=key,
        )
        match refunded:
            case RefundGiven():
                reply = json_reply(201, refunded.refund)
                return msgspec.structs.replace(reply, headers=REPLAYED) if refunded.is_replayed else reply
            case RefundPending():
                reply = json_reply(202, _pending(refunded))
                return msgspec.structs.replace(reply, headers=((b"retry-after", b"%d" % refunded.retry_after_seconds),))
            case RefundRefused():
                return problem_reply(refused(refunded), *(REPLAYED if refunded.is_replayed else ()))
            case Rejected():
                return refunded

    async def decide(self, call: Call) -> Reply | Rejected:
        """What a person wants done with a payment that waits for him."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode_decision, body)
        if isinstance(asked, Rejected):
            return asked
        tenant, name = call.access.tenant, call.path("id")
        decided = await self._refunds.decisions.decide(
            tenant,
            name,
            asked.payment_intent_id,
            asked.decision,
            refund_id=asked.refund_id,
            part=asked.part,
            evidence=asked.evidence,
        )
        if isinstance(decided, Rejected):
            return decided
        if isinstance(decided, ApprovalView):
            # A second person must agree before it is so.
            return json_reply(202, decided)
        found = await self._payments.order(tenant, name)
        return found if isinstance(found, Rejected) else json_reply(200, found)

    async def policy(self, call: Call) -> Reply | Rejected:
        """The tenant's."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        return json_reply(200, _shown(await checkout_policy.read(self._database, call.access.tenant)))

    async def put_policy(self, call: Call) -> Reply | Rejected:
        """For payments that are decided from now on."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode_policy, body)
        if isinstance(asked, Rejected):
            return asked
        wanted = Policy(late=asked.late, other_amount=asked.other_amount)
        stored = await checkout_policy.put(self._database, call.access.tenant, wanted, by=call.access.author)
        return json_reply(200, _shown(stored))


def _pending(refund: RefundPending) -> RefundAnswer:
    return RefundAnswer(
        order_id=refund.order_id,
        status="PENDING",
        payment_intent_id=refund.payment_intent_id,
        refund_id=None,
        amount_micros=refund.amount_micros,
        currency=refund.currency,
        reason=refund.reason,
        restock=refund.restock,
        created_at=refund.created_at,
    )


def _shown(policy: PolicyView) -> CheckoutPolicy:
    return CheckoutPolicy(
        late=policy.late,  # type: ignore[arg-type]
        other_amount=policy.other_amount,  # type: ignore[arg-type]
        changed_by=policy.changed_by,
        changed_at=policy.changed_at,
    )
