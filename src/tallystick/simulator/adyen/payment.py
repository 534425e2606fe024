"""Adyen's card payments and refunds.

A payment is captured when it is authorised. It cannot be asked for again: Checkout has no GET for payments
(docs/providers.md 3, Payment look-up), so what came of it is told by the reply and by webhooks alone.

    payment:  Authorised                       moved
              Refused, Error, Cancelled        failed      final (docs/providers.md 3, Payments)
              Pending, Received, Redirect...   waiting ──> AUTHORISATION true | false, by `succeed` | `fail`
    refund:   received ──> REFUND true         moved   ──> REFUND_FAILED | REFUNDED_REVERSED (both: returned)
                       ──> REFUND false        failed

What happens is chosen by a word inside `paymentMethod` (stored method id, holder name, encrypted card): see
OUTCOMES; any other authorises.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from tallystick.simulator.adyen.answer import (
    DIALECT,
    MAX_REFERENCE_CHARACTERS,
    Amount,
    amount_fault,
    answer,
    checkout_problem,
    money,
    read,
    text_of,
)
from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry

REFUND_AFTER: Final = timedelta(seconds=5)

# Word in the payment method: result code, refusal reason, its number at Adyen.
OUTCOMES: Final[dict[str, tuple[str, str, str]]] = {
    "refused": ("Refused", "Refused", "2"),
    "not_enough": ("Refused", "Not enough balance", "12"),
    "expired": ("Refused", "Expired Card", "6"),
    "fraud": ("Refused", "FRAUD", "20"),
    "cancelled": ("Cancelled", "Shopper cancelled", "17"),
    "acquirer_error": ("Error", "Acquirer Error", "4"),
    "pending": ("Pending", "", ""),
    "received": ("Received", "", ""),
    "redirect": ("RedirectShopper", "", ""),
    "challenge": ("ChallengeShopper", "", ""),
}
_STATES: Final = {"Authorised": "moved", "Refused": "failed", "Cancelled": "failed", "Error": "failed"}
_REFUND_CODES: Final = {
    "settle": "REFUND",
    "succeed": "REFUND",
    "refuse": "REFUND",
    "fail": "REFUND_FAILED",
    "return": "REFUNDED_REVERSED",
    "reverse": "REFUNDED_REVERSED",
}
_CHOOSERS: Final = ("storedPaymentMethodId", "holderName", "encryptedCardNumber", "type")


class PaymentRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /payments, as far as it decides anything here."""

    amount: Amount
    merchant_account: Annotated[str, msgspec.Meta(min_length=1)]
    reference: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_REFERENCE_CHARACTERS)]
    payment_method: dict[str, Any]


class RefundRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /payments/{pspReference}/refunds."""

    amount: Amount
    merchant_account: Annotated[str, msgspec.Meta(min_length=1)]
    reference: Annotated[str, msgspec.Meta(max_length=MAX_REFERENCE_CHARACTERS)] = ""
    merchant_refund_reason: str | None = None


def pay(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /payments (docs/providers.md 3, Payments)."""
    asked = read(body, PaymentRequest)
    if isinstance(asked, str):
        return checkout_problem(422, "702", asked)
    fault = amount_fault(asked.amount)
    if fault is not None:
        return checkout_problem(422, "138" if "currency" in fault else "137", fault)
    result, reason, number = _outcome(asked.payment_method)
    psp = books.next_id("PSP00P")
    rendered: dict[str, Any] = {
        "pspReference": psp,
        "resultCode": result,
        "merchantReference": asked.reference,
        "amount": money(asked.amount.value, asked.amount.currency),
        "paymentMethod": {"brand": "visa", "type": "scheme"},
    }
    if reason:
        rendered |= {"refusalReason": reason, "refusalReasonCode": number}
    if result in {"RedirectShopper", "ChallengeShopper"}:
        rendered["action"] = {"type": "redirect", "method": "GET", "url": f"https://checkout.example/redirect/{psp}"}
    state = _STATES.get(result, "waiting")
    entry = Entry(
        DIALECT,
        "charge",
        psp,
        asked.reference,
        "",
        asked.amount.value,
        asked.amount.currency,
        state,
        now,
        {**rendered, "merchantAccount": asked.merchant_account},
    )
    books.insert(entry)
    if state != "waiting":
        announce(books, entry, now, "AUTHORISATION", success=state == "moved", reason=reason)
    return answer(200, rendered)


