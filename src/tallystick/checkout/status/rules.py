"""How an order stands, told to those who wait for it: what is told, and when somebody who waits is answered. Pure.

    asked without `after`   a final order is told at once; one that is PENDING when it has changed
    asked with `after`      told when it is no longer what that version said, final or not

Final is only the order's own status. What a PAID or cancelled order was paid, or is being given back, may still change:
whoever follows that passes the version he has.
"""

import hashlib
import re
from datetime import datetime
from typing import Final

import msgspec

from tallystick.checkout.order.rules import Status
from tallystick.checkout.payment.rules import PaymentView
from tallystick.checkout.refund.rules import RefundView
from tallystick.ledger.outcome import Rejected

# 64 bits: it tells apart the few states of one order, and is no secret.
_VERSION_LENGTH: Final = 16
VERSION_PATTERN: Final = f"[0-9a-f]{{{_VERSION_LENGTH}}}"


class OrderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How an order stands. `version` is another whenever anything else of this is.

    `changed_at` is when the order's own status last changed. `refund` is there once
    money that did not fit is given back.
    """

    id: str
    status: Status
    payment: PaymentView | None
    refund: RefundView | None
    changed_at: datetime
    version: str


def order_status(
    *, id_: str, status: Status, payment: PaymentView | None, refund: RefundView | None, changed_at: datetime
) -> OrderStatus:
    """What is told of an order that stands like this."""
    told = msgspec.json.encode((id_, status, payment, refund, changed_at))
    version = hashlib.sha256(told).hexdigest()[:_VERSION_LENGTH]
    return OrderStatus(id=id_, status=status, payment=payment, refund=refund, changed_at=changed_at, version=version)


def is_answer(found: OrderStatus, after: str | None) -> bool:
    """Whether the one who asked like this hears it at once, rather than when it has changed."""
    return found.status != "PENDING" if after is None else found.version != after


def may_be_kept(found: OrderStatus) -> bool:
    """Whether it may be told again from memory for a moment.

    Never that something failed: a buyer who hears that a moment too long leaves, while his next attempt comes in.
    """
    return "FAILED" not in (found.payment and found.payment.status, found.refund and found.refund.status)


def waiting_fault(seconds: float, after: str | None, *, longest_seconds: float) -> Rejected | None:
    """The refusal of a wait that cannot be kept. A longer one is not cut short silently: the caller relies on it."""
    # Written so that a NaN is refused too.
    if not 0 <= seconds <= longest_seconds:
        return wait_refused(longest_seconds)
    if after is not None and not re.fullmatch(VERSION_PATTERN, after):
        # It would be answered at once, again and again.
        return Rejected(
            "query_invalid",
            "The query parameter after is no version of a status.",
            "Send the `version` of the answer you have, or none.",
            ("after",),
        )
    return None


def wait_refused(longest_seconds: float) -> Rejected:
    """The refusal of what is no such number of seconds."""
    return Rejected(
        "query_invalid",
        "The query parameter wait cannot be used.",
        f"Send a number of seconds from 0 to {longest_seconds:g}; then ask again.",
        ("wait",),
    )
