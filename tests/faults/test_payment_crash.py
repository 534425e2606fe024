"""Paying, killed anywhere: SIGKILL before and after every statement and every provider call of a click or a collection.

After each case a collector and a second click come by; then the provider's own books have one payment for the order. A
sample that rotates with the commit runs always, and every point around COMMIT and the provider; TALLY_TEST_FULL=1 runs
all of them, TALLY_TEST_SEED repeats a sample. The counts are printed.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from tests import servers
from tests.faults.matrix import IS_FULL, Case, Victims, cases, seed
from tests.faults.payment_ground import PAY, SCENARIOS, Ground, Scenario
from tests.faults.points import End, Point
from tests.payments import CHARGING, STRIPE, checkout
from tests.providers.worlds import Control, World

pytestmark = pytest.mark.timeout(3_600 if IS_FULL else 300)
# Of each scenario, when not everything is run.
SAMPLE = 3


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    with Victims(PAY, tmp_path_factory.mktemp("victims") / "log") as made:
        yield made


@pytest.fixture
def grounds(embedded18: servers.Server, control: Control, victims: Victims) -> Callable[[World], AsyncIterator[Ground]]:
    async def made(world: World) -> AsyncIterator[Ground]:
        async with checkout(embedded18.fresh_database(), control, world, answer_seconds=10) as shop:
            yield Ground(shop, victims)

    return made


async def discover(ground: Ground, scenario: Scenario) -> list[Point]:
    order = await ground.prepare(scenario)
    victim = await ground.run(order, None, collects=scenario.startswith("collect"))
    assert victim.status == 0, ground.said()
    await ground.recover(order)
    await ground.check(order)
    return victim.points


async def try_all(ground: Ground, scenario: Scenario, found: Sequence[Case], *, paused: bool = False) -> list[str]:
    """Each case on an order of its own; returns those whose point was not reached."""
    missed = []
    for case in found:
        order = await ground.prepare(scenario)
        way = ground.pause if paused else ground.run
        end = End(at=case.point, side=case.side)
        victim = await way(order, end, collects=scenario.startswith("collect"))
        if not (victim.was_killed or victim.is_stopped):
            missed.append(str(case))
        try:
            await ground.recover(order)
            await ground.check(order)
        except AssertionError as error:
            raise AssertionError(f"{scenario}, {case}: {error}") from error
    assert len(missed) <= 1 + len(found) // 20, f"of {len(found)} these were not reached: {missed}"
    return missed


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_whatever_ends_a_click_the_order_is_charged_once(
    grounds: Callable[[World], AsyncIterator[Ground]], world: World, record_property: Callable[[str, object], None]
) -> None:
    began, known, tried, missed = time.monotonic(), 0, 0, 0
    async for ground in grounds(world):
        for scenario in SCENARIOS if IS_FULL or world is STRIPE else ("first click", "collect, sent"):
            points = await discover(ground, scenario)
            found = cases(points, random.Random(f"{seed()}/{world.name}/{scenario}"), None if IS_FULL else SAMPLE)
            known, tried = known + 2 * len(points), tried + len(found)
            missed += len(await try_all(ground, scenario, found))
        await ground.verify()
    text = (
        f"crash matrix, pay at {world.name}: {tried} of {known} cases tried, {missed} not reached, 0 doubled, 0 lost, "
        f"{time.monotonic() - began:.1f} s, seed {seed()}"
    )
    record_property("counted", text)


@pytest.mark.parametrize("paused", [False, True], ids=["killed", "paused"])
async def test_around_commit_and_call_a_click_may_end(
    grounds: Callable[[World], AsyncIterator[Ground]], *, paused: bool
) -> None:
    """Between the commit and the send, between the send and the record: these are tried whatever the sample."""
    async for ground in grounds(STRIPE):
        points = await discover(ground, "first click")
        around = [point for point in points if point.label == "sql COMMIT" or point.label.startswith("http ")]
        assert len([point for point in around if point.label == "sql COMMIT"]) >= 2, points
        assert any(point.label.startswith("http write POST") for point in around), points
        await try_all(ground, "first click", cases(around, random.Random(seed()), None), paused=paused)
        await ground.verify()
