"""Group commit alone, in front of a work that does exactly what the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal

import asyncpg
import pytest
import uvloop

from tallystick.commit.group import SET_ASIDE, GroupCommit, SetAside
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import plight
from tallystick.errors import Busy, InFlight, OutcomeUnknown, Unreachable
from tallystick.settings import LIMITS, Limits

Answers = Sequence[str | Literal[SetAside.SET_ASIDE]]
Group = GroupCommit[str, str]
Script = Callable[["Work", list[str], bool], Awaitable[Answers]]

# One lane makes the order of batches certain; short waits keep the tests short.
ONE_LANE = replace(
    LIMITS,
    lanes=1,
    deferral_seconds=0.001,
    outage_seconds=0.05,
    outage_first_pause_seconds=0.001,
    outage_longest_pause_seconds=0.01,
    wait_seconds=5.0,
    drain_seconds=5.0,
)


class Work:
    """Answers each item with itself and a mark, unless its script does otherwise; `open` lets it go on."""

    def __init__(self, script: Script | None = None) -> None:
        self.batches: list[list[str]] = []
        self.patience: list[bool] = []
        self.open = asyncio.Event()
        self.open.set()
        self._script = script

    async def commit(self, items: Sequence[str], *, patient: bool) -> Answers:
        self.batches.append(list(items))
        self.patience.append(patient)
        await self.open.wait()
        if self._script is not None:
            return await self._script(self, list(items), patient)
        return done(items)


def done(items: Sequence[str]) -> list[str | Literal[SetAside.SET_ASIDE]]:
    return [f"{item} done" for item in items]


@asynccontextmanager
async def grouping(
    script: Script | None = None, limits: Limits = ONE_LANE, *, joining: bool = False, paced: bool = False
) -> AsyncIterator[tuple[Work, Group]]:
    work = Work(script)
    async with GroupCommit(work, limits=limits, joining=joining, paced=paced) as group:
        yield work, group


async def turns(count: int = 5) -> None:
    """Let everything run that can run without waiting for time to pass."""
    for _ in range(count):
        await asyncio.sleep(0)


async def occupied(work: Work, group: Group) -> "asyncio.Future[str]":
    """Keep the only lane busy until `work.open` is set."""
    work.open.clear()
    first: asyncio.Future[str] = group.submit("first", source="a")
    await turns()
    assert work.batches == [["first"]]
    return first


def raising(*errors: Exception) -> Script:
    """Raise these, one per commit; then succeed."""
    left = list(errors)

    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if left:
            raise left.pop(0)
        return done(items)

    return script


async def test_an_idle_lane_takes_a_lone_item_at_once() -> None:
    """A timer would add its wait to every quiet payment."""
    async with grouping() as (work, group):
        future = group.submit("x", source="a")
        await turns()
        assert future.result() == "x done"
        assert work.batches == [["x"]]


async def test_while_a_lane_works_the_next_batch_gathers_by_itself() -> None:
    async with grouping() as (work, group):
        first = await occupied(work, group)
        rest = [group.submit(f"x{n}", source="a") for n in range(10)]
        await turns()
        assert group.waiting == 10
        work.open.set()
        assert await first == "first done"
        assert await asyncio.gather(*rest) == [f"x{n} done" for n in range(10)]
        assert work.batches[1:] == [[f"x{n}" for n in range(10)]]


async def test_a_batch_is_bounded() -> None:
    async with grouping(limits=replace(ONE_LANE, batch=4)) as (work, group):
        await asyncio.gather(*[group.submit(f"x{n}", source="a") for n in range(10)])
        assert [len(batch) for batch in work.batches] == [4, 4, 2]


async def test_two_lanes_work_side_by_side() -> None:
    async with grouping(limits=replace(ONE_LANE, lanes=2)) as (work, group):
        first = await occupied(work, group)
        second = group.submit("second", source="a")
        await turns()
        assert work.batches == [["first"], ["second"]]
        work.open.set()
        await asyncio.gather(first, second)


async def test_what_is_little_is_left_to_gather_behind_the_lane_that_works() -> None:
    """Two small transactions cost more than one."""
    async with grouping(limits=replace(ONE_LANE, lanes=2, join_items=3, join_seconds=60.0), joining=True) as (
        work,
        group,
    ):
        first = await occupied(work, group)
        others = [group.submit(item, source="a") for item in ("b", "c")]
        await turns()
        assert work.batches == [["first"]]
        work.open.set()
        await asyncio.gather(first, *others)
        assert work.batches == [["first"], ["b", "c"]]


async def test_another_lane_joins_when_enough_has_gathered() -> None:
    async with grouping(limits=replace(ONE_LANE, lanes=2, join_items=3, join_seconds=60.0), joining=True) as (
        work,
        group,
    ):
        first = await occupied(work, group)
        others = [group.submit(item, source="a") for item in ("b", "c", "d")]
        await turns()
        assert work.batches == [["first"], ["b", "c", "d"]]
        work.open.set()
        await asyncio.gather(first, *others)


async def test_another_lane_joins_one_that_takes_long() -> None:
    """It may be waiting for somebody's lock: what it holds must not keep the others."""
    limits = replace(ONE_LANE, lanes=2, join_items=1_000, join_seconds=0.01)
    joined = asyncio.Event()

    async def script(work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if items == ["first"]:
            await joined.wait()
        return done(items)

    async with grouping(script, limits, joining=True) as (work, group):
        first = await occupied(work, group)
        work.open.set()
        second = group.submit("second", source="a")
        assert await asyncio.wait_for(second, 5.0) == "second done"
        third = group.submit("third", source="a")
        assert await asyncio.wait_for(third, 5.0) == "third done"
        assert not first.done()
        joined.set()
        await first
    assert work.batches == [["first"], ["second"], ["third"]]


# A beat that no test waits for, after a batch of three.
PACED = replace(ONE_LANE, lanes=2, join_items=5, join_seconds=60.0, pace_items=3, pace_seconds=60.0)


async def _three_together(group: Group) -> None:
    await asyncio.gather(*[group.submit(item, source="a") for item in ("x", "y", "z")])


async def test_after_a_batch_of_several_a_small_one_waits_for_the_next_beat() -> None:
    async with grouping(limits=PACED, joining=True, paced=True) as (work, group):
        await _three_together(group)
        waiting = [group.submit(item, source="a") for item in ("b", "c")]
        await turns()
        assert work.batches == [["x", "y", "z"]]
        # Enough of them are worth a commit of their own.
        waiting += [group.submit(item, source="a") for item in ("d", "e", "f")]
        await asyncio.gather(*waiting)
        assert work.batches == [["x", "y", "z"], ["b", "c", "d", "e", "f"]]


async def test_lone_items_one_after_the_other_wait_for_no_beat() -> None:
    async with grouping(limits=PACED, joining=True, paced=True) as (_, group):
        for item in ("a", "b", "c", "d", "e"):
            future = group.submit(item, source="a")
            await turns()
            assert future.result() == f"{item} done"


async def test_after_the_beat_a_lone_item_is_taken_at_once_again() -> None:
    async with grouping(limits=replace(PACED, pace_seconds=0.01), joining=True, paced=True) as (_, group):
        await _three_together(group)
        assert await asyncio.wait_for(group.submit("b", source="a"), 5.0) == "b done"
        future = group.submit("c", source="a")
        await turns()
        assert future.result() == "c done"


async def test_the_beat_is_kept_by_what_came_while_a_lane_worked() -> None:
    """The timer that looks after a lane that takes long is not the one that this waits for."""
    async with grouping(limits=replace(PACED, pace_seconds=0.01), joining=True, paced=True) as (work, group):
        work.open.clear()
        three = [group.submit(item, source="a") for item in ("x", "y", "z")]
        await turns()
        late = group.submit("late", source="a")
        await turns()
        assert work.batches == [["x", "y", "z"]]
        work.open.set()
        assert await asyncio.wait_for(late, 5.0) == "late done"
        await asyncio.gather(*three)


async def test_what_waits_for_a_beat_is_taken_when_the_queue_closes() -> None:
    async with grouping(limits=PACED, joining=True, paced=True) as (_, group):
        await _three_together(group)
        left = group.submit("left", source="a")
        await turns()
        assert not left.done()
    assert left.result() == "left done"


def test_beats_on_the_loop_of_the_server() -> None:
    """That is uvloop: it counts in milliseconds, rings early, and what is due within half of one is no timer at all."""

    async def many(pace_seconds: float) -> int:
        limits = replace(PACED, pace_seconds=pace_seconds)
        answered = 0
        async with grouping(limits=limits, joining=True, paced=True) as (_, group):
            for _ in range(50):
                await _three_together(group)
                items = [group.submit(item, source="a") for item in ("b", "c")]
                answered += len(await asyncio.wait_for(asyncio.gather(*items), 5.0))
        return answered

    for pace_seconds in (0.0004, 0.001, 0.0026):
        assert uvloop.run(many(pace_seconds)) == 100


async def test_nobody_is_answered_before_commit_has_returned() -> None:
    """An answer before COMMIT is a promise the database may still break."""
    async with grouping() as (work, group):
        first = await occupied(work, group)
        await turns(50)
        assert not first.done()
        work.open.set()
        assert await first == "first done"


@pytest.mark.parametrize("position", [0, 3, 7])
async def test_a_poisonous_item_is_found_by_halving_and_harms_no_neighbour(position: int) -> None:
    """One bad row must not fail the payments that happen to travel with it."""

    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if "poison" in items:
            raise ValueError("poison")
        return done(items)

    names = [f"x{n}" for n in range(7)]
    names.insert(position, "poison")
    async with grouping(script) as (work, group):
        futures = [group.submit(name, source="a") for name in names]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for name, answer in zip(names, answers, strict=True):
            if name == "poison":
                assert isinstance(answer, ValueError)
            else:
                assert answer == f"{name} done"
        # 8 is halved three times: each level costs two runs, of which one succeeds.
        assert len(work.batches) == 1 + 3 * 2


async def test_several_poisonous_items_each_fail_alone() -> None:
    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if any(item.startswith("poison") for item in items):
            raise ValueError(",".join(items))
        return done(items)

    async with grouping(script) as (_, group):
        futures = [group.submit(name, source="a") for name in ("poison1", "x", "y", "poison2", "z")]
        answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [str(answer) for answer in answers] == ["poison1", "x done", "y done", "poison2", "z done"]


async def test_a_batch_that_lost_a_race_is_run_again_as_it_was() -> None:
    async with grouping(raising(Contended("key used", held=False))) as (work, group):
        assert await asyncio.gather(*[group.submit(name, source="a") for name in "xy"]) == [
            "x done",
            "y done",
        ]
        assert work.batches == [["x", "y"], ["x", "y"]]
        assert work.patience == [True, True]


async def test_a_batch_that_waited_too_long_steps_around_what_is_held() -> None:
    """Waiting again and again for one stranger's lock would stop everybody."""

    async def script(work: Work, items: list[str], patient: bool) -> Answers:  # noqa: FBT001
        if patient and len(work.batches) == 1:
            raise Contended("lock timeout", held=True)
        if not patient and len(work.batches) == 2:
            return [SET_ASIDE if item == "held" else f"{item} done" for item in items]
        return done(items)

    async with grouping(script) as (work, group):
        held, free = group.submit("held", source="a"), group.submit("free", source="b")
        assert await free == "free done"
        assert not held.done()
        assert await held == "held done"
        assert work.batches == [["held", "free"], ["held", "free"], ["held"]]
        # Nothing was in the way any more, so lanes wait for locks again.
        assert work.patience == [True, False, False]
        await group.submit("later", source="a")
        assert work.patience[-1] is True


async def test_an_item_set_aside_delays_none_of_those_behind_it() -> None:
    release = asyncio.Event()

    async def script(work: Work, items: list[str], patient: bool) -> Answers:  # noqa: FBT001
        if patient and len(work.batches) == 1:
            raise Contended("lock timeout", held=True)
        return [SET_ASIDE if item == "held" and not release.is_set() else f"{item} done" for item in items]

    async with grouping(script) as (_, group):
        held = group.submit("held", source="a")
        for n in range(20):
            assert await group.submit(f"x{n}", source="a") == f"x{n} done"
        assert not held.done()
        release.set()
        assert await held == "held done"


async def test_a_hold_that_cannot_be_stepped_around_is_isolated_by_halving() -> None:
    release = asyncio.Event()

    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if "held" in items and not release.is_set():
            raise Contended("lock timeout", held=True)
        return done(items)

    async with grouping(script) as (_, group):
        held = group.submit("held", source="a")
        rest = [group.submit(f"x{n}", source="a") for n in range(5)]
        assert await asyncio.gather(*rest) == [f"x{n} done" for n in range(5)]
        assert not held.done()
        release.set()
        assert await held == "held done"


async def test_who_is_blocked_for_too_long_is_told_so() -> None:
    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        raise Contended("lock timeout", held=True)

    async with grouping(script, replace(ONE_LANE, wait_seconds=0.05)) as (_, group):
        with pytest.raises(InFlight):
            await group.submit("x", source="a")


async def test_a_connection_lost_before_commit_is_a_pause_and_not_an_answer() -> None:
    async with grouping(raising(*[Lost("gone", commit_sent=False)] * 3)) as (work, group):
        assert await group.submit("x", source="a") == "x done"
        assert work.batches == [["x"]] * 4


async def test_an_outage_past_its_limit_is_told_as_nothing_recorded() -> None:
    back = asyncio.Event()

    async def script(_work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        if not back.is_set():
            raise Lost("connection refused", commit_sent=False)
        return done(items)

    async with grouping(script) as (_, group):
        with pytest.raises(Unreachable, match="connection refused"):
            await group.submit("x", source="a")
        # The lane outlives the outage.
        back.set()
        assert await group.submit("y", source="a") == "y done"


@pytest.mark.parametrize(
    "later",
    [
        [],
        [Lost("refused", commit_sent=False)] * 1000,
        [ValueError("poison")],
        [Contended("timeout", held=True)] * 1000,
    ],
    ids=["recovers", "outage", "error", "blocked"],
)
async def test_a_commit_that_was_lost_is_never_told_as_not_happened(later: list[Exception]) -> None:
    """Whoever hears "nothing was recorded" pays again under a new key: the lost COMMIT may have succeeded."""
    script = raising(Lost("gone", commit_sent=True), *later)
    async with grouping(script, replace(ONE_LANE, wait_seconds=0.1)) as (_, group):
        future = group.submit("x", source="a")
        if later:
            with pytest.raises(OutcomeUnknown):
                await future
        else:
            assert await future == "x done"


async def test_a_full_queue_says_busy_at_once_and_takes_again_when_there_is_room() -> None:
    """A queue without a bound hides from the caller that he must slow down, until memory ends."""
    async with grouping(limits=replace(ONE_LANE, queue=3, queue_per_source=2)) as (work, group):
        first = await occupied(work, group)
        kept = [group.submit("x", source="a"), group.submit("y", source="a")]
        with pytest.raises(Busy):
            group.submit("one too many of a", source="a")
        kept.append(group.submit("z", source="b"))
        with pytest.raises(Busy):
            group.submit("one too many", source="c")
        work.open.set()
        assert await asyncio.gather(first, *kept) == ["first done", "x done", "y done", "z done"]
        assert await group.submit("room again", source="a") == "room again done"


class Told:
    """Somebody who is told directly."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.heard: list[str | Exception] = []
        self._is_gone = is_gone

    def done(self) -> bool:
        return self._is_gone or bool(self.heard)

    def set_result(self, answer: str, /) -> None:
        self.heard.append(answer)

    def set_exception(self, error: Exception, /) -> None:
        self.heard.append(error)


async def test_who_is_told_directly_hears_it_after_the_commit_and_once() -> None:
    async with grouping() as (work, group):
        first = await occupied(work, group)
        told, gone = Told(), Told(is_gone=True)
        group.submit_for(told, "x", source="a")
        group.submit_for(gone, "y", source="a")
        await turns()
        assert told.heard == []
        work.open.set()
        assert await first == "first done"
        await turns()
        assert (told.heard, gone.heard) == (["x done"], [])
        assert "y" not in work.batches[1]


async def test_who_is_told_directly_hears_of_a_failure() -> None:
    async def fail(_work: Work, _items: list[str], _patient: bool) -> Answers:  # noqa: FBT001 - a script
        raise ValueError("bad")

    async with grouping(fail) as (_work, group):
        told = Told()
        group.submit_for(told, "x", source="a")
        await turns(20)
        assert [type(error) for error in told.heard] == [ValueError]


async def test_who_finds_no_room_is_told_nothing_but_busy() -> None:
    async with grouping(limits=replace(ONE_LANE, queue=1)) as (work, group):
        first = await occupied(work, group)
        group.submit("x", source="a")
        told = Told()
        with pytest.raises(Busy):
            group.submit_for(told, "y", source="a")
        work.open.set()
        await first
        await turns(20)
        assert told.heard == []


async def test_a_flood_from_one_source_does_not_keep_another_waiting() -> None:
    """One tenant's import of ten thousand must not stop another tenant's single payment."""
    async with grouping() as (work, group):
        first = await occupied(work, group)
        flood = [group.submit(f"a{n}", source="a") for n in range(10_000)]
        lone = group.submit("b", source="b")
        work.open.set()
        assert await lone == "b done"
        assert "b" in work.batches[1]
        await asyncio.gather(first, *flood)


async def test_leaving_answers_what_is_queued_and_refuses_what_comes_then() -> None:
    work = Work()
    group = GroupCommit(work, limits=ONE_LANE)
    await group.__aenter__()
    first = await occupied(work, group)
    queued = [group.submit(f"x{n}", source="a") for n in range(5)]
    leaving = asyncio.create_task(group.__aexit__(None, None, None))
    await turns()
    with pytest.raises(Busy):
        group.submit("too late", source="a")
    work.open.set()
    await leaving
    answers = await asyncio.gather(first, *queued, return_exceptions=True)
    assert answers == ["first done", *(f"x{n} done" for n in range(5))]


async def test_leaving_with_a_lane_that_hangs_leaves_nobody_without_an_answer() -> None:
    """What was being committed is unknown; what was only queued certainly did not happen."""
    work = Work()
    group = GroupCommit(work, limits=replace(ONE_LANE, drain_seconds=0.01))
    await group.__aenter__()
    first = await occupied(work, group)
    queued = group.submit("x", source="a")
    await group.__aexit__(None, None, None)
    assert isinstance(first.exception(), OutcomeUnknown)
    assert isinstance(queued.exception(), Busy)


async def test_leaving_while_an_item_rests_aside_does_not_leave_it_without_an_answer() -> None:
    """A caller whose future nobody holds any more would wait for ever."""

    async def script(work: Work, items: list[str], patient: bool) -> Answers:  # noqa: FBT001
        if patient and len(work.batches) == 1:
            raise Contended("lock timeout", held=True)
        return [SET_ASIDE] * len(items)

    work = Work(script)
    group = GroupCommit(work, limits=replace(ONE_LANE, drain_seconds=0.01, deferral_seconds=0.05))
    await group.__aenter__()
    held = group.submit("held", source="a")
    await group.__aexit__(None, None, None)
    with pytest.raises(Busy):
        await asyncio.wait_for(held, 1)


async def test_an_item_whose_caller_went_away_while_it_queued_is_never_run() -> None:
    """He was told nothing, so he will ask again: running it for nobody only delays the others."""
    async with grouping() as (work, group):
        first = await occupied(work, group)
        gone, stays = group.submit("gone", source="a"), group.submit("stays", source="a")
        gone.cancel()
        work.open.set()
        assert [await first, await stays] == ["first done", "stays done"]
        assert work.batches == [["first"], ["stays"]]


async def test_work_that_miscounts_is_a_bug_told_to_its_callers_and_does_not_stop_the_lane() -> None:
    async def script(work: Work, items: list[str], _patient: bool) -> Answers:  # noqa: FBT001
        return [] if len(work.batches) == 1 else done(items)

    async with grouping(script) as (_, group):
        with pytest.raises(OutcomeUnknown):
            await group.submit("x", source="a")
        assert await group.submit("y", source="a") == "y done"


async def test_in_order_items_that_meet_are_never_with_two_lanes_and_keep_their_order() -> None:
    """First come, first served: a second lane behind the first could be quicker at the database."""
    work = Work()
    limits = replace(ONE_LANE, lanes=3, batch=2)
    async with GroupCommit(work, footprint=lambda item: (item[0],), limits=limits, in_order=True) as group:
        work.open.clear()
        waiting = [group.submit(item, source="a") for item in ("x1", "x2", "x3", "x4", "y1", "x5", "y2")]
        await turns()
        # The second lane passes over everything that meets the first one's batch.
        assert work.batches == [["x1", "x2"], ["y1", "y2"]]
        work.open.set()
        await asyncio.gather(*waiting)
    assert [item for batch in work.batches for item in batch if item[0] == "x"] == ["x1", "x2", "x3", "x4", "x5"]


async def test_out_of_order_a_long_queue_that_meets_is_taken_by_another_lane() -> None:
    """It queues up behind the first in the database, which is faster where the order does not matter."""
    work = Work()
    limits = replace(ONE_LANE, lanes=2, batch=2)
    async with GroupCommit(work, footprint=lambda item: (item[0],), limits=limits) as group:
        work.open.clear()
        waiting = [group.submit(item, source="a") for item in ("x1", "x2", "x3", "x4", "x5")]
        await turns()
        assert work.batches == [["x1", "x2"], ["x3", "x4"]]
        work.open.set()
        await asyncio.gather(*waiting)


async def test_whoever_waits_is_told_what_ails_the_server() -> None:
    """The problem that callers read, and the metric's label, are made of the cause."""

    async def full(_work: "Work", _items: list[str], _patient: bool) -> Answers:  # noqa: FBT001 - as a script has it
        raise Lost("the disk is full", commit_sent=False) from asyncpg.DiskFullError("could not extend file")

    async with grouping(full) as (_work, group):
        with pytest.raises(Unreachable) as raised:
            await group.submit("a", source="t")
    assert plight(raised.value) == "has no room left on its disk"
