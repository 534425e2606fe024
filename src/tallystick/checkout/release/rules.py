"""Releasing an order to the sweeper: what stands at the provider for it is ended first. Pure.

An order that is overdue and was charged may be paid at the provider at any moment. What to do about its live charge,
or, where a refused one was left open there too, about one after the other:

    the provider said that it moved ──> Tell      the saga makes it PAID, as if a webhook had come
    an id, and the provider cancels ──> Cancel    "already succeeded" ──> Tell
    no id: nobody knows what was made ─> LookUp   found: one of these; not in the books ──> absent
    nobody can be asked ──────────────> Wait      until the hold is over, then given up

Only a provider's own word that it is cancelled, or complete books that do not show it, releases the order before the
hold is over. Unknown never does.

An order that was swept as absent or given up is asked about further, by the same steps, until that is over too:

    moved ────────> told        the saga gives it back: it came too late
    cancelled ────> cancelled   it can no longer be paid
    no live charge > ended      it has failed, or a person has closed it
    anything else ─> asked again, ever more rarely; for a month at most, then unanswered
"""

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from tallystick.checkout.payment.rules import Status
from tallystick.providers.words import Absent, Answer, Done, Found, Looked, Lookup, Movement, State, Undecided

ReleaseVerdict = Literal["cancelled", "absent", "given_up", "ended"]
# What became of the payment of an order that was swept before anybody knew.
Closed = Literal["cancelled", "told", "ended", "unanswered"]
# These let the sweeper have the order.
RELEASING: Final[tuple[ReleaseVerdict, ...]] = ("cancelled", "absent", "given_up")
_FIRST_PAUSE: Final = timedelta(seconds=2)
_LONGEST_PAUSE: Final = timedelta(minutes=1)
# After the sweep nobody waits for it: by a part of the time that has passed, so that a short outage is noticed soon.
_PART_OF_THE_TIME: Final = 8
_LONGEST_PAUSE_AFTERWARDS: Final = timedelta(hours=1)


class LiveCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The live charge of an overdue order. `done_as` and `done_state`: what the provider answered, where it did."""

    status: Status
    payment_intent_id: str | None
    done_state: State | None = None
    # Until when bytes of it may still be written (`checkout.payment.rules.written_until`); None: nobody ever did.
    not_after: datetime | None = None


class Tell(msgspec.Struct, frozen=True):
    """Its money has moved: have the saga hear of it. No movement: as the provider answered when it was charged."""

    movements: tuple[Movement, ...] = ()


class Cancel(msgspec.Struct, frozen=True):
    """Have it cancelled at the provider."""

    payment_intent_id: str


class LookUp(msgspec.Struct, frozen=True):
    """Ask the provider's books."""


class Release(msgspec.Struct, frozen=True):
    """The sweeper may have it."""

    verdict: ReleaseVerdict


class Wait(msgspec.Struct, frozen=True):
    """Nobody knows. The same again later. Not `can_be_asked`: nobody will tell us later either, unless by itself."""

    reason: str
    can_be_asked: bool = True


def first_step(
    standing: LiveCharge, *, now: datetime, can_cancel: bool, lookup: Lookup, settles_in: timedelta
) -> Tell | Cancel | LookUp | Wait:
    """What to do about it. First match wins."""
    if standing.done_state == "moved":
        return Tell()
    if standing.payment_intent_id is not None:
        return Cancel(standing.payment_intent_id) if can_cancel else Wait("cannot_be_cancelled", can_be_asked=False)
    if lookup not in (Lookup.EXACT, Lookup.SCAN):
        return Wait("cannot_be_asked_for", can_be_asked=False)
    # Books that are read earlier may not show what is still on its way.
    if standing.not_after is not None and now < standing.not_after + settles_in:
        return Wait("may_be_on_its_way")
    return LookUp()


def after_look(looked: Looked, *, can_cancel: bool) -> Tell | Cancel | Release | Wait:
    """What the provider's books make of a charge without an id."""
    match looked:
        case Found(movements=movements):
            moved = tuple(one for one in movements if one.state == "moved")
            if moved:
                return Tell(moved)
            live = [one for one in movements if one.state != "failed"]
            if not live:
                return Release("cancelled")
            return Cancel(live[0].id) if can_cancel else Wait("cannot_be_cancelled", can_be_asked=False)
        case Absent():
            return Release("absent")
        case Undecided(code=code):
            return Wait(code)


def after_cancel(answer: Answer) -> Tell | Release | Wait:
    """What the provider made of the wish to cancel. Whatever it did not say in so many words is not so."""
    if not isinstance(answer, Done):
        return Wait(answer.code)
    match answer.movement.state:
        case "failed":
            return Release("cancelled")
        case "moved":
            return Tell((answer.movement,))
        case state:
            return Wait(f"still_{state}")


def held_until(*, held_since: datetime, now: datetime, hold: timedelta, tries: int) -> Release | datetime:
    """How long one that waits is held: when to ask again, or that the hold is over."""
    if now >= held_since + hold:
        return Release("given_up")
    return min(now + min(_FIRST_PAUSE * (1 << min(tries, 10)), _LONGEST_PAUSE), held_since + hold)


def afterwards(*, held_since: datetime, now: datetime, longest: timedelta, can_be_asked: bool) -> Closed | datetime:
    """The order was swept before anybody knew: when to ask again, or that this is over."""
    passed = now - held_since
    if not can_be_asked or passed >= longest:
        return "unanswered"
    return now + min(max(passed / _PART_OF_THE_TIME, _LONGEST_PAUSE), _LONGEST_PAUSE_AFTERWARDS)
