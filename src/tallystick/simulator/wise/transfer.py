"""Wise's third call, the transfer, and its life.

    incoming_payment_waiting ──> processing ──> funds_converted ──> outgoing_payment_sent ──> bounced_back
        │  funded, by wise_fund       ^──────── roll_back ────────────────┘                        │
        └──> cancelled: asked for, or unfunded for 14 days                                   funds_refunded

`customerTransactionId` is the only guard of the creation, so it is looked for in the books themselves: a repeat is
no second transfer, also when the first answer was never stored (docs/providers.md 5, Duplicate guards).
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID
from zlib import crc32

import msgspec

from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.wise.answer import (
    DIALECT,
    Number,
    answer,
    micros_of_text,
    problem,
    read,
    text_of,
    time_of,
)
from tallystick.simulator.wise.balance import cost_of, take
from tallystick.simulator.wise.quote import PERSONAL_PROFILE

CONVERTED_AFTER: Final = timedelta(seconds=2)
SENT_AFTER: Final = timedelta(seconds=5)
# docs/providers.md 5, Not final: mostly within 2-3 business days.
BOUNCES_AFTER: Final = timedelta(days=2)
REFUNDED_AFTER: Final = timedelta(days=1)
# docs/providers.md 5, Unfunded transfer.
UNFUNDED_FOR: Final = timedelta(days=14)
RETENTION: Final = {"for_ever": None, "30_days": timedelta(days=30)}

_UUID_CHARACTERS: Final = 36
_FOUR: Final = 4
_PAGE: Final = 10
_LARGEST_PAGE: Final = 100
_BATCH: Final = 500
_STATES: Final = {
    "incoming_payment_waiting": "waiting",
    "processing": "moving",
    "funds_converted": "moving",
    "outgoing_payment_sent": "moved",
    # On its way back: it may be processed again.
    "bounced_back": "moving",
    "funds_refunded": "returned",
    "cancelled": "failed",
    # docs/providers.md 5, Statuses: these two are not verified.
    "charged_back": "returned",
    "unknown": "moving",
}
# Each action: from which statuses, to which.
_ACTIONS: Final[dict[str, tuple[frozenset[str], str]]] = {
    "convert": (frozenset({"processing"}), "funds_converted"),
    "send": (frozenset({"processing", "funds_converted"}), "outgoing_payment_sent"),
    "bounce": (frozenset({"outgoing_payment_sent"}), "bounced_back"),
    "refund": (frozenset({"bounced_back"}), "funds_refunded"),
    "expire": (frozenset({"incoming_payment_waiting"}), "cancelled"),
    # docs/providers.md 5, Not final: states may roll back to an earlier one.
    "roll_back": (frozenset({"funds_converted", "outgoing_payment_sent"}), "processing"),
    "refuse": (frozenset({"processing", "funds_converted"}), "cancelled"),
    "charge_back": (frozenset({"processing", "funds_converted", "outgoing_payment_sent"}), "charged_back"),
    "lose_track": (frozenset({"processing", "funds_converted", "outgoing_payment_sent"}), "unknown"),
}
_SYNONYMS: Final = {"succeed": "send", "pay": "send", "return": "bounce", "fail": "refuse"}
# docs/providers.md 5, Cancel: only before funds_converted.
_CANCELLABLE: Final = frozenset({"incoming_payment_waiting", "processing"})


class TransferRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /transfers."""

    target_account: Number
    quote_uuid: str
    customer_transaction_id: str
    details: dict[str, Any] = {}


def caller_of(token: str) -> int:
    """The number of the user whose token it is."""
    return crc32(token.encode())


def create(body: bytes, caller: int, books: Books, now: datetime) -> Reply:
    """POST /transfers."""
    asked = read(body, TransferRequest)
    if isinstance(asked, Reply):
        return asked
    if not _is_uuid(asked.customer_transaction_id, books.switch("wise.uuid_versions")):
        return problem(422, "NOT_VALID", "customerTransactionId must be a UUID", "customerTransactionId")
    kept = RETENTION[books.switch("wise.retention")]
    reference = asked.customer_transaction_id.lower()
    since = None if kept is None else now - kept
    of_any_client = books.switch("wise.key_scope") == "account"
    for first in books.find(DIALECT, "transfer", reference=reference, since=since, limit=EVERY):
        if of_any_client or first.body["user"] == caller:
            return _repeated(asked, first, books)
    made = _new(asked, reference, caller, books, now)
    if isinstance(made, Reply):
        return made
    books.insert(made)
    books.later(DIALECT, "expire", made.id, now + UNFUNDED_FOR)
    _announce(books, made, None, now)
    return answer(made.body)


