"""Checkout, killed anywhere: SIGKILL before and after every statement and every provider call, from reserve to refund.

The receiver, the saga, both sweepers and the back-fill are in it. After each case everybody comes again, and then
charged = PAID + refunded by the provider's own books. A sample that rotates with the commit runs always, and every
point around COMMIT and the provider of the late payment; TALLY_TEST_FULL=1 runs all of them, TALLY_TEST_SEED repeats a
sample. The counts are printed.
"""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.faults.checkout_ground import CHECK_OUT, SCENARIOS, Grounds, Scenario
from tests.faults.matrix import IS_FULL, Cases, Trying, Victims, cases, seed
from tests.faults.points import SIDES, End, Point
from tests.providers.worlds import Control

pytestmark = pytest.mark.timeout(7_200 if IS_FULL else 300)
# Of each scenario, when not everything is run.
SAMPLE = 2
PAUSED = 8
OVERTAKEN = 4
LATE = SCENARIOS["late payment"]
# Some are a transaction by themselves.
COMMITTING = ("sql COMMIT", "sql webhooks.inbox.append", "sql webhooks.claim")


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    with Victims(CHECK_OUT, tmp_path_factory.mktemp("victims") / "log") as made:
        yield made


@pytest.fixture
def grounds(embedded18: servers.Server, control: Control, victims: Victims, tmp_path: Path) -> Grounds:
    return Grounds(embedded18.fresh_database, control, victims, tmp_path / "acknowledged")


async def discover(places: Grounds, scenario: Scenario) -> list[Point]:
    """The points of an undisturbed run."""
    ground = await places.take()
    buyers = await ground.prepare(scenario)
    victim = await ground.run(buyers, scenario.steps, None)
    assert victim.status == 0, ground.said()
    await ground.recover(buyers, scenario)
    await ground.check(buyers, scenario)
    return victim.points


async def try_all(
    places: Grounds, scenario: Scenario, found: Cases, *, paused: bool = False, overtaken: int = 0
) -> Trying:
    """Each case on orders of its own."""
    trying = Trying(found, places.victims, overtaken=overtaken)
    for case in trying:
        ground = await places.take()
        buyers = await ground.prepare(scenario)
        if paused:
            victim = await ground.pause(buyers, scenario, case.end)
        else:
            victim = await ground.run(buyers, scenario.steps, case.end)
        reached = victim.is_stopped if paused else victim.was_killed
        assert reached or victim.status == 0, ground.said()
        trying.tried(case, victim, reached=reached)
        try:
            await ground.recover(buyers, scenario)
            await ground.check(buyers, scenario)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    await places.finish()
    trying.finish()
    return trying


def counted(what: str, points: int, trying: Trying, began: float) -> str:
    missed = f" (not, and others instead: {', '.join(trying.missed)})" if trying.missed else ""
    return (
        f"crash matrix, checkout, {what}: {points} points, {trying.reached} of {2 * points} cases reached{missed}, "
        f"{trying.said()}, "
        f"0 doubled, 0 lost, {time.monotonic() - began:.1f} s, seed {seed()}"
    )


@pytest.mark.parametrize("name", SCENARIOS)
async def test_whatever_ends_a_step_charged_is_paid_and_refunded(
    grounds: Grounds, name: str, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    async with grounds as places:
        points = await discover(places, SCENARIOS[name])
        found = cases(points, random.Random(f"{seed()}/{name}"), None if IS_FULL else SAMPLE)
        trying = await try_all(places, SCENARIOS[name], found)
    record_property("counted", counted(name, len(points), trying, began))


@pytest.mark.parametrize("paused", [False, True], ids=["killed", "paused"])
async def test_around_every_commit_and_call_a_late_payment_may_be_left(
    grounds: Grounds, record_property: Callable[[str, object], None], *, paused: bool
) -> None:
    """Where something becomes true for the others, or for the provider: these are tried whatever the sample."""
    began = time.monotonic()
    async with grounds as places:
        points = await discover(places, LATE)
        around = [point for point in points if point.label in COMMITTING or point.label.startswith("http ")]
        # The sweeper's, the claim, the saga's own, the refund's; and the append of each webhook.
        assert len([point for point in around if point.label in COMMITTING]) >= 5, points
        assert any(point.label.startswith("http write POST") for point in around), points
        # A pause costs a second each: of those a part.
        found = cases(around, random.Random(f"{seed()}/{paused}"), PAUSED if paused and not IS_FULL else None)
        trying = await try_all(places, LATE, found, paused=paused, overtaken=OVERTAKEN if paused else 0)
    what = f"around commits and calls, {'paused' if paused else 'killed'}"
    record_property("counted", counted(what, len(around), trying, began))


async def test_two_lives_may_end_one_after_the_other(
    grounds: Grounds, record_property: Callable[[str, object], None]
) -> None:
    """The one that comes after is killed too, anywhere."""
    began, chance = time.monotonic(), random.Random(f"{seed()}/twice")
    scenario = SCENARIOS["one in time, one late"]
    async with grounds as places:
        points = await discover(places, scenario)
        found = cases(points, chance, None if IS_FULL else SAMPLE)
        trying = Trying(found, places.victims)
        for case in trying:
            # Wherever it is, it is hit: where it had fewer points than that, the next one is hit earlier.
            number, side, again = chance.randint(1, 40), chance.choice(SIDES), (*scenario.steps, "refunds", "events")
            while True:
                ground = await places.take()
                buyers = await ground.prepare(scenario)
                first = await ground.run(buyers, scenario.steps, case.end)
                await ground.age()
                second = await ground.run(buyers, again, End(number=number, side=side))
                await ground.recover(buyers, scenario)
                await ground.check(buyers, scenario)
                # Not once more on the same orders: one that got through has left nothing to do.
                if second.was_killed:
                    break
                assert number > 1, "one that comes after has at least one point"
                number //= 2
            trying.tried(case, first, reached=first.was_killed)
        await places.finish()
        trying.finish()
    record_property("counted", counted("killed twice", len(points), trying, began))
