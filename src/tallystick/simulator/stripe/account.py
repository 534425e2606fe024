"""Accounts: the platform's own, and connected ones (docs/providers.md 2.1, 2.5).

Transfers go to any `acct_...`, made here or not, so any of them can be asked for; only those that were made are listed.
"""

from datetime import datetime
from typing import Any, Final

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe.wire import (
    DIALECT,
    Context,
    Parameters,
    check_names,
    emit,
    good,
    metadata,
    missing,
    rendered,
    unix,
)

KIND: Final = "account"
PLATFORM: Final = "acct_simulator"
_CREATE: Final = frozenset(
    ["type", "country", "email", "business_type", "metadata", "capabilities", "controller", "default_currency"]
)


def own(_books: Books, now: datetime, *, context: Context) -> Reply:
    """GET /v1/account: whoever asks."""
    return good(context, _body(context.account or PLATFORM, now, {}))


def create(books: Books, now: datetime, *, given: Parameters, context: Context) -> Reply:
    """POST /v1/accounts."""
    check_names(given, _CREATE, context)
    body = _body(books.next_id("acct_"), now, given) | {"metadata": metadata(given, context)}
    books.insert(Entry(DIALECT, KIND, body["id"], "", "", 0, body["default_currency"], "moved", now, body))
    emit(books, now, "account.updated", body, context)
    return good(context, rendered(body))


def show(books: Books, now: datetime, *, account_id: str, context: Context) -> Reply:
    """GET /v1/accounts/{id}."""
    entry = books.get(DIALECT, KIND, account_id)
    if entry is not None:
        return good(context, rendered(entry.body))
    if not account_id.startswith("acct_") or "unknown" in account_id:
        missing(context, "account", account_id)
    return good(context, _body(account_id, now, {}))


def _body(id_: str, now: datetime, given: Parameters) -> dict[str, Any]:
    return {
        "id": id_,
        "object": "account",
        "business_type": given.get("business_type"),
        "capabilities": {"card_payments": "active", "transfers": "active"},
        "charges_enabled": True,
        "country": given.get("country", "US"),
        "created": unix(now),
        "default_currency": given.get("default_currency", "usd"),
        "details_submitted": True,
        "email": given.get("email"),
        "metadata": {},
        "payouts_enabled": True,
        "type": given.get("type", "standard"),
    }
