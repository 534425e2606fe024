"""Square's events: searching the missed ones, and signing those that are sent.

docs/providers.md 4, Backfill; Webhook signature: over the notification URL, exactly as registered, and the body. No
time is signed, so only `event_id` tells a replay.
"""

import hmac
from base64 import b64encode
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Endpoint, Notification, Reply
from tallystick.simulator.square.answer import (
    DIALECT,
    LARGEST_PAGE,
    answer,
    cursor_at,
    cursor_of,
    invalid,
    read,
    time_of,
)

RETENTION: Final = {"28_days": timedelta(days=28), "1_day": timedelta(days=1), "for_ever": None}


class TimeRange(msgspec.Struct, frozen=True):
    """Inclusive."""

    start_at: str | None = None
    end_at: str | None = None


class Filter(msgspec.Struct, frozen=True):
    """Which events."""

    event_types: list[str] | None = None
    location_ids: list[str] | None = None
    created_at: TimeRange = TimeRange()


class Sort(msgspec.Struct, frozen=True):
    """In which order."""

    field: str = "DEFAULT"
    order: Literal["ASC", "DESC"] = "DESC"


class Query(msgspec.Struct, frozen=True):
    """What is searched."""

    filter: Filter = Filter()
    sort: Sort = Sort()


class SearchRequest(msgspec.Struct, frozen=True):
    """POST /v2/events."""

    cursor: str | None = None
    limit: int = LARGEST_PAGE
    query: Query = Query()


def search(body: bytes, books: Books, now: datetime) -> Reply:
    """POST /v2/events."""
    asked = read(body or b"{}", SearchRequest)
    if isinstance(asked, Reply):
        return asked
    if not 1 <= asked.limit <= LARGEST_PAGE:
        return invalid("INVALID_VALUE", "limit is between 1 and 100", "limit")
    wanted = asked.query.filter
    bounds = (wanted.created_at.start_at, wanted.created_at.end_at)
    times = [None if text is None else time_of(text) for text in bounds]
    if any(text is not None and at is None for text, at in zip(bounds, times, strict=True)):
        return invalid("INVALID_TIME", "A time is not valid", "query.filter.created_at")
    after = cursor_of(asked.cursor)
    if isinstance(after, Reply):
        return after
    kept = RETENTION[books.switch("square.events_retention")]
    oldest = None if kept is None else now - kept
    since = max((at for at in (times[0], oldest) if at is not None), default=None)
    try:
        found = books.events(
            DIALECT,
            types=wanted.event_types,
            since=since,
            until=times[1],
            after=after,
            limit=asked.limit + 1,
            newest_first=asked.query.sort.order == "DESC",
        )
    except KeyError:
        return invalid("INVALID_CURSOR", "The cursor is not valid", "cursor")
    page = found[: asked.limit]
    places = wanted.location_ids
    shown = [each for each in page if places is None or each.body["location_id"] in places]
    reply: dict[str, Any] = {
        "events": [each.body for each in shown],
        "metadata": [{"event_id": each.id, "api_version": "2026-09-16"} for each in shown],
    }
    if len(found) > asked.limit:
        reply["cursor"] = cursor_at(page[-1].id)
    return answer(reply)


def notification(event: bytes, endpoint: Endpoint) -> Notification:
    key = (endpoint.secrets[0] if endpoint.secrets else "").encode()
    signature = b64encode(hmac.digest(key, endpoint.url.encode() + event, "sha256")).decode()
    return Notification(
        (("content-type", "application/json"), ("x-square-hmacsha256-signature", signature)),
        event,
    )
