"""Square's payments.

    APPROVED ──> COMPLETED   by /complete; at once with autocomplete, which is the default
        └─────> CANCELED     by /cancel, by key, or by itself after seven days
    PENDING ───> COMPLETED | FAILED   bank accounts
    FAILED                   a decline: HTTP 400, with the payment beside the errors

What happens is chosen by `source_id`: see SOURCES; any other succeeds. The entry's `parent` is the idempotency key,
because that is how /v2/payments/cancel finds it (docs/providers.md 4, Unknown outcome tool).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.square.answer import (
    DIALECT,
    HOLDING,
    MAIN_LOCATION,
    Key,
    Money,
    announce,
    answer,
    error,
    invalid,
    listed,
    missing,
    money_fault,
    page_asked,
    read,
    text_of,
    time_of,
)

# Ending of source_id: the code of the decline.
SOURCES: Final[dict[str, str]] = {
    "declined": "GENERIC_DECLINE",
    "rejected-cvv": "CVV_FAILURE",
    "rejected-postalcode": "ADDRESS_VERIFICATION_FAILURE",
    "rejected-expiration": "INVALID_EXPIRATION",
    "insufficient-funds": "INSUFFICIENT_FUNDS",
    "already-used": "CARD_TOKEN_USED",
    "expired-token": "CARD_TOKEN_EXPIRED",
}
BANK_SETTLES_AFTER: Final = timedelta(seconds=5)
UNCAPTURED_FOR: Final = timedelta(days=7)
# docs/providers.md 4, List filters: the last year unless asked otherwise.
_LISTED_BY_DEFAULT: Final = timedelta(days=365)
_STATES: Final = {
    "APPROVED": "waiting",
    "PENDING": "moving",
    "COMPLETED": "moved",
    "CANCELED": "failed",
    "FAILED": "failed",
}


class PaymentRequest(msgspec.Struct, frozen=True):
    """POST /v2/payments (docs/providers.md 4, Create payment)."""

    source_id: Annotated[str, msgspec.Meta(min_length=1)]
    idempotency_key: Key
    amount_money: Money | None = None
    reference_id: Annotated[str, msgspec.Meta(max_length=40)] = ""
    autocomplete: bool = True
    location_id: str = MAIN_LOCATION
    customer_id: str | None = None
    order_id: str | None = None
    note: Annotated[str, msgspec.Meta(max_length=500)] | None = None


class CompleteRequest(msgspec.Struct, frozen=True):
    """POST /v2/payments/{id}/complete."""

    version_token: str | None = None


class CancelByKeyRequest(msgspec.Struct, frozen=True):
    """POST /v2/payments/cancel."""

    idempotency_key: Key


def create(asked: PaymentRequest, books: Books, now: datetime) -> Reply:
    """POST /v2/payments."""
    fault = money_fault(asked.amount_money, "amount_money")
    if fault is not None or asked.amount_money is None:
        return fault or invalid("MISSING_REQUIRED_PARAMETER", "amount_money is required", "amount_money")
    decline = next((code for ending, code in SOURCES.items() if asked.source_id.endswith(ending)), None)
    from_bank = asked.source_id.startswith("bnon:")
    status = _first_status(asked, from_bank=from_bank, declined=decline is not None)
    payment_id = books.next_id("PAY")
    amount = {"amount": asked.amount_money.amount, "currency": asked.amount_money.currency}
    optional = {"customer_id": asked.customer_id, "order_id": asked.order_id, "note": asked.note}
    body: dict[str, Any] = {
        "id": payment_id,
        "created_at": text_of(now),
        "updated_at": text_of(now),
        "amount_money": amount,
        "total_money": amount,
        "approved_money": amount,
        "status": status,
        "source_type": "BANK_ACCOUNT" if from_bank else "CARD",
        "location_id": asked.location_id,
        "version_token": f"{payment_id}.1",
        **{name: value for name, value in optional.items() if value is not None},
    }
    if asked.reference_id:
        body["reference_id"] = asked.reference_id
    if status == "APPROVED":
        body |= {"delay_action": "CANCEL", "delayed_until": text_of(now + UNCAPTURED_FOR)}
        books.later(DIALECT, "expire", payment_id, now + UNCAPTURED_FOR)
    if status == "PENDING":
        books.later(DIALECT, "fail" if decline else "succeed", payment_id, now + BANK_SETTLES_AFTER)
    if from_bank:
        body["bank_account_details"] = {"transfer_type": "ACH", "ownership_type": "INDIVIDUAL"}
    else:
        body["card_details"] = _card(status, decline)
    words = (DIALECT, "charge", payment_id, asked.reference_id, asked.idempotency_key)
    entry = Entry(*words, asked.amount_money.amount, asked.amount_money.currency, _STATES[status], now, body)
    books.insert(entry)
    announce(books, "payment.created", entry, "payment", now)
    if status == "FAILED":
        # docs/providers.md 4, Payment status: the failed payment is an object of its own.
        refusal = error("PAYMENT_METHOD_ERROR", decline or "GENERIC_DECLINE", "The payment was declined")
        return answer({"errors": [refusal], "payment": body}, 400)
    return answer({"payment": body})


def get(payment_id: str, books: Books, _now: datetime) -> Reply:
    """GET /v2/payments/{id}."""
    entry = books.get(DIALECT, "charge", payment_id)
    return missing(f"payment {payment_id}") if entry is None else answer({"payment": entry.body})


def many(query: Mapping[str, Sequence[str]], books: Books, now: datetime) -> Reply:
    """GET /v2/payments. There is no filter for our reference (docs/providers.md 4, List filters)."""
    asked = page_asked(query, now, since=now - _LISTED_BY_DEFAULT)
    if isinstance(asked, Reply):
        return asked
    if books.switch("square.list_delay") == "5_seconds":
        asked = msgspec.structs.replace(asked, until=min(asked.until, now - timedelta(seconds=5)))
    location = asked.location or MAIN_LOCATION
    updated = {name: time_of(values[-1]) for name, values in query.items() if name.startswith("updated_at_")}
    if None in updated.values():
        return invalid("INVALID_TIME", "A time is not valid", next(name for name in updated if updated[name] is None))
    begin, end = updated.get("updated_at_begin_time"), updated.get("updated_at_end_time")

    def fits(entry: Entry) -> bool:
        changed = time_of(entry.body["updated_at"]) or now
        inside = (begin is None or changed >= begin) and (end is None or changed <= end)
        return inside and entry.body["location_id"] == location

    return listed("charge", "payments", asked, books, fits)


def complete(payment_id: str, body: bytes, books: Books, now: datetime) -> Reply:
    """POST /v2/payments/{id}/complete."""
    asked = read(body or b"{}", CompleteRequest)
    entry = books.get(DIALECT, "charge", payment_id)
    if isinstance(asked, Reply):
        return asked
    if entry is None:
        return missing(f"payment {payment_id}")
    # docs/providers.md 4, Payment status: `version_token` for optimistic concurrency.
    if asked.version_token is not None and asked.version_token != entry.body["version_token"]:
        return invalid("CONFLICT", "version_token is not the current one", "version_token", 409)
    if entry.body["status"] != "APPROVED":
        return invalid("BAD_REQUEST", f"The payment is {entry.body['status']}")
    return answer({"payment": change(books, now, entry, "COMPLETED").body})


def cancel(payment_id: str, books: Books, now: datetime) -> Reply:
    """POST /v2/payments/{id}/cancel."""
    entry = books.get(DIALECT, "charge", payment_id)
    if entry is None:
        return missing(f"payment {payment_id}")
    if entry.body["status"] != "APPROVED":
        return invalid("BAD_REQUEST", f"The payment is {entry.body['status']}")
    return answer({"payment": change(books, now, entry, "CANCELED").body})


def cancel_by_key(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /v2/payments/cancel: success also when there is nothing (docs/providers.md 4, Unknown outcome tool).

    A create that is still on its way is not stopped by it (docs/providers.md 4, Hazard of that tool).
    """
    asked = read(body, CancelByKeyRequest)
    if isinstance(asked, Reply):
        return asked
    for entry in books.find(DIALECT, "charge", parent=asked.idempotency_key, limit=1):
        # A void of what was given back already would give it back twice.
        if books.total(DIALECT, "refund", entry.id, HOLDING):
            return invalid("BAD_REQUEST", "The payment has refunds")
        if entry.state != "failed":
            change(books, now, entry, "CANCELED")
    return answer({})


