"""`tally bench gate`: a flash sale. Many attempts on one SKU, of which one in a hundred can be served.

    sale       100,000 attempts on a SKU of 1,000, every rule, journal and outbox on; exactly 1,000 are granted
    plenty     the same with enough for everybody: each attempt writes an order
    baseline   of each: one conditional UPDATE per transaction on 16 connections, in plain tables of its own
    --http     the sale alone, over HTTP; the baseline is an ordinary handler in a process of its own

Every answer is counted, and afterwards the whole database is verified.
"""

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import asyncpg
import msgspec

from tallystick.access import store as tenants
from tallystick.bench import gate_baseline, ground
from tallystick.bench.http import Client, Requests, post, service
from tallystick.bench.result import Result, median, ratio
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import OrderReserved
from tallystick.checkout.order.store import SkuView
from tallystick.database import pool as postgres
from tallystick.database.pool import Database
from tallystick.errors import require
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Settings

ATTEMPTS: Final = 100_000
# One in so many is served.
CROWD: Final = 100
# Callers at once; each tries again as somebody else as soon as it is answered. A full queue would refuse more.
CALLERS: Final = 4_000
CONNECTIONS: Final = 128
# The slow sides, and those where everybody is served, get a part of the attempts: their rate is what is compared.
_PART: Final = 5
_SKU: Final = "flash-sale"
_WISH: Final = OrderReserved(sku=_SKU, quantity=1, amount_micros=25_000_000, currency="EUR")

Attempt = Callable[[str], Awaitable[bool]]


class Sold(msgspec.Struct, frozen=True):
    """How a sale went."""

    attempts: int
    granted: int
    seconds: float

    @property
    def rate(self) -> float:
        """Attempts answered in a second."""
        return self.attempts / self.seconds


