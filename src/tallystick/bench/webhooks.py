"""`tally bench webhooks`: signed events of a kilobyte over HTTP, 5 % of them repeated, each durable when acknowledged.

    closed     as fast as the receiver takes them; beside the baseline, in turns
    open       10,000 a second by schedule, whatever the receiver does; waiting counts from the planned moment
    --spike N  so many as fast as they are taken: does the receiver's memory grow with them, and does it still tell how
               orders stand (`bench.order_status`)?
    baseline   a framework's handler with one INSERT for each request, 16 connections, the same signature check

The load runs in a process of its own, and so does each receiver. There are as many of these as one would start `tally
serve` on such a machine: one for each of two cores (`--receivers`); the baseline gets as many. After each run every
acknowledged event must be in the table, once, and nothing else.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Literal

import asyncpg
import msgspec

from tallystick import queries
from tallystick.bench import ground
from tallystick.bench.order_status import Asked, asking, prepared
from tallystick.bench.pauses import watched
from tallystick.bench.processor import ServerClock
from tallystick.bench.result import Result, median, ratio
from tallystick.bench.webhooks_baseline import CONNECTIONS, FRAMEWORK
from tallystick.bench.webhooks_load import Driven, Order
from tallystick.bench.webhooks_service import Used
from tallystick.errors import InvariantBroken, require
from tallystick.settings import Settings

_SQL: Final = queries.load(__package__, "webhooks.sql")
_CLOSED_CONNECTIONS: Final = 512
# More than are ever in flight at 10,000 a second within 50 ms.
_OPEN_CONNECTIONS: Final = 512
_RATE: Final = 10_000.0
# More than a receiver takes on two cores: a run must not end for want of requests.
_PREPARED_PER_SECOND: Final = 80_000
_BASELINE_PREPARED_PER_SECOND: Final = 12_000
_SPIKE_SECONDS: Final = 3_600.0

Side = Literal["ours", "baseline"]
Details = dict[str, float | int | str | list[float]]


class Measured(msgspec.Struct, frozen=True):
    """One run: what the load saw, and what the receiver took."""

    driven: Driven
    used: Used
    # None: the server runs elsewhere.
    server_seconds: float | None
    # Of a spike.
    asked: Asked | None = None

    @property
    def per_second(self) -> float:
        return self.driven.answered / self.driven.seconds

    def per_webhook_us(self, seconds: float | None) -> float:
        """Processor time for one of them."""
        return 1e6 * (seconds or 0.0) / max(self.driven.answered, 1)


async def webhooks(
    settings: Settings, *, seconds: float, runs: int, seed: int, open_seconds: float, spike: int, receivers: int
) -> Result:
    """Medians of several closed runs of both, in turns; then one by schedule, and one spike. 0: not measured."""
    ours: list[Measured] = []
    theirs: list[Measured] = []
    details: Details = {}
    sides: tuple[tuple[Side, list[Measured], int], ...] = (
        ("ours", ours, _PREPARED_PER_SECOND),
        ("baseline", theirs, _BASELINE_PREPARED_PER_SECOND),
    )
    async with ground.server(settings) as dsn:
        for run in range(runs):
            for side, found, rate in sides:
                count = int(seconds * rate)
                found.append(
                    await _measured(dsn, side, seed=seed + run, count=count, seconds=seconds, receivers=receivers)
                )
        if open_seconds:
            with watched() as halts:
                by_schedule = await _measured(
                    dsn,
                    "ours",
                    seed=seed,
                    count=int(open_seconds * _RATE),
                    seconds=open_seconds,
                    receivers=receivers,
                    rate=_RATE,
                )
            driven = by_schedule.driven
            details |= _by_schedule(by_schedule)
            details |= halts.details("open_", since=driven.began_at, seconds=driven.seconds)
        if spike:
            details |= _spiked(
                await _measured(
                    dsn,
                    "ours",
                    seed=seed,
                    count=spike,
                    seconds=_SPIKE_SECONDS,
                    receivers=receivers,
                    is_spike=True,
                )
            )
    value, base = median([one.per_second for one in ours]), median([one.per_second for one in theirs])
    return Result(
        bench="webhooks",
        value=round(value),
        unit="webhooks/s, closed loop",
        baseline=round(base),
        ratio=ratio(value, base),
        baseline_is=f"{FRAMEWORK}, one INSERT per request, {CONNECTIONS} connections each",
        details={
            "receivers": receivers,
            "runs": [round(one.per_second) for one in ours],
            "baseline_runs": [round(one.per_second) for one in theirs],
            "p50_ms": median([one.driven.p50_ms for one in ours]),
            "p99_ms": median([one.driven.p99_ms for one in ours]),
            "baseline_p99_ms": median([one.driven.p99_ms for one in theirs]),
            **_took("", ours),
            **_took("baseline_", theirs),
            **details,
        },
    )


def _took(prefix: str, runs: list[Measured]) -> Details:
    """Processor time of each process. A server on another machine shows as 0."""
    return {
        f"{prefix}receiver_cpu_us_per_webhook": _median([one.per_webhook_us(one.used.cpu_seconds) for one in runs]),
        f"{prefix}client_cpu_us_per_webhook": _median([one.per_webhook_us(one.driven.cpu_seconds) for one in runs]),
        f"{prefix}postgres_cpu_us_per_webhook": _median([one.per_webhook_us(one.server_seconds) for one in runs]),
    }


def _median(found: list[float]) -> float:
    return round(median(found), 1)


def _by_schedule(measured: Measured) -> Details:
    driven = measured.driven
    return {
        "open_per_second": round(measured.per_second),
        "open_p50_ms": driven.p50_ms,
        "open_p99_ms": driven.p99_ms,
        "open_p999_ms": driven.p999_ms,
        "open_longest_ms": driven.longest_ms,
        "open_generator_behind_ms": driven.behind_ms,
        "open_stolen_percent": round(100 * driven.stolen_seconds / (driven.seconds * (os.cpu_count() or 1)), 1),
        **_took("open_", [measured]),
        "open_answers": " ".join(f"{status}:{count}" for status, count in driven.statuses.items()),
    }


def _spiked(measured: Measured) -> Details:
    asked = measured.asked
    if asked is None:
        raise InvariantBroken("nobody asked how orders stand during the spike")
    require(set(asked.statuses) == {"200"}, f"not every order's status was told: {asked}")
    told = {f"spike_status_{name}": value for name, value in msgspec.structs.asdict(asked).items()}
    del told["spike_status_statuses"]
    return {
        **told,
        "spike_webhooks": measured.driven.answered,
        "spike_per_second": round(measured.per_second),
        "spike_receiver_peak_mb": measured.used.peak_mb,
        "spike_p99_ms": measured.driven.p99_ms,
    }


async def _measured(
    server_dsn: str,
    side: Side,
    *,
    seed: int,
    count: int,
    seconds: float,
    receivers: int,
    rate: float = 0.0,
    is_spike: bool = False,
) -> Measured:
    async with ground.database(server_dsn) as dsn:
        async with AsyncExitStack() as stack:
            started = [await stack.enter_async_context(received_by(dsn, side)) for _ in range(receivers)]
            order = Order(
                ports=tuple(port for port, _ in started),
                path="/webhooks/simulator",
                secret=ground.WEBHOOK_SECRET,
                seed=seed,
                run=f"{seed:x}",
                count=count,
                seconds=seconds,
                connections=_OPEN_CONNECTIONS if rate else _CLOSED_CONNECTIONS,
                rate=rate,
                signed_before=not is_spike,
            )
            clock = await ServerClock.started(dsn)
            driven, asked = await _spike(order, dsn) if is_spike else (await driven_by(order), None)
            server_seconds = await clock.seconds(dsn)
            used = _together([await ended() for _, ended in started])
        statuses = set(driven.statuses)
        require(statuses == {"200"} and not driven.unanswered, f"not every webhook was acknowledged: {driven}")
        require(rate or is_spike or driven.answered < count, "the prepared requests were used up")
        stored = await stored_in(dsn, "count" if side == "ours" else "baseline_count")
        require(stored == driven.distinct, f"{driven.distinct} events were acknowledged, and {stored} are there")
        if side == "ours":
            await ground.checked(dsn)
    return Measured(driven, used, server_seconds, asked)


def _together(used: list[Used]) -> Used:
    """Of all receivers; their peaks as if they had come at the same moment."""
    return Used(round(sum(one.peak_mb for one in used), 1), round(sum(one.cpu_seconds for one in used), 3))


async def _spike(order: Order, dsn: str) -> tuple[Driven, Asked]:
    async with asking(order.ports[0], await prepared(dsn)) as questions:
        driven = await driven_by(order)
    return driven, await questions.ended()


async def driven_by(order: Order) -> Driven:
    """The load, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.bench.webhooks_load", msgspec.json.encode(order).decode()),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        answer, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    require(process.returncode == 0, f"the load ended with {process.returncode}")
    return msgspec.json.decode(answer, type=Driven)


@asynccontextmanager
async def received_by(dsn: str, side: Side) -> AsyncIterator[tuple[int, "_Ended"]]:
    """A receiver in a process of its own: its port, and how to end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.bench.webhooks_service", dsn, side),
        stdout=asyncio.subprocess.PIPE,
    )
    require(process.stdout is not None, "the receiver's output is a pipe")
    try:
        yield int(await process.stdout.readline()), _Ended(process)  # type: ignore[union-attr]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Ended:
    """Ends the receiver, and asks what it took."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self) -> Used:
        self._process.terminate()
        said, _ = await self._process.communicate()
        return msgspec.json.decode(said, type=Used)


async def stored_in(dsn: str, statement: str) -> int:
    """How many events there are."""
    connection = await asyncpg.connect(dsn)
    try:
        found: int = await connection.fetchval(_SQL[statement])
    finally:
        await connection.close()
    return found
