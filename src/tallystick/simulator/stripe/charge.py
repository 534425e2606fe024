"""The attempt to take money for a PaymentIntent: which payment methods succeed, and the charge that remains.

Payment methods: any `pm_...` succeeds, unless it is one of these (Stripe's own test names, docs/providers.md 2.6):

    pm_card_chargeDeclined, pm_card_visa_chargeDeclined...   402, see DECLINES
    pm_card_authenticationRequired                           requires_action, until `act` succeed or fail
    pm_card_bankTransfer                                     processing, until `act` succeed or fail
    pm_card_refundFail, pm_card_pendingRefund                succeed; their refunds fail later, or are pending first
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe.wire import DIALECT, Context, emit, owned, shown, unix

# The end of the payment method's name: (code, decline_code).
DECLINES: Final = {
    "chargeDeclined": ("card_declined", "generic_decline"),
    "chargeDeclinedInsufficientFunds": ("card_declined", "insufficient_funds"),
    "chargeDeclinedLostCard": ("card_declined", "lost_card"),
    "chargeDeclinedStolenCard": ("card_declined", "stolen_card"),
    "chargeDeclinedFraudulent": ("card_declined", "fraudulent"),
    "chargeDeclinedVelocityLimitExceeded": ("card_declined", "card_velocity_exceeded"),
    "chargeDeclinedExpiredCard": ("expired_card", None),
    "chargeDeclinedIncorrectCvc": ("incorrect_cvc", None),
    "chargeDeclinedProcessingError": ("processing_error", None),
}


def decline(payment_method: str) -> tuple[str, str | None] | None:
    """Why this payment method is declined; None: it is not."""
    return DECLINES.get(payment_method.rpartition("_")[2])


def charge(
    books: Books, now: datetime, paid: Entry, context: Context, *, declined: tuple[str, str | None] | None
) -> dict[str, Any]:
    """Insert the charge, good or declined, of this PaymentIntent."""
    intent = paid.body
    id_ = books.next_id("ch_")
    taken = declined is None and intent["capture_method"] != "manual"
    body = {
        "id": id_,
        "object": "charge",
        "amount": intent["amount"],
        "amount_captured": intent["amount"] if taken else 0,
        "amount_refunded": 0,
        "balance_transaction": None,
        "captured": taken,
        "created": unix(now),
        "currency": intent["currency"],
        "description": intent["description"],
        "disputed": False,
        "failure_code": None if declined is None else declined[0],
        "failure_message": None if declined is None else "Your card was declined.",
        "livemode": False,
        "metadata": intent["metadata"],
        "outcome": {
            "network_status": "approved_by_network" if declined is None else "declined_by_network",
            "reason": None if declined is None else declined[1],
            "type": "authorized" if declined is None else "issuer_declined",
        },
        "paid": declined is None,
        "payment_intent": intent["id"],
        "payment_method": intent["payment_method"],
        "refunded": False,
        "status": "succeeded" if declined is None else "failed",
        "transfer_group": intent["transfer_group"],
        **owned(context),
    }
    state = "failed" if declined is not None else "moved" if taken else "waiting"
    if taken:
        body["balance_transaction"] = _paid_in(books, now, body, context)
    values = (id_, paid.reference, paid.id, intent["amount"], intent["currency"], state, now)
    stored = books.insert(Entry(DIALECT, "charge", *values, body))
    event = "charge.failed" if declined else "charge.succeeded"
    emit(books, now, event, body, context, snapshot=shown(body, stored))
    return body


def capture(books: Books, now: datetime, charge_id: str, amount: int, context: Context) -> None:
    """Take what was only reserved."""
    entry = books.get(DIALECT, "charge", charge_id)
    if entry is None:
        raise KeyError(charge_id)
    body = entry.body | {"captured": True, "amount_captured": amount}
    body["balance_transaction"] = _paid_in(books, now, body, context)
    books.replace(msgspec.structs.replace(entry, amount=amount, state="moved", body=body))
    emit(books, now, "charge.captured", body, context)


def _paid_in(books: Books, now: datetime, body: dict[str, Any], context: Context) -> str:
    """The transaction's id."""
    amount, currency = body["amount_captured"], body["currency"]
    return stripe_balance.move(
        books, now, type="charge", source=body["id"], amount=amount, currency=currency, context=context
    )
