"""Adyen's questions: transfers and transactions by time, and one by its id.

docs/providers.md 3, Look-up: both dates are required and at most six months apart, one of balance account, account
holder and balance platform must be named, a page has at most 100. `reference` is not unique: several may come.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import msgspec

from tallystick.simulator.adyen.answer import DIALECT, answer, platform_problem, time_of
from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry

# Six months, read generously: the longest six in a row.
_LONGEST_SPAN: Final = timedelta(days=184)
_LARGEST_PAGE: Final = 100
_PAGE: Final = 10
_BATCH: Final = 500


class Question(msgspec.Struct, frozen=True):
    """What GET /transfers and GET /transactions are asked."""

    kind: str
    since: datetime
    until: datetime
    reference: str | None
    account: str | None
    category: str | None
    limit: int
    newest_first: bool
    after: str | None


def one(kind: str, object_id: str, books: Books, _now: datetime) -> Reply:
    """GET /transfers/{id}, GET /transactions/{id}."""
    entry = books.get(DIALECT, kind, object_id)
    if entry is None:
        return platform_problem(404, "30_031", f"The {kind} was not found")
    return answer(200, entry.body)


def many(kind: str, query: Mapping[str, Sequence[str]], books: Books, _now: datetime) -> Reply:
    """GET /transfers, GET /transactions."""
    asked = _question(kind, {name: values[-1] for name, values in query.items() if values})
    if isinstance(asked, Reply):
        return asked
    try:
        found = _matching(asked, books)
    except KeyError:
        return platform_problem(422, "30_112", "The cursor is not valid")
    page, more = found[: asked.limit], len(found) > asked.limit
    body: dict[str, object] = {"data": [entry.body for entry in page], "_links": {}}
    if more:
        cursor = urlsafe_b64encode(page[-1].id.encode()).decode()
        following = {name: values[-1] for name, values in query.items() if values} | {"cursor": cursor}
        body["_links"] = {"next": {"href": f"/btl/v4/{kind}s?{urlencode(following)}"}}
    return answer(200, body)


def _question(kind: str, query: Mapping[str, str]) -> Question | Reply:
    since = time_of(query.get("createdSince", ""))
    until = time_of(query.get("createdUntil", ""))
    if since is None or until is None:
        return platform_problem(422, "30_112", "createdSince and createdUntil are required")
    if until < since or until - since > _LONGEST_SPAN:
        return platform_problem(422, "30_112", "createdSince and createdUntil are at most six months apart")
    if not {"balanceAccountId", "accountHolderId", "balancePlatform", "paymentInstrumentId"} & query.keys():
        return platform_problem(422, "30_112", "balanceAccountId, accountHolderId or balancePlatform is required")
    limit = query.get("limit", str(_PAGE))
    if not re.fullmatch(r"[0-9]{1,3}", limit) or not 1 <= int(limit) <= _LARGEST_PAGE:
        return platform_problem(422, "30_112", "limit is between 1 and 100")
    try:
        after = urlsafe_b64decode(query["cursor"].encode()).decode() if "cursor" in query else None
    except ValueError:
        return platform_problem(422, "30_112", "The cursor is not valid")
    return Question(
        kind=kind,
        since=since,
        until=until,
        reference=query.get("reference"),
        account=query.get("balanceAccountId"),
        category=query.get("category"),
        limit=int(limit),
        newest_first=query.get("sortOrder", "desc") != "asc",
        after=after,
    )


def _matching(asked: Question, books: Books) -> list[Entry]:
    """One more than the page holds, where there are more. The account is the entry's parent."""
    if asked.category is None:
        return _batch(asked, books, asked.after, asked.limit + 1)
    found: list[Entry] = []
    after = asked.after
    while len(found) <= asked.limit:
        batch = _batch(asked, books, after, _BATCH)
        found.extend(entry for entry in batch if entry.body.get("category") == asked.category)
        if len(batch) < _BATCH:
            break
        after = batch[-1].id
    return found


def _batch(asked: Question, books: Books, after: str | None, limit: int) -> list[Entry]:
    return books.find(
        DIALECT,
        asked.kind,
        reference=asked.reference,
        parent=asked.account,
        since=asked.since,
        until=asked.until,
        after=after,
        limit=limit,
        newest_first=asked.newest_first,
    )
