"""The saga of a payment: what the provider's word about money means for its order. Pure.

A webhook tells that a payment has become something. First match wins:

    no charge of ours                          a break: somebody else's money is never refunded
    disputed by the customer's bank            a break: the money is gone already, a refund would be the second
    waiting, moving                            nothing yet
    failed                                     the charge has failed: the buyer may try again
    moved, told before                         nothing more: one payment counts once, however often it is told
    moved, of no amount, or beyond any order's a break: no receipt could hold it, no ledger make room for it
    moved, not the order's amount or currency  by policy: given back, or a person decides
    moved, order PENDING                       PAID
    moved, order PAID by another payment       given back
    moved, order cancelled by its buyer        given back
    moved, order cancelled by the sweeper      by policy: given back, or PAID and delivered later
    to be given back, and disputed already     a person decides: a refund would be the second

The caller holds the order's lock, and passes what is stored. Events of one order that come in one batch are decided one
after the other, each with what the one before it did (`after`).
"""

from typing import Final, Literal

import msgspec

from tallystick.checkout.order import rules as orders
from tallystick.checkout.payment.rules import Status as ChargeStatus
from tallystick.providers.words import Movement

Fate = Literal["PAID", "REFUND", "REVIEW", "KEPT"]
BreakKind = Literal["missing_here", "refunded_outside", "disputed", "contradicted", "refund_failed"]
BREAKS: Final[tuple[BreakKind, ...]] = (
    "missing_here",
    "refunded_outside",
    "disputed",
    "contradicted",
    "refund_failed",
)
# Why money is not simply the order's.
LATE: Final = "late"
CANCELLED: Final = "order_cancelled"
SECOND: Final = "second_payment"
OTHER_AMOUNT: Final = "amount_differs"
DISPUTED: Final = "disputed"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant wants done with money that does not fit."""

    late: Literal["refund", "backorder"] = "refund"
    other_amount: Literal["refund", "review"] = "refund"


STRICT: Final = Policy()


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a payment that was told of before. `event_number` told of it first."""

    payment_intent_id: str
    fate: Fate
    event_number: int
    refund: ChargeStatus | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """An order, as far as its payments concern it. `available`: pieces that are free; None: nobody had to look."""

    status: orders.Status
    quantity: int
    amount_micros: int
    currency: str
    policy: Policy = STRICT
    receipts: tuple[Receipt, ...] = ()
    available: int | None = None


class Ours(msgspec.Struct, frozen=True, kw_only=True):
    """The charge that a movement is the outcome of, by the provider's id of it or by our key in its reference."""

    status: ChargeStatus
    payment_intent_id: str | None


class Ignore(msgspec.Struct, frozen=True):
    """Nothing to do about it."""

    reason: str


class ToldBefore(msgspec.Struct, frozen=True):
    """It was told before, and this is what became of it."""

    receipt: Receipt


class Pay(msgspec.Struct, frozen=True):
    """The order is PAID by it."""

    is_backordered: bool = False


class GiveBack(msgspec.Struct, frozen=True):
    """It is owed to the customer: a refund is begun."""

    reason: str


class Review(msgspec.Struct, frozen=True):
    """A person decides."""

    reason: str


class FailCharge(msgspec.Struct, frozen=True):
    """The charge has failed for good, by the provider's own word."""

    reason: str


class Break(msgspec.Struct, frozen=True):
    """A person must know. Nothing else is done."""

    kind: BreakKind


Decision = Ignore | ToldBefore | Pay | GiveBack | Review | FailCharge | Break


def decide(movement: Movement, ours: Ours | None, case: Case | None) -> Decision:
    """What a charge's event means. `case` is there wherever `ours` is."""
    if ours is None or case is None:
        return Ignore("failed") if movement.state == "failed" else Break("missing_here")
    receipt = next((one for one in case.receipts if one.payment_intent_id == movement.id), None)
    match movement.state:
        case "returned":
            return Break("disputed")
        case "waiting" | "moving":
            return Ignore(movement.state)
        case "failed":
            if receipt is not None:
                return Break("contradicted")
            is_live = ours.status == "COMPLETED" and ours.payment_intent_id == movement.id
            return FailCharge("failed_at_the_provider") if is_live else Ignore("failed")
        case "moved":
            return ToldBefore(receipt) if receipt is not None else _moved(movement, case)


