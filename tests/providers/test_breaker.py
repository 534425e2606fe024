"""The breaker: it stops new sends while a provider is down, and lets one at a time find out that it is up."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.breaker import (
    FAILURES_TO_OPEN,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    PROBE_SECONDS,
    Breaker,
)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        assert breaker.admit(now) == 0
        breaker.failed(now, "no answer")
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_for_how_long() -> None:
    breaker = opened()
    assert (breaker.state, breaker.reason) == ("open", "no answer")
    assert breaker.admit(0.25) == FIRST_PAUSE_SECONDS - 0.25


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.failed(0, "x")
        breaker.succeeded(0)
    assert breaker.state == "closed"


def test_after_the_pause_one_and_only_one_is_let_through() -> None:
    breaker = opened()
    assert breaker.admit(FIRST_PAUSE_SECONDS) == 0
    assert breaker.state == "probing"
    assert breaker.admit(FIRST_PAUSE_SECONDS) > 0


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.admit(FIRST_PAUSE_SECONDS)
    breaker.succeeded(FIRST_PAUSE_SECONDS)
    assert (breaker.state, breaker.admit(FIRST_PAUSE_SECONDS)) == ("closed", 0)


def test_probes_that_fail_make_the_pause_longer_up_to_a_bound() -> None:
    breaker, now, pauses = opened(), 0.0, []
    for _ in range(10):
        pauses.append(breaker.admit(now))
        now += pauses[-1]
        assert breaker.admit(now) == 0
        breaker.failed(now, "still down")
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_late_failures_of_calls_in_flight_do_not_lengthen_the_pause() -> None:
    breaker = opened()
    for _ in range(50):
        breaker.failed(0.5, "timed out")
    assert breaker.admit(FIRST_PAUSE_SECONDS) == 0


def test_a_few_lost_answers_among_many_are_no_outage() -> None:
    """Five hundred calls that began together: a hundred hang, and all of those end last and in a row."""
    breaker = Breaker()
    for number in range(400):
        breaker.succeeded(0.1 + number / 1_000)
    for _ in range(100):
        breaker.silent(10.0, "no answer", began=0.0)
    assert breaker.admit(10.0) == 0
    # Nothing that began since was answered: now it is one.
    for _ in range(FAILURES_TO_OPEN):
        breaker.silent(20.0, "no answer", began=10.0)
    assert breaker.state == "open"


def test_a_probe_that_never_reached_the_provider_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.admit(FIRST_PAUSE_SECONDS)
    breaker.abandoned(FIRST_PAUSE_SECONDS)
    assert breaker.admit(FIRST_PAUSE_SECONDS) == 0


def test_a_probe_nobody_reports_does_not_lock_it_for_ever() -> None:
    breaker = opened()
    breaker.admit(FIRST_PAUSE_SECONDS)
    assert breaker.admit(FIRST_PAUSE_SECONDS + PROBE_SECONDS) == 0


@given(st.lists(st.tuples(st.sampled_from(["admit", "failed", "succeeded"]), st.floats(0, 100)), max_size=60))
def test_it_always_opens_its_door_again(steps: list[tuple[str, float]]) -> None:
    """A breaker that stays shut stops every payout until somebody restarts the worker."""
    breaker, now = Breaker(), 0.0
    for step, passed in steps:
        now += passed
        match step:
            case "admit":
                breaker.admit(now)
            case "failed":
                breaker.failed(now, "x")
            case _:
                breaker.succeeded(now)
    assert breaker.admit(now + max(LONGEST_PAUSE_SECONDS, PROBE_SECONDS)) == 0
