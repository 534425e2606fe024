"""The balance of a Stripe account, and the transactions that changed it (docs/providers.md 2.8).

Without limit until somebody sets one: then a transfer, refund or payout above it is `balance_insufficient`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe.wire import DIALECT, Context, by_itself, good, owned, refuse, unix

KIND: Final = "balance_transaction"
# What a list of them is made of.
KINDS: Final = (KIND, "transfer")
STATUS_SWITCH: Final = "stripe.balance_insufficient_status"
# What an account without limit shows.
_PLENTY: Final = 100_000_000_000
_CATEGORIES: Final = {
    "refund_failure": "refund_failure",
    "transfer_refund": "transfer_reversal",
    "payout_failure": "payout_reversal",
    "payout_cancel": "payout_reversal",
}


class Narrowed(msgspec.Struct, frozen=True):
    """Entries to look through: of these kinds, with this parent, made at this time."""

    kind: str | tuple[str, ...]
    parent: str | None = None
    at: datetime | None = None


def move(
    books: Books,
    now: datetime,
    *,
    type: str,  # noqa: A002  Stripe's word
    source: str,
    amount: int,
    currency: str,
    context: Context,
) -> str:
    """Record a change of the balance. Returns the transaction's id."""
    id_ = books.next_id("txn_")
    body = _body(id_, unix(now), type, source, amount, currency) | owned(context)
    books.insert(Entry(DIALECT, KIND, id_, "", source, amount, currency, "moved", now, body))
    books.move_balance(DIALECT, currency, amount, context.account)
    return id_


def pay_transfer(books: Books, *, transfer_id: str, amount: int, currency: str, context: Context) -> str:
    """As `move`, for a transfer: its transaction is read off the transfer, for there are many of them."""
    books.move_balance(DIALECT, currency, -amount, context.account)
    return "txn_" + transfer_id.removeprefix("tr_")


def transaction(entry: Entry) -> dict[str, Any]:
    """The balance transaction of an entry: its own body, or a transfer's."""
    if entry.kind == KIND:
        return entry.body
    body = entry.body
    words = (body["balance_transaction"], body["created"], "transfer", entry.id, -entry.amount, entry.currency)
    return _body(*words) | owned(by_itself(body))


def narrowed(books: Books, given: Mapping[str, Any]) -> Narrowed:
    """Which entries can have the transactions asked for: a list of few must not read through all transfers."""
    source = given.get("source")
    transfer = None if source is None else books.get(DIALECT, "transfer", source)
    if transfer is not None:
        return Narrowed("transfer", at=transfer.created_at)
    if source is not None:
        return Narrowed(KIND, parent=source)
    if "type" in given:
        return Narrowed("transfer" if given["type"] == "transfer" else KIND)
    return Narrowed(KINDS)


def entry_id(books: Books, transaction_id: str) -> str:
    """The entry a transaction is read off. Raises KeyError."""
    transfer_id = "tr_" + transaction_id.removeprefix("txn_")
    for kind, id_ in ((KIND, transaction_id), ("transfer", transfer_id)):
        if books.get(DIALECT, kind, id_) is not None:
            return id_
    raise KeyError(transaction_id)


def _body(id_: str, created: int, type_: str, source: str, amount: int, currency: str) -> dict[str, Any]:  # noqa: PLR0917
    return {
        "id": id_,
        "object": "balance_transaction",
        "amount": amount,
        "available_on": created,
        "created": created,
        "currency": currency,
        "description": None,
        "exchange_rate": None,
        "fee": 0,
        "fee_details": [],
        "net": amount,
        "reporting_category": _CATEGORIES.get(type_, type_),
        "source": source,
        "status": "available",
        "type": type_,
    }


def check(books: Books, amount: int, currency: str, context: Context) -> None:
    """Refuse what the balance does not cover. The HTTP status is not known: a switch (docs/providers.md 9)."""
    available = books.balance(DIALECT, currency, context.account)
    if available is not None and available < amount:
        status = int(books.switch(STATUS_SWITCH))
        message = "You have insufficient available funds in your Stripe account."
        refuse(status, message, context, code="balance_insufficient")


def show(books: Books, _now: datetime, *, context: Context) -> Reply:
    """GET /v1/balance."""
    # Without a limit there is plenty, and it moves all the same, in each currency that ever moved.
    moved = books.moved(DIALECT, context.account)
    plenty = {code.upper(): _PLENTY + amount for code, amount in ({"usd": 0} | moved).items()}
    known = {code.lower(): amount for code, amount in (plenty | books.balances(DIALECT, context.account)).items()}
    available: list[dict[str, Any]] = [
        {"amount": amount, "currency": currency, "source_types": {"card": amount}} for currency, amount in known.items()
    ]
    pending = [{"amount": 0, "currency": currency, "source_types": {"card": 0}} for currency in known]
    return good(context, {"object": "balance", "available": available, "livemode": False, "pending": pending})