def act_on_payment(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """What happens to a payment by itself. Raises KeyError for an action payments do not have."""
    before, after = {
        "succeed": ("PENDING", "COMPLETED"),
        "fail": ("PENDING", "FAILED"),
        "expire": ("APPROVED", "CANCELED"),
    }[action]
    if entry.body["status"] == before:
        change(books, now, entry, after)


def change(books: Books, now: datetime, entry: Entry, status: str, **fields: object) -> Entry:
    """The payment with a new status, stored and announced."""
    version = int(entry.body["version_token"].rpartition(".")[2]) + 1
    body = {
        **entry.body,
        **fields,
        "status": status,
        "updated_at": text_of(now),
        "version_token": f"{entry.id}.{version}",
    }
    changed = msgspec.structs.replace(entry, state=_STATES[status], body=body)
    books.replace(changed)
    announce(books, "payment.updated", changed, "payment", now)
    return changed


def _first_status(asked: PaymentRequest, *, from_bank: bool, declined: bool) -> str:
    if from_bank:
        return "PENDING"
    if declined:
        return "FAILED"
    return "COMPLETED" if asked.autocomplete else "APPROVED"


def _card(status: str, decline: str | None) -> dict[str, Any]:
    card = {"card_brand": "VISA", "last_4": "1111", "exp_month": 11, "exp_year": 2030, "card_type": "CREDIT"}
    states = {"COMPLETED": "CAPTURED", "APPROVED": "AUTHORIZED", "FAILED": "FAILED"}
    details: dict[str, Any] = {"status": states[status], "card": card, "entry_method": "KEYED"}
    if decline is not None:
        details["errors"] = [error("PAYMENT_METHOD_ERROR", decline, "The payment was declined")]
    return details
