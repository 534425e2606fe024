"""Settlement, killed anywhere: SIGKILL before and after every statement and every provider call of a tick.

Each case is followed by recovery and by a comparison with the provider's books: one transfer for each settlement,
every settlement transferred, the ledger right, the constitution kept. A sample that rotates with the commit runs
always; TALLY_TEST_FULL=1 runs every point, TALLY_TEST_SEED repeats a sample. The counts are printed.
"""

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import pytest

from tests import servers
from tests.faults.matrix import IS_FULL, Case, Victim, Victims, cases, seed
from tests.faults.points import SIDES, End, Point
from tests.faults.settlement_ground import TICK, Ground, Grounds, State
from tests.providers.worlds import WORLDS, Control, World

SCENARIOS: Mapping[str, Mapping[State, int]] = {
    "pass 1": {"pending": 3},
    "pass 2, found": {"sent": 2},
    "pass 2, absent": {"claimed": 2},
    "both passes": {"sent": 1, "claimed": 1, "pending": 2},
}
EVERYTHING = "both passes"
Disturb = Callable[[Ground, End], Awaitable[Victim]]
# How one tick is disturbed. With a second one there are rows for both.
VARIANTS: Mapping[str, Disturb] = {
    "one tick killed": Ground.kill,
    "killed beside another": Ground.kill_beside_another,
    "paused beside another": Ground.pause_beside_another,
}
# Of each scenario, when not everything is run.
SAMPLE = 2
PAYING = [world for world in WORLDS if world.purpose == "transfer"]


def combinations() -> list[tuple[World, str]]:
    """Which provider is disturbed how. The statements are the same whoever the provider: a sample has one way each."""
    found = [(world, variant) for world in PAYING for variant in VARIANTS]
    chosen = {world.name: random.Random(f"{seed()}/{world.name}").choice(list(VARIANTS)) for world in PAYING}
    return [
        (world, variant)
        for world, variant in found
        if IS_FULL or world.name == "stripe" or chosen[world.name] == variant
    ]


pytestmark = pytest.mark.timeout(7_200 if IS_FULL else 300)


class Tally:
    """What was run."""

    def __init__(self) -> None:
        self.points = 0
        self.known = 0
        self.tried = 0
        self.missed: list[str] = []

    def say(self, what: str, began: float) -> str:
        missed = f"{len(self.missed)} not reached" + (f" ({', '.join(self.missed)})" if self.missed else "")
        return (
            f"crash matrix, {what}: {self.points} points, {self.tried} of {self.known} cases tried, {missed}, "
            f"0 doubled, 0 lost, {time.monotonic() - began:.1f} s, seed {seed()}"
        )


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    return lambda text: record_property("counted", text)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    with Victims(TICK, tmp_path_factory.mktemp("victims") / "log") as made:
        yield made


@pytest.fixture
def grounds(embedded18: servers.Server, control: Control, victims: Victims) -> Callable[[World], Grounds]:
    return lambda world: Grounds(embedded18.fresh_database, control, world, victims)


async def discover(places: Grounds, scenario: Mapping[State, int], **job: int | None) -> list[Point]:
    """The points of one undisturbed tick.

    Its groups of answers and the pages of the provider's lists are as few as can be: every tick has these points.
    """
    place = await places.take(fresh=True)
    await place.prepare(scenario)
    victim = await place.kill(None, linger_seconds=0.5 if IS_FULL else 0.15, **job)
    assert victim.status == 0, place.said()
    await place.recover()
    await place.check()
    return victim.points


async def try_all(places: Grounds, scenario: Mapping[State, int], found: Sequence[Case], disturb: Disturb) -> list[str]:
    """Each case on rows of its own; returns those whose point was not reached."""
    missed = []
    for case in found:
        place = await places.take()
        await place.prepare(scenario)
        victim = await disturb(place, End(at=case.point, side=case.side))
        assert victim.was_killed or victim.status == 0, place.said()
        if not (victim.was_killed or victim.is_stopped):
            missed.append(str(case))
        try:
            await place.recover()
            await place.check()
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    await places.finish()
    assert len(missed) <= 1 + len(found) // 20, f"of {len(found)} these were not reached: {missed}"
    return missed


@pytest.mark.parametrize(("world", "variant"), combinations(), ids=lambda of: of.name if isinstance(of, World) else of)
async def test_whatever_ends_a_tick_every_payout_is_made_once(
    grounds: Callable[[World], Grounds], world: World, variant: str, say: Callable[[str], None]
) -> None:
    began, tally = time.monotonic(), Tally()
    names = SCENARIOS if IS_FULL or world.name == "stripe" else (EVERYTHING,)
    async with grounds(world) as places:
        for name in names:
            chance = random.Random(f"{seed()}/{world.name}/{variant}/{name}")
            scenario, job = SCENARIOS[name], {}
            if variant != "one tick killed":
                scenario, job = {state: count * 2 for state, count in scenario.items()}, {"most": 2}
            points = await discover(places, scenario, **job)
            found = cases(points, chance, None if IS_FULL else SAMPLE)
            tally.points += len(points)
            tally.known += 2 * len(points)
            tally.tried += len(found)
            tally.missed += await try_all(places, scenario, found, VARIANTS[variant])
    say(tally.say(f"{world.name}, {variant}", began))


async def test_around_every_commit_a_tick_may_end(
    grounds: Callable[[World], Grounds], say: Callable[[str], None]
) -> None:
    """Where something becomes true for the others: these are tried whatever the sample."""
    began, tally = time.monotonic(), Tally()
    async with grounds(PAYING[0]) as places:
        points = await discover(places, SCENARIOS[EVERYTHING])
        commits = [point for point in points if point.label == "sql COMMIT"]
        found = cases(commits, random.Random(seed()), None)
        assert len(commits) >= 5, points
        tally.known, tally.tried = len(found), len(found)
        tally.missed = await try_all(places, SCENARIOS[EVERYTHING], found, Ground.kill)
    say(tally.say("around every commit", began))


async def test_around_every_send_a_tick_may_be_paused(
    grounds: Callable[[World], Grounds], say: Callable[[str], None]
) -> None:
    """Two recoveries and the late original: the successor asks and decides while the first holds bytes or answer."""
    began, tally = time.monotonic(), Tally()
    scenario: Mapping[State, int] = {"pending": 2}
    async with grounds(PAYING[0]) as places:
        points = await discover(places, scenario, most=2)
        calls = [point for point in points if point.label.startswith("http ")]
        found = cases(calls, random.Random(seed()), None)
        assert len(calls) == 4, points
        tally.known, tally.tried = len(found), len(found)
        tally.missed = await try_all(places, scenario, found, Ground.pause_beside_another)
    say(tally.say("paused around every send", began))


async def test_two_lives_may_end_one_after_the_other(
    grounds: Callable[[World], Grounds], say: Callable[[str], None]
) -> None:
    """The one that recovers is killed too, anywhere."""
    began, tally = time.monotonic(), Tally()
    chance = random.Random(f"{seed()}/twice")

    async def kill_twice(place: Ground, end: End) -> Victim:
        victim = await place.kill(end)
        await place.age()
        await place.kill(End(number=chance.randint(1, 40), side=chance.choice(SIDES)))
        return victim

    async with grounds(PAYING[0]) as places:
        points = await discover(places, SCENARIOS[EVERYTHING])
        found = cases(points, chance, None if IS_FULL else 2 * SAMPLE)
        tally.known, tally.tried = 2 * len(points), len(found)
        tally.missed = await try_all(places, SCENARIOS[EVERYTHING], found, kill_twice)
    say(tally.say("killed twice", began))
