"""How much a tenant may ask for within a second, and what a call that asks for much costs."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.http.rate import Rate

LARGEST = 1_000


@pytest.mark.parametrize(
    ("per_second", "asked", "waits"),
    [
        # (when, how much): a second's worth at once, and then as fast as it grows again.
        (2.0, [(0.0, 1), (0.0, 1), (0.0, 1), (0.5, 1), (0.5, 1)], [0.0, 0.0, 0.5, 0.0, 0.5]),
        # What was not asked for in an hour is not saved up.
        (2.0, [(0.0, 1), (3600.0, 1), (3600.0, 1), (3600.0, 1)], [0.0, 0.0, 0.0, 0.5]),
        # Less than one a second: one at once.
        (0.5, [(0.0, 1), (0.0, 1), (2.0, 1)], [0.0, 2.0, 0.0]),
        # More than a second's worth in one call begins when a second's worth is there, and is paid off afterwards.
        (10.0, [(0.0, 100), (9.0, 1), (9.1, 1)], [0.0, 0.1, 0.0]),
        (10.0, [(0.0, 1), (0.0, 100), (0.1, 100)], [0.0, 0.1, 0.0]),
        # A clock that went back gives nothing, and takes nothing.
        (2.0, [(5.0, 2), (4.0, 1), (5.5, 1)], [0.0, 1.5, 0.0]),
    ],
)
def test_so_much_a_second_and_a_second_s_worth_at_once(
    per_second: float, asked: list[tuple[float, int]], waits: list[float]
) -> None:
    rate, paid_until, found = Rate(per_second), 0.0, []
    for now, count in asked:
        wait = rate.wait_seconds(paid_until, count, now)
        if not wait:
            paid_until = rate.spent(paid_until, count, now)
        found.append(round(wait, 6))
    assert found == waits


calls = st.lists(st.tuples(st.floats(0, 5), st.sampled_from([1, 1, 1, 7, LARGEST])), min_size=1, max_size=60)


@given(st.floats(0.1, 5_000), calls)
def test_nobody_gets_more_than_the_rate_by_asking_in_large_pieces(
    per_second: float, asked: list[tuple[float, int]]
) -> None:
    """Over any time: the rate times the time, what may come at once, and what the last call had on top of that."""
    rate, paid_until, now, granted = Rate(per_second), 0.0, 0.0, 0
    for pause, count in asked:
        now += pause
        if not rate.wait_seconds(paid_until, count, now):
            at_once = max(per_second, 1.0)
            assert granted + min(count, at_once) <= per_second * now + at_once + 0.1
            paid_until = rate.spent(paid_until, count, now)
            granted += count


@given(st.floats(0.1, 5_000), calls)
def test_who_waits_as_long_as_he_is_told_is_served(per_second: float, asked: list[tuple[float, int]]) -> None:
    """Also a call for more than ever is there at once: told to wait for ever it would never be done."""
    rate, paid_until, now = Rate(per_second), 0.0, 1_000_000.0
    for pause, count in asked:
        now += pause
        now += ceil(rate.wait_seconds(paid_until, count, now))
        assert rate.wait_seconds(paid_until, count, now) == 0.0
        paid_until = rate.spent(paid_until, count, now)
