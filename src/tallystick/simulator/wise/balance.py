"""Wise's balances and their statements. A balance nobody limited has no end."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tallystick.simulator.amounts import CODES, is_currency
from tallystick.simulator.books import EVERY, Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry
from tallystick.simulator.wise.answer import DIALECT, answer, micros_of_text, money, problem, text_of, time_of

# Shown for a balance without limit, in micros.
ENDLESS: Final = 10**15
_CODES_PER_PROFILE: Final = 1000


def cost_of(transfer: Entry) -> int:
    """What it takes from the balance, fee included: micros of the source currency."""
    return micros_of_text(transfer.body["sourceValue"], transfer.body["sourceCurrency"])


def take(books: Books, now: datetime, transfer: Entry, amount: int) -> None:
    """Move the profile's balance by the amount (negative: taken), and write the statement's line."""
    currency = transfer.body["sourceCurrency"]
    books.move_balance(DIALECT, currency, amount, transfer.parent)
    line: dict[str, Any] = {
        "type": "DEBIT" if amount < 0 else "CREDIT",
        "date": text_of(now),
        "amount": money(amount, currency),
        "details": {"type": "TRANSFER", "description": f"Transfer {transfer.id}"},
        "runningBalance": money(_left(books, transfer.parent, currency), currency),
        "referenceNumber": f"TRANSFER-{transfer.id}",
    }
    balance_id = str(_balance_id(transfer.parent, currency))
    words = (DIALECT, "statement_line", books.next_id(""), transfer.id, balance_id, amount, currency)
    books.insert(Entry(*words, "moved", now, line))


def balances(profile: str, query: Mapping[str, Sequence[str]], books: Books, now: datetime) -> Reply:
    """GET /profiles/{p}/balances."""
    limited = books.balances(DIALECT, profile)
    wanted = query.get("currency", [None])[-1]
    codes = sorted({*limited, "EUR", "GBP", "USD"}) if wanted is None else [wanted]
    rows = [_balance(books, profile, code, now) for code in codes if is_currency(code)]
    return answer(rows)


def statement(profile: str, balance_id: str, query: Mapping[str, Sequence[str]], books: Books, _now: datetime) -> Reply:
    """GET /profiles/{p}/balance-statements/{b}/statement.json (docs/providers.md 5, Reconciliation)."""
    words = {name: values[-1] for name, values in query.items() if values}
    since, until = time_of(words.get("intervalStart", "")), time_of(words.get("intervalEnd", ""))
    if since is None or until is None:
        return problem(422, "NOT_VALID", "intervalStart and intervalEnd are required", "intervalStart")
    owner, place = divmod(int(balance_id), _CODES_PER_PROFILE)
    if str(owner) != profile or place >= len(CODES):
        return problem(404, "NOT_FOUND", "There is no such balance")
    lines = books.find(
        DIALECT, "statement_line", parent=balance_id, since=since, until=until, limit=EVERY, newest_first=False
    )
    currency = CODES[place]
    return answer(
        {
            "transactions": [line.body for line in lines],
            "endOfStatementBalance": money(_left(books, profile, currency), currency),
            "query": {"intervalStart": words["intervalStart"], "intervalEnd": words["intervalEnd"]},
        }
    )


def _balance(books: Books, profile: str, currency: str, now: datetime) -> dict[str, Any]:
    left = money(_left(books, profile, currency), currency)
    return {
        "id": _balance_id(profile, currency),
        "currency": currency,
        "type": "STANDARD",
        "name": None,
        "amount": left,
        "reservedAmount": money(0, currency),
        "cashAmount": left,
        "totalWorth": left,
        "modificationTime": text_of(now),
        "visible": True,
    }


def _left(books: Books, profile: str, currency: str) -> int:
    left = books.balance(DIALECT, currency, profile)
    return ENDLESS if left is None else left


def _balance_id(profile: str, currency: str) -> int:
    return int(profile) * _CODES_PER_PROFILE + CODES.index(currency)
