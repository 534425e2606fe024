"""Asking a provider's books for a subject, under whichever of its keys it may have moved.

A lost life of this database may have given a settlement another generation, or an order another attempt, and paid that:
the key that is stored here is then not the one to ask for. Nothing is sent here, and no transaction is open.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.errors import PartlyUnreadable, TallystickError
from tallystick.keys.derived import is_reference
from tallystick.money.currencies import Purpose
from tallystick.movement.life.rules import LONGEST_BACK, OVERLAP, read_from
from tallystick.movement.rules import Absence
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Absent,
    Answer,
    Done,
    Fetched,
    Found,
    Instruction,
    Looked,
    Lookup,
    Movement,
    Undecided,
    may_have_paid,
    searched_from,
)

# Less than every list and look-up by time reaches beyond its span, for clocks that differ by as little.
_MOST_APART: Final = timedelta(minutes=5)
MOVES_MONEY_OUT: Final = ("transfer", "payout")


class AskedAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What a run that only asks did. `found`: its outcome is known and recorded. `absent`: proven not to be there."""

    looked_up: int = 0
    found: int = 0
    absent: int = 0


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Payouts of a provider, all that it made since an hour before `known_until`; None: they were not read to the end.

    `read_at` is from before the question.
    """

    known_until: datetime
    read_at: datetime
    lookup: Lookup
    movements: tuple[Movement, ...] | None

    def of(self, name: str, key: bytes, destination: str) -> Looked:
        """What of them bears this name or key, and can have gone there."""
        if self.movements is None:
            return Undecided(code="lookup_broken_off", message="The provider's list was not read to its end.")
        found = tuple(
            one
            for one in self.movements
            # What failed under another key is why there is this one.
            if may_have_paid(one.id, destination)
            and (is_reference(key, one.reference) or (one.about == name and one.state != "failed"))
        )
        return Found(movements=found) if found else Absent(lookup=self.lookup)


async def made(adapter: Provider, *, since: datetime, until: datetime, now: datetime) -> AsyncIterator[Movement]:
    """Everything that was made in [since, until), by the provider's clock or by the database's, which says `now`.

    Lists go by the provider's. Ours may be hours wrong without anybody having noticed, on a machine that a backup was
    brought to: it would have them read from too late, or not to their end. Raises like the provider's list, at the end
    where not all of it can be read.
    """
    asked_at, partly = steady(), None
    spans = [(since, until)]
    while spans:
        first, last = spans.pop()
        try:
            async for movement in adapter.movements(since=first, until=last):
                yield movement
        except PartlyUnreadable as error:
            partly = error
        wrong = _apart(adapter, now, asked_at)
        if (first, last) == (since, until) and wrong < timedelta():
            spans.append((since + wrong, since))
        elif (first, last) == (since, until) and wrong > timedelta():
            spans.append((until, until + wrong))
    if partly is not None:
        raise partly


async def listed(adapter: Provider, known_until: datetime, began_at: datetime, *, now: datetime) -> Listed:
    """Read what was paid since then, for all who may have been created again in the life that began at `began_at`."""
    lookup = adapter.facts.lookup.get("transfer", Lookup.NONE)
    movements: list[Movement] | None = []
    try:
        async for movement in made(adapter, since=read_from(known_until, began_at), until=now + OVERLAP, now=now):
            if movement.purpose in MOVES_MONEY_OUT and movements is not None:
                movements.append(movement)
    except TallystickError:
        movements = None
    return Listed(
        known_until=known_until,
        read_at=now,
        lookup=lookup,
        movements=None if movements is None else tuple(movements),
    )


async def look_up(
    adapter: Provider,
    instruction: Instruction,
    others: Sequence[bytes],
    *,
    since: datetime,
    now: datetime,
    until: datetime | None = None,
    beyond_failed: bool = False,
) -> Looked:
    """What the books say under its own key and, where that is absent, under the others.

    `since`: its creation. `until`: nothing of it can have been made after then (`movement.steps.made_until`).
    `beyond_failed`: nothing will be begun under the next key, which would find what is there. So the others are asked
    for also where what they show has failed; one that has not is the answer.
    """
    failed: Found | None = None
    looked: Looked = Undecided(code="not_asked", message="")
    for key in (instruction.key, *others):
        asked = instruction if key == instruction.key else msgspec.structs.replace(instruction, key=key)
        try:
            looked = await _look_up(adapter, asked, since=searched_from(since, now), now=now, until=until)
        except TallystickError as error:
            looked = Undecided(code="lookup_failed", message=str(error))
        if beyond_failed and isinstance(looked, Found) and all(one.state == "failed" for one in looked.movements):
            failed = failed or looked
        elif not isinstance(looked, Absent):
            return looked
    return failed or looked


async def fetch(adapter: Provider, purpose: Purpose, provider_id: str, *, seconds: float | None = None) -> Fetched:
    """One movement by the provider's own id. Never raises for what the provider did, or did not do in time."""
    try:
        async with asyncio.timeout(seconds):
            return await adapter.fetch(purpose, provider_id)
    except TimeoutError:
        return Undecided(code="not_answered_in_time", message=f"{adapter.facts.name} did not answer in time")
    except TallystickError as error:
        return Undecided(code="fetch_failed", message=str(error))


