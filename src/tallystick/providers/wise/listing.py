"""Wise's transfers of a span of time, page after page, matched by us (docs/providers.md 5, Look-up).

A list is the whole list or nothing. It is paged by offset: what is made meanwhile pushes others to a later page, so
one may come twice, and none is lost. A page may be shorter than was asked for without being the last: only an empty
one ends the list.

Wise filters by its own time, and may print it in whole seconds. So a span is cut to whole seconds: what was made in
the second in which two spans meet would otherwise be shown in one and counted by its printed time to the other.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import urlencode

import msgspec

from tallystick.providers.http import Reply
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff, page_of
from tallystick.providers.wise.objects import Transfer, movement, read
from tallystick.providers.words import Absent, Exchange, Found, Looked, Lookup, Undecided

# Our clock and Wise's may differ by this much, to either side.
SKEW: Final = timedelta(minutes=10)
PAGE: Final = 100
# Fifty thousand transfers of one span; more are listed in shorter spans.
MOST_PAGES: Final = 500
_OK: Final = 200


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found. `broken`: it was not read to its end, and found nothing."""

    transfers: tuple[Transfer, ...]
    evidence: tuple[Exchange, ...]
    broken: BrokenOff | None = None


class Listing:
    """The transfers of one profile. It must be named: left out, Wise shows the personal one's."""

    def __init__(self, line: Line, profile_id: str) -> None:
        """`line` is the profile's."""
        self._line = line
        self._profile_id = profile_id

    async def look_up(self, reference: str, *, first_sent_at: datetime, now: datetime) -> Looked:
        """Read all since the first send. One that is found unfunded is `waiting`: the same key goes on from there."""
        finding = await self.find(reference, first_sent_at=first_sent_at, until=now)
        if finding.broken is not None:
            return Undecided(code=finding.broken.code, message=str(finding.broken), evidence=finding.evidence)
        movements = [movement(each) for each in finding.transfers]
        known = tuple(each for each in movements if each is not None)
        if len(known) < len(movements):
            message = "Wise shows a transfer of ours whose amount cannot be read."
            return Undecided(code="answer_unreadable", message=message, evidence=finding.evidence)
        if known:
            return Found(movements=known, evidence=finding.evidence)
        return Absent(lookup=Lookup.SCAN, evidence=finding.evidence)

    async def find(self, reference: str, *, first_sent_at: datetime, until: datetime) -> Finding:
        """The transfers under our reference, each once, made between the two moments by whoever's clock."""
        evidence: tuple[Exchange, ...] = ()
        found: dict[int, Transfer] = {}
        try:
            async for transfers, exchange in self._pages(first_sent_at - SKEW, until + SKEW):
                evidence += (exchange,)
                found |= {each.id: each for each in transfers if each.reference == reference}
        except BrokenOff as error:
            return Finding(transfers=(), evidence=(*evidence, error.exchange), broken=error)
        return Finding(transfers=tuple(found.values()), evidence=evidence)

    async def transfers(self, since: datetime, until: datetime) -> AsyncIterator[Transfer]:
        """All that were made, each once; `since` and `until` are whole seconds. Raises BrokenOff."""
        seen: set[int] = set()
        async for transfers, _ in self._pages(since, until):
            for transfer in transfers:
                if transfer.id not in seen:
                    seen.add(transfer.id)
                    yield transfer

    async def _pages(self, since: datetime, until: datetime) -> AsyncIterator[tuple[list[Transfer], Exchange]]:
        query = {
            "profile": self._profile_id,
            "createdDateStart": _text(since),
            # Cut to milliseconds, a transfer made at this very moment would be left out.
            "createdDateEnd": _text(until + timedelta(milliseconds=1)),
            "limit": str(PAGE),
        }
        offset = 0
        for _ in range(MOST_PAGES):
            query["offset"] = str(offset)
            transfers, exchange = await page_of(partial(self._page, urlencode(query)), begun=offset > 0)
            yield transfers, exchange
            if not transfers:
                return
            offset += len(transfers)
        raise BrokenOff(f"Wise's list has more than {MOST_PAGES} pages.", exchange, code="too_many_pages")

    async def _page(self, query: str) -> tuple[list[Transfer], Exchange]:
        said = await self._line.ask("GET", f"/v1/transfers?{query}")
        if not isinstance(said.result, Reply):
            raise BrokenOff(f"Wise did not answer: {said.result.reason}.", said.exchange, code="unanswered")
        transfers = read(said.result.body, list[Transfer]) if said.result.status == _OK else None
        if transfers is None:
            raise BrokenOff(f"Wise answered {said.result.status}.", said.exchange, code="answer_unreadable")
        return transfers, said.exchange


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
