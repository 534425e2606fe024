"""Disputes of a charge, and the inquiries that may come before them (docs/providers.md 2.6, Disputes).

inquiry   warning_needs_response ──> warning_closed        no money moves
└──> needs_response                    escalated: the money is withdrawn
dispute   needs_response ──> won | lost                    won: the money is given back
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe.wire import DIALECT, by_itself, emit, owned, unix

KIND: Final = "dispute"
OPENING: Final = {"inquire": "warning_needs_response", "dispute": "needs_response"}
# From which state, to which; and what it does to the balance, as a part of the amount.
_ACTIONS: Final = {
    "close_inquiry": ("warning_needs_response", "warning_closed", 0),
    "escalate": ("warning_needs_response", "needs_response", -1),
    "win": ("needs_response", "won", 1),
    "lose": ("needs_response", "lost", 0),
}
_ENDED: Final = frozenset({"warning_closed", "won", "lost"})
_STATES: Final = {"warning_needs_response": "waiting", "warning_closed": "failed", "won": "returned"}


def open_(books: Books, now: datetime, action: str, intent: Entry) -> None:
    """The customer's bank asks about a payment, or takes it back. Raises KeyError where nothing was charged."""
    charge = books.get(DIALECT, "charge", intent.body["latest_charge"] or "")
    if charge is None or not charge.body["captured"]:
        raise KeyError(intent.id)
    status = OPENING[action]
    context = by_itself(intent.body)
    body: dict[str, Any] = {
        "id": books.next_id("dp_"),
        "object": "dispute",
        "amount": charge.amount,
        "balance_transactions": [],
        "charge": charge.id,
        "created": unix(now),
        "currency": charge.currency,
        "evidence_details": {"due_by": None, "has_evidence": False, "past_due": False, "submission_count": 0},
        "is_charge_refundable": status == "warning_needs_response",
        "livemode": False,
        "metadata": {},
        "payment_intent": intent.id,
        "reason": "general",
        "status": status,
        **owned(context),
    }
    state = _STATES.get(status, "moved")
    values = (body["id"], "", intent.id, charge.amount, charge.currency, state, now, body)
    entry = Entry(DIALECT, KIND, *values)
    books.insert(entry)
    emit(books, now, "charge.dispute.created", body, context)
    if action == "dispute":
        _move(books, now, entry, -1)


def act(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """What becomes of it. Raises KeyError for a step there is not."""
    before, after, part = _ACTIONS[action]
    if entry.body["status"] != before:
        return
    body = entry.body | {"status": after, "is_charge_refundable": after == "warning_closed"}
    changed = msgspec.structs.replace(entry, state=_STATES.get(after, "moved"), body=body)
    books.replace(changed)
    ended = after in _ENDED
    emit(books, now, "charge.dispute.closed" if ended else "charge.dispute.updated", body, by_itself(body))
    if part:
        _move(books, now, changed, part)


def _move(books: Books, now: datetime, entry: Entry, part: int) -> None:
    context = by_itself(entry.body)
    stripe_balance.move(
        books,
        now,
        type="adjustment",
        source=entry.id,
        amount=part * entry.amount,
        currency=entry.currency,
        context=context,
    )
    charge = books.get(DIALECT, "charge", entry.body["charge"])
    if charge is not None:
        disputed = charge.body | {"disputed": True}
        books.replace(msgspec.structs.replace(charge, body=disputed))
    told = "charge.dispute.funds_withdrawn" if part < 0 else "charge.dispute.funds_reinstated"
    emit(books, now, told, entry.body, context)