def get(transfer_id: str, books: Books, _now: datetime) -> Reply:
    """GET /transfers/{t}."""
    entry = books.get(DIALECT, "transfer", transfer_id)
    return problem(404, "NOT_FOUND", "There is no such transfer") if entry is None else answer(entry.body)


def many(query: Mapping[str, Sequence[str]], books: Books, _now: datetime) -> Reply:
    """GET /transfers: no filter for customerTransactionId (docs/providers.md 5, Look-up)."""
    words = {name: values[-1] for name, values in query.items() if values}
    times: dict[str, datetime | None] = {
        name: time_of(words[name]) for name in ("createdDateStart", "createdDateEnd") if name in words
    }
    counts = [words.get("limit", str(_PAGE)), words.get("offset", "0")]
    if None in times.values() or not all(re.fullmatch(r"[0-9]{1,9}", count) for count in counts):
        return problem(400, "NOT_VALID", "A time or a number is not valid")
    limit, offset = min(int(counts[0]), _LARGEST_PAGE), int(counts[1])
    found = _matching(words, times, books, offset + limit)
    return answer([entry.body for entry in found[offset : offset + limit]])


def cancel(transfer_id: str, books: Books, now: datetime) -> Reply:
    """PUT /transfers/{t}/cancel."""
    entry = books.get(DIALECT, "transfer", transfer_id)
    if entry is None:
        return problem(404, "NOT_FOUND", "There is no such transfer")
    if entry.body["status"] not in _CANCELLABLE:
        return problem(409, "transfer.cancellation.not.allowed", f"The transfer is {entry.body['status']}")
    return answer(_become(books, now, entry, "cancelled").body)


def fund_arrived(books: Books, now: datetime, entry: Entry) -> None:
    """The balance paid it: from now on it goes by itself."""
    _become(books, now, entry, "processing")
    _plan(books, entry.id, now)


