"""Tallystick: money moves exactly once, every movement can be explained, and nothing is lost.

async with tallystick.open() as tally:
    outcome = await tally.submit(
        tallystick.Transfer(debit="amber:dev_1", credit="amber:dev_2", amount_micros=5_000_000, currency="USD"),
        idempotency_key="invoice-17",
    )
"""

from tallystick import sync
from tallystick.checkout.order.store import OrderView, SkuView
from tallystick.checkout.order.store import Reserved as OrderMade
from tallystick.checkout.payment.rules import Paying, PaymentPending, PaymentRefused, PaymentView
from tallystick.checkout.refund.request.rules import RefundGiven, RefundMade, RefundPending, RefundRefused
from tallystick.checkout.status.rules import OrderStatus
from tallystick.errors import (
    Busy,
    CallerTransaction,
    Faulted,
    Forked,
    InFlight,
    InvariantBroken,
    Misconfigured,
    OutcomeUnknown,
    SchemaMismatch,
    TallystickError,
    Unreachable,
)
from tallystick.ledger.kinds import (
    Fee,
    Hold,
    Kind,
    Operation,
    Payout,
    Post,
    PostLeg,
    Reading,
    Refund,
    Release,
    TopUp,
    Transfer,
)
from tallystick.ledger.outcome import Committed, Duplicate, Entry, Outcome, Rejected, Transaction
from tallystick.ledger.rules import Account, Leg
from tallystick.ledger.velocity import VelocityLimit
from tallystick.library import Tally, open  # noqa: A004 - read as tallystick.open()
from tallystick.settlement.store import Made as SettlementMade
from tallystick.settlement.store import SettlementView

__version__ = "0.1.0"

__all__ = [
    "Account",
    "Busy",
    "CallerTransaction",
    "Committed",
    "Duplicate",
    "Entry",
    "Faulted",
    "Fee",
    "Forked",
    "Hold",
    "InFlight",
    "InvariantBroken",
    "Kind",
    "Leg",
    "Misconfigured",
    "Operation",
    "OrderMade",
    "OrderStatus",
    "OrderView",
    "Outcome",
    "OutcomeUnknown",
    "Paying",
    "PaymentPending",
    "PaymentRefused",
    "PaymentView",
    "Payout",
    "Post",
    "PostLeg",
    "Reading",
    "Refund",
    "RefundGiven",
    "RefundMade",
    "RefundPending",
    "RefundRefused",
    "Rejected",
    "Release",
    "SchemaMismatch",
    "SettlementMade",
    "SettlementView",
    "SkuView",
    "Tally",
    "TallystickError",
    "TopUp",
    "Transaction",
    "Transfer",
    "Unreachable",
    "VelocityLimit",
    "open",
    "sync",
]
