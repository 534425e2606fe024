"""A backup that came to life pays nobody twice, whether or not it can tell that it is one.

One life for each kind of backup and each side of the provider's memory: everything a backup can meet happens in it, the
original pays, and then the backup comes to life and everybody comes again. The provider's own books are the judge.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tallystick.simulator.process import start
from tests.clocks import movable
from tests.faults.matrix import IS_FULL, seed
from tests.providers.worlds import Control
from tests.restore import cells as the
from tests.restore.backups import KINDS, Kind, backed_up
from tests.restore.cells import DIALECTS, MOVEMENTS, SITUATIONS, Cell
from tests.restore.life import FORGETFUL, Ground, Life, alive

ROUNDS: Final = 6
# From the backup's last moment to its coming to life. Square's memory and Wise's are taken for an hour long, less ten
# minutes; the simulator's longest is 30 days.
MEMORY: Final = {"inside": timedelta(minutes=5), "past": timedelta(days=31)}
LIVES: Final = [(kind, memory) for kind in KINDS for memory in MEMORY]
# Cells of one life, and those that cannot be, of 4 movements in 4 situations at 4 providers.
POSSIBLE: Final = 39
IMPOSSIBLE: Final = 25


def chosen() -> list[tuple[Kind, str]]:
    """All of them, or one that rotates with the commit."""
    return LIVES if IS_FULL else [random.Random(seed()).choice(LIVES)]


@asynccontextmanager
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    with movable("restore") as server:
        simulator = start(tmp_path / "books.sqlite", log=tmp_path / "log")
        try:
            control = Control(simulator.url)
            control.call("PUT", "switches", FORGETFUL)
            yield Ground(server, server.fresh_database(), simulator, control)
        finally:
            simulator.stop()


def all_cells(life: Life) -> tuple[list[Cell], dict[str, str]]:
    """Those that can be, and why the others cannot."""
    possible: list[Cell] = []
    reasons: dict[str, str] = {}
    for movement in MOVEMENTS:
        for situation in SITUATIONS:
            for dialect in DIALECTS:
                reason = the.impossible(movement, situation, dialect, life.main.providers[dialect])
                cell = Cell(movement, situation, dialect, 10_000 + len(possible))
                if reason is None:
                    possible.append(cell)
                else:
                    reasons[cell.name] = reason
    return possible, reasons


def of(cells: list[Cell], movement: str) -> list[Cell]:
    return [cell for cell in cells if cell.movement == movement]


def books(ground: Ground) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ground.control.call("GET", "movements?limit=10000")
    return found


async def lost_life(life: Life, cells: list[Cell]) -> None:
    """The original pays everything, and the provider's books show it: one movement each."""
    await the.payouts_lost(life, of(cells, "payout"))
    await the.charges_lost(life, of(cells, "charge"))
    await the.refunds_lost(life, of(cells, "refund"))
    await the.parts_lost(life, of(cells, "part"))
    # What was lost on the way is asked about and sent again, after what it may take; so is what a restart made wait.
    for _ in range(2):
        life.pass_time()
        await life.work()
    moved = books(life.ground)
    for cell in cells:
        assert len(cell.moved(moved)) == 1, f"{cell.name}: the lost life did not pay it: {cell.moved(moved)}"


async def everybody_again(life: Life, cells: list[Cell]) -> None:
    await the.payouts_asked(life, of(cells, "payout"))
    await the.charges_asked(life, of(cells, "charge"))
    await the.refunds_asked(life, of(cells, "refund"))
    await the.parts_asked(life, of(cells, "part"))
    await life.work()


@pytest.mark.parametrize(("kind", "memory"), chosen(), ids=str)
async def test_a_backup_that_came_to_life_pays_nobody_twice(
    tmp_path: Path, kind: Kind, memory: str, record_property: Any
) -> None:
    async with ground(tmp_path) as place, AsyncExitStack() as stack:
        life = await stack.enter_async_context(alive(place))
        cells, reasons = all_cells(life)
        assert (len(cells), len(reasons)) == (POSSIBLE, IMPOSSIBLE), "\n".join(f"{n}: {r}" for n, r in reasons.items())
        await the.payouts_before(life, of(cells, "payout"))
        await the.charges_before(life, of(cells, "charge"))
        await the.parts_before(life, of(cells, "part"))
        await the.refunds_before(life, of(cells, "refund"))
        if kind == "files":
            await stack.aclose()
        restore = await backed_up(place.server, place.dsn, kind)
        if kind == "files":
            life = await stack.enter_async_context(alive(place))
        await lost_life(life, cells)
        if kind != "rollback":
            await stack.aclose()
        await restore()
        place.pass_time(MEMORY[memory])
        if kind != "rollback":
            life = await stack.enter_async_context(alive(place))
        await life.change_fee(the.FEE_CENTS * 10_000)
        for _ in range(ROUNDS):
            await everybody_again(life, cells)
            life.pass_time()
        moved = books(place)
        ends = {cell.name: await the.end_of(life, cell, cell.moved(moved)) for cell in cells}
        doubled = {cell.name: ends[cell.name] for cell in cells if len(cell.moved(moved)) != 1}
        undecided = {name: end for name, end in ends.items() if end.startswith("undecided")}
        found = sum(end == "found" for end in ends.values())
        people = sum(end.startswith("person") for end in ends.values())
        counted = f"{len(cells)} cells, {found} found, {people} with a person, {len(doubled)} not paid once"
        record_property("counted", f"restore from {kind}, {memory} the key's memory: {counted}")
        record_property("counted", f"  with a person: {dict(Counter(end for end in ends.values() if end != 'found'))}")
        told = f"told: {sorted(set(life.told))}"
        assert (doubled, undecided) == ({}, {}), f"not paid once: {doubled}; nobody decides: {undecided}; {told}"
