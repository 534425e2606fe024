"""Probe 3: two recoveries and the late original, interleaved by force.

    original   claims, and is stopped (SIGSTOP) past its lease ──────────────────────────────────────────> resumed
    first          recovery claims, asks the provider, is held past its own lease ─────────────> goes on
    second                        recovery claims, asks, sends, records: done, or still at work by then

The attacker wins when the provider's books show two transfers; when a worker that lost its claim still sends, though
its permit to send has run out; when it changes anything its successor wrote; or when what it heard is thrown away.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.probes.contender import Contender, Pace, Paused, Point, Stopped, account, stopped_at
from tallystick.probes.ground import Books, Ground, broken_invariants, connected
from tallystick.probes.naive import SQL as NAIVE_SQL
from tallystick.probes.naive import Naive
from tallystick.probes.ours import Ours
from tallystick.probes.report import Outcome, Tried
from tallystick.probes.trying import judged

_SQL = queries.load(__package__, "probes.sql")

# Real seconds: the stopped process's own clock cannot be moved, so the race is run with a short lease instead.
_PACE: Final = Pace(send=2.0, stuck_after=2.0, in_flight=0.2, answer=10.0)
# Until the original's permit, and whatever it could still have in flight, is over.
_PAST_LEASE_SECONDS: Final = 2.5


class _Race(msgspec.Struct, frozen=True):
    """Where the original is stopped, and whether its successor is still at work when it comes back."""

    point: Point
    is_successor_busy: bool = False

    @property
    def control(self) -> "_Race":
        """The naive worker looks at no clock between its claim and its write: these are one and the same moment."""
        return _Race("after_answer" if self.point == "after_answer" else "before_send", self.is_successor_busy)


# Past its last look at the clock (mid_write) nothing but the key stands between a worker and a second payment: there it
# may send, and the provider must recognise it.
_RACES: Final[dict[str, _Race]] = {
    "stopped after its claim": _Race("before_send"),
    "stopped after its claim, back while the successor works": _Race("before_send", is_successor_busy=True),
    "stopped between connecting and writing": _Race("before_write"),
    "stopped between its last look at the clock and the write": _Race("mid_write"),
    "stopped between the answer and recording it": _Race("after_answer"),
    "stopped before recording, back while the successor works": _Race("after_answer", is_successor_busy=True),
}


class _Staged(msgspec.Struct, frozen=True):
    """A race in which everybody has lost his claim to the second recovery, and does not know it yet."""

    contender: Contender
    books: Books
    name: str
    race: _Race
    original: Stopped
    first: "_Held"
    second: "_Held"


class _Held(msgspec.Struct, frozen=True):
    """A recovery that has asked the provider, and is kept from acting on it."""

    hold: Paused
    task: "asyncio.Task[None]"

    async def finish(self) -> None:
        self.hold.release()
        await self.task


async def stuck_recovery_race(ground: Ground) -> tuple[Tried, ...]:
    """Each race in a database of its own. All are staged at once; then they are let go one after the other."""
    await ground.clean()
    races = list(_RACES.values())
    controls = list(dict.fromkeys(race.control for race in races))
    async with AsyncExitStack() as stack:
        stages = []
        databases = [await ground.fresh_database() for _ in races]
        for race, dsn in zip(races, databases, strict=True):
            ours = Ours(dsn, ground.books.url, pace=_PACE)
            stages.append(_stage(await stack.enter_async_context(ours), ground.books, race, stack))
        for race, dsn in zip(controls, databases, strict=False):
            naive = Naive(dsn, ground.control_books.url, pace=_PACE, claims="lease")
            stages.append(_stage(await stack.enter_async_context(naive), ground.control_books, race, stack))
        for books in (ground.books, ground.control_books):
            await books.count_calls()
        staged = await asyncio.gather(*stages, return_exceptions=True)
        # One by one, because the provider's count of calls is one for all.
        attacked = [await judged(_let_go(one), otherwise=True) for one in staged[: len(races)]]
        controlled = [await judged(_let_go(one), otherwise=False) for one in staged[len(races) :]]
    control_of = dict(zip(controls, controlled, strict=True))
    return tuple(
        Tried(way=way, attack=attack, control=control_of[race.control])
        for (way, race), attack in zip(_RACES.items(), attacked, strict=True)
    )


async def _stage(contender: Contender, books: Books, race: _Race, stack: AsyncExitStack) -> _Staged:
    name = f"race{race.point.replace('_', '')}{'busy' if race.is_successor_busy else ''}"
    await contender.create([name])
    original = await stopped_at(race.point, contender)
    stack.push_async_callback(original.kill)
    await asyncio.sleep(_PAST_LEASE_SECONDS)
    first = await _hold_recovery(contender)
    await asyncio.sleep(_PAST_LEASE_SECONDS)
    second = await _hold_recovery(contender)
    if race.is_successor_busy:
        # However long the other races take: the original may not claim it again as stuck, which would be its right.
        await contender.renew_claims()
    else:
        # Another one at the same time finds nothing to do.
        await asyncio.gather(second.finish(), contender.tick())
    return _Staged(contender, books, name, race, original, first, second)


async def _hold_recovery(contender: Contender) -> _Held:
    hold = Paused("looked_up")
    task = asyncio.create_task(contender.tick(hold))
    await hold.reached()
    return _Held(hold, task)


async def _let_go(staged: _Staged | BaseException) -> Outcome:
    """Let the overtaken recovery and then the original go on, and see what they change."""
    if isinstance(staged, BaseException):
        raise staged
    contender, books, point = staged.contender, staged.books, staged.race.point
    before, calls = await _kept(contender), await books.calls()
    await staged.first.finish()
    told = await staged.original.resume()
    after, late_calls = await _kept(contender), await books.calls() - calls
    await staged.second.finish()
    faults = []
    if (paid := (await books.transfers())[account(staged.name)]) != 1:
        faults.append(f"the provider's books show {paid} transfers")
    if late_calls > (point == "mid_write"):
        faults.append(f"{late_calls} sends by workers whose permit had run out")
    if before != after:
        faults.append(f"what the successor wrote was changed: {before} to {after}")
    if contender.kind == "ours":
        faults += await _our_faults(contender.dsn, told, point)
    return Outcome(won=bool(faults), told="; ".join(faults) or f"one transfer; the original did {told}")


async def _kept(contender: Contender) -> Sequence[tuple[Any, ...]]:
    """The payout's state and its postings, as they are stored."""
    statements = [_SQL["states"], _SQL["postings"]] if contender.kind == "ours" else [NAIVE_SQL["states"]]
    async with connected(contender.dsn) as connection:
        rows: list[asyncpg.Record] = []
        for statement in statements:
            rows += await connection.fetch(statement)
    return [tuple(row) for row in rows]


async def _our_faults(dsn: str, told: dict[str, Any], point: Point) -> list[str]:
    """The original must know that it was late; what it heard must be kept; and the payout must end as it should."""
    async with connected(dsn) as connection:
        (attempt,) = await connection.fetch(_SQL["first_attempts"])
        events = [row["what"] for row in await connection.fetch(_SQL["events"])]
        (state,) = await connection.fetch(_SQL["states"])
    heard = "done" if point in ("mid_write", "after_answer") else "busy"
    faults = [f"the invariant {broken} does not hold" for broken in await broken_invariants(dsn)]
    if told["late"] != 1 or told["transferred"]:
        faults.append(f"the original believes that it was in time: {told}")
    if attempt["answer"] != heard:
        faults.append(f"the original's answer was not kept: {attempt['answer']} instead of {heard}")
    if "late_answer" not in events:
        faults.append(f"its lateness was not noted: {events}")
    if state["status"] != "transferred":
        faults.append(f"the payout is {state['status']} ({state['reason']})")
    return faults
