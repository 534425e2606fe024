"""Adyen's transfers by time and by our reference, page after page (docs/providers.md 3, Look-up).

A list is the whole list or nothing: a page that is broken, or one page too many, is a reason to answer nothing.

Adyen filters by its own time, and may print it in whole seconds. So a span is cut to whole seconds: what was made in
the second in which two spans meet would otherwise be shown in one and counted by its printed time to the other.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from tallystick.providers.adyen.objects import INCOMING, Page, Transfer, read, transfer_movement
from tallystick.providers.http import Reply
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff, page_of
from tallystick.providers.words import Absent, Exchange, Found, Looked, Lookup, Undecided

# Six months are allowed; the shortest six in a row have 181 days.
LONGEST_SPAN: Final = timedelta(days=180)
# Our clock and Adyen's may differ by this much, to either side.
SKEW: Final = timedelta(minutes=10)
PAGE: Final = 100
# A hundred thousand transfers of one span; more are listed in shorter spans.
MOST_PAGES: Final = 1000
# By reference there should be one.
MOST_LOOKUP_PAGES: Final = 10
_OK: Final = 200


class Listing:
    """The transfers out of one balance account."""

    def __init__(self, line: Line, balance_account: str) -> None:
        """`line` is the balance platform's."""
        self._line = line
        self._balance_account = balance_account

    async def look_up(self, reference: str, *, first_sent_at: datetime, now: datetime) -> Looked:
        """Ask for the transfers under our reference. Several may come: its uniqueness is not promised."""
        evidence: list[Exchange] = []
        found: dict[str, Transfer] = {}
        try:
            # What was created long ago may have been sent today: it was held, or Adyen was away.
            for place, (since, until) in enumerate(_spans(first_sent_at - SKEW, now + SKEW)):
                pages = self._pages(since, until, reference=reference, most_pages=MOST_LOOKUP_PAGES, begun=place > 0)
                async for transfers, exchange in pages:
                    evidence.append(exchange)
                    # Where two spans meet, or a page is pushed on, one may come twice.
                    found |= {each.id: each for each in transfers if each.reference == reference}
        except BrokenOff as error:
            return Undecided(code=error.code, message=str(error), evidence=(*evidence, error.exchange))
        movements = [transfer_movement(each) for each in found.values()]
        known = tuple(each for each in movements if each is not None)
        if len(known) < len(found):
            message = "Adyen shows a transfer of ours whose amount cannot be read."
            return Undecided(code="answer_unreadable", message=message, evidence=tuple(evidence))
        if known:
            return Found(movements=known, evidence=tuple(evidence))
        return Absent(lookup=Lookup.EXACT, evidence=tuple(evidence))

    async def transfers(self, since: datetime, until: datetime) -> AsyncIterator[Transfer]:
        """All that left the account in [since, until), which are whole seconds. Raises BrokenOff."""
        for place, (start, end) in enumerate(_spans(since, until)):
            async for transfers, _ in self._pages(start, end, most_pages=MOST_PAGES, begun=place > 0):
                for transfer in transfers:
                    yield transfer

    async def _pages(
        self, since: datetime, until: datetime, *, reference: str | None = None, most_pages: int, begun: bool = False
    ) -> AsyncIterator[tuple[list[Transfer], Exchange]]:
        query = {
            "balanceAccountId": self._balance_account,
            "createdSince": _text(since),
            # Cut to milliseconds, a transfer made at this very moment would be left out.
            "createdUntil": _text(until + timedelta(milliseconds=1)),
            "limit": str(PAGE),
        }
        if reference is not None:
            query["reference"] = reference
        for _ in range(most_pages):
            page, exchange = await page_of(partial(self._page, urlencode(query)), begun=begun)
            yield [each for each in page.data if each.direction != INCOMING], exchange
            begun = True
            if page.links.next is None:
                return
            cursor = parse_qs(urlsplit(page.links.next.href).query).get("cursor", [""])[-1]
            if not cursor:
                raise BrokenOff("Adyen names a next page without its cursor.", exchange, code="answer_unreadable")
            query["cursor"] = cursor
        raise BrokenOff(f"Adyen's list has more than {most_pages} pages.", exchange, code="too_many_pages")

    async def _page(self, query: str) -> tuple[Page, Exchange]:
        said = await self._line.ask("GET", f"/transfers?{query}")
        if not isinstance(said.result, Reply):
            raise BrokenOff(f"Adyen did not answer: {said.result.reason}.", said.exchange, code="unanswered")
        page = read(said.result.body, Page) if said.result.status == _OK else None
        if page is None:
            raise BrokenOff(f"Adyen answered {said.result.status}.", said.exchange, code="answer_unreadable")
        return page, said.exchange


def _spans(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        end = min(until, since + LONGEST_SPAN)
        yield since, end
        since = end


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
