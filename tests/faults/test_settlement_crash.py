"""Settlement, killed anywhere: SIGKILL before and after every statement and every provider call of a tick.

Each case is followed by recovery and by a comparison with the provider's books: one transfer for each settlement,
every settlement transferred, the ledger right, the constitution kept. A sample that rotates with the commit runs
always; TALLY_TEST_FULL=1 runs every point, TALLY_TEST_SEED repeats a sample. The counts are printed.
"""

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from tests import servers
from tests.faults.matrix import IS_FULL, Cases, Trying, Victim, Victims, cases, seed
from tests.faults.points import SIDES, End, Point
from tests.faults.settlement_ground import TICK, Ground, Grounds, State
from tests.faults.victims import Loop
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
# Those that end at the point itself.
_KILLS: set[Disturb] = {Ground.kill}
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


def overtaken(variant: str, found: Cases) -> int:
    """How many of the paused must have been overtaken: the others stood still in a transaction, and held their rows."""
    return 0 if variant != "paused beside another" else max(1, found.wanted // 4)


pytestmark = pytest.mark.timeout(7_200 if IS_FULL else 300)


class Tally:
    """What was run."""

    def __init__(self) -> None:
        self.points = 0
        self.known = 0
        self.tried = 0
        self.overtaken = 0
        self.loops: Counter[Loop] = Counter()
        self.missed: list[str] = []

    def add(self, trying: Trying) -> None:
        self.tried += trying.reached + len(trying.missed)
        self.overtaken += trying.overtaken
        self.loops += trying.loops
        self.missed += trying.missed

    def say(self, what: str, began: float) -> str:
        missed = f"{len(self.missed)} not reached" + (f" ({', '.join(self.missed)})" if self.missed else "")
        overtaken = f", {self.overtaken} overtaken" if self.overtaken else ""
        return (
            f"crash matrix, {what}: {self.points} points, {self.tried} of {self.known} cases tried, {missed}, "
            f"{self.loops['uvloop']} on uvloop{overtaken}, 0 doubled, 0 lost, {time.monotonic() - began:.1f} s, "
            f"seed {seed()}"
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


async def try_all(
    places: Grounds, scenario: Mapping[State, int], found: Cases, disturb: Disturb, *, overtaken: int = 0
) -> Trying:
    """Each case on rows of its own."""
    trying = Trying(found, places.victims, overtaken=overtaken)
    for case in trying:
        place = await places.take()
        await place.prepare(scenario)
        victim = await disturb(place, case.end)
        assert victim.was_killed or victim.status == 0, place.said()
        # Stopped first, where another runs beside it: killed by our hand later says nothing of the point.
        trying.tried(case, victim, reached=victim.is_stopped or (disturb in _KILLS and victim.was_killed))
        try:
            await place.recover()
            await place.check()
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    await places.finish()
    trying.finish()
    return trying


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
            tally.add(await try_all(places, scenario, found, VARIANTS[variant], overtaken=overtaken(variant, found)))
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
        tally.points, tally.known = len(commits), len(found.found)
        tally.add(await try_all(places, SCENARIOS[EVERYTHING], found, Ground.kill))
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
        tally.points, tally.known = len(calls), len(found.found)
        tally.add(await try_all(places, scenario, found, Ground.pause_beside_another, overtaken=found.wanted))
    say(tally.say("paused around every send", began))


async def test_two_lives_may_end_one_after_the_other(
    grounds: Callable[[World], Grounds], say: Callable[[str], None]
) -> None:
    """The one that recovers is killed too, anywhere."""
    began, tally = time.monotonic(), Tally()
    chance = random.Random(f"{seed()}/twice")

    async def kill_twice(place: Ground, end: End) -> Victim:
        # Wherever it is, it is hit: where it had fewer points than that, the next one is hit earlier.
        number, side = chance.randint(1, 40), chance.choice(SIDES)
        while True:
            victim = await place.kill(end)
            await place.age()
            if (await place.kill(End(number=number, side=side))).was_killed:
                return victim
            assert number > 1, "one that recovers has at least one point"
            number //= 2
            # Not once more on the same rows: one that got through has left nothing to recover.
            await place.prepare(SCENARIOS[EVERYTHING])

    async with grounds(PAYING[0]) as places:
        points = await discover(places, SCENARIOS[EVERYTHING])
        found = cases(points, chance, None if IS_FULL else 2 * SAMPLE)
        tally.points, tally.known = len(points), 2 * len(points)
        _KILLS.add(kill_twice)
        tally.add(await try_all(places, SCENARIOS[EVERYTHING], found, kill_twice))
    say(tally.say("killed twice", began))
