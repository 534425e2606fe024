"""Square's payouts to the seller's own bank, which nobody can make by API (docs/providers.md 4, Payouts: read-only).

    SENT ──> PAID | FAILED

The simulator pays one payment out when told to `pay` it; its refunds are taken off.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.square.answer import (
    DIALECT,
    HOLDING,
    LOCATIONS,
    MAIN_LOCATION,
    MERCHANT,
    announce,
    answer,
    listed,
    missing,
    page_asked,
    text_of,
    time_of,
)

ARRIVES_AFTER: Final = timedelta(days=1)
_LISTED_BY_DEFAULT: Final = timedelta(days=365)


def pay_out(books: Books, now: datetime, payment: Entry) -> None:
    """Send a completed payment, less its refunds, to the seller's bank. Once."""
    if payment.state != "moved" or books.find(DIALECT, "payout", parent=payment.id, limit=1):
        return
    amount = payment.amount - books.total(DIALECT, "refund", payment.id, HOLDING)
    payout_id = books.next_id("po_")
    body: dict[str, Any] = {
        "id": payout_id,
        "status": "SENT",
        "location_id": payment.body["location_id"],
        "created_at": text_of(now),
        "updated_at": text_of(now),
        "amount_money": {"amount": amount, "currency": payment.currency},
        "destination": {"type": "BANK_ACCOUNT", "id": "bact:main"},
        "version": 1,
        "type": "BATCH",
        "arrival_date": (now + ARRIVES_AFTER).date().isoformat(),
    }
    entry = Entry(DIALECT, "payout", payout_id, "", payment.id, amount, payment.currency, "moving", now, body)
    books.insert(entry)
    announce(books, "payout.sent", entry, "payout", now)
    books.later(DIALECT, "pay", payout_id, now + ARRIVES_AFTER)


def act_on_payout(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """Raises KeyError for an action payouts do not have."""
    status, state, event = {
        "pay": ("PAID", "moved", "payout.paid"),
        "fail": ("FAILED", "failed", "payout.failed"),
    }[action]
    if entry.body["status"] != "SENT":
        return
    body = {**entry.body, "status": status, "updated_at": text_of(now), "version": entry.body["version"] + 1}
    ended = msgspec.structs.replace(entry, state=state, body=body)
    books.replace(ended)
    announce(books, event, ended, "payout", now)


def get(payout_id: str, books: Books, _now: datetime) -> Reply:
    """GET /v2/payouts/{id}."""
    entry = books.get(DIALECT, "payout", payout_id)
    return missing(f"payout {payout_id}") if entry is None else answer({"payout": entry.body})


def many(query: Mapping[str, Sequence[str]], books: Books, now: datetime) -> Reply:
    """GET /v2/payouts."""
    asked = page_asked(query, now, since=now - _LISTED_BY_DEFAULT)
    if isinstance(asked, Reply):
        return asked
    status = query.get("status", [None])[-1]
    location = asked.location or MAIN_LOCATION

    def fits(entry: Entry) -> bool:
        return entry.body["location_id"] == location and status in {None, entry.body["status"]}

    return listed("payout", "payouts", asked, books, fits)


def entries(payout_id: str, books: Books, _now: datetime) -> Reply:
    """GET /v2/payouts/{id}/payout-entries: which payment and which refunds it is made of."""
    payout = books.get(DIALECT, "payout", payout_id)
    if payout is None:
        return missing(f"payout {payout_id}")
    payment = books.get(DIALECT, "charge", payout.parent)
    parts = [] if payment is None else [(payment, "CHARGE", "type_charge_details", payment.amount)]
    refunds = books.find(
        DIALECT, "refund", parent=payout.parent, until=payout.created_at, limit=EVERY, newest_first=False
    )
    taken_off = [each for each in refunds if _was_held(each, payout.created_at)]
    parts += [(each, "REFUND", "type_refund_details", -each.amount) for each in taken_off]
    rows = [
        {
            "id": f"poe_{part.id}",
            "payout_id": payout_id,
            "effective_at": payout.body["created_at"],
            "type": kind,
            "gross_amount_money": {"amount": amount, "currency": payout.currency},
            "fee_amount_money": {"amount": 0, "currency": payout.currency},
            "net_amount_money": {"amount": amount, "currency": payout.currency},
            details: {"payment_id": payout.parent},
        }
        for part, kind, details, amount in parts
    ]
    return answer({"payout_entries": rows})


def _was_held(refund: Entry, at: datetime) -> bool:
    """Whether it held its part then: one that failed since was taken off all the same."""
    changed = time_of(refund.body["updated_at"])
    return refund.state in HOLDING or (changed is not None and changed > at)


def locations(_books: Books, _now: datetime) -> Reply:
    """GET /v2/locations."""
    rows = [
        {
            "id": location,
            "name": location.title(),
            "status": "ACTIVE",
            "merchant_id": MERCHANT,
            "country": "US",
            "currency": "USD",
            "type": "PHYSICAL",
            "capabilities": ["CREDIT_CARD_PROCESSING"],
        }
        for location in LOCATIONS
    ]
    return answer({"locations": rows})
