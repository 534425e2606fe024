"""`tally bench saga`: stored events to PAID orders, and late payments to completed refunds.

    paid          events of charged orders, each to PAID: receipt, order, stock, ledger, journal, outbox, its end
    baseline      the same functions, tables and rules, one event per transaction, 16 connections
    compensated   events of orders that the sweeper has cancelled: refund intent, refund over HTTP to the simulator,
                  COMPLETED and PROCESSED_COMPENSATED in one commit

Every order was reserved and charged before the clock starts; after each run the books are verified.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from tallystick import app
from tallystick.bench import cpu, ground, saga_ground
from tallystick.bench.result import Result, median, ratio
from tallystick.bench.saga_ground import BASELINE_CONNECTIONS, Shop, Till, charge, opened, sweep, tell
from tallystick.errors import require
from tallystick.settings import LIMITS, Settings
from tallystick.simulator.process import start
from tallystick.webhooks.flow import Processed

# Events for each second asked for: about what is worked off in it on two cores.
_PAID_PER_SECOND: Final = 8_000
_BASELINE_PER_SECOND: Final = 400
_COMPENSATED_PER_SECOND: Final = 800
_WORKERS: Final = LIMITS.event_workers
_BASELINE_IS: Final = f"one event per transaction, {BASELINE_CONNECTIONS} connections"

Details = dict[str, float | int | str | list[float]]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one side; all but the rate is per event. Processor time in microseconds; 0: it cannot be seen."""

    per_second: float
    statements: float
    commits: float
    wal_bytes: float
    worker_us: float
    server_us: float
    simulator_us: float = 0.0


async def saga(settings: Settings, *, seconds: float, runs: int, seed: int) -> Result:
    """Medians of several runs of all sides, taken in turns."""
    measured: dict[str, list[Measured]] = {"paid": [], "baseline": [], "compensated": []}
    async with ground.server(settings) as server_dsn:
        for run in range(runs):
            measured["paid"].append(await _paid(server_dsn, round(_PAID_PER_SECOND * seconds), _many, seed=seed + run))
            measured["baseline"].append(
                await _paid(server_dsn, round(_BASELINE_PER_SECOND * seconds), _one_by_one, seed=seed + run)
            )
            measured["compensated"].append(
                await _compensated(server_dsn, round(_COMPENSATED_PER_SECOND * seconds), seed=seed + run)
            )
    rates = {name: median([run.per_second for run in found]) for name, found in measured.items()}
    return Result(
        bench="saga",
        value=round(rates["paid"]),
        unit="events to PAID/s",
        baseline=round(rates["baseline"]),
        ratio=ratio(rates["paid"], rates["baseline"]),
        baseline_is=_BASELINE_IS,
        details=_figures(measured, rates["compensated"]),
    )


def _figures(measured: dict[str, list[Measured]], compensated: float) -> Details:
    details: Details = {"compensations_per_second": round(compensated)}
    for name, found in measured.items():
        details[f"{name}_runs"] = [round(run.per_second) for run in found]
        for field in ("statements", "commits", "wal_bytes", "worker_us", "server_us", "simulator_us"):
            value = median([getattr(run, field) for run in found])
            if value:
                details[f"{name}_{field}_per_event"] = round(value, 4 if value < 1 else 1)
    return details


Drive = Callable[[Shop, int], Awaitable[float]]


async def _paid(server_dsn: str, rows: int, drive: Drive, *, seed: int) -> Measured:
    async with ground.database(server_dsn) as dsn:
        async with opened(dsn, "instant", Till()) as shop:
            await tell(shop, await charge(shop, rows, seed=seed))
            measured = await _measured(shop, rows, drive)
        found = await saga_ground.ends(dsn)
        require(found["paid"] == found["ok"] == rows, f"of {rows} events not every one paid its order: {found}")
        await ground.checked(dsn)
    return measured


async def _compensated(server_dsn: str, rows: int, *, seed: int) -> Measured:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-bench-"))
        simulator = await asyncio.to_thread(start, Path(folder) / "books.sqlite")
        stack.push_async_callback(asyncio.to_thread, simulator.stop)
        provider = app.simulator(simulator.url)
        stack.push_async_callback(provider.close)
        async with ground.database(server_dsn) as dsn:
            async with opened(dsn, "simulator", provider) as shop:
                bought = await charge(shop, rows, seed=seed)
                await sweep(shop)
                await tell(shop, bought)
                measured = await _measured(shop, rows, _many, simulator=simulator.pid)
            found = await saga_ground.ends(dsn)
            require(
                found["refunded"] == found["compensated"] == rows and not found["paid"],
                f"of {rows} late payments not every one was given back: {found}",
            )
            await ground.checked(dsn)
    return measured


async def _measured(shop: Shop, rows: int, drive: Drive, *, simulator: int | None = None) -> Measured:
    wal, commits = await ground.wal_position(shop.dsn)
    statements = shop.database.statements
    gc.collect()
    before = await _cpu(shop.dsn, simulator)
    elapsed = await drive(shop, rows)
    after = await _cpu(shop.dsn, simulator)
    statements = shop.database.statements - statements
    # The server counts a session's commits when it ends.
    await shop.database.close()
    wal_after, commits_after = await ground.wal_position(shop.dsn)
    worker, server, simulated = (1e6 * (late - early) / rows for early, late in zip(before, after, strict=True))
    return Measured(
        per_second=rows / elapsed,
        statements=statements / rows,
        commits=(commits_after - commits) / rows,
        wal_bytes=(wal_after - wal) / rows,
        worker_us=worker,
        server_us=server,
        simulator_us=simulated,
    )


async def _cpu(dsn: str, simulator: int | None) -> tuple[float, float, float]:
    server = await cpu.server_seconds(dsn) or 0.0
    return cpu.own_seconds(), server, 0.0 if simulator is None else cpu.seconds(simulator)


async def _many(shop: Shop, rows: int) -> float:
    return await _worked_off(shop, rows, _WORKERS, LIMITS.event_chunk)


async def _one_by_one(shop: Shop, rows: int) -> float:
    return await _worked_off(shop, rows, BASELINE_CONNECTIONS, 1)


async def _worked_off(shop: Shop, rows: int, workers: int, chunk: int) -> float:
    began = time.perf_counter()
    done = await asyncio.gather(*(_work(shop, f"bench-{number}", chunk) for number in range(workers)))
    elapsed = time.perf_counter() - began
    recorded = sum(one.recorded for found in done for one in found)
    require(recorded == rows, f"of {rows} events {recorded} came to their end at once")
    return elapsed


async def _work(shop: Shop, by: str, chunk: int) -> Sequence[Processed]:
    events = shop.events(by, chunk=chunk)
    found = []
    while (processed := await events.run_once()).claimed:
        found.append(processed)
    return found
