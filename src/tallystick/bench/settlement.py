"""`tally bench settlement`: pending rows through a tick, with intents, attempts, answers, postings and journal on.

    in process   a provider that answers at once: what is left is ours
    over HTTP    the simulator, in a process of its own
    baseline     of each: one settlement per transaction, 16 connections, the same tables and rules; each connection
                 with an in-transit account of its own. Where all of them share one, as a tick does: the hot baseline
    --rows       so many pending rows in one tick of a process of its own: does its memory grow with the queue?
    --finished   the claim's time and plan alone, beside so many finished rows, and beside as many pending ones

Every row is created as a caller creates it, every answer is counted, and after each run the books are verified.
"""

import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from tallystick import app
from tallystick.bench import ground
from tallystick.bench.result import Result, median, ratio
from tallystick.bench.settlement_baseline import one_by_one
from tallystick.bench.settlement_claims import Status, claims
from tallystick.bench.settlement_ground import BASELINE_CONNECTIONS, Ground, create, opened, statuses
from tallystick.bench.settlement_memory import Paid
from tallystick.bench.settlement_provider import NAME, Instant
from tallystick.errors import require
from tallystick.providers.http import Http, Reply
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Settings
from tallystick.simulator.process import start

# A million rows at a tenth of the speed we promise.
_MEMORY_SECONDS: Final = 3600.0
_BASELINE_IS: Final = "one settlement per transaction, 16 connections, each with its own in-transit account"

Details = dict[str, float | int | str | list[float]]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of those that are measured. `names`: under how many names the provider goes; each has its own accounts."""

    over_http: bool
    rows_per_second: int
    names: int
    drive: Callable[[Ground, int, float], Awaitable[tuple[int, float]]]


class Measured(msgspec.Struct, frozen=True):
    """One run of one side; all but the rate is per settlement paid."""

    rows_per_second: float
    statements: float
    commits: float
    wal_bytes: float


async def settlement(
    settings: Settings, *, seconds: float, runs: int, seed: int, rows: int = 0, finished: int = 0
) -> Result:
    """Medians of several runs of tick and baseline, taken in turns. `rows` and `finished` 0: not measured."""
    measured: dict[str, list[Measured]] = {name: [] for name in SIDES}
    details: Details = {}
    async with ground.server(settings) as server_dsn:
        for run in range(runs):
            for name, side in SIDES.items():
                measure = _over_http if side.over_http else _in_process
                measured[name].append(await measure(server_dsn, side, seconds=seconds, seed=seed + run))
        if rows:
            details |= await _memory(server_dsn, rows, seed=seed)
        if finished:
            details |= await _claims(server_dsn, finished)
    rates = {name: median([run.rows_per_second for run in found]) for name, found in measured.items()}
    return Result(
        bench="settlement",
        value=round(rates["tick"]),
        unit="settlements/s",
        baseline=round(rates["one_by_one"]),
        ratio=ratio(rates["tick"], rates["one_by_one"]),
        baseline_is=_BASELINE_IS,
        details=_figures(measured, rates) | details,
    )


def _figures(measured: Mapping[str, list[Measured]], rates: Mapping[str, float]) -> Details:
    details: Details = {
        "http_settlements_per_second": round(rates["http"]),
        "http_baseline": round(rates["http_one_by_one"]),
        "http_ratio": ratio(rates["http"], rates["http_one_by_one"]),
        "hot_baseline": round(rates["hot_one_by_one"]),
        "hot_ratio": ratio(rates["tick"], rates["hot_one_by_one"]),
    }
    for name, prefix in (("tick", ""), ("http", "http_"), ("one_by_one", "baseline_")):
        found = measured[name]
        details[f"{prefix}statements_per_settlement"] = round(median([run.statements for run in found]), 4)
        details[f"{prefix}commits_per_settlement"] = round(median([run.commits for run in found]), 4)
        details[f"{prefix}wal_bytes_per_settlement"] = round(median([run.wal_bytes for run in found]))
    for name, found in measured.items():
        details[f"{name}_runs"] = [round(run.rows_per_second) for run in found]
    return details


async def _in_process(server_dsn: str, side: Side, *, seconds: float, seed: int) -> Measured:
    measured, _paid = await _measured(server_dsn, side, NAME, Instant(), seconds=seconds, seed=seed)
    return measured


async def _over_http(server_dsn: str, side: Side, *, seconds: float, seed: int) -> Measured:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-bench-"))
        simulator = await asyncio.to_thread(start, Path(folder) / "books.sqlite")
        stack.push_async_callback(asyncio.to_thread, simulator.stop)
        provider = app.simulator(simulator.url)
        stack.push_async_callback(provider.close)
        measured, paid = await _measured(server_dsn, side, "simulator", provider, seconds=seconds, seed=seed)
        booked = await _booked(simulator.url)
        require(booked == paid, f"{paid} settlements were paid, and the simulator's books have {booked} transfers")
    return measured


async def _measured(
    server_dsn: str, side: Side, name: str, provider: Provider, *, seconds: float, seed: int
) -> tuple[Measured, int]:
    names = [name, *(f"{name}-{number}" for number in range(1, side.names))]
    rows = round(side.rows_per_second * seconds)
    async with ground.database(server_dsn) as dsn:
        async with opened(dsn, dict.fromkeys(names, provider)) as ready:
            await create(ready, rows, seed=seed)
            wal, commits = await ground.wal_position(dsn)
            statements = ready.database.statements
            gc.collect()
            paid, elapsed = await side.drive(ready, rows, seconds)
            statements = ready.database.statements - statements
            require((await statuses(ready)).get("transferred") == paid, "the rows do not say what the bench counted")
        # The server counts a session's commits when it ends.
        wal_after, commits_after = await ground.wal_position(dsn)
        await ground.checked(dsn)
    return Measured(paid / elapsed, statements / paid, (commits_after - commits) / paid, (wal_after - wal) / paid), paid


async def _tick(ready: Ground, rows: int, _seconds: float) -> tuple[int, float]:
    began = time.perf_counter()
    ticked = await ready.settler.tick()
    elapsed = time.perf_counter() - began
    require(ticked.transferred == ticked.sent == rows, f"of {rows} rows not all were paid, once: {ticked}")
    return ticked.transferred, elapsed


async def _one_by_one(ready: Ground, _rows: int, seconds: float) -> tuple[int, float]:
    return await one_by_one(ready, seconds=seconds)


# Rows for each second asked for: about what a tick pays in it on two cores, and more than the baseline does.
# In the order in which they take turns.
SIDES: Final[Mapping[str, Side]] = {
    "tick": Side(over_http=False, rows_per_second=5_000, names=1, drive=_tick),
    "one_by_one": Side(over_http=False, rows_per_second=1_000, names=BASELINE_CONNECTIONS, drive=_one_by_one),
    "hot_one_by_one": Side(over_http=False, rows_per_second=1_000, names=1, drive=_one_by_one),
    "http": Side(over_http=True, rows_per_second=1_500, names=1, drive=_tick),
    "http_one_by_one": Side(over_http=True, rows_per_second=1_000, names=BASELINE_CONNECTIONS, drive=_one_by_one),
}


async def _booked(url: str) -> int:
    """How many transfers the simulator's own books have."""
    client = Http(url)
    try:
        request = client.request("GET", "/_sim/books", [], b"")
        reply = await client.send(request, sendable_until=steady() + LIMITS.send_seconds, answer_seconds=20)
    finally:
        await client.close()
    require(isinstance(reply, Reply), f"the simulator did not tell of its books: {reply}")
    return sum(entry["count"] for entry in json.loads(reply.body)["entries"] if entry["kind"] == "transfer")  # type: ignore[union-attr]