async def gate(settings: Settings, *, runs: int, seed: int, attempts: int = ATTEMPTS) -> Result:
    """Medians of several sales of ours and of the baseline, taken in turns."""
    sides = {
        "sale": (_ours, attempts, attempts // CROWD),
        "baseline": (_theirs, attempts // _PART, attempts // _PART // CROWD),
        "plenty": (_ours, attempts // _PART, attempts // _PART),
        "plenty_baseline": (_theirs, attempts // _PART, attempts // _PART),
    }
    sold: dict[str, list[Sold]] = {name: [] for name in sides}
    async with ground.server(settings) as server_dsn:
        for run in range(runs):
            for name, (side, tries, stock) in sides.items():
                sold[name].append(await _held(server_dsn, side, tries, stock, seed=seed + run))
    rates = {name: median([one.rate for one in found]) for name, found in sold.items()}
    return Result(
        bench="gate",
        value=round(rates["sale"]),
        unit="attempts/s",
        baseline=round(rates["baseline"]),
        ratio=ratio(rates["sale"], rates["baseline"]),
        baseline_is="one conditional UPDATE per transaction, 16 connections, plain tables",
        details={
            "attempts": attempts,
            "granted": attempts // CROWD,
            "seconds": round(median([one.seconds for one in sold["sale"]]), 2),
            "plenty_orders_per_second": round(rates["plenty"]),
            "plenty_baseline": round(rates["plenty_baseline"]),
            "plenty_ratio": ratio(rates["plenty"], rates["plenty_baseline"]),
            **{f"{name}_runs": [round(one.rate) for one in found] for name, found in sold.items()},
        },
    )


async def gate_over_http(settings: Settings, *, runs: int, seed: int, attempts: int = ATTEMPTS) -> Result:
    """The sale over HTTP, beside an ordinary handler."""
    ours: list[Sold] = []
    theirs: list[Sold] = []
    async with ground.server(settings) as server_dsn:
        for run in range(runs):
            ours.append(await _served(server_dsn, attempts, attempts // CROWD, seed=seed + run, is_ours=True))
            few = attempts // _PART
            theirs.append(await _served(server_dsn, few, few // CROWD, seed=seed + run, is_ours=False))
    value, baseline = median([one.rate for one in ours]), median([one.rate for one in theirs])
    return Result(
        bench="gate --http",
        value=round(value),
        unit="attempts/s",
        baseline=round(baseline),
        ratio=ratio(value, baseline),
        baseline_is="an ordinary handler with one conditional UPDATE per transaction, 16 connections, plain tables",
        details={
            "attempts": attempts,
            "granted": attempts // CROWD,
            "seconds": round(median([one.seconds for one in ours]), 2),
            "runs": [round(one.rate) for one in ours],
            "baseline_runs": [round(one.rate) for one in theirs],
        },
    )


async def _held(
    server_dsn: str,
    side: Callable[[str, int, int, int], Awaitable[Sold]],
    attempts: int,
    stock: int,
    *,
    seed: int,
) -> Sold:
    async with ground.database(server_dsn) as dsn:
        sold = await side(dsn, attempts, stock, seed)
        await ground.checked(dsn)
    require(sold.granted == stock, f"{sold.granted} of {stock} were granted")
    return sold


async def _ours(dsn: str, attempts: int, stock: int, seed: int) -> Sold:
    async with _opened(dsn) as (database, orders):
        tenant = await tenants.ensure_tenant(database, "default")
        require(isinstance(await orders.set_stock(tenant, _SKU, stock), SkuView), "the stock was not taken")

        async def attempt(key: str) -> bool:
            answer = await orders.reserve(tenant, _WISH, key)
            if isinstance(answer, Rejected):
                require(answer.code == "sold_out", f"unexpected answer {answer}")
                return False
            require(not answer.is_replayed, f"unexpected answer {answer}")
            return True

        sold = await _sell(attempt, attempts, CALLERS, seed)
        left = await orders.sku(tenant, _SKU)
        require(isinstance(left, SkuView) and left.reserved == sold.granted, f"the SKU says {left}")
        return sold


@asynccontextmanager
async def _opened(dsn: str) -> AsyncIterator[tuple[Database, Orders]]:
    database = await postgres.connect(dsn, connections=LIMITS.lanes + LIMITS.readers)
    try:
        async with Orders(database, ttl=timedelta(seconds=600), grace=timedelta(seconds=30)) as orders:
            yield database, orders
    finally:
        await database.close()


async def _theirs(dsn: str, attempts: int, stock: int, seed: int) -> Sold:
    await gate_baseline.make(dsn, _SKU, stock)
    pool = await gate_baseline.opened(dsn)
    try:
        sold = await _sell(
            lambda key: gate_baseline.reserve(pool, _WISH, key), attempts, gate_baseline.CONNECTIONS, seed
        )
        require(await pool.fetchval(gate_baseline.SQL["reserved"], _SKU) == sold.granted, "the baseline lost count")
        return sold
    finally:
        await pool.close()


async def _sell(attempt: Attempt, attempts: int, callers: int, seed: int) -> Sold:
    keys = iter([f"gate-{seed}-{number}" for number in range(attempts)])
    answers: Counter[bool] = Counter()

    async def caller() -> None:
        for key in keys:
            answers[await attempt(key)] += 1

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - began
    require(answers.total() == attempts, "not every attempt was answered")
    return Sold(attempts, answers[True], seconds)


async def _served(server_dsn: str, attempts: int, stock: int, *, seed: int, is_ours: bool) -> Sold:
    body = msgspec.json.encode({field: getattr(_WISH, field) for field in _WISH.__struct_fields__})
    prepared = [post("/v1/orders", body, f"Idempotency-Key: gate-{seed}-{number}\r\n") for number in range(attempts)]
    async with ground.database(server_dsn) as dsn:
        if is_ours:
            async with _opened(dsn) as (database, orders):
                tenant = await tenants.ensure_tenant(database, "default")
                await orders.set_stock(tenant, _SKU, stock)
        else:
            await gate_baseline.make(dsn, _SKU, stock)
        async with service(dsn, LIMITS.lanes, LIMITS.batch) if is_ours else _baseline(dsn) as (port, _process):
            sold = await _buy(port, prepared)
        await ground.checked(dsn)
        if is_ours:
            await _require_orders(dsn, sold.granted)
    require(sold.granted == stock, f"{sold.granted} of {stock} were granted")
    return sold


async def _buy(port: int, prepared: list[bytes]) -> Sold:
    gc.collect()
    began = time.perf_counter()
    requests = _Sale(prepared)
    loop = asyncio.get_running_loop()
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Client(requests), "127.0.0.1", port)
    await requests.done
    require(requests.count == len(prepared), "not every attempt was answered")
    return Sold(requests.count, requests.granted, requests.ended_at - began)


class _Sale(Requests):
    """Every request once; bought or sold out, and nothing else."""

    def __init__(self, prepared: list[bytes]) -> None:
        super().__init__(prepared, CONNECTIONS, 201, float("inf"))
        self.granted = 0

    def answered(self, status: int, body: bytes) -> None:
        if status == 409 and b'"sold_out"' in body:  # noqa: PLR2004 - Conflict
            self.count += 1
            self.ended_at = time.perf_counter()
            return
        super().answered(status, body)
        self.granted += 1


async def _require_orders(dsn: str, granted: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetchval("SELECT count(*) FROM tally.orders WHERE status = 'PENDING'")
    finally:
        await connection.close()
    require(found == granted, f"{granted} were granted over HTTP, and the database has {found}")


@asynccontextmanager
async def _baseline(dsn: str) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.bench.gate_baseline", dsn), stdout=asyncio.subprocess.PIPE
    )
    require(process.stdout is not None, "the baseline's output is a pipe")
    try:
        yield int(await process.stdout.readline()), process  # type: ignore[union-attr]
    finally:
        process.terminate()
        await process.wait()