def refund(psp_of_payment: str, body: bytes, books: Books, now: datetime) -> Reply:
    """POST /payments/{pspReference}/refunds: always `received`, and told later (docs/providers.md 3, Refund)."""
    asked = read(body, RefundRequest)
    if isinstance(asked, str):
        return checkout_problem(422, "702", asked)
    fault = amount_fault(asked.amount)
    if fault is not None:
        return checkout_problem(422, "137", fault)
    payment = books.get(DIALECT, "charge", psp_of_payment)
    if payment is None or payment.state != "moved" or payment.body["merchantAccount"] != asked.merchant_account:
        return checkout_problem(422, "167", "Original pspReference required for this operation")
    if payment.currency != asked.amount.currency:
        return checkout_problem(422, "138", "The currency is not that of the payment")
    # docs/providers.md 3, Guard: by default the sum of refunds cannot exceed what was captured.
    taken = books.total(DIALECT, "refund", payment.id, ("moving", "moved"))
    too_much = taken + asked.amount.value > payment.amount
    if too_much and books.switch("adyen.over_refund") == "http_422":
        return checkout_problem(422, "116", "Insufficient balance on payment")
    psp = books.next_id("PSP00R")
    rendered: dict[str, Any] = {
        "merchantAccount": asked.merchant_account,
        "paymentPspReference": payment.id,
        "pspReference": psp,
        "reference": asked.reference,
        "status": "received",
        "amount": money(asked.amount.value, asked.amount.currency),
    }
    if asked.merchant_refund_reason is not None:
        rendered["merchantRefundReason"] = asked.merchant_refund_reason
    books.insert(
        Entry(
            DIALECT,
            "refund",
            psp,
            asked.reference,
            payment.id,
            asked.amount.value,
            asked.amount.currency,
            # "waiting" holds no part of the payment, so a refund that asks for too much blocks no other.
            "waiting" if too_much else "moving",
            now,
            rendered,
        )
    )
    books.later(DIALECT, "settle", psp, now + REFUND_AFTER)
    return answer(201, rendered)


def act_on_payment(books: Books, now: datetime, action: str, payment: Entry) -> None:
    """`succeed` or `fail` a payment that waits. Raises KeyError for any other action."""
    success = {"succeed": True, "fail": False, "refuse": False}[action]
    if payment.state != "waiting":
        return
    result = "Authorised" if success else "Refused"
    state = "moved" if success else "failed"
    decided = msgspec.structs.replace(payment, state=state, body={**payment.body, "resultCode": result})
    books.replace(decided)
    announce(books, decided, now, "AUTHORISATION", success=success, reason="" if success else "Refused")


def act_on_refund(books: Books, now: datetime, action: str, refunded: Entry) -> None:
    """What the bank says about a refund. Raises KeyError for an action refunds do not have."""
    code = _REFUND_CODES[action]
    if code == "REFUND" and refunded.state in {"waiting", "moving"}:
        success = refunded.state == "moving" and action != "refuse"
        reason = "" if success else "Insufficient balance on payment"
        _move(books, now, refunded, "moved" if success else "failed", code, success=success, reason=reason)
    elif refunded.state == "moved" and code == "REFUNDED_REVERSED":
        _move(books, now, refunded, "returned", code, success=True, reason="Refund returned by the bank")
    elif refunded.state == "moved" and action in {"fail", "refuse"}:
        # What was moved and came back did move: only `returned` says both.
        _move(books, now, refunded, "returned", "REFUND_FAILED", success=True, reason="Refund failed")


def announce(books: Books, entry: Entry, now: datetime, code: str, *, success: bool, reason: str = "") -> None:
    """Store a standard webhook, unsigned (docs/providers.md 3, Standard webhook traps)."""
    item = _item(entry, now, code, success=success, reason=reason)
    items = [item]
    # One POST can hold several items; whoever checks the first only, takes the rest unread.
    if entry.parent and books.switch("adyen.notification_items") == "several":
        payment = books.get(DIALECT, "charge", entry.parent)
        if payment is not None:
            items.insert(0, _item(payment, now, "AUTHORISATION", success=True, reason=""))
    body = {"live": "false", "notificationItems": [{"NotificationRequestItem": each} for each in items]}
    books.emit(DIALECT, code, body, now, entry.id)


def _move(books: Books, now: datetime, refunded: Entry, state: str, code: str, *, success: bool, reason: str) -> None:
    moved = msgspec.structs.replace(refunded, state=state)
    books.replace(moved)
    announce(books, moved, now, code, success=success, reason=reason)


def _item(entry: Entry, now: datetime, code: str, *, success: bool, reason: str) -> dict[str, Any]:
    item = {
        "additionalData": {},
        "amount": money(entry.amount, entry.currency),
        "eventCode": code,
        "eventDate": text_of(now),
        "merchantAccountCode": entry.body["merchantAccount"],
        "merchantReference": entry.reference,
        "pspReference": entry.id,
        "reason": reason,
        # A string on the wire: a boolean would give another signature.
        "success": "true" if success else "false",
    }
    return item | {"originalReference": entry.parent} if entry.parent else item


def _outcome(method: dict[str, Any]) -> tuple[str, str, str]:
    chooser = " ".join(str(method.get(name, "")) for name in _CHOOSERS).lower()
    return next((outcome for word, outcome in OUTCOMES.items() if word in chooser), ("Authorised", "", ""))
