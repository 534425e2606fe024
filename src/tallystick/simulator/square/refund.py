"""Square's refunds: PENDING, then COMPLETED, REJECTED or FAILED (docs/providers.md 4, Refund).

The last word of `reason` ("reject", "fail") chooses how it ends; a COMPLETED one can still be failed by hand.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.square.answer import (
    DIALECT,
    HOLDING,
    Key,
    Money,
    announce,
    answer,
    invalid,
    listed,
    missing,
    money_fault,
    page_asked,
    problem,
    text_of,
)
from tallystick.simulator.square.payment import change

SETTLES_AFTER: Final = timedelta(seconds=5)
_LISTED_BY_DEFAULT: Final = timedelta(days=365)
_STATES: Final = {"PENDING": "moving", "COMPLETED": "moved", "REJECTED": "failed", "FAILED": "failed"}


class RefundRequest(msgspec.Struct, frozen=True):
    """POST /v2/refunds."""

    idempotency_key: Key
    amount_money: Money | None = None
    payment_id: str = ""
    reason: Annotated[str, msgspec.Meta(max_length=192)] | None = None
    payment_version_token: str | None = None


def create(asked: RefundRequest, books: Books, now: datetime) -> Reply:
    """POST /v2/refunds, with its guards (docs/providers.md 4, Refund guards)."""
    fault = money_fault(asked.amount_money, "amount_money")
    if fault is not None or asked.amount_money is None:
        return fault or invalid("MISSING_REQUIRED_PARAMETER", "amount_money is required", "amount_money")
    payment = books.get(DIALECT, "charge", asked.payment_id)
    if payment is None:
        return missing(f"payment {asked.payment_id}")
    if asked.payment_version_token not in {None, payment.body["version_token"]}:
        return invalid("CONFLICT", "payment_version_token is not the current one", "payment_version_token", 409)
    if payment.body["status"] != "COMPLETED":
        return problem(400, "REFUND_ERROR", "PAYMENT_NOT_REFUNDABLE", f"The payment is {payment.body['status']}")
    pending = books.total(DIALECT, "refund", payment.id, ("moving",))
    if books.switch("square.pending_refund") == "blocks" and pending:
        return problem(400, "REFUND_ERROR", "REFUND_ALREADY_PENDING", "Another refund of the payment is pending")
    rest = payment.amount - books.total(DIALECT, "refund", payment.id, HOLDING)
    if asked.amount_money.currency != payment.currency or asked.amount_money.amount > rest:
        detail = f"At most {rest} {payment.currency} can be refunded"
        return problem(400, "REFUND_ERROR", "REFUND_AMOUNT_INVALID", detail, "amount_money.amount")
    entry = _new(asked, asked.amount_money, payment, books, now)
    books.insert(entry)
    announce(books, "refund.created", entry, "refund", now)
    _tell_payment(books, now, payment)
    if entry.state == "moving":
        books.later(DIALECT, "settle", entry.id, now + SETTLES_AFTER)
    return answer({"refund": entry.body})


def get(refund_id: str, books: Books, _now: datetime) -> Reply:
    """GET /v2/refunds/{id}."""
    entry = books.get(DIALECT, "refund", refund_id)
    return missing(f"refund {refund_id}") if entry is None else answer({"refund": entry.body})


def many(query: Mapping[str, Sequence[str]], books: Books, now: datetime) -> Reply:
    """GET /v2/refunds: by time, location and status (docs/providers.md 4, Refund list)."""
    asked = page_asked(query, now, since=now - _LISTED_BY_DEFAULT)
    if isinstance(asked, Reply):
        return asked
    status = query.get("status", [None])[-1]

    def fits(entry: Entry) -> bool:
        here = asked.location in {None, entry.body["location_id"]}
        return here and status in {None, entry.body["status"]}

    return listed("refund", "refunds", asked, books, fits)


def act_on_refund(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """How a refund ends. Raises KeyError for an action refunds do not have."""
    last_word = entry.body.get("reason", "").lower().rpartition(" ")[2]
    chosen = {"reject": "REJECTED", "fail": "FAILED"}.get(last_word, "COMPLETED")
    status = {"settle": chosen, "succeed": "COMPLETED", "refuse": "REJECTED", "fail": "FAILED"}[action]
    # Only a failure can follow on a completed one: the bank gave it back.
    if entry.body["status"] != "PENDING" and (entry.body["status"], status) != ("COMPLETED", "FAILED"):
        return
    body = {**entry.body, "status": status, "updated_at": text_of(now)}
    # What was moved and came back did move: only `returned` says both.
    state = "returned" if entry.state == "moved" else _STATES[status]
    ended = msgspec.structs.replace(entry, state=state, body=body)
    books.replace(ended)
    announce(books, "refund.updated", ended, "refund", now)
    payment = books.get(DIALECT, "charge", entry.parent)
    if payment is not None and ended.state not in HOLDING:
        _tell_payment(books, now, payment)


def _new(asked: RefundRequest, money: Money, payment: Entry, books: Books, now: datetime) -> Entry:
    refund_id = f"{payment.id}_{books.next_id('R')}"
    status = books.switch("square.refund_status").upper()
    body: dict[str, Any] = {
        "id": refund_id,
        "status": status,
        "location_id": payment.body["location_id"],
        "amount_money": {"amount": money.amount, "currency": money.currency},
        "payment_id": payment.id,
        "created_at": text_of(now),
        "updated_at": text_of(now),
    }
    if asked.reason is not None:
        body["reason"] = asked.reason
    # docs/providers.md 1, Our own reference: refunds have none. The reason is all that carries a word of ours.
    words = (DIALECT, "refund", refund_id, asked.reason or "", payment.id, money.amount, money.currency)
    return Entry(*words, _STATES[status], now, body)


def _tell_payment(books: Books, now: datetime, payment: Entry) -> None:
    total = books.total(DIALECT, "refund", payment.id, HOLDING)
    fields: dict[str, Any] = {"refunded_money": {"amount": total, "currency": payment.currency}}
    # docs/providers.md 4, Refund list: whether the payment names its refunds is not verified.
    if books.switch("square.refund_ids") == "listed":
        refunds = books.find(DIALECT, "refund", parent=payment.id, limit=EVERY, newest_first=False)
        fields["refund_ids"] = [each.id for each in refunds if each.state in HOLDING]
    change(books, now, payment, payment.body["status"], **fields)
