"""Square's lists, page by page, oldest first. A list that breaks off is never taken for its end."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import quote

from tallystick.money.currencies import Purpose
from tallystick.providers import paging
from tallystick.providers.http import Reply
from tallystick.providers.line import Line, Said
from tallystick.providers.paging import BrokenOff
from tallystick.providers.square.objects import NAMES, PATHS, Page, Unreadable, read_page
from tallystick.providers.words import Exchange

PAGE_SIZE: Final = 100  # docs/providers.md 4, List filters: the most there is
_OK: Final = 200


def page_in(said: Said, name: str) -> Page:
    """The page that came. Raises BrokenOff."""
    if not isinstance(said.result, Reply):
        raise BrokenOff(said.result.reason, said.exchange)
    if said.result.status != _OK:
        raise BrokenOff(f"the list answered {said.result.status}", said.exchange)
    try:
        return read_page(name, said.result.body)
    except Unreadable as error:
        raise BrokenOff(f"the list cannot be read: {error}", said.exchange) from error


async def pages(
    line: Line, purpose: Purpose, *, location_id: str, since: datetime, until: datetime, most: int, begun: bool = False
) -> AsyncIterator[tuple[Page, Exchange]]:
    """Every page to the end; it has `begun` where it goes on from another list. Raises BrokenOff, also after `most`."""
    question = {
        "begin_time": text_of(since),
        # Written in whole milliseconds, an end would be a little early.
        "end_time": text_of(until + timedelta(milliseconds=1)),
        "sort_order": "ASC",
        # Without it only the main location's are listed (docs/providers.md 4, List filters).
        "location_id": location_id,
        "limit": str(PAGE_SIZE),
    }
    for _ in range(most):
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in question.items())
        page, exchange = await paging.page_of(partial(_page, line, purpose, query), begun=begun)
        yield page, exchange
        begun = True
        if not page.cursor:
            return
        if page.cursor == question.get("cursor"):
            raise BrokenOff("the list does not go on from its own cursor", exchange)
        question["cursor"] = page.cursor
    raise BrokenOff(f"the list has more than {most} pages", exchange)


async def _page(line: Line, purpose: Purpose, query: str) -> tuple[Page, Exchange]:
    said = await line.ask("GET", f"{PATHS[purpose]}?{query}")
    return page_in(said, f"{NAMES[purpose]}s"), said.exchange


def text_of(moment: datetime) -> str:
    """A time as Square reads it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
