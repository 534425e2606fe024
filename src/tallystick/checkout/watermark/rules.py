"""The watermark: the moment up to which everything that was received has been decided. Pure.

The sweeper cancels no order that was charged before the watermark has passed its deadline: until then its payment may
lie here, received in time, and nobody has looked at it.

    mark      a moment by the database's clock, and what was on its way then: appends that had begun and were not
              committed, and how far the log (Kafka) reached where webhooks go there first
    stored    all of that has ended, or was read: whatever was received by the moment is in the database
    passed    and every event stored by then is decided: the watermark is the moment

Times decide when to look again, and what to leave alone; never whether money moved.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A moment, and what was on its way at it. `ends`: the next offset of each partition; None: there is no log."""

    at: datetime
    writing: frozenset[str]
    ends: Mapping[int, int] | None = None


def is_stored(mark: Mark, *, writing: frozenset[str], read: Mapping[int, int]) -> bool:
    """Whether everything that was received by the mark's moment is in the database.

    `writing`: who appends now; a number of a transaction is never used again. `read`: how far the log was stored.
    """
    if mark.writing & writing:
        return False
    return all(read.get(partition, 0) >= end for partition, end in (mark.ends or {}).items())


def passed(mark: Mark, *, stored_at: datetime, oldest: datetime | None, before: datetime | None) -> datetime | None:
    """How far everything is decided, once the mark is stored. `oldest`: the first event that nobody has decided.

    An event that came by way of the log was received before it was stored, nobody knows how long: while one that was
    stored by then is open, the watermark stays where it was (`before`).
    """
    if mark.ends is None:
        return mark.at if oldest is None else min(mark.at, oldest)
    return mark.at if oldest is None or oldest > stored_at else before
