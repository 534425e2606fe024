"""Adyen's outbound transfers: accepted first, decided later, told by webhook.

    received ──> authorised ──> booked ──> failed | returned   (docs/providers.md 3, Late failure)
        │            └──> failed
        ├──> refused            docs/providers.md 3, Reason examples
        └──> cancelled          approvalPending or pendingExecution first, where that was asked for

Each step has the next `sequenceNumber`, from 1 on (docs/providers.md 3, Order). A word inside the account or the
transfer instrument of `counterparty` chooses another way than the straight one: see COUNTERPARTIES.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

import msgspec

from tallystick.simulator.adyen.answer import (
    DIALECT,
    MAX_REFERENCE_CHARACTERS,
    Amount,
    amount_fault,
    answer,
    money,
    platform_problem,
    read,
    text_of,
    time_of,
)
from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry

AUTHORISED_AFTER: Final = timedelta(seconds=2)
BOOKED_AFTER: Final = timedelta(seconds=5)
COMES_BACK_AFTER: Final = timedelta(days=3)

# Word in the account: where the straight way ends, in which status, and why.
COUNTERPARTIES: Final[dict[str, tuple[str, str, str]]] = {
    "closed": ("authorise", "refused", "counterpartyAccountClosed"),
    "unknown": ("authorise", "refused", "counterpartyAccountNotFound"),
    "poor": ("authorise", "refused", "notEnoughBalance"),
    "limit": ("authorise", "refused", "amountLimitExceeded"),
    "timeout": ("book", "failed", "counterpartyBankTimedOut"),
    "bounce": ("come_back", "returned", "counterpartyAccountClosed"),
    "late_failure": ("come_back", "failed", "counterpartyBankUnavailable"),
}
_STATES: Final = {
    "received": "waiting",
    "approvalPending": "waiting",
    "pendingExecution": "waiting",
    "authorised": "moving",
    "booked": "moved",
    "refused": "failed",
    "failed": "failed",
    "cancelled": "failed",
    "returned": "returned",
}
# From which statuses each action leads on; in any other the action comes too late and does nothing.
_FROM: Final = {
    "authorised": {"received", "pendingExecution"},
    "refused": {"received", "pendingExecution", "authorised"},
    "booked": {"authorised"},
    "failed": {"received", "authorised", "booked"},
    "returned": {"booked"},
    "cancelled": {"received", "approvalPending", "pendingExecution"},
    "received": {"approvalPending"},
}
_EXECUTION_DATE_LIMIT: Final = timedelta(days=30)

Category = Literal["bank", "card", "internal", "issuedCard", "platformPayment", "topUp"]


class TransferRequest(msgspec.Struct, frozen=True, rename="camel"):
    """POST /transfers (docs/providers.md 3, Outbound transfer)."""

    amount: Amount
    category: Category
    counterparty: dict[str, Any]
    balance_account_id: str = ""
    priority: str | None = None
    priorities: list[str] | None = None
    reference: Annotated[str, msgspec.Meta(max_length=MAX_REFERENCE_CHARACTERS)] = ""
    reference_for_beneficiary: Annotated[str, msgspec.Meta(max_length=35)] = ""
    description: Annotated[str, msgspec.Meta(max_length=140)] = ""
    execution_date: dict[str, str] | None = None
    review: dict[str, Any] | None = None


class TransferIds(msgspec.Struct, frozen=True, rename="camel"):
    """POST /transfers/approve and /transfers/cancel."""

    transfer_ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]


class ReturnRequest(msgspec.Struct, frozen=True):
    """POST /transfers/{id}/returns."""

    amount: Amount
    reference: str = ""


def transfer(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /transfers: received, nothing more."""
    asked = read(body, TransferRequest)
    if isinstance(asked, str):
        return platform_problem(422, "30_112", asked)
    fault = _fault(asked, now)
    if fault is not None:
        return platform_problem(422, "30_112", fault)
    if _repeats(asked, books):
        return platform_problem(422, "30_084", "duplicateTransmissionDetected")
    starts_at = max(now, _execution_day(asked) or now)
    status = "pendingExecution" if starts_at > now else "received"
    if (asked.review or {}).get("numberOfApprovalsRequired"):
        status = "approvalPending"
    entry = _first(asked, books.next_id("3JERI6"), now, status)
    books.insert(entry)
    _announce(books, entry, now, "balancePlatform.transfer.created")
    if status != "approvalPending":
        _plan(books, entry.id, starts_at)
    # docs/providers.md 3, Outbound transfer: 200 or 202, and both mean the same.
    return answer(int(books.switch("adyen.transfer_status")), entry.body)


