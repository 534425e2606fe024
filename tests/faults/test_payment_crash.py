"""Paying, killed anywhere: SIGKILL before and after every statement and every provider call of a click or a collection.

After each case a collector and a second click come by; then the provider's own books have one payment for the order. A
sample that rotates with the commit runs always, and every point around COMMIT and the provider; TALLY_TEST_FULL=1 runs
all of them, TALLY_TEST_SEED repeats a sample. The counts are printed.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests import servers
from tests.faults.matrix import IS_FULL, Cases, Trying, Victims, cases, seed
from tests.faults.payment_ground import PAY, SCENARIOS, Ground, Scenario
from tests.faults.points import Point
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


async def try_all(
    ground: Ground, scenario: Scenario, found: Cases, *, paused: bool = False, overtaken: int = 0
) -> Trying:
    """Each case on an order of its own."""
    trying = Trying(found, ground.victims, overtaken=overtaken)
    for case in trying:
        order = await ground.prepare(scenario)
        way = ground.pause if paused else ground.run
        victim = await way(order, case.end, collects=scenario.startswith("collect"))
        trying.tried(case, victim, reached=victim.is_stopped if paused else victim.was_killed)
        try:
            await ground.recover(order)
            await ground.check(order)
        except AssertionError as error:
            raise AssertionError(f"{scenario}, {case}: {error}") from error
    trying.finish()
    return trying


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_whatever_ends_a_click_the_order_is_charged_once(
    grounds: Callable[[World], AsyncIterator[Ground]], world: World, record_property: Callable[[str, object], None]
) -> None:
    began, known, tried, missed, on_uvloop = time.monotonic(), 0, 0, 0, 0
    async for ground in grounds(world):
        for scenario in SCENARIOS if IS_FULL or world is STRIPE else ("first click", "collect, sent"):
            points = await discover(ground, scenario)
            found = cases(points, random.Random(f"{seed()}/{world.name}/{scenario}"), None if IS_FULL else SAMPLE)
            trying = await try_all(ground, scenario, found)
            known, tried = known + 2 * len(points), tried + trying.reached + len(trying.missed)
            missed, on_uvloop = missed + len(trying.missed), on_uvloop + trying.loops["uvloop"]
        await ground.verify()
    text = (
        f"crash matrix, pay at {world.name}: {tried} of {known} cases tried, {missed} not reached, "
        f"{on_uvloop} on uvloop, 0 doubled, 0 lost, {time.monotonic() - began:.1f} s, seed {seed()}"
    )
    record_property("counted", text)


@pytest.mark.parametrize("paused", [False, True], ids=["killed", "paused"])
async def test_around_commit_and_call_a_click_may_end(
    grounds: Callable[[World], AsyncIterator[Ground]], record_property: Callable[[str, object], None], *, paused: bool
) -> None:
    """Between the commit and the send, between the send and the record: these are tried whatever the sample."""
    async for ground in grounds(STRIPE):
        points = await discover(ground, "first click")
        around = [point for point in points if point.label == "sql COMMIT" or point.label.startswith("http ")]
        assert len([point for point in around if point.label == "sql COMMIT"]) >= 2, points
        assert any(point.label.startswith("http write POST") for point in around), points
        found = cases(around, random.Random(seed()), None)
        # One that stands still before its COMMIT holds the order: all the others are overtaken.
        trying = await try_all(
            ground, "first click", found, paused=paused, overtaken=found.wanted // 2 if paused else 0
        )
        await ground.verify()
        what = f"{'paused' if paused else 'killed'}: {trying.reached} of {len(found.found)} reached, {trying.said()}"
        record_property("counted", f"crash matrix, pay, around commits and calls, {what}")