async def _memory(server_dsn: str, rows: int, *, seed: int) -> Details:
    """The tick runs in a process of its own: what the bench itself holds is not counted."""
    async with ground.database(server_dsn) as dsn:
        async with opened(dsn, {NAME: Instant()}) as ready:
            await create(ready, rows, seed=seed)
        arguments = ("-m", "tallystick.bench.settlement_memory", dsn)
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(_MEMORY_SECONDS):
                answer, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        require(process.returncode == 0, f"the process that pays ended with {process.returncode}")
        paid = msgspec.json.decode(answer, type=Paid)
        require(paid.rows == rows, f"of {rows} rows {paid.rows} were paid")
        await ground.checked(dsn)
    return {
        "memory_rows": rows,
        "memory_rows_per_second": round(paid.rows / paid.seconds),
        "memory_start_mb": paid.start_mb,
        "memory_peak_mb": paid.peak_mb,
        "memory_at_each_tenth_mb": paid.at_each_tenth_mb,
    }


async def _claims(server_dsn: str, finished: int) -> Details:
    details: Details = {"claim_rows": LIMITS.settlement_chunk, "claim_others": finished}
    # As many pending ones too: a claim that looks at all of them shows only there.
    beside: tuple[tuple[str, int, Status], ...] = (
        ("alone", 0, "transferred"),
        ("beside_finished", finished, "transferred"),
        ("beside_pending", finished, "pending"),
    )
    for name, others, status in beside:
        async with ground.database(server_dsn) as dsn:
            found = await claims(dsn, others=others, status=status)
        details[f"claim_{name}_ms"] = found.median_ms
        details[f"claim_{name}_plan"] = found.plan
    return details
