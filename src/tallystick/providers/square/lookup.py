"""Did it happen? Square filters by nothing of ours: what was made since the first send is listed and matched.

Its lists are eventually consistent, seconds late (docs/providers.md 4, List filters), so absence is never proof.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tallystick.core.provider import (
    Absent,
    Exchange,
    Found,
    Instruction,
    Looked,
    Movement,
    Transfer,
    Undecided,
    kind_of,
)
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.square.facts import FACTS
from tallystick.providers.square.objects import Unreadable, read_object
from tallystick.providers.square.pages import pages
from tallystick.providers.square.request import reference_of

# Square's clock against the database's: what was made at our first send may bear a time before it.
SKEW: Final = timedelta(minutes=10)
MOST_PAGES: Final = 100
# Enough to see how the question ended; a scan of a hundred pages is no evidence a person reads.
_KEPT_EXCHANGES: Final = 3


async def look_up(
    line: Line, instruction: Instruction, *, location_id: str, first_sent_at: datetime, now: datetime
) -> Looked:
    """Everything that bears our key. Two or more are told as such: the caller must know."""
    if isinstance(instruction, Transfer):
        # None was ever sent, and Square could not have made one.
        return Absent(lookup=FACTS.lookup["transfer"])
    purpose = kind_of(instruction)
    reference = reference_of(instruction)
    found: list[Movement] = []
    evidence: list[Exchange] = []
    listed = pages(
        line, purpose, location_id=location_id, since=first_sent_at - SKEW, until=now + SKEW, most=MOST_PAGES
    )
    try:
        async for page, exchange in listed:
            evidence.append(exchange)
            for item in page.items:
                kept = read_object(purpose, item)
                if kept.reference == reference:
                    found.append(kept.movement())
    except BrokenOff as error:
        return _undecided(str(error), [*evidence, error.exchange])
    except Unreadable as error:
        return _undecided(f"an item of the list cannot be read: {error}", evidence)
    if found:
        return Found(movements=tuple(found), evidence=tuple(evidence[-_KEPT_EXCHANGES:]))
    return Absent(lookup=FACTS.lookup[purpose], evidence=tuple(evidence[-_KEPT_EXCHANGES:]))


def _undecided(reason: str, evidence: Sequence[Exchange]) -> Undecided:
    return Undecided(
        code="lookup_broken_off",
        message=f"Square's books were not read to the end: {reason}.",
        evidence=tuple(evidence[-_KEPT_EXCHANGES:]),
    )
