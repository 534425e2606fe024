"""Square's books and Square's events, listed.

Square's own cursor is good only for the search it came from (docs/providers.md 4, Backfill). Ours remembers that
search; once it is read to its end, the next one starts a little before that end, because events may appear late,
and leaves out those that were seen.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from tallystick.errors import PartlyUnreadable, ProviderUnreachable
from tallystick.money.currencies import Purpose
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.scanning import SKEW
from tallystick.providers.square.facts import FACTS
from tallystick.providers.square.objects import UNDECODABLE, Page, Unreadable, is_id, read_object
from tallystick.providers.square.pages import PAGE_SIZE, page_in, pages, text_of
from tallystick.providers.square.webhook import parse_listed
from tallystick.providers.words import Event, EventPage, Movement

# A million objects of one kind: a span this full must be asked for in parts.
MOST_PAGES: Final = 10_000
# How far before the last search's end the next one starts. Square says "several seconds" of how late its lists are,
# and nothing of events; its clock, by which events are found, may be behind ours by more than that.
LATE: Final = SKEW
# Enough for a person to start with.
MOST_NAMED: Final = 20
# Of more than these the older ones are told twice, which their dedup key makes harmless.
MOST_SEEN: Final = 100
# What a page's cursor that is good no longer may be answered with.
_FORGOTTEN_STATUSES: Final = frozenset({400, 404})
_SECOND: Final = timedelta(seconds=1)
_ORDER: Final[tuple[Purpose, ...]] = ("charge", "refund", "payout")


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the reading of events stands: in the search of [begin, end] at `page`, or before the next one."""

    begin: datetime
    end: datetime | None = None
    page: str = ""
    seen: tuple[str, ...] = ()


class _Identified(msgspec.Struct, frozen=True):
    id: str


_CURSOR_DECODER: Final = msgspec.json.Decoder(Cursor)
_ID_DECODER: Final = msgspec.json.Decoder(_Identified)


async def movements(line: Line, *, location_id: str, since: datetime, until: datetime) -> AsyncIterator[Movement]:
    """Everything made in [since, until).

    What cannot be read hides nothing else: it is named by raising at the very end.
    """
    # Some of Square's times are whole seconds, cut off. With both ends cut off alike, two spans that meet share
    # nothing and miss nothing, also where the first was read before its last second was over.
    first, end = since.replace(microsecond=0), until.replace(microsecond=0)
    odd: list[str] = []
    for place, purpose in enumerate(_ORDER):
        # Neither whether the list's end belongs to it is said, nor how its times are rounded: a little more is asked
        # for, and what belongs to the span is decided here.
        listed = pages(
            line,
            purpose,
            location_id=location_id,
            since=first - _SECOND,
            until=end + _SECOND,
            most=MOST_PAGES,
            begun=place > 0,
        )
        try:
            async for page, _ in listed:
                for item in page.items:
                    try:
                        movement = read_object(purpose, item).movement()
                    except Unreadable as error:
                        odd.append(f"{purpose} {_name(item)} ({error})")
                        continue
                    if movement.created_at is None or first <= movement.created_at < end:
                        yield movement
        except BrokenOff as error:
            raise ProviderUnreachable("square", str(error)) from error
    if odd:
        more = f" and {len(odd) - MOST_NAMED} more" if len(odd) > MOST_NAMED else ""
        raise PartlyUnreadable("square", f"cannot be read: {', '.join(odd[:MOST_NAMED])}{more}")


async def events(line: Line, *, location_id: str, cursor: str | None, now: datetime) -> EventPage:
    """One page of events after the cursor. A search that Square has forgotten is made again from its beginning."""
    at = _cursor(cursor, now)
    try:
        try:
            page, end = await _search(line, at, now)
        except BrokenOff as error:
            if not at.page or error.exchange.status not in _FORGOTTEN_STATUSES:
                raise
            at = Cursor(begin=_reachable(at.begin, now), seen=at.seen)
            page, end = await _search(line, at, now)
    except BrokenOff as error:
        raise ProviderUnreachable("square", str(error)) from error
    found = [parse_listed(item, location_id=location_id) for item in page.items]
    fresh = tuple(event for event in found if event.dedup_key not in at.seen)
    after = _after(at, page.cursor, end, found)
    return EventPage(events=fresh, cursor=msgspec.json.encode(after).decode(), more=bool(page.cursor))


async def _search(line: Line, at: Cursor, now: datetime) -> tuple[Page, datetime]:
    """One page of the search, and where that search ends. Raises BrokenOff."""
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
    return page_in(said, "events"), end


def _after(at: Cursor, page: str, end: datetime, found: list[Event]) -> Cursor:
    seen = (*at.seen, *(event.dedup_key for event in found if event.dedup_key not in at.seen))[-MOST_SEEN:]
    if page:
        return Cursor(begin=at.begin, end=end, page=page, seen=seen)
    return Cursor(begin=max(at.begin, end - LATE), seen=seen)


def _cursor(text: str | None, now: datetime) -> Cursor:
    if not text:
        return Cursor(begin=now - (FACTS.events_reach or timedelta()))
    try:
        at = _CURSOR_DECODER.decode(text)
    except (*UNDECODABLE, UnicodeEncodeError) as error:
        raise ProviderUnreachable("square", "the cursor is none of ours") from error
    return at if at.page else Cursor(begin=_reachable(at.begin, now), seen=at.seen)


def _reachable(begin: datetime, now: datetime) -> datetime:
    """A search that reaches further back than Square does would be refused, or silently cut."""
    return max(begin.astimezone(UTC), now - (FACTS.events_reach or timedelta()))


def _name(item: msgspec.Raw) -> str:
    try:
        found = _ID_DECODER.decode(item).id
    except UNDECODABLE:
        return "without an id"
    return found if is_id(found) else "without an id"
