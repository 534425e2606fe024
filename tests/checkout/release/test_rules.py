"""Releasing an order: how long it is held, and how long its payment is asked about after it was swept."""

from datetime import UTC, datetime, timedelta

import pytest

from tallystick.checkout.release.rules import (
    Cancel,
    LiveCharge,
    LookUp,
    Release,
    Tell,
    Wait,
    after_cancel,
    after_look,
    afterwards,
    first_step,
    held_until,
)
from tallystick.providers.words import Done, Found, Lookup, Movement, State

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MONTH = 30 * DAY


@pytest.mark.parametrize(
    ("passed", "pause"),
    [
        (timedelta(), MINUTE),
        (HOUR, HOUR / 8),
        (8 * HOUR, HOUR),
        (29 * DAY, HOUR),
        # A clock that was set back since.
        (-10 * HOUR, MINUTE),
    ],
)
def test_a_payment_of_a_swept_order_is_asked_about_ever_more_rarely(passed: timedelta, pause: timedelta) -> None:
    found = afterwards(held_since=NOW - passed, now=NOW, longest=MONTH, can_be_asked=True)
    assert found == NOW + pause


@pytest.mark.parametrize(("passed", "can_be_asked"), [(MONTH, True), (90 * DAY, True), (HOUR, False)])
def test_asking_ends(passed: timedelta, can_be_asked: bool) -> None:  # noqa: FBT001 - a parameter of the test
    found = afterwards(held_since=NOW - passed, now=NOW, longest=MONTH, can_be_asked=can_be_asked)
    assert found == "unanswered"


@pytest.mark.parametrize(("passed", "is_over"), [(timedelta(), False), (HOUR - MINUTE, False), (HOUR, True)])
def test_an_order_is_held_for_as_long_as_was_set(passed: timedelta, is_over: bool) -> None:  # noqa: FBT001 - likewise
    until = held_until(held_since=NOW - passed, now=NOW, hold=HOUR, tries=100)
    assert until == (Release("given_up") if is_over else NOW + MINUTE)


@pytest.mark.parametrize(
    ("not_after", "step"),
    [(None, LookUp()), (NOW - HOUR, LookUp()), (NOW - MINUTE, Wait("may_be_on_its_way"))],
)
def test_books_are_read_once_everything_has_settled(not_after: datetime | None, step: object) -> None:
    standing = LiveCharge(status="PENDING", payment_intent_id=None, not_after=not_after)
    found = first_step(standing, now=NOW, can_cancel=True, lookup=Lookup.SCAN, settles_in=2 * MINUTE)
    assert found == step


def test_what_nobody_tells_is_not_asked_for() -> None:
    for standing in (
        LiveCharge(status="PENDING", payment_intent_id=None),
        LiveCharge(status="COMPLETED", payment_intent_id="x"),
    ):
        found = first_step(standing, now=NOW, can_cancel=False, lookup=Lookup.NONE, settles_in=MINUTE)
        assert isinstance(found, Wait)
        assert not found.can_be_asked


def _payment(state: State, id_: str = "pi_1") -> Movement:
    return Movement(
        provider="stripe", purpose="charge", id=id_, amount_micros=1, currency="EUR", state=state, status=state
    )


@pytest.mark.parametrize(
    ("states", "step"),
    [
        (["failed"], Release("cancelled")),
        # Whatever may still take the money is cancelled there before the stock is anybody else's.
        (["waiting"], Cancel("pi_1")),
        (["moving"], Cancel("pi_1")),
        (["failed", "moving"], Cancel("pi_2")),
        (["waiting", "moved"], Tell((_payment("moved", "pi_2"),))),
    ],
    ids=["failed", "waiting", "moving", "failed and moving", "waiting and moved"],
)
def test_only_what_failed_is_let_go_by_the_books(states: list[State], step: object) -> None:
    movements = tuple(_payment(state, f"pi_{number}") for number, state in enumerate(states, 1))
    assert after_look(Found(movements=movements), can_cancel=True) == step


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ("failed", Release("cancelled")),
        ("moved", Tell((_payment("moved"),))),
        ("waiting", Wait("still_waiting")),
        ("moving", Wait("still_moving")),
        ("returned", Wait("still_returned")),
    ],
)
def test_only_what_says_so_is_cancelled(state: State, step: object) -> None:
    assert after_cancel(Done(movement=_payment(state))) == step
