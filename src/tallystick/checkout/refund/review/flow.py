"""What two persons decide about a payment or a part of it: that it stays, went back already, or did not go back.

Nothing is sent by any of it.

The first asks (`ask`), and is told which approval waits; another person approves (POST /v1/approvals/{id}), and only
then, in that commit, is it so. Where the provider can be asked it was, before both: the approval has what it says.
"""

from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick.audit.author import current, is_somebody, person_of
from tallystick.authority import approvals
from tallystick.authority.approvals import Action, ApprovalView
from tallystick.checkout.order.rules import order_name
from tallystick.checkout.refund.review.rules import Wanted
from tallystick.database.pool import Connection
from tallystick.keys.derived import digest
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected

_ACTIONS: Final[dict[Wanted, Action]] = {
    "keep": "refund_keep",
    "confirm": "refund_confirm",
    "failed": "refund_failed",
}
_WANTED: Final[dict[Action, Wanted]] = {action: wanted for wanted, action in _ACTIONS.items()}


class Asked(msgspec.Struct, frozen=True):
    """What an approval of this kind is about; kept as its evidence. `evidence`: what the person saw who asked."""

    order: str
    payment_intent_id: str
    refund_id: str | None
    provider_says: str
    part: str | None = None
    evidence: str | None = None


class RefundReviewView(msgspec.Struct, frozen=True, kw_only=True):
    """What a second person decided about a refund; its order is named in the approval."""

    approval: ApprovalView


async def ask(
    connection: Connection, tenant: Tenant, order_id: UUID, wanted: Wanted, asked: Asked
) -> ApprovalView | Rejected:
    """Ask a second person, in the caller's transaction. Asked again in the same words, it is the same approval."""
    by = current()
    if not is_somebody(person_of(by)):
        return Rejected(
            "second_person_needed",
            f"This needs two persons, and {by} is nobody's name: whoever approves may be the same.",
            "Ask with a key that was made for a person: `tally keys create --for NAME`. Nothing was changed.",
        )
    about = {"order": order_id.hex, "payment": asked.payment_intent_id}
    if asked.part is not None:
        about["part"] = asked.part
    subject = UUID(bytes=digest("refund_review", **about)[:16])
    evidence = msgspec.json.encode(asked).decode()
    went = {
        "keep": "stays with the tenant",
        "confirm": f"went back as {asked.refund_id}",
        "failed": "did not go back, and will not",
    }[wanted]
    what = asked.payment_intent_id if asked.part is None else f"{asked.part!r:.80}, a part of {asked.payment_intent_id}"
    reason = f"{what} of {order_name(order_id.bytes)} {went}."
    view, _ = await approvals.ask_approval(
        connection, tenant.number, subject, _ACTIONS[wanted], reason=reason, evidence=evidence, by=by
    )
    if msgspec.structs.replace(asked, provider_says="") == msgspec.structs.replace(read(view), provider_says=""):
        return view
    return Rejected(
        "approval_open",
        f"{view.id} waits for a second person already, with another refund or other evidence: "
        f"{read(view).refund_id or read(view).evidence!r:.200}.",
        "Have that one rejected first, if it is wrong. Nothing was changed.",
    )


async def decided(
    connection: Connection, asked: asyncpg.Record, *, is_approved: bool, by: str, reason: str
) -> RefundReviewView:
    """`approvals.settle_approval`, as the caller is told of it."""
    given = await approvals.settle_approval(connection, asked, is_approved=is_approved, by=by, reason=reason)
    return RefundReviewView(approval=approvals.seen(given))


def read(view: ApprovalView) -> Asked:
    """What an approval is about."""
    return msgspec.json.decode(view.evidence, type=Asked)


def wanted_of(view: ApprovalView) -> Wanted:
    """Which of the three it is."""
    return _WANTED[view.action]
