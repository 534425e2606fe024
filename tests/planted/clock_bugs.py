"""Bugs of what happens when the database's clock was wrong: see `bugs`."""

from datetime import datetime, timedelta
from typing import Any, Final, cast

from tallystick.leases import flow as timekeeping
from tallystick.leases.store import Bounded
from tallystick.movement import rules as permit
from tallystick.movement import steps
from tallystick.movement import store as intent
from tallystick.recovery import reading
from tests.planted.bug import Bug

AHEAD: Final = "tests/clock/test_life_dated_ahead.py::"
STEPS: Final = "tests/clock/test_clock_steps.py::"
PAYOUT: Final = STEPS + "test_a_payout_sent_while_the_clock_was_wrong_is_decided_once_it_is_right"


def a_lease_of_a_clock_ahead_is_kept() -> None:
    """Nobody looks for leases that end later than any can."""

    async def run_once(_self: Any) -> Bounded:
        return Bounded()

    cast("Any", timekeeping.Timekeeper).run_once = run_once


def a_leave_of_a_clock_ahead_is_waited_for() -> None:
    """A permit to send is taken to last until the clock has caught up."""

    def permit_ended(not_after: datetime, _now: datetime) -> datetime:
        return not_after

    cast("Any", intent).permit_ended = permit_ended


def a_key_from_the_future_is_young() -> None:
    """What was created while the clock was ahead counts as just created."""

    def is_forgotten(since: datetime, remembered: timedelta, now: datetime) -> bool:
        return now >= since + remembered

    cast("Any", permit).is_forgotten = is_forgotten
    cast("Any", steps).is_forgotten = is_forgotten


def books_are_read_from_the_future() -> None:
    """The newest step is taken for as old as it is dated."""
    cast("Any", reading).read_from = lambda known_until, _began_at: known_until


def a_life_of_a_clock_ahead_is_waited_for() -> None:
    """Nothing settles before the time has come at which it is said to have begun."""
    cast("Any", reading).is_dated_ahead = lambda *_of: False


CLOCK_BUGS: Final = {
    "books_are_read_from_the_future": Bug(
        books_are_read_from_the_future, (AHEAD + "test_what_was_lost_after_a_clock_was_ahead_is_found_in_the_books",)
    ),
    "a_life_of_a_clock_ahead_is_waited_for": Bug(
        a_life_of_a_clock_ahead_is_waited_for,
        (AHEAD + "test_a_life_that_began_while_the_clock_was_ahead_is_read_once_it_is_right",),
    ),
    "a_lease_of_a_clock_ahead_is_kept": Bug(
        a_lease_of_a_clock_ahead_is_kept,
        (
            f"{PAYOUT}[ahead-execute_then_drop]",
            STEPS + "test_an_event_leased_while_the_clock_was_ahead_is_processed_once_it_is_right",
        ),
    ),
    "a_leave_of_a_clock_ahead_is_waited_for": Bug(
        a_leave_of_a_clock_ahead_is_waited_for, (f"{PAYOUT}[ahead-execute_then_drop]",)
    ),
    "a_key_from_the_future_is_young": Bug(a_key_from_the_future_is_young, (f"{PAYOUT}[ahead-drop_before]",)),
}
