"""Transfers to connected accounts, and their reversals (docs/providers.md 2.5). A transfer has no status.

Destinations: any `acct_...` takes money, unless its name contains one of these words:

    unknown     resource_missing, before the key layer: not stored
    closed      account_closed                       these are refused by the execution,
    invalid     account_invalid                      and so stored under the key
    standard    not_allowed_on_standard_account
    restricted  transfers_not_allowed
"""

from datetime import datetime
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
    text,
    unix,
)

GROUP_SWITCH: Final = "stripe.source_transaction_group"
REFUSING: Final = {
    "closed": "account_closed",
    "invalid": "account_invalid",
    "standard": "not_allowed_on_standard_account",
    "restricted": "transfers_not_allowed",
}
_CREATE: Final = frozenset(
    [
        "amount",
        "currency",
        "destination",
        "description",
        "metadata",
        "source_transaction",
        "source_type",
        "transfer_group",
    ]
)
_REVERSE: Final = frozenset(["amount", "description", "metadata", "refund_application_fee"])


class Asked(msgspec.Struct, frozen=True):
    """A transfer that passed the checks which need no books."""

    amount: int
    currency: str
    destination: str
    metadata: dict[str, str]
    given: Parameters


def asked(given: Parameters, context: Context) -> Asked:
    """Raises Refusal: nothing of this is stored under the key (docs/providers.md 2.2)."""
    check_names(given, _CREATE, context)
    code = currency(given, context)
    destination = text(given, "destination", context)
    if not destination.startswith("acct_") or "unknown" in destination:
        missing(context, "destination", destination, "destination", 400)
    return Asked(amount(given, context, currency=code), code, destination, metadata(given, context), given)


def create(books: Books, now: datetime, *, asked: Asked, context: Context) -> Reply:
    """POST /v1/transfers."""
    for word, code in REFUSING.items():
        if word in asked.destination:
            message = f"The destination account cannot receive this transfer: {code}."
            refuse(400, message, context, code=code, param="destination")
    group = _group(books, asked, context)
    if not asked.given.get("source_transaction"):
        stripe_balance.check(books, asked.amount, asked.currency, context)
    id_ = books.next_id("tr_")
    transaction = stripe_balance.pay_transfer(
        books, transfer_id=id_, amount=asked.amount, currency=asked.currency, context=context
    )
    body = {
        "id": id_,
        "object": "transfer",
        "amount": asked.amount,
        "amount_reversed": 0,
        "balance_transaction": transaction,
        "created": unix(now),
        "currency": asked.currency,
        "description": asked.given.get("description"),
        "destination": asked.destination,
        "destination_payment": "py_" + id_.removeprefix("tr_"),
        "livemode": False,
        "metadata": asked.metadata,
        "reversals": {
            "object": "list",
            "data": [],
            "has_more": False,
            "total_count": 0,
            "url": f"/v1/transfers/{id_}/reversals",
        },
        "reversed": False,
        "source_transaction": asked.given.get("source_transaction"),
        "source_type": asked.given.get("source_type", "card"),
        "transfer_group": group,
        **owned(context),
    }
    look_up_by = group or reference(asked.metadata)
    values = (id_, look_up_by, asked.destination, asked.amount, asked.currency, "moved", now, body)
    books.insert(Entry(DIALECT, "transfer", *values))
    emit(books, now, "transfer.created", body, context)
    return good(context, rendered(body))


def _group(books: Books, asked: Asked, context: Context) -> str | None:
    group: str | None = asked.given.get("transfer_group") or None
    charge_id = asked.given.get("source_transaction")
    if not charge_id:
        return group
    charge = own(books, "charge", charge_id, context, "source_transaction")
    if charge.currency != asked.currency:
        message = (
            f"The currency of source_transaction's balance transaction ({charge.currency}) must be the transfer's."
        )
        refuse(400, message, context, param="currency")
    if asked.amount > charge.amount:
        refuse(400, "Transfers using this transaction as a source must not exceed its amount.", context, param="amount")
    # docs/providers.md 2.5, unverified: the charge's group wins over ours.
    if books.switch(GROUP_SWITCH) == "forced":
        return charge.body.get("transfer_group") or f"group_{charge_id}"
    return group


def reverse(books: Books, now: datetime, *, transfer_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/transfers/{id}/reversals."""
    check_names(given, _REVERSE, context)
    transfer = own(books, "transfer", transfer_id, context)
    rest = transfer.amount - transfer.body["amount_reversed"]
    wanted = amount(given, context, currency=transfer.currency) if "amount" in given else rest
    if wanted > rest or not rest:
        message = f"Reversal amount ({wanted}) is greater than the unreversed amount ({rest})."
        refuse(400, message, context, param="amount")
    body = _reversed(books, now, transfer, wanted=wanted, noted=metadata(given, context), context=context)
    return good(context, rendered(body))


def _reversed(
    books: Books, now: datetime, transfer: Entry, *, wanted: int, noted: dict[str, str], context: Context
) -> dict[str, Any]:
    id_ = books.next_id("trr_")
    transaction = stripe_balance.move(
        books, now, type="transfer_refund", source=id_, amount=wanted, currency=transfer.currency, context=context
    )
    body = {
        "id": id_,
        "object": "transfer_reversal",
        "amount": wanted,
        "balance_transaction": transaction,
        "created": unix(now),
        "currency": transfer.currency,
        "destination_payment_refund": None,
        "metadata": noted,
        "source_refund": None,
        "transfer": transfer.id,
        **owned(context),
    }
    values = (id_, reference(noted), transfer.id, wanted, transfer.currency, "moved", now, body)
    books.insert(Entry(DIALECT, "reversal", *values))
    done = transfer.body["amount_reversed"] + wanted
    listed = transfer.body["reversals"]
    changed = transfer.body | {
        "amount_reversed": done,
        "reversed": done == transfer.amount,
        "reversals": listed
        | {"data": [rendered(body), *listed["data"]][:10], "total_count": listed["total_count"] + 1},
    }
    state = "returned" if done == transfer.amount else transfer.state
    books.replace(msgspec.structs.replace(transfer, body=changed, state=state))
    emit(books, now, "transfer.reversed", changed, context)
    return body


def act(books: Books, now: datetime, action: str, transfer: Entry) -> None:
    """`reverse`: Stripe or the platform takes back what is left."""
    if action != "reverse":
        raise KeyError(action)
    rest = transfer.amount - transfer.body["amount_reversed"]
    if rest:
        _reversed(books, now, transfer, wanted=rest, noted={}, context=by_itself(transfer.body))
