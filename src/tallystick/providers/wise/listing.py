"""Wise's transfers of a span of time, page after page, matched by us (docs/providers.md 5, Look-up).

A list is the whole list or nothing. It is paged by offset: what is made meanwhile pushes others to a later page, so
one may come twice, and none is lost. A page may be shorter than was asked for without being the last: only an empty
one ends the list.

Wise filters by its own time, and may print it in whole seconds. So a span is cut to whole seconds: what was made in
the second in which two spans meet would otherwise be shown in one and counted by its printed time to the other.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import msgspec

from tallystick.providers.http import Reply
from tallystick.providers.line import Line
from tallystick.providers.wise.objects import Transfer, movement, read
from tallystick.providers.words import Absent, Exchange, Found, Looked, Lookup, Undecided

# Our clock and Wise's may differ by this much, to either side.
SKEW: Final = timedelta(minutes=10)
PAGE: Final = 100
# Fifty thousand transfers of one span; more are listed in shorter spans.
MOST_PAGES: Final = 500
_OK: Final = 200


class Broken(msgspec.Struct, frozen=True):
    """The list ended before its end."""

    code: str
    message: str
    exchange: Exchange | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found. `broken`: it was not read to its end, and found nothing."""

    transfers: tuple[Transfer, ...]
    evidence: tuple[Exchange, ...]
    broken: Broken | None = None


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
            return Undecided(code=finding.broken.code, message=finding.broken.message, evidence=finding.evidence)
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
        async for page in self._pages(first_sent_at - SKEW, until + SKEW):
            if isinstance(page, Broken):
                seen = evidence if page.exchange is None else (*evidence, page.exchange)
                return Finding(transfers=(), evidence=seen, broken=page)
            evidence += (page[1],)
            found |= {each.id: each for each in page[0] if each.reference == reference}
        return Finding(transfers=tuple(found.values()), evidence=evidence)

    async def transfers(self, since: datetime, until: datetime) -> AsyncIterator[Transfer | Broken]:
        """All that were made, each once; `since` and `until` are whole seconds."""
        seen: set[int] = set()
        async for page in self._pages(since, until):
            if isinstance(page, Broken):
                yield page
                return
            for transfer in page[0]:
                if transfer.id not in seen:
                    seen.add(transfer.id)
                    yield transfer

    async def _pages(self, since: datetime, until: datetime) -> AsyncIterator[tuple[list[Transfer], Exchange] | Broken]:
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
            said = await self._line.ask("GET", f"/v1/transfers?{urlencode(query)}")
            if not isinstance(said.result, Reply):
                yield Broken("unanswered", f"Wise did not answer: {said.result.reason}.", said.exchange)
                return
            transfers = read(said.result.body, list[Transfer]) if said.result.status == _OK else None
            if transfers is None:
                yield Broken("answer_unreadable", f"Wise answered {said.result.status}.", said.exchange)
                return
            yield transfers, said.exchange
            if not transfers:
                return
            offset += len(transfers)
        yield Broken("too_many_pages", f"Wise's list has more than {MOST_PAGES} pages.")


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