def if_disputed(_decision: GiveBack) -> Review:
    """What becomes of money that is owed when the customer's bank has taken it back, told before or beside it."""
    return Review(DISPUTED)


def _moved(movement: Movement, case: Case) -> Decision:
    if not 0 < movement.amount_micros <= orders.MAX_AMOUNT_MICROS:
        # No refund is made of nothing; and an absurd amount, held as owed, would leave others no room in the ledger.
        return Break("contradicted")
    if (movement.amount_micros, movement.currency) != (case.amount_micros, case.currency):
        return GiveBack(OTHER_AMOUNT) if case.policy.other_amount == "refund" else Review(OTHER_AMOUNT)
    match case.status:
        case "PENDING":
            return Pay()
        case "PAID":
            return GiveBack(SECOND)
        case "CANCELLED":
            return GiveBack(CANCELLED)
        case "CANCELLED_BY_SWEEPER":
            if case.policy.late == "refund":
                return GiveBack(LATE)
            return Pay(is_backordered=(case.available or 0) < case.quantity)


def after(case: Case, movement: Movement, decision: Decision, *, event_number: int) -> Case:
    """The order as it stands once the decision is written."""
    match decision:
        case Pay(is_backordered=is_backordered):
            left = case.available
            if left is not None and not is_backordered and case.status != "PENDING":
                left -= case.quantity
            return msgspec.structs.replace(
                case,
                status="PAID",
                available=left,
                receipts=(*case.receipts, _receipt(movement, "PAID", event_number)),
            )
        case GiveBack():
            receipt = msgspec.structs.replace(_receipt(movement, "REFUND", event_number), refund="PENDING")
            return msgspec.structs.replace(case, receipts=(*case.receipts, receipt))
        case Review():
            return msgspec.structs.replace(case, receipts=(*case.receipts, _receipt(movement, "REVIEW", event_number)))
        case _:
            return case


def _receipt(movement: Movement, fate: Fate, event_number: int) -> Receipt:
    return Receipt(payment_intent_id=movement.id, fate=fate, event_number=event_number)


class LoggedRefund(msgspec.Struct, frozen=True, kw_only=True):
    """A refund in the log, as an event of the provider's finds it."""

    status: ChargeStatus
    refund_id: str | None


class Complete(msgspec.Struct, frozen=True):
    """The provider has the refund."""


class FailRefund(msgspec.Struct, frozen=True):
    """The refund has failed for good, or came back: still owed, and a person looks."""

    reason: str


def decide_refund(
    movement: Movement, refund: LoggedRefund | None, *, is_payment_ours: bool
) -> Ignore | Complete | FailRefund | Break:
    """What a refund's event means. `refund` is the one of our log that it is, by its id or our key in its reference."""
    if refund is None:
        if movement.state == "failed":
            return Ignore("failed")
        return Break("refunded_outside" if is_payment_ours else "missing_here")
    if refund.refund_id is not None and refund.refund_id != movement.id:
        # A second refund under our key: the provider's own idempotency is broken.
        return Ignore("failed") if movement.state == "failed" else Break("contradicted")
    has_failed = movement.state in ("failed", "returned")
    match refund.status:
        case "PENDING":
            return FailRefund(f"{movement.state}_at_the_provider") if has_failed else Complete()
        case "COMPLETED":
            return FailRefund(f"{movement.state}_at_the_provider") if has_failed else Ignore("told before")
        case "FAILED":
            # News from before it failed may come after; that the money has left nevertheless is a person's business.
            return Break("contradicted") if movement.state == "moved" else Ignore("told before")
