"""Whereabouts: what hints that this is another life of the database than the one that was here before. Pure.

Stored are the system, the line of its history, the database, the start of its server and the table of intents, as they
were seen last. A plain restart changes one of them too: a hint is no proof, and stops nothing. It has the providers'
books read again (`movement.rules`).

A process remembers more: how far the server's log was, and how its clock ran beside ours. A machine that is rolled back
with all its memory looks the same in every stored way.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

# Clocks are set by a second or two all the time, and an answer may be late.
MOST_JUMP: Final = timedelta(minutes=1)
# What nobody can date is looked for as far back as this.
LONGEST_BACK: Final = timedelta(days=30)
# Before what is known for sure: steps that were being committed, clocks that differ.
OVERLAP: Final = timedelta(hours=1)


class DatabasePlace(msgspec.Struct, frozen=True):
    """Where a database is."""

    system: int
    timeline: int
    database: int
    started_at: datetime | None
    intents: int | None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one look showed. `position`: how far the server's log was.

    `asked` and `steady`: our own clock before the question, and when its answer was heard.
    """

    place: DatabasePlace
    position: int
    now: datetime
    asked: float
    steady: float


def read_from(known_until: datetime, began_at: datetime) -> datetime:
    """From when on the books show what a life lost that began then.

    The newest step may be dated after that, by a clock that was ahead: when it was, nobody knows. (How old its key is,
    nobody knows either: `movement.rules` goes by the date as it is, which is no time at which a key could be young.)
    """
    return (known_until if known_until <= began_at else began_at - LONGEST_BACK) - OVERLAP


def is_dated_ahead(began_at: datetime, now: datetime) -> bool:
    """Whether a life began while the clock was ahead: nothing would have settled until that time has come."""
    return began_at > now + MOST_JUMP


def hint(known: DatabasePlace, seen: Seen, remembered: Seen | None) -> str | None:
    """Why this may be another life than the one that is `known`, or that this process remembers; None: nothing does."""
    for name in ("system", "timeline", "database", "intents", "started_at"):
        if getattr(known, name) != getattr(seen.place, name):
            return f"another {name}"
    if remembered is None or remembered.place != seen.place:
        return None
    # Looks overtake each other on several connections: one that was begun before the other was heard may show what was
    # before it, and a log that seems to have gone back.
    if seen.asked < remembered.steady:
        return None
    if seen.position < remembered.position:
        return "its log went back"
    elapsed = timedelta(seconds=seen.steady - remembered.steady)
    return "its clock jumped" if abs((seen.now - remembered.now) - elapsed) > MOST_JUMP else None
