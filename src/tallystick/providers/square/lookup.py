"""Did it happen? Square filters by nothing of ours: what was made since the first send is listed and matched.

Its lists are eventually consistent, seconds late (docs/providers.md 4, List filters), so absence is never proof.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Final

from tallystick.money.currencies import Purpose
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.scanning import Scanner, Unfinished, moment, window
from tallystick.providers.square.facts import FACTS
from tallystick.providers.square.objects import Kept, Unreadable, read_object
from tallystick.providers.square.pages import pages
from tallystick.providers.square.request import reference_of
from tallystick.providers.words import (
    Absent,
    Exchange,
    Found,
    Instruction,
    Looked,
    Transfer,
    Undecided,
    kind_of,
)

# A scan is bounded by its time. This stops a list that goes in a circle.
_MOST_PAGES: Final = 100_000


async def look_up(
    line: Line,
    scanner: Scanner,
    instruction: Instruction,
    *,
    location_id: str,
    first_sent_at: datetime,
    now: datetime,
    until: datetime | None,
) -> Looked:
    """Everything that bears our key. Two or more are told as such: the caller must know."""
    if isinstance(instruction, Transfer):
        # None was ever sent, and Square could not have made one.
        return Absent(lookup=FACTS.lookup["transfer"])
    purpose = kind_of(instruction)
    since, end = window(first_sent_at, now=now, until=until)
    try:
        scanned = await scanner.find(
            purpose,
            reference_of(instruction),
            lambda first, last: _listed(line, purpose, location_id, first, last),
            since=since,
            until=end,
            now=now,
        )
        movements = tuple(kept.movement() for kept in scanned.found)
    except Unfinished as error:
        return Undecided(
            code="lookup_unfinished",
            message=f"Square's books are being read: {error}.",
            evidence=error.exchanges,
        )
    except BrokenOff as error:
        return _undecided(str(error), [error.exchange])
    except Unreadable as error:
        return _undecided(f"an item of the list cannot be read: {error}", [])
    if movements:
        return Found(movements=movements, evidence=scanned.exchanges)
    return Absent(lookup=FACTS.lookup[purpose], evidence=scanned.exchanges)


async def _listed(
    line: Line, purpose: Purpose, location_id: str, first: int, end: int
) -> AsyncGenerator[tuple[Sequence[Kept], Exchange], None]:
    since, until = moment(first), moment(end)
    async for page, exchange in pages(
        line, purpose, location_id=location_id, since=since, until=until, most=_MOST_PAGES
    ):
        yield [read_object(purpose, item) for item in page.items], exchange


def _undecided(reason: str, evidence: Sequence[Exchange]) -> Undecided:
    return Undecided(
        code="lookup_broken_off",
        message=f"Square's books were not read to the end: {reason}.",
        evidence=tuple(evidence),
    )
