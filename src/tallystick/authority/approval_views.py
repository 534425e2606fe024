"""Approvals over HTTP: what waits for a second person, and his decision."""

from typing import Literal

import msgspec

from tallystick.app import Service
from tallystick.authority import approvals
from tallystick.authority.approvals import ApprovalView
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.idempotency_key import read_keyed
from tallystick.http.query import page_size
from tallystick.ledger.outcome import Rejected
from tallystick.settlement.review.flow import decision_fault
from tallystick.settlement.views import reviewed


class DecisionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a second person says to it, and why."""

    decision: Literal["approve", "reject"]
    reason: str


class OpenApprovals(msgspec.Struct, frozen=True):
    """What waits for a second person, oldest first. `more`: there are others, shown once these are decided."""

    approvals: list[ApprovalView]
    more: bool


class Approvals:
    """The endpoints of approvals."""

    def __init__(self, service: Service) -> None:
        """Whoever decides is known by the name his key was made for, and must be another one than asked."""
        self._reviews = service.reviews
        self._refunds = service.refunds
        self._database = service.database
        self._decode = msgspec.json.Decoder(DecisionRequest).decode

    async def list(self, call: Call) -> Reply | Rejected:
        """Those that nobody has decided yet."""
        query = call.query("limit")
        if isinstance(query, Rejected):
            return query
        most = page_size(query)
        if isinstance(most, Rejected):
            return most
        found = await approvals.list_approvals(self._database, call.access.tenant, most=most + 1)
        return json_reply(200, OpenApprovals(found[:most], more=len(found) > most))

    async def read(self, call: Call) -> Reply | Rejected:
        """One approval, open or decided."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        found = await approvals.read_approval(self._database, call.access.tenant, call.path("id"))
        return found if isinstance(found, Rejected) else json_reply(200, found)

    async def decide(self, call: Call) -> Reply | Rejected:
        """Approve or reject what another person asked for."""
        keyed = await read_keyed(call, self._decode)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        tenant, by = call.access.tenant, call.access.author
        refusal = decision_fault(call.path("id"), asked.reason, key)
        if refusal is not None:
            return refusal
        found = await approvals.read_approval(self._database, tenant, call.path("id"))
        if isinstance(found, Rejected):
            return found
        if found.order is not None:
            is_approved = asked.decision == "approve"
            return reviewed(
                await self._refunds.decisions.approve(
                    tenant, found, is_approved=is_approved, reason=asked.reason, by=by, idempotency_key=key
                )
            )
        return reviewed(
            await self._reviews.decide(
                tenant, found.id, decision=asked.decision, reason=asked.reason, by=by, idempotency_key=key
            )
        )
