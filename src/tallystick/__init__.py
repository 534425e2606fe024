"""Tallystick: money moves exactly once, every movement can be explained, and nothing is lost.

async with tallystick.open() as tally:
    outcome = await tally.submit(
        tallystick.Transfer(debit="amber:dev_1", credit="amber:dev_2", amount_micros=5_000_000, currency="USD"),
        idempotency_key="invoice-17",
    )
"""

from tallystick import sync
from tallystick.core.ledger import Account, Leg
from tallystick.core.operation import (
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
from tallystick.core.order_status import OrderStatus
from tallystick.core.outcome import Committed, Duplicate, Entry, Outcome, Rejected, Transaction
from tallystick.core.payment import Paying, PaymentPending, PaymentRefused, PaymentView
from tallystick.core.refund_request import RefundGiven, RefundMade, RefundPending, RefundRefused
from tallystick.core.velocity import VelocityLimit
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
from tallystick.library import Tally, open  # noqa: A004 - read as tallystick.open()
from tallystick.store.order import OrderView, SkuView
from tallystick.store.order import Reserved as OrderMade
from tallystick.store.settlement import Made as SettlementMade
from tallystick.store.settlement import SettlementView

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