def act_on_transfer(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """One step of the transfer's life. Raises KeyError for a step there is not."""
    stop = next((way for word, way in COUNTERPARTIES.items() if word in _counterparty(entry)), ("", "", ""))
    match action:
        case "authorise" | "book" if stop[0] == action:
            step(books, now, entry, stop[1], stop[2])
        case "authorise":
            balance = books.balance(DIALECT, entry.currency, entry.parent)
            if balance is not None and balance < entry.amount:
                step(books, now, entry, "refused", "notEnoughBalance")
            else:
                step(books, now, entry, "authorised", "approved")
        case "book" | "pay" | "succeed":
            step(books, now, entry, "booked", "approved")
            if stop[0] == "come_back":
                books.later(DIALECT, "come_back", entry.id, now + COMES_BACK_AFTER)
        case "come_back":
            step(books, now, entry, stop[1] or "returned", stop[2] or "counterpartyAccountClosed")
        case "refuse":
            # Once booked it can no longer be refused, only fail.
            late = entry.body["status"] == "booked"
            step(books, now, entry, "failed" if late else "refused", "counterpartyAccountClosed")
        case "fail":
            step(books, now, entry, "failed", "counterpartyBankTimedOut")
        case "return" | "bounce" | "reverse":
            step(books, now, entry, "returned", "counterpartyAccountClosed")
        case _:
            raise KeyError(action)


def approve(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /transfers/approve."""
    return _each(body, books, now, "received")


def cancel(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /transfers/cancel: until it is authorised."""
    return _each(body, books, now, "cancelled")


def give_back(transfer_id: str, body: bytes, books: Books, now: datetime) -> Reply:
    """POST /transfers/{id}/returns: all or a part of what was booked."""
    asked = read(body, ReturnRequest)
    entry = books.get(DIALECT, "transfer", transfer_id)
    if isinstance(asked, str):
        return platform_problem(422, "30_112", asked)
    if entry is None:
        return platform_problem(404, "30_031", "The transfer was not found")
    returned = books.total(DIALECT, "reversal", entry.id, ("moved",))
    fits = asked.amount.currency == entry.currency and 0 < asked.amount.value <= entry.amount - returned
    accepted = entry.state == "moved" and fits
    body_of_return = {
        "id": books.next_id("3JERI7"),
        "reference": asked.reference,
        "status": "Authorised" if accepted else "Declined",
        "transferId": entry.id,
    }
    if accepted:
        books.insert(
            Entry(
                DIALECT,
                "reversal",
                body_of_return["id"],
                asked.reference,
                entry.id,
                asked.amount.value,
                entry.currency,
                "moved",
                now,
                body_of_return,
            )
        )
        if returned + asked.amount.value == entry.amount:
            step(books, now, entry, "returned", "approved")
    return answer(200, body_of_return)


def step(books: Books, now: datetime, entry: Entry, status: str, reason: str) -> None:
    """Into the next status, if the present one leads there."""
    if entry.body["status"] not in _FROM[status]:
        return
    was = entry.state
    body = {
        **entry.body,
        "status": status,
        "reason": reason,
        "sequenceNumber": entry.body["sequenceNumber"] + 1,
        "updatedAt": text_of(now),
        "events": [*entry.body["events"], {"status": status, "bookingDate": text_of(now)}],
    }
    # A booked transfer that fails did move: only `returned` says both.
    state = "returned" if (was, status) == ("moved", "failed") else _STATES[status]
    moved = msgspec.structs.replace(entry, state=state, body=body)
    books.replace(moved)
    if status == "authorised":
        books.move_balance(DIALECT, entry.currency, -entry.amount, entry.parent)
    elif was in {"moving", "moved"} and moved.state in {"failed", "returned"}:
        books.move_balance(DIALECT, entry.currency, entry.amount, entry.parent)
    if status == "booked" or (was == "moved" and moved.state in {"failed", "returned"}):
        _book(books, moved, now, -entry.amount if status == "booked" else entry.amount)
    _announce(books, moved, now, "balancePlatform.transfer.updated")


def _fault(asked: TransferRequest, now: datetime) -> str | None:
    wrong = amount_fault(asked.amount)
    if wrong is not None:
        return wrong
    if asked.category == "bank" and not (asked.priority or asked.priorities):
        return "priority is required for category bank"
    if asked.category == "bank" and not ({"bankAccount", "transferInstrumentId"} & asked.counterparty.keys()):
        return "counterparty needs a bankAccount or a transferInstrumentId"
    if not isinstance(asked.counterparty.get("transferInstrumentId", ""), str):
        return "counterparty.transferInstrumentId is not text"
    bank = asked.counterparty.get("bankAccount", {})
    if not isinstance(bank, dict) or not isinstance(bank.get("accountIdentification", {}), dict):
        return "counterparty.bankAccount is not an object with an accountIdentification"
    day = _execution_day(asked)
    if asked.execution_date is not None and (day is None or day > now + _EXECUTION_DATE_LIMIT):
        return "executionDate is at most 30 days ahead"
    return None


def _execution_day(asked: TransferRequest) -> datetime | None:
    return time_of((asked.execution_date or {}).get("date", ""))


def _repeats(asked: TransferRequest, books: Books) -> bool:
    # docs/providers.md 3, Uniqueness of `reference`: not stated.
    if books.switch("adyen.reference") == "repeatable" or not asked.reference:
        return False
    return bool(books.find(DIALECT, "transfer", reference=asked.reference, limit=1))


def _first(asked: TransferRequest, transfer_id: str, now: datetime, status: str) -> Entry:
    account = asked.balance_account_id or "BA_DEFAULT"
    body: dict[str, Any] = {
        "id": transfer_id,
        "accountHolder": {"id": "AH_DEFAULT"},
        "amount": money(asked.amount.value, asked.amount.currency),
        "balanceAccount": {"id": account},
        "balancePlatform": "TALLYSTICK",
        "category": asked.category,
        "counterparty": asked.counterparty,
        "createdAt": text_of(now),
        "creationDate": text_of(now),
        "description": asked.description,
        "direction": "outgoing",
        "events": [{"status": status, "bookingDate": text_of(now)}],
        "reason": "approved",
        "reference": asked.reference,
        "referenceForBeneficiary": asked.reference_for_beneficiary,
        "sequenceNumber": 1,
        "status": status,
        "type": "internalTransfer" if asked.category == "internal" else "bankTransfer",
    }
    money_and_state = (asked.amount.value, asked.amount.currency, "waiting")
    return Entry(DIALECT, "transfer", transfer_id, asked.reference, account, *money_and_state, now, body)


def _plan(books: Books, transfer_id: str, now: datetime) -> None:
    books.later(DIALECT, "authorise", transfer_id, now + AUTHORISED_AFTER)
    books.later(DIALECT, "book", transfer_id, now + BOOKED_AFTER)


def _each(body: bytes, books: Books, now: datetime, status: str) -> Reply:
    asked = read(body, TransferIds)
    if isinstance(asked, str):
        return platform_problem(422, "30_112", asked)
    found = [books.get(DIALECT, "transfer", transfer_id) for transfer_id in asked.transfer_ids]
    entries = [entry for entry in found if entry is not None and entry.body["status"] in _FROM[status]]
    if len(entries) < len(found):
        return platform_problem(422, "30_033", f"Not every transfer can become {status}")
    for entry in entries:
        step(books, now, entry, status, "approved")
        if status == "received":
            _plan(books, entry.id, now)
    return answer(202, {})


def _book(books: Books, entry: Entry, now: datetime, amount: int) -> None:
    # docs/providers.md 3, Ledger.
    body = {
        "id": books.next_id("EVJN4"),
        "accountHolder": entry.body["accountHolder"],
        "amount": money(amount, entry.currency),
        "balanceAccount": entry.body["balanceAccount"],
        "balancePlatform": entry.body["balancePlatform"],
        "bookingDate": text_of(now),
        "createdAt": text_of(now),
        "status": "booked",
        "transfer": {"id": entry.id, "reference": entry.reference},
        "valueDate": text_of(now),
    }
    words = (DIALECT, "transaction", body["id"], entry.reference, entry.parent, amount, entry.currency)
    books.insert(Entry(*words, "moved", now, body))


def _announce(books: Books, entry: Entry, now: datetime, kind: str) -> None:
    # docs/providers.md 3, Platform webhooks: signed as a whole when they are sent.
    books.emit(
        DIALECT,
        kind,
        {"data": entry.body, "environment": "test", "timestamp": text_of(now), "type": kind},
        now,
        entry.id,
        event_id=f"{entry.id}:{entry.body['sequenceNumber']}",
    )


def _counterparty(entry: Entry) -> str:
    counterparty = entry.body["counterparty"]
    account = counterparty.get("bankAccount", {}).get("accountIdentification", {})
    # Not its holder: somebody may be called so.
    return msgspec.json.encode([account, counterparty.get("transferInstrumentId")]).decode().lower()