def act_on_transfer(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """One step of the transfer's life. Raises KeyError for a step there is not."""
    action = _SYNONYMS.get(action, action)
    if action == "fail_payout":
        _announce_failure(books, entry, now)
        return
    before, status = _ACTIONS[action]
    if entry.body["status"] not in before:
        return
    _become(books, now, entry, status)
    if action == "roll_back":
        _plan(books, entry.id, now)
    if action == "bounce":
        books.later(DIALECT, "refund", entry.id, now + REFUNDED_AFTER)
    if action == "send" and _comes_back(books, entry):
        books.later(DIALECT, "bounce", entry.id, now + BOUNCES_AFTER)


def _plan(books: Books, transfer_id: str, now: datetime) -> None:
    books.later(DIALECT, "convert", transfer_id, now + CONVERTED_AFTER)
    books.later(DIALECT, "send", transfer_id, now + SENT_AFTER)


def _become(books: Books, now: datetime, entry: Entry, status: str) -> Entry:
    body = {**entry.body, "status": status}
    changed = msgspec.structs.replace(entry, state=_STATES[status], body=body)
    books.replace(changed)
    if status == "funds_refunded" or (status == "cancelled" and entry.state == "moving"):
        take(books, now, entry, cost_of(entry))
    _announce(books, changed, entry.body["status"], now)
    return changed


def _repeated(asked: TransferRequest, first: Entry, books: Books) -> Reply:
    same = (asked.target_account, asked.quote_uuid, asked.details) == (
        first.body["targetAccount"],
        first.body["quoteUuid"],
        first.body["details"],
    )
    other_data = books.switch("wise.other_data")
    if not same and other_data == "error_422":
        return problem(422, "NOT_VALID", "customerTransactionId was used before", "customerTransactionId")
    if not same and other_data == "error_409":
        return problem(409, "transfer.duplicate", "customerTransactionId was used before", "customerTransactionId")
    if books.switch("wise.repeat_body") == "first":
        return answer({**first.body, "status": "incoming_payment_waiting"})
    return answer(first.body)


def _new(asked: TransferRequest, reference: str, caller: int, books: Books, now: datetime) -> Entry | Reply:
    quoted = books.get(DIALECT, "quote", asked.quote_uuid)
    if quoted is None:
        return problem(422, "NOT_VALID", "There is no such quote", "quoteUuid")
    # docs/providers.md 5, Duplicate guards: one transfer per quote.
    if quoted.state != "waiting":
        return problem(422, "quote.already.accepted", "The quote was used for another transfer", "quoteUuid")
    expires = time_of(quoted.body["expirationTime"])
    if expires is not None and now > expires:
        return problem(422, "quote.expired", "The quote has expired", "quoteUuid")
    account = books.get(DIALECT, "recipient", str(asked.target_account))
    if account is None or account.currency != quoted.body["targetCurrency"]:
        return problem(422, "NOT_VALID", "There is no such recipient of this currency", "targetAccount")
    books.replace(msgspec.structs.replace(quoted, state="moved", body={**quoted.body, "status": "ACCEPTED"}))
    transfer_id = books.next_id("")
    body = {
        "id": int(transfer_id),
        "user": caller,
        "targetAccount": asked.target_account,
        "sourceAccount": None,
        "quote": None,
        "quoteUuid": asked.quote_uuid,
        "status": "incoming_payment_waiting",
        "reference": str(asked.details.get("reference", "")),
        "rate": quoted.body["rate"],
        "created": text_of(now),
        "business": quoted.body["profile"],
        "details": asked.details,
        "hasActiveIssues": False,
        "sourceCurrency": quoted.currency,
        "sourceValue": quoted.body["sourceAmount"],
        "targetCurrency": quoted.body["targetCurrency"],
        "targetValue": quoted.body["targetAmount"],
        "customerTransactionId": asked.customer_transaction_id,
    }
    # The entry holds what is paid, as the payer asked for it; what it costs him is in the body.
    paid = micros_of_text(quoted.body["targetAmount"], quoted.body["targetCurrency"])
    words = (DIALECT, "transfer", transfer_id, reference, quoted.parent, paid, quoted.body["targetCurrency"])
    return Entry(*words, "waiting", now, body)


def _matching(words: Mapping[str, str], times: Mapping[str, datetime | None], books: Books, enough: int) -> list[Entry]:
    statuses = words["status"].split(",") if words.get("status") else None
    found: list[Entry] = []
    after: str | None = None
    while len(found) < enough:
        batch = books.find(
            DIALECT,
            "transfer",
            # docs/providers.md 5, Look-up: left out, it is the personal profile.
            parent=words.get("profile", str(PERSONAL_PROFILE)),
            since=times.get("createdDateStart"),
            until=times.get("createdDateEnd"),
            after=after,
            limit=_BATCH,
        )
        found.extend(
            entry
            for entry in batch
            if (statuses is None or entry.body["status"] in statuses)
            and words.get("sourceCurrency") in {None, entry.body["sourceCurrency"]}
            and words.get("targetCurrency") in {None, entry.body["targetCurrency"]}
        )
        if len(batch) < _BATCH:
            break
        after = batch[-1].id
    return found


def _announce(books: Books, entry: Entry, previous: str | None, now: datetime) -> None:
    # docs/providers.md 5, Event.
    resource = {
        "type": "transfer",
        "id": int(entry.id),
        "profile_id": int(entry.parent),
        "account_id": entry.body["targetAccount"],
    }
    data = {
        "resource": resource,
        "current_state": entry.body["status"],
        "previous_state": previous,
        "occurred_at": text_of(now),
    }
    kind = "transfers#state-change"
    books.emit(DIALECT, kind, {"data": data, "event_type": kind, "schema_version": "2.0.0"}, now, entry.id)


def _announce_failure(books: Books, entry: Entry, now: datetime) -> None:
    # docs/providers.md 5, Event: names the transfer beside, not in, a resource. Its state does not change by it.
    data = {
        "transfer_id": int(entry.id),
        "profile_id": int(entry.parent),
        "failure_reason_code": "WRONG_ID_NUMBER",
        "failure_description": "Wrong recipient details",
        "occurred_at": text_of(now),
    }
    kind = "transfers#payout-failure"
    books.emit(DIALECT, kind, {"data": data, "event_type": kind, "schema_version": "2.0.0"}, now, entry.id)


def _comes_back(books: Books, entry: Entry) -> bool:
    account = books.get(DIALECT, "recipient", str(entry.body["targetAccount"]))
    text = "" if account is None else msgspec.json.encode(account.body["details"]).decode().lower()
    return "closed" in text or "bounce" in text


def _is_uuid(text: str, versions: str) -> bool:
    # UUID() also takes braces, prefixes and forms without dashes.
    if len(text) != _UUID_CHARACTERS:
        return False
    try:
        uuid = UUID(text)
    except ValueError:
        return False
    return str(uuid) == text.lower() and (versions == "any" or uuid.version == _FOUR)