async def as_it_stands(adapter: Provider, purpose: Purpose, answer: Answer, *, seconds: float) -> Answer:
    """An answer from memory with the movement as it is now; any other, or where nobody shows it, as it came.

    What was stored long ago is proof of what was made, and not of what became of it. The webhook that told of that may
    have gone to a life that was lost: nobody else will tell.
    """
    if not isinstance(answer, Done) or not answer.replayed:
        return answer
    now = await fetch(adapter, purpose, answer.id, seconds=seconds)
    if not isinstance(now, Done) or now.id != answer.id:
        return answer
    return msgspec.structs.replace(
        answer, movement=now.movement, client_secret=now.client_secret or answer.client_secret
    )


async def _look_up(
    adapter: Provider, asked: Instruction, *, since: datetime, now: datetime, until: datetime | None
) -> Looked:
    """By both clocks, like `made`. What is asked for without a time is found either way."""
    asked_at = steady()
    wrong = _apart(adapter, now, asked_at)
    while True:
        looked = await adapter.look_up(
            asked,
            first_sent_at=since + min(wrong, timedelta()),
            now=now + wrong,
            until=None if until is None else until + max(wrong, timedelta()),
        )
        found_wrong = _apart(adapter, now, asked_at)
        if not isinstance(looked, Absent) or wrong or not found_wrong:
            return looked
        # Only its answer has told.
        wrong = found_wrong


def _apart(adapter: Provider, now: datetime, asked_at: float) -> timedelta:
    """By how much the provider's clock is ahead of the database's, which said `now` at `asked_at`; 0: by little."""
    theirs = adapter.time()
    if theirs is None:
        return timedelta()
    wrong = theirs - (now + timedelta(seconds=steady() - asked_at))
    return max(-LONGEST_BACK, min(wrong, LONGEST_BACK)) if abs(wrong) > _MOST_APART else timedelta()


def absence(looked: Looked, key: bytes, read_at: datetime, *, since: datetime) -> Absence | None:
    """The proof for the permit. `read_at` is from before the question; the books were asked from `since` on."""
    return Absence(key=key, read_at=read_at, lookup=looked.lookup, since=since) if isinstance(looked, Absent) else None


def under_another_key(looked: Looked, key: bytes) -> str | None:
    """The provider's id of a movement that the subject has under a key which is not the one stored here."""
    if not isinstance(looked, Found):
        return None
    return next((one.id for one in looked.movements if one.reference and not is_reference(key, one.reference)), None)


def unshown(answer: Absent | Undecided) -> str:
    """Why one object was not shown, in a word for a person."""
    return "it has nothing of that id" if isinstance(answer, Absent) else answer.code
