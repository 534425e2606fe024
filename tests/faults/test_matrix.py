"""The crash matrix itself: what a sample must have done before it counts."""

import random
from typing import Any

import pytest

from tests.faults.matrix import Cases, Trying, Victim, Victims, cases
from tests.faults.points import Point, _shortened
from tests.faults.victims import LOOPS, Loop

POINTS = [Point(f"sql {number}") for number in range(20)]


class Ordered:
    """Whom `Trying` tells which loop is next."""

    loop: Loop = "asyncio"


def sample(most: int) -> Cases:
    return cases(POINTS, random.Random(7), most)


def run(
    of: Cases, outcomes: Any, *, overtaken: int = 0, is_overtaken: bool = False, loop: Loop | None = None
) -> Trying:
    """Try cases that are reached or not as the outcomes say."""
    orders = Ordered()
    victims: Victims = orders  # type: ignore[assignment]
    trying = Trying(of, victims, overtaken=overtaken)
    for case, reached in zip(trying, outcomes, strict=False):
        victim = Victim(1)
        victim.loop, victim.is_overtaken = loop or orders.loop, is_overtaken
        trying.tried(case, victim, reached=reached)
    return trying


def test_a_sample_ends_when_enough_were_reached_on_both_loops() -> None:
    trying = run(sample(2), [True] * 40)
    assert trying.finish() == []
    assert (trying.reached, set(trying.loops)) == (2, set(LOOPS))


@pytest.mark.parametrize("outcomes", [[False, False, True, True, False], [False] * 40, [True, False, False, False]])
def test_a_sample_that_misses_half_is_none(outcomes: list[bool]) -> None:
    with pytest.raises(AssertionError, match="reached"):
        run(sample(2), outcomes).finish()


def test_what_was_missed_is_made_good_by_others() -> None:
    trying = run(sample(2), [False, False, True, True, True])
    assert (len(trying.finish()), trying.reached) == (2, 3)


def test_paused_and_overtaken_by_nobody_is_not_enough() -> None:
    with pytest.raises(AssertionError, match="0 of 1 were overtaken"):
        run(sample(2), [True] * 40, overtaken=1).finish()
    assert run(sample(2), [True] * 40, overtaken=1, is_overtaken=True).finish() == []


def test_one_loop_alone_is_not_enough() -> None:
    with pytest.raises(AssertionError, match="all ran on asyncio"):
        run(sample(2), [True] * 40, loop="asyncio").finish()


def test_of_everything_few_may_be_missed() -> None:
    everything = cases(POINTS, random.Random(7), None)
    run(everything, [False] * 2 + [True] * 38).finish()
    with pytest.raises(AssertionError, match="37 of 38"):
        run(everything, [False] * 3 + [True] * 37).finish()


def test_of_everything_what_was_missed_is_tried_again() -> None:
    everything = cases(POINTS, random.Random(7), None)
    trying = run(everything, [False] * 4 + [True] * 38 + [False] * 2 + [True] * 40)
    assert (trying.finish(), trying.reached) == ([], 40)
    with pytest.raises(AssertionError, match="36 of 38"):
        run(everything, [False] * 4 + [True] * 36 + [False] * 40).finish()


def test_a_point_has_one_name_whichever_process_passes_it() -> None:
    one, other = (f"BEGIN; SET LOCAL tally.author = 'worker/victim-{number}'; SELECT 1" for number in (7, 4711))
    assert _shortened(one) == _shortened(other) == "BEGIN; SET LOCAL tally.author = somebody; SELECT 1"


def test_both_sides_are_killed_on_both_loops() -> None:
    """Where a case's loop follows its place, each side would keep its own."""
    orders = Ordered()
    victims: Victims = orders  # type: ignore[assignment]
    trying = Trying(cases(POINTS, random.Random(7), None), victims)
    seen = set()
    for case in trying:
        victim = Victim(1)
        victim.loop = orders.loop
        seen.add((case.side, orders.loop))
        trying.tried(case, victim, reached=True)
    assert len(seen) == 4
