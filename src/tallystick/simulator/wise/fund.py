"""Wise's fourth call: funding a transfer from the balance.

It has no key: it is single by nature, because a transfer is funded once (docs/providers.md 5, Funding has no key).
"""

from datetime import datetime
from typing import Any

import msgspec

from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.wise.answer import DIALECT, answer, plain_problem, problem, read
from tallystick.simulator.wise.balance import cost_of, take
from tallystick.simulator.wise.transfer import fund_arrived


class FundRequest(msgspec.Struct, frozen=True):
    """POST /profiles/{p}/transfers/{t}/payments."""

    type: str


def fund(profile: str, transfer_id: str, body: bytes, books: Books, now: datetime) -> Reply:
    """Pay the transfer from the balance. 201 says nothing yet: `status` does (docs/providers.md 5, Trap)."""
    asked = read(body, FundRequest)
    if isinstance(asked, Reply) or asked.type != "BALANCE":
        return plain_problem(400, "type must be BALANCE")
    transfer = books.get(DIALECT, "transfer", transfer_id)
    if transfer is None or transfer.parent != profile:
        return plain_problem(404, "Transfer not found")
    if books.switch("wise.funding_challenge") == "always":
        # docs/providers.md 5, SCA.
        return plain_problem(403, "", ("x-2fa-approval", f"ott-{transfer_id}"), ("x-2fa-approval-result", "REJECTED"))
    if books.total(DIALECT, "fund", transfer_id, ("moved",)):
        if books.switch("wise.second_funding") == "conflict_409":
            return plain_problem(409, "PaymentAlreadyExists")
        return answer(_payment("REJECTED", None, "payment.exists"), 201)
    if transfer.body["status"] != "incoming_payment_waiting":
        return plain_problem(409, f"Transfer is {transfer.body['status']}")
    available = books.balance(DIALECT, transfer.body["sourceCurrency"], profile)
    if available is not None and available < cost_of(transfer):
        rendered = _payment("REJECTED", None, "balance.insufficient-funds")
        _keep(books, now, transfer, books.next_id(""), rendered)
        return answer(rendered, 201)
    number = books.next_id("")
    rendered = _payment("COMPLETED", int(number), None)
    _keep(books, now, transfer, number, rendered)
    take(books, now, transfer, -cost_of(transfer))
    fund_arrived(books, now, transfer)
    return answer(rendered, 201)


def payments(transfer_id: str, books: Books, _now: datetime) -> Reply:
    """GET /transfers/{t}/payments: what to ask after an unknown reply to funding."""
    if books.get(DIALECT, "transfer", transfer_id) is None:
        return problem(404, "NOT_FOUND", "There is no such transfer")
    found = books.find(DIALECT, "fund", parent=transfer_id, limit=EVERY, newest_first=False)
    return answer([each.body for each in found])


def payments_of_profile(_profile: str, transfer_id: str, books: Books, now: datetime) -> Reply:
    """GET /profiles/{p}/transfers/{t}/payments."""
    return payments(transfer_id, books, now)


def rejected(code: str) -> Reply:
    """201, and nothing was funded."""
    return answer(_payment("REJECTED", None, code or "balance.insufficient-funds"), 201)


def _payment(status: str, number: int | None, code: str | None) -> dict[str, Any]:
    return {"type": "BALANCE", "status": status, "errorCode": code, "balanceTransactionId": number}


def _keep(books: Books, now: datetime, transfer: Entry, number: str, rendered: dict[str, Any]) -> None:
    state = "moved" if rendered["status"] == "COMPLETED" else "failed"
    words = (DIALECT, "fund", number, transfer.reference, transfer.id, transfer.amount, transfer.currency)
    books.insert(Entry(*words, state, now, rendered))
