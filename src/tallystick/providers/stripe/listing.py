"""Stripe's books and Stripe's events, listed.

Events are read forwards from the last one seen (docs/providers.md 2.11). Without one the oldest are searched for:
lists begin with the newest, so the span is halved until what is in it fits on one page.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from math import floor
from typing import Final

from tallystick.errors import PartlyUnreadable, ProviderUnreachable
from tallystick.money.currencies import Purpose
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.stripe.objects import PATHS, Page, Unreadable, full_id, is_id, read_object
from tallystick.providers.stripe.pages import item_id, page_of, pages
from tallystick.providers.stripe.request import Pairs
from tallystick.providers.stripe.webhook import parse_listed
from tallystick.providers.words import Event, EventPage, Exchange, Movement

_EVENTS: Final = "/v1/events"
# A million objects of one kind: a span this full must be asked for in parts.
MOST_PAGES: Final = 10_000
# Halving a month ends at a second after 22 steps; the rest is for a clock that jumps between the answers.
_MOST_STEPS: Final = 64
# A second with more than 10,000 events is none.
_MOST_PAGES_OF_A_SECOND: Final = 100
# Enough for a person to start with.
MOST_NAMED: Final = 20
_ORDER: Final[tuple[Purpose, ...]] = ("charge", "refund", "transfer", "payout")
_MISSING_STATUSES: Final = frozenset({400, 404})
# How Stripe says that a connected account is none of ours any more. Nothing less: credentials that are not taken, or
# may not list, look the same by their status, and a list that they hide has not been read.
_LEFT_STATUS: Final = 403
_LEFT: Final = '"account_invalid"'
# The code of an id that Stripe does not have (any more).
_MISSING: Final = "resource_missing"


async def movements(
    line: Line, *, since: datetime, until: datetime, connected_accounts: tuple[str, ...]
) -> AsyncIterator[Movement]:
    """Everything made in [since, until): the platform's, and the payouts of the connected accounts.

    What cannot be read hides nothing else: it is named by raising at the very end.
    """
    # Stripe's times are whole seconds, cut off. With both ends cut off alike, two spans that meet share nothing and
    # miss nothing, also where the first was read before its last second was over: that second is the next one's.
    span = (
        ("created[gte]", str(floor(since.timestamp()))),
        ("created[lt]", str(floor(until.timestamp()))),
    )
    odd: list[str] = []
    sources: list[tuple[Purpose, str]] = [(purpose, "") for purpose in _ORDER]
    sources += [("payout", account) for account in connected_accounts]
    for place, (purpose, account) in enumerate(sources):
        async for movement in _kind(line, purpose, span, account, odd, begun=place > 0):
            yield movement
    if odd:
        more = f" and {len(odd) - MOST_NAMED} more" if len(odd) > MOST_NAMED else ""
        raise PartlyUnreadable("stripe", f"cannot be read: {', '.join(odd[:MOST_NAMED])}{more}")


async def events(line: Line, *, cursor: str | None, now: datetime) -> EventPage:
    """Events after the cursor, which is the id of the last one seen; empty or None: from as far back as there are.

    A cursor that Stripe has forgotten is older than all it still has, so the reading starts there.
    """
    try:
        if cursor and is_id(cursor):
            try:
                page, exchange = await page_of(line, _EVENTS, (("ending_before", cursor),))
            except BrokenOff as error:
                if error.exchange.status not in _MISSING_STATUSES or _MISSING not in error.exchange.said:
                    raise
            else:
                newest = _newest(page, exchange, before=cursor, more=page.has_more)
                return EventPage(events=_oldest_first(page), cursor=newest, more=page.has_more)
        return await _oldest(line, now)
    except BrokenOff as error:
        raise ProviderUnreachable("stripe", str(error)) from error


async def _kind(
    line: Line, purpose: Purpose, span: Pairs, account: str, odd: list[str], *, begun: bool
) -> AsyncIterator[Movement]:
    """All of one kind that can be read; the rest is added to `odd`."""
    try:
        async for page, exchange in pages(line, PATHS[purpose], span, account=account, most=MOST_PAGES, begun=begun):
            for index, item in enumerate(page.data):
                try:
                    movement = read_object(purpose, item).movement(account)
                except Unreadable as error:
                    odd.append(f"{purpose} {_name(page, index, exchange, account)} ({error})")
                else:
                    yield movement
    except BrokenOff as error:
        if account and error.exchange.status == _LEFT_STATUS and _LEFT in error.exchange.said:
            # Its owner has disconnected it, or it was closed: nothing can be ordered from it either.
            odd.append(f"payouts of {account} ({error})")
            return
        raise ProviderUnreachable("stripe", str(error)) from error


async def _oldest(line: Line, now: datetime) -> EventPage:
    last = int(now.timestamp()) + 1
    start = last - int((FACTS.events_reach or timedelta()).total_seconds())
    end, crowded = last, None
    for _ in range(_MOST_STEPS):
        page, exchange = await page_of(line, _EVENTS, _span(start, end, last))
        if page.has_more:
            crowded = end
        elif page.data:
            newest = _newest(page, exchange, before="", more=end < last)
            return EventPage(events=_oldest_first(page), cursor=newest, more=end < last)
        elif crowded is None:
            return EventPage(events=(), cursor="", more=False)
        else:
            # Nothing below: all that makes the span crowded lies above.
            start = end
        if crowded - start <= 1:
            return await _whole(line, _span(start, crowded, last), more=crowded < last)
        end = start + (crowded - start) // 2
    raise ProviderUnreachable("stripe", "the oldest events could not be found")


def _span(start: int, end: int, last: int) -> Pairs:
    """The last span has no upper end: Stripe's clock may be ahead of ours."""
    lower = ("created[gte]", str(start))
    return (lower,) if end >= last else (lower, ("created[lt]", str(end)))


async def _whole(line: Line, span: Pairs, *, more: bool) -> EventPage:
    """All events of one second, which are too many for a page."""
    found: list[Event] = []
    newest = ""
    async for page, exchange in pages(line, _EVENTS, span, most=_MOST_PAGES_OF_A_SECOND):
        newest = newest or _newest(page, exchange, before="", more=more or page.has_more)
        found.extend(parse_listed(item) for item in page.data)
    return EventPage(events=tuple(reversed(found)), cursor=newest, more=more)


def _name(page: Page, index: int, exchange: Exchange, account: str) -> str:
    try:
        return full_id(item_id(page.data, index, exchange), account)
    except BrokenOff:
        return "without an id"


def _newest(page: Page, exchange: Exchange, *, before: str, more: bool) -> str:
    """The cursor after a page: its newest event that has an id. Newer ones without are told again. Raises BrokenOff."""
    for index in range(len(page.data)):
        with suppress(BrokenOff):
            return item_id(page.data, index, exchange)
    if more:
        raise BrokenOff("no event of the page has an id to go on from", exchange)
    return before


def _oldest_first(page: Page) -> tuple[Event, ...]:
    return tuple(parse_listed(item) for item in reversed(page.data))
