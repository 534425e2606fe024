"""Where ticks of settlement are killed: the victim's work, and the ground it is done on.

A case: rows are made and brought into the state that a scenario begins with, a victim ticks and is ended, time passes,
recovery ticks run until nothing is open; then both halves are compared, all of them and not only the case's own.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal, Self

import asyncpg
import msgspec

from tallystick.settings import LIMITS
from tallystick.settlement.tick.flow import Ticked
from tests.faults.matrix import Victim, Victims, is_held_up
from tests.faults.points import NEVER, End
from tests.faults.victims import Watched
from tests.ledgers import broken
from tests.providers.worlds import WORLDS, Control, World
from tests.settlements import Halves, Moved, Shop, compare, ledger_differences, pass_time, rows, shop

TICK: Final = "tests.faults.settlement_ground:tick"
# More than a claim (300 s) and more than a permit and the longest time in flight (310 s); and so little that a provider
# which remembers a key for an hour (Wise) still does after every time that a case lets pass.
_SPAN: Final = timedelta(seconds=420)
_MOST_ROUNDS: Final = 5
# Small chunks: a tick of three rows claims twice.
_CHUNK: Final = 2
_WHOLE: Final = 1_000
# All of a ground is made older, read and compared in every case.
_MOST_ROWS: Final = 200

# Not the server's own processes.
_CLIENTS: Final = "FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"

State = Literal["pending", "claimed", "sent"]
# How rows come into a state: a victim ticks, and is killed there.
_WAYS: Final[Mapping[State, End | None]] = {
    "pending": None,
    # Claimed, and nothing written: the provider knows nothing of it.
    "claimed": End(side="before", begins="http write"),
    # Carried out by the provider, and nothing recorded.
    "sent": End(side="before", begins="sql settlement.tick.fence"),
}


async def tick(job: Mapping[str, Any], watched: Watched) -> Ticked:
    """A victim's work: one tick."""
    world = next(world for world in WORLDS if world.name == job["world"])
    provider = world.make(job["simulator"], "", "")
    limits = replace(
        LIMITS,
        settlement_lanes=1,
        settlement_chunk=job["chunk"],
        settlement_stuck_chunk=job["chunk"],
        settlement_linger_seconds=job["linger_seconds"],
    )
    control = Control(job["simulator"])
    worker = f"victim-{os.getpid()}"
    async with shop(job["dsn"], control, providers={world.name: provider}, limits=limits, by=worker) as one:
        with watched():
            ticked = await one.tick(most=job["most"])
    await provider.close()
    return ticked


