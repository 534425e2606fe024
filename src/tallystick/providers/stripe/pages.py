"""Stripe's lists, page by page, newest first. A list that breaks off is never taken for its end."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

import msgspec

from tallystick.providers import paging
from tallystick.providers.http import Reply
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.stripe.objects import UNDECODABLE, Page, Unreadable, is_id, read_page
from tallystick.providers.stripe.request import Pairs, form
from tallystick.providers.words import Exchange

PAGE_SIZE: Final = 100  # docs/providers.md 2.1: the most there is
_OK: Final = 200


class _Identified(msgspec.Struct, frozen=True):
    id: str


_ID_DECODER: Final = msgspec.json.Decoder(_Identified)


async def page_of(line: Line, path: str, pairs: Pairs, *, account: str = "") -> tuple[Page, Exchange]:
    """One page. Raises BrokenOff."""
    headers = (("stripe-account", account),) if account else ()
    said = await line.ask("GET", f"{path}?{form((*pairs, ('limit', str(PAGE_SIZE))))}", headers=headers)
    if not isinstance(said.result, Reply):
        raise BrokenOff(said.result.reason, said.exchange)
    if said.result.status != _OK:
        raise BrokenOff(f"the list answered {said.result.status}", said.exchange)
    try:
        return read_page(said.result.body), said.exchange
    except Unreadable as error:
        raise BrokenOff(f"the list cannot be read: {error}", said.exchange) from error


async def pages(
    line: Line, path: str, pairs: Pairs, *, account: str = "", most: int, begun: bool = False
) -> AsyncIterator[tuple[Page, Exchange]]:
    """Every page to the end; it has `begun` where it goes on from another list. Raises BrokenOff, also after `most`."""
    asked = pairs
    for _ in range(most):
        page, exchange = await paging.page_of(partial(page_of, line, path, asked, account=account), begun=begun)
        yield page, exchange
        begun = True
        if not page.has_more:
            return
        asked = (*pairs, ("starting_after", item_id(page.data, -1, exchange)))
    raise BrokenOff(f"the list has more than {most} pages", exchange)


def item_id(items: Sequence[msgspec.Raw], index: int, exchange: Exchange) -> str:
    """The id of one item, which is a cursor. Raises BrokenOff."""
    try:
        found = _ID_DECODER.decode(items[index]).id
    except UNDECODABLE as error:
        raise BrokenOff("an item of the list has no id", exchange) from error
    if not is_id(found):
        raise BrokenOff("an item of the list has an odd id", exchange)
    return found
