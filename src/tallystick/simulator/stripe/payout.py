"""Payouts to a bank (docs/providers.md 2.8). Paid is not final: it can still fail for about five business days.

    pending ─> in_transit ─> paid ─> failed     the money comes back to the balance
        └────> canceled

Destinations whose name contains a failure code (`ba_account_closed`) fail by themselves instead of being paid.
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
    currency,
    emit,
    good,
    metadata,
    missing,
    own,
    owned,
    reference,
    refuse,
    rendered,
    unix,
)

FAILURES: Final = [
    "account_closed",
    "account_frozen",
    "bank_account_restricted",
    "bank_ownership_changed",
    "could_not_process",
    "debit_not_authorized",
    "declined",
    "insufficient_funds",
    "invalid_account_number",
    "incorrect_account_holder_name",
    "invalid_currency",
    "no_account",
]
# How long a bank takes, by our choice; tests advance the clock.
PAID_AFTER: Final = timedelta(days=1)
LONGEST_DESCRIPTOR: Final = 22
_CREATE: Final = frozenset(
    ["amount", "currency", "destination", "method", "source_type", "statement_descriptor", "metadata", "description"]
)
_UNPAID: Final = frozenset({"pending", "in_transit"})


class Asked(msgspec.Struct, frozen=True):
    """A payout that passed the checks which need no books."""

    amount: int
    currency: str
    metadata: dict[str, str]
    given: Parameters


def asked(given: Parameters, context: Context) -> Asked:
    """Raises Refusal: nothing of this is stored under the key."""
    check_names(given, _CREATE, context)
    code = currency(given, context)
    value = amount(given, context, currency=code, payout=True)
    check_choice(given, "method", ("standard", "instant"), context)
    if len(given.get("statement_descriptor", "")) > LONGEST_DESCRIPTOR:
        message = f"The statement descriptor has {LONGEST_DESCRIPTOR} characters at most."
        refuse(400, message, context, param="statement_descriptor")
    if "unknown" in given.get("destination", ""):
        missing(context, "external account", given["destination"], "destination", 400)
    return Asked(value, code, metadata(given, context), given)


def create(books: Books, now: datetime, *, asked: Asked, context: Context) -> Reply:
    """POST /v1/payouts."""
    stripe_balance.check(books, asked.amount, asked.currency, context)
    id_ = books.next_id("po_")
    transaction = stripe_balance.move(
        books, now, type="payout", source=id_, amount=-asked.amount, currency=asked.currency, context=context
    )
    body = {
        "id": id_,
        "object": "payout",
        "amount": asked.amount,
        "arrival_date": unix(now + PAID_AFTER),
        "automatic": False,
        "balance_transaction": transaction,
        "created": unix(now),
        "currency": asked.currency,
        "description": asked.given.get("description"),
        "destination": asked.given.get("destination", "ba_default"),
        "failure_balance_transaction": None,
        "failure_code": None,
        "failure_message": None,
        "livemode": False,
        "metadata": asked.metadata,
        "method": asked.given.get("method", "standard"),
        "original_payout": None,
        "reconciliation_status": "not_applicable",
        "reversed_by": None,
        "source_type": asked.given.get("source_type", "card"),
        "statement_descriptor": asked.given.get("statement_descriptor"),
        "status": "pending",
        "type": "bank_account",
        **owned(context),
    }
    values = (id_, reference(asked.metadata), body["destination"], asked.amount, asked.currency, "moving", now, body)
    books.insert(Entry(DIALECT, "payout", *values))
    emit(books, now, "payout.created", body, context)
    fails = any(code in body["destination"] for code in FAILURES)
    books.later(DIALECT, "fail" if fails else "pay", id_, now + PAID_AFTER)
    return good(context, rendered(body))


def cancel(books: Books, now: datetime, *, payout_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/payouts/{id}/cancel."""
    check_names(given, frozenset(), context)
    payout = own(books, "payout", payout_id, context)
    if payout.body["status"] != "pending":
        refuse(400, f"Payouts with status {payout.body['status']} cannot be canceled.", context)
    changes = {"status": "canceled"}
    body = _given_back(books, now, payout, changes=changes, why="payout_cancel", context=context)
    return good(context, rendered(body))


def act(books: Books, now: datetime, action: str, payout: Entry) -> None:
    """`send`, `pay`, `fail`; what a payout can no longer do it does not do."""
    if action not in {"send", "pay", "fail"}:
        raise KeyError(action)
    status, context = payout.body["status"], by_itself(payout.body)
    if action == "fail" and status in _UNPAID | {"paid"}:
        code = next((code for code in FAILURES if code in payout.body["destination"]), "account_closed")
        changes = {"status": "failed", "failure_code": code, "failure_message": "The bank returned the payout."}
        _given_back(books, now, payout, changes=changes, why="payout_failure", context=context)
    elif action == "pay" and status in _UNPAID:
        _changed(books, now, payout, changes={"status": "paid"}, state="moved", event="payout.paid")
    elif action == "send" and status == "pending":
        _changed(books, now, payout, changes={"status": "in_transit"}, state="moving", event="payout.updated")


def _given_back(
    books: Books, now: datetime, payout: Entry, *, changes: dict[str, Any], why: str, context: Context
) -> dict[str, Any]:
    transaction = stripe_balance.move(
        books, now, type=why, source=payout.id, amount=payout.amount, currency=payout.currency, context=context
    )
    state = "returned" if payout.body["status"] == "paid" else "failed"
    changes |= {"failure_balance_transaction": transaction}
    return _changed(books, now, payout, changes=changes, state=state, event=f"payout.{changes['status']}")


def _changed(
    books: Books, now: datetime, payout: Entry, *, changes: dict[str, Any], state: str, event: str
) -> dict[str, Any]:
    body = payout.body | changes
    books.replace(msgspec.structs.replace(payout, body=body, state=state))
    emit(books, now, event, body, by_itself(body))
    return body
