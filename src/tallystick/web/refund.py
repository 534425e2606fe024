"""Money that did not fit, over HTTP: what a person decides about it, what a tenant wants done with it, and breaks."""

from datetime import datetime
from typing import Literal

import msgspec

from tallystick.app import Service
from tallystick.core.outcome import Rejected
from tallystick.core.saga import Policy
from tallystick.store import checkout_policy
from tallystick.store.checkout_policy import PolicyView
from tallystick.web.call import Call, Reply, json_reply
from tallystick.web.reading import read


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a payment that waits for a person.

    `refund` gives it back, `keep` leaves it with the tenant; `confirm`: it went back already, as `refund_id`.
    """

    payment_intent_id: str
    decision: Literal["refund", "keep", "confirm"]
    refund_id: str | None = None


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
        self._decode = msgspec.json.Decoder(RefundRequest).decode
        self._decode_policy = msgspec.json.Decoder(CheckoutPolicyRequest).decode

    async def decide(self, call: Call) -> Reply | Rejected:
        """What a person wants done with a payment that waits for him."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode, body)
        if isinstance(asked, Rejected):
            return asked
        tenant, name = call.access.tenant, call.path("id")
        decided = await self._refunds.decide(
            tenant, name, asked.payment_intent_id, asked.decision, refund_id=asked.refund_id
        )
        if isinstance(decided, Rejected):
            return decided
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
        stored = await checkout_policy.put(self._database, call.access.tenant, wanted, by=call.access.prefix)
        return json_reply(200, _shown(stored))


def _shown(policy: PolicyView) -> CheckoutPolicy:
    return CheckoutPolicy(
        late=policy.late,  # type: ignore[arg-type]
        other_amount=policy.other_amount,  # type: ignore[arg-type]
        changed_by=policy.changed_by,
        changed_at=policy.changed_at,
    )
