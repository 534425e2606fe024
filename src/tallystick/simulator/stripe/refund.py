"""Refunds (docs/providers.md 2.7). Together they never exceed the charge: the natural cap.

pending ─> succeeded ─> failed     the bank returned it, days later (unverified: a switch)
    └────> failed
"""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe.wire import (
    DIALECT,
    Context,
    Parameters,
    amount,
    by_itself,
    check_choice,
    check_names,
    emit,
    good,
    metadata,
    own,
    owned,
    reference,
    refuse,
    rendered,
    text,
    unix,
)

LATE_FAILURE_SWITCH: Final = "stripe.succeeded_refund_can_fail"
_CREATE: Final = frozenset(
    [
        "payment_intent",
        "charge",
        "amount",
        "reason",
        "metadata",
        "reverse_transfer",
        "refund_application_fee",
        "currency",
    ]
)
_REASONS: Final = frozenset({"duplicate", "fraudulent", "requested_by_customer"})
_LATER: Final = timedelta(minutes=1)


def check(given: Parameters, context: Context) -> Parameters:
    """Raises Refusal: nothing of this is stored under the key."""
    check_names(given, _CREATE, context)
    if not given.get("charge"):
        text(given, "payment_intent", context)
    check_choice(given, "reason", _REASONS, context)
    if "amount" in given:
        # Whether it fits the charge and its currency, only the execution can tell.
        amount(given, context, currency="")
    metadata(given, context)
    return given


def create(books: Books, now: datetime, *, given: Parameters, context: Context) -> Reply:
    """POST /v1/refunds."""
    charge = _charge(books, given, context)
    rest = charge.amount - charge.body["amount_refunded"]
    if not rest:
        message = f"Charge {charge.id} has already been refunded."
        refuse(400, message, context, code="charge_already_refunded")
    wanted = amount(given, context, currency=charge.currency) if "amount" in given else rest
    if wanted > rest:
        message = f"Refund amount ({wanted}) is greater than unrefunded amount on charge ({rest})."
        refuse(400, message, context, param="amount")
    stripe_balance.check(books, wanted, charge.currency, context)
    body = _body(books, now, charge, wanted=wanted, given=given, context=context)
    pending = body["status"] == "pending"
    values = (body["id"], reference(body["metadata"]), body["payment_intent"] or charge.id, wanted, charge.currency)
    books.insert(Entry(DIALECT, "refund", *values, "moving" if pending else "moved", now, body))
    charged = _refunded(books, charge, wanted)
    emit(books, now, "refund.created", body, context)
    emit(books, now, "charge.refunded", charged, context)
    if pending:
        books.later(DIALECT, "succeed", body["id"], now + _LATER)
    elif _method(charge).endswith("refundFail"):
        books.later(DIALECT, "fail", body["id"], now + _LATER)
    return good(context, rendered(body))


def _method(charge: Entry) -> str:
    return str(charge.body["payment_method"] or "")


def _charge(books: Books, given: Parameters, context: Context) -> Entry:
    charge_id = given.get("charge")
    if charge_id is None:
        charge_id = own(books, "payment_intent", given["payment_intent"], context, "payment_intent").body[
            "latest_charge"
        ]
    charge = None if charge_id is None else own(books, "charge", charge_id, context, "charge")
    if charge is None or not charge.body["captured"]:
        message = "This PaymentIntent does not have a successful charge to refund."
        refuse(400, message, context, code="payment_intent_unexpected_state")
    return charge


def _body(
    books: Books, now: datetime, charge: Entry, *, wanted: int, given: Parameters, context: Context
) -> dict[str, Any]:
    id_ = books.next_id("re_")
    transaction = stripe_balance.move(
        books, now, type="refund", source=id_, amount=-wanted, currency=charge.currency, context=context
    )
    pending = _method(charge).endswith("pendingRefund")
    return {
        "id": id_,
        "object": "refund",
        "amount": wanted,
        "balance_transaction": transaction,
        "charge": charge.id,
        "created": unix(now),
        "currency": charge.currency,
        "destination_details": {"type": "card"},
        "metadata": metadata(given, context),
        "payment_intent": charge.body["payment_intent"],
        "pending_reason": "processing" if pending else None,
        "reason": given.get("reason"),
        "receipt_number": None,
        "source_transfer_reversal": None,
        "status": "pending" if pending else "succeeded",
        "transfer_reversal": None,
        **owned(context),
    }


def _refunded(books: Books, charge: Entry, change: int) -> dict[str, Any]:
    refunded = charge.body["amount_refunded"] + change
    body = charge.body | {"amount_refunded": refunded, "refunded": refunded == charge.amount}
    books.replace(msgspec.structs.replace(charge, body=body))
    return body


def act(books: Books, now: datetime, action: str, refund: Entry) -> None:
    """`succeed` one that is pending; `fail` one that is pending, or succeeded where the switch allows it."""
    if action not in {"succeed", "fail"}:
        raise KeyError(action)
    status = refund.body["status"]
    context = by_itself(refund.body)
    if action == "succeed" and status == "pending":
        body = refund.body | {"status": "succeeded", "pending_reason": None}
        books.replace(msgspec.structs.replace(refund, body=body, state="moved"))
        _tell(books, now, body, ("refund.updated", "charge.refund.updated"), context)
    elif action == "fail" and (status == "pending" or (status == "succeeded" and _late_failures(books))):
        _fail(books, now, refund, context)


def _late_failures(books: Books) -> bool:
    return books.switch(LATE_FAILURE_SWITCH) == "yes"


def _fail(books: Books, now: datetime, refund: Entry, context: Context) -> None:
    transaction = stripe_balance.move(
        books,
        now,
        type="refund_failure",
        source=refund.id,
        amount=refund.amount,
        currency=refund.currency,
        context=context,
    )
    body = refund.body | {
        "status": "failed",
        "failure_reason": "expired_or_canceled_card",
        "failure_balance_transaction": transaction,
        "pending_reason": None,
    }
    state = "returned" if refund.body["status"] == "succeeded" else "failed"
    books.replace(msgspec.structs.replace(refund, body=body, state=state))
    charge = books.get(DIALECT, "charge", refund.body["charge"])
    if charge is not None:
        _refunded(books, charge, -refund.amount)
    _tell(books, now, body, ("refund.failed", "refund.updated", "charge.refund.updated"), context)


def _tell(books: Books, now: datetime, body: dict[str, Any], types: tuple[str, ...], context: Context) -> None:
    for type_ in types:
        emit(books, now, type_, body, context)
