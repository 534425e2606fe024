"""Square's wire: how it writes answers and refusals, reads bodies, and pages.

docs/providers.md 4, Errors: a list of {category, code, detail, field}. Names of codes and categories are Square's.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from tallystick.simulator.amounts import is_currency
from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.records import Entry

DIALECT: Final = "square"
MERCHANT: Final = "MTALLYSTICK"
# docs/providers.md 4, List filters: listing without a location means the main one only.
MAIN_LOCATION: Final = "LMAIN"
LOCATIONS: Final = (MAIN_LOCATION, "LSECOND")
# docs/providers.md 1, Key limit: 45, fewer if multi-byte: bytes are what is counted.
MAX_KEY_BYTES: Final = 45
LARGEST_PAGE: Final = 100
# The states of a refund that holds a part of its payment.
HOLDING: Final = ("moving", "moved")
# What a JSON number holds exactly everywhere.
LARGEST_AMOUNT: Final = 2**53
_BATCH: Final = 500
_JSON: Final = ("content-type", "application/json")
_FIELD: Final = re.compile(r"`(?:\$\.)?([a-z_0-9.]+)`")

Asked = TypeVar("Asked")


class Money(msgspec.Struct, frozen=True):
    """Minor units."""

    amount: Annotated[int, msgspec.Meta(le=LARGEST_AMOUNT)]
    currency: str


Key = Annotated[str, msgspec.Meta(min_length=1)]


def answer(body: object, status: int = 200) -> Reply:
    return Reply(status, msgspec.json.encode(body), (_JSON,))


def error(category: str, code: str, detail: str, field: str | None = None) -> dict[str, str]:
    plain = {"category": category, "code": code, "detail": detail}
    return plain if field is None else {**plain, "field": field}


def problem(status: int, category: str, code: str, detail: str, field: str | None = None) -> Reply:
    return answer({"errors": [error(category, code, detail, field)]}, status)


def invalid(code: str, detail: str, field: str | None = None, status: int = 400) -> Reply:
    return problem(status, "INVALID_REQUEST_ERROR", code, detail, field)


def missing(what: str) -> Reply:
    return invalid("NOT_FOUND", f"Could not find {what}", status=404)


def read(body: bytes, wanted: type[Asked]) -> Asked | Reply:
    """The body as the operation wants it, or Square's complaint about it."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.ValidationError as fault:
        text = str(fault)
        field = _FIELD.search(text)
        code = "INVALID_VALUE"
        if "missing required field" in text:
            code = "MISSING_REQUIRED_PARAMETER"
        elif "length <=" in text:
            code = "VALUE_TOO_LONG"
        elif "length >=" in text:
            code = "VALUE_EMPTY"
        return invalid(code, text, field.group(1) if field else None)
    except (msgspec.DecodeError, RecursionError) as fault:
        return invalid("EXPECTED_JSON_BODY", str(fault))


def money_fault(money: Money | None, field: str) -> Reply | None:
    """Why Square would not take the amount; None if it would."""
    if money is None:
        return invalid("MISSING_REQUIRED_PARAMETER", f"{field} is required", field)
    if not is_currency(money.currency):
        return invalid("UNSUPPORTED_CURRENCY", f"{money.currency} is not supported", f"{field}.currency")
    if money.amount <= 0:
        return invalid("VALUE_TOO_LOW", "The amount must be positive", f"{field}.amount")
    return None


def shown(at: datetime) -> datetime:
    """The time as it is written: an object must be found by the very time it shows."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def text_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(text: str) -> datetime | None:
    """None for text that is no RFC 3339 time."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


class Page(msgspec.Struct, frozen=True):
    """What every list of Square's understands."""

    since: datetime
    until: datetime
    limit: int
    newest_first: bool
    after: str | None
    location: str | None


def page_asked(query: Mapping[str, Sequence[str]], now: datetime, *, since: datetime) -> Page | Reply:
    """begin_time, end_time, sort_order, limit, cursor, location_id. A limit above 100 counts as 100."""
    words = {name: values[-1] for name, values in query.items() if values}
    begin = time_of(words["begin_time"]) if "begin_time" in words else since
    end = time_of(words["end_time"]) if "end_time" in words else now
    if begin is None or end is None:
        return invalid("INVALID_TIME", "A time is not valid", "begin_time" if begin is None else "end_time")
    order = words.get("sort_order", "DESC")
    if order not in {"ASC", "DESC"}:
        return invalid("INVALID_SORT_ORDER", "sort_order is ASC or DESC", "sort_order")
    limit = words.get("limit", str(LARGEST_PAGE))
    if not re.fullmatch(r"[0-9]{1,9}", limit) or int(limit) < 1:
        return invalid("INVALID_VALUE", "limit is a positive number", "limit")
    after = cursor_of(words.get("cursor"))
    if isinstance(after, Reply):
        return after
    return Page(begin, end, min(int(limit), LARGEST_PAGE), order == "DESC", after, words.get("location_id"))


def cursor_of(text: str | None) -> str | Reply | None:
    """The id a cursor stands for."""
    if not text:
        return None
    try:
        return urlsafe_b64decode(text.encode()).decode()
    except ValueError:
        return invalid("INVALID_CURSOR", "The cursor is not valid", "cursor")


def cursor_at(object_id: str) -> str:
    return urlsafe_b64encode(object_id.encode()).decode()


def listed(kind: str, name: str, asked: Page, books: Books, fits: Callable[[Entry], bool]) -> Reply:
    """One page of what fits, and the cursor where there is more."""
    found: list[Entry] = []
    after = asked.after
    try:
        while len(found) <= asked.limit:
            batch = books.find(
                DIALECT,
                kind,
                since=asked.since,
                until=asked.until,
                after=after,
                limit=_BATCH,
                newest_first=asked.newest_first,
            )
            found.extend(entry for entry in batch if fits(entry))
            if len(batch) < _BATCH:
                break
            after = batch[-1].id
    except KeyError:
        return invalid("INVALID_CURSOR", "The cursor is not valid", "cursor")
    page = found[: asked.limit]
    # Square leaves an empty list out altogether.
    body: dict[str, Any] = {name: [entry.body for entry in page]} if page else {}
    if len(found) > asked.limit:
        body["cursor"] = cursor_at(page[-1].id)
    return answer(body)


def announce(books: Books, kind: str, entry: Entry, name: str, now: datetime) -> None:
    """Store the event `kind` about the entry, which Square calls `name`."""
    event_id = books.next_id("6a8f5f28-54a1-4eb0-a98a-")
    body = {
        "merchant_id": MERCHANT,
        "location_id": entry.body.get("location_id", MAIN_LOCATION),
        "type": kind,
        "event_id": event_id,
        "created_at": text_of(now),
        "data": {"type": name, "id": entry.id, "object": {name: entry.body}},
    }
    books.emit(DIALECT, kind, body, now, entry.id, event_id=event_id)
