"""Square's books and Square's events, listed.

Square's own cursor is good only for the search it came from (docs/providers.md 4, Backfill). Ours remembers that
search; once it is read to its end, the next one starts a little before that end, because events may appear late,
and leaves out those that were seen.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick.core.currencies import Purpose
from tallystick.core.provider import Event, EventPage, Movement
from tallystick.errors import ProviderUnreachable
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.square.facts import FACTS
from tallystick.providers.square.objects import Unreadable, read_object
from tallystick.providers.square.pages import PAGE_SIZE, page_in, pages, text_of
from tallystick.providers.square.webhook import parse

# A million objects of one kind: a span this full must be asked for in parts.
MOST_PAGES: Final = 10_000
# How late an event may appear in the search. Square says "several seconds" of its lists, and nothing of events.
LATE: Final = timedelta(minutes=1)
# Of more than these the older ones are told twice, which their dedup key makes harmless.
MOST_SEEN: Final = 100
_ORDER: Final[tuple[Purpose, ...]] = ("charge", "refund", "payout")


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the reading of events stands: in the search of [begin, end] at `page`, or before the next one."""

    begin: datetime
    end: datetime | None = None
    page: str = ""
    seen: tuple[str, ...] = ()


_CURSOR_DECODER: Final = msgspec.json.Decoder(Cursor)


async def movements(line: Line, *, location_id: str, since: datetime, until: datetime) -> AsyncIterator[Movement]:
    """Everything made in [since, until)."""
    for purpose in _ORDER:
        listed = pages(line, purpose, location_id=location_id, since=since, until=until, most=MOST_PAGES)
        try:
            async for page, _ in listed:
                for item in page.items:
                    movement = read_object(purpose, item).movement()
                    # Whether the list's end belongs to it is not said, so it is decided here.
                    if movement.created_at is None or since <= movement.created_at < until:
                        yield movement
        except BrokenOff as error:
            raise ProviderUnreachable("square", str(error)) from error
        except Unreadable as error:
            raise ProviderUnreachable("square", f"a {purpose} cannot be read: {error}") from error


async def events(line: Line, *, cursor: str | None, now: datetime) -> EventPage:
    """One page of events after the cursor."""
    at = _cursor(cursor, now)
    end = at.end or now
    query = {
        "filter": {"created_at": {"start_at": text_of(at.begin), "end_at": text_of(end)}},
        "sort": {"field": "DEFAULT", "order": "ASC"},
    }
    asked: dict[str, Any] = {"limit": PAGE_SIZE, "query": query}
    if at.page:
        asked["cursor"] = at.page
    said = await line.ask(
        "POST", "/v2/events", headers=(("content-type", "application/json"),), body=msgspec.json.encode(asked)
    )
    try:
        page = page_in(said, "events")
        found = [parse(item) for item in page.items]
    except BrokenOff as error:
        raise ProviderUnreachable("square", str(error)) from error
    except Unreadable as error:
        raise ProviderUnreachable("square", f"an event cannot be read: {error}") from error
    fresh = tuple(event for event in found if event.dedup_key not in at.seen)
    after = _after(at, page.cursor, end, found)
    return EventPage(events=fresh, cursor=msgspec.json.encode(after).decode(), more=bool(page.cursor))


def _after(at: Cursor, page: str, end: datetime, found: list[Event]) -> Cursor:
    seen = (*at.seen, *(event.dedup_key for event in found if event.dedup_key not in at.seen))[-MOST_SEEN:]
    if page:
        return Cursor(begin=at.begin, end=end, page=page, seen=seen)
    return Cursor(begin=max(at.begin, end - LATE), seen=seen)


def _cursor(text: str | None, now: datetime) -> Cursor:
    start = now - (FACTS.events_reach or timedelta())
    if not text:
        return Cursor(begin=start)
    try:
        at = _CURSOR_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ProviderUnreachable("square", "the cursor is none of ours") from error
    # A search that reaches further back than Square does would be refused, or silently cut.
    return at if at.page else Cursor(begin=max(at.begin.astimezone(UTC), start), seen=at.seen)