class Ground:
    """One database, one simulator, and victims."""

    def __init__(self, one: Shop, world: World, victims: Victims) -> None:
        """Use `Grounds`."""
        self._shop = one
        self._world = world
        self._victims = victims
        self.made = 0

    def said(self) -> str:
        """What the victims said of themselves."""
        return self._victims.said()

    def job(self, *, most: int | None = None, chunk: int = _CHUNK, linger_seconds: float = 0.02) -> dict[str, Any]:
        """An order for one tick. The longer a group of answers may grow, the fewer groups there are."""
        return {
            "dsn": self._shop.dsn,
            "simulator": self._shop.control.url,
            "world": self._world.name,
            "most": most,
            "chunk": chunk,
            "linger_seconds": linger_seconds,
        }

    async def prepare(self, scenario: Mapping[State, int]) -> None:
        """Rows in these states, and what is claimed is overdue."""
        for state, count in scenario.items():
            for _ in range(count):
                self.made += 1
                await self._shop.create(
                    f"a{self.made}",
                    squad_id=f"squad-{self.made % 2}",
                    provider=self._world.name,
                    destination=self._world.destination.replace(" ", ""),
                    currency=self._world.currency,
                    gross_micros=10_000_000 + self.made * 10_000 + 3,
                )
            end = _WAYS[state]
            if end is not None:
                victim = await self.kill(end, chunk=_WHOLE)
                assert victim.was_killed, f"no row became {state}; {self._victims.said()}"
        await self.age()

    async def kill(self, end: End | None, **job: Any) -> Victim:
        """One tick that ends there, alone."""
        others = await self._connected()
        victim = self._victims.run(self.job(**job), end)
        await self._until_gone(others)
        return victim

    async def kill_beside_another(self, end: End) -> Victim:
        """One tick of a few rows that ends there, and another of all of them that runs while the first is killed.

        The first holds what it holds until the other has finished, or waits for it.
        """
        others = await self._connected()
        first = self._begin_and_stop(end)
        await self._run_beside(first, Victim.kill)
        await self._until_gone(others)
        return first

    async def pause_beside_another(self, end: End) -> Victim:
        """One tick that is stopped there past its claim and its permit; another takes over; the first goes on."""
        others = await self._connected()
        first = self._begin_and_stop(end)
        is_overdue = first.is_stopped and await self._try_to_age()
        if is_overdue:
            first.skip()
        is_beside_done = await self._run_beside(first, Victim.resume)
        first.is_overtaken = is_overdue and is_beside_done
        assert first.status == 0, self._victims.said()
        await self._until_gone(others)
        return first

    def _begin_and_stop(self, end: End) -> Victim:
        stops = msgspec.structs.replace(end, stops=True, span_seconds=_SPAN.total_seconds())
        first = self._victims.begin(self.job(most=_CHUNK), stops)
        self._victims.wait(lambda: first.is_stopped or first.is_ended)
        return first

    async def _run_beside(self, first: Victim, then: Callable[[Victim], None]) -> bool:
        """Whether the other had finished before this was done to the first."""
        second = self._victims.begin(self.job(), NEVER)
        while not second.is_ended and not await self._is_anybody_waiting():
            self._victims.hear(0.002)
        is_done = second.is_ended
        if not first.is_ended:
            then(first)
        self._victims.wait(lambda: first.is_ended and second.is_ended)
        assert second.status == 0, self._victims.said()
        return is_done

    async def _try_to_age(self) -> bool:
        """Not past an open transaction: what it has locked cannot be made older, and nobody can take it over."""
        try:
            await pass_time(f"{self._shop.dsn}&lock_timeout=50", _SPAN)
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def age(self) -> None:
        """Time passes, for the database: what was claimed is overdue, and nothing can still be on its way."""
        await pass_time(self._shop.dsn, _SPAN)

    async def recover(self) -> int:
        """Ticks until nothing is open; returns how many."""
        for ticks in range(_MOST_ROUNDS):
            async with self._shop.database.owning() as connection:
                if not await connection.fetchval(
                    "SELECT count(*) FROM tally.settlement_state WHERE status IN ('pending', 'processing')"
                ):
                    return ticks
            await self.age()
            await self._shop.tick()
        raise AssertionError(f"something is open after {_MOST_ROUNDS} ticks: {(await self._halves()).open}")

    async def check(self) -> None:
        """Both halves, exactly: one transfer for each settlement and nothing else, and the ledger says so."""
        found = await self._halves()
        assert found.is_equal, found
        assert found.statuses == {"transferred": self.made}, (found.statuses, found.disputed)
        differences = await ledger_differences(self._shop.dsn)
        assert not differences, f"(tenant, account): (balance, what the rows add up to): {differences}"

    async def verify(self) -> None:
        """The whole constitution."""
        found = await broken(self._shop.dsn)
        assert not found, found

    async def _halves(self) -> Halves:
        return compare(await rows(self._shop.dsn), self._objects())

    def _objects(self) -> list[Moved]:
        """Everything the provider has made: two objects are one too many, also while neither has moved yet."""
        # What waits for us waits for ever: it is not paid.
        waits = self._shop.providers[self._world.name].facts.waits_for_us
        found = self._shop.control.made(self._world.name, "transfer")
        unpaid = [
            row for row in found if row["state"] not in ("moved", "moving") and (waits or row["state"] != "waiting")
        ]
        assert not unpaid, unpaid
        return [
            Moved(
                row["dialect"],
                row["kind"],
                row["id"],
                row["reference"],
                # Wise's amounts are kept in micros, the others' in minor units; every currency here has two decimals.
                row["amount"] * (1 if row["dialect"] == "wise" else 10_000),
                row["currency"].upper(),
                row["state"],
            )
            for row in found
        ]

    async def _connected(self) -> set[int]:
        async with self._shop.database.owning() as connection:
            found = await connection.fetch(f"SELECT pid {_CLIENTS}")
        return {row["pid"] for row in found}

    async def _is_anybody_waiting(self) -> bool:
        async with self._shop.database.owning() as connection:
            return await is_held_up(connection)

    async def _until_gone(self, others: set[int]) -> None:
        """A killed process's statements end with its connections; the provider has what had left it."""
        async with asyncio.timeout(30):
            while not await self._connected() <= others:
                await asyncio.sleep(0.002)
        # Its bytes were with the provider's kernel before these connections were made: by the second answer they were
        # read, and carried out.
        for _ in range(2):
            self._shop.control.call("GET", "clock")


class Grounds:
    """One ground after another: a fresh one whenever the last has become too large to be compared quickly."""

    def __init__(self, fresh_database: Callable[[], str], control: Control, world: World, victims: Victims) -> None:
        """Use as an async context manager."""
        self._fresh_database = fresh_database
        self._control = control
        self._world = world
        self.victims = victims
        self._stack = AsyncExitStack()
        self._ground: Ground | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.__aexit__(*exception)  # type: ignore[arg-type]

    async def take(self, *, fresh: bool = False) -> Ground:
        """Where the next case is tried. The more rows a ground has, the more pages a provider's list has."""
        if fresh or self._ground is None or self._ground.made > _MOST_ROWS:
            await self.finish()
            await self._stack.aclose()
            self._control.call("POST", "reset")
            provider = self._world.make(self._control.url, "", "")
            self._stack.push_async_callback(provider.close)
            # A process of our own, which makes the rows and recovers.
            one = await self._stack.enter_async_context(
                shop(
                    self._fresh_database(),
                    self._control,
                    providers={self._world.name: provider},
                    limits=replace(LIMITS, settlement_linger_seconds=0.0),
                    by="recovery",
                )
            )
            self._ground = Ground(one, self._world, self.victims)
        return self._ground

    async def finish(self) -> None:
        """The whole constitution of the last ground: what was broken by any of its cases is broken still."""
        if self._ground is not None:
            await self._ground.verify()
