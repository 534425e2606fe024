"""`tally bench checkout`: reserve, pay, webhook, PAID, end to end over HTTP, everybody after the same SKU.

    ours       the service as `tally up` runs it: API, webhook receiver and workers in one process
    baseline   one transaction for each step (`checkout_shop`), on our own server, adapter and signature check
               (`checkout_lean`): what is compared is the transactions alone
    plain      the same shop of the parts that everybody takes, where they are installed (`checkout_plain`: FastAPI,
               uvicorn, the provider's package)
    all        the same buyers, and the same simulator in a process of its own, which charges and sends signed webhooks

A buyer reserves, pays with a card, and waits until his order is PAID: ours keeps him waiting, the others are asked
again.
After each run the simulator's books must have one payment for each order that is PAID, and everything is verified.
"""

import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from tallystick.bench import cpu, ground, http
from tallystick.bench.checkout_load import Bought, Sale
from tallystick.bench.checkout_plain import IS_HERE
from tallystick.bench.checkout_service import Side
from tallystick.bench.checkout_shop import CONNECTIONS, SQL
from tallystick.bench.result import Result, median, ratio
from tallystick.errors import require
from tallystick.providers.http import Http, Reply
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Settings
from tallystick.simulator.process import RunningSimulator, start

BUYERS: Final = 256
_SKU: Final = "flash-sale"
_STOCK: Final = 1_000_000_000
_ANSWER_SECONDS: Final = 20.0
# Unmeasured, at the beginning: connections are opened, statements planned, and the tables are no longer empty.
_WARM_SECONDS: Final = 1.0

Details = dict[str, float | int | str | list[float]]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Processor time in microseconds for each checkout; 0: it cannot be seen."""

    bought: Bought
    service_us: float
    server_us: float
    simulator_us: float
    buyers_us: float
    wal_bytes: float

    @property
    def per_second(self) -> float:
        return self.bought.checkouts / self.bought.seconds


async def checkout(settings: Settings, *, seconds: float, runs: int, seed: int, buyers: int = BUYERS) -> Result:
    """Medians of several runs of all, in turns."""
    found: dict[Side, list[Measured]] = {"ours": [], "lean": []}
    if IS_HERE:
        found["plain"] = []
    async with ground.server(settings) as dsn:
        for run in range(runs):
            for side, measured in found.items():
                measured.append(await _measured(dsn, seconds=seconds, seed=seed + run, buyers=buyers, side=side))
    rates = {side: median([one.per_second for one in measured]) for side, measured in found.items()}
    details = _figures("", found["ours"]) | _figures("baseline_", found["lean"])
    if IS_HERE:
        details |= {"ratio_to_plain": ratio(rates["ours"], rates["plain"])} | _figures("plain_", found["plain"])
    return Result(
        bench="checkout",
        value=round(rates["ours"]),
        unit="checkouts/s",
        baseline=round(rates["lean"]),
        ratio=ratio(rates["ours"], rates["lean"]),
        baseline_is=f"Starlette on our server, one transaction per step, {CONNECTIONS} connections, plain tables",
        details=details,
    )


def _figures(prefix: str, found: list[Measured]) -> Details:
    details: Details = {
        f"{prefix}runs": [round(one.per_second) for one in found],
        f"{prefix}p50_ms": median([one.bought.p50_ms for one in found]),
        f"{prefix}p99_ms": median([one.bought.p99_ms for one in found]),
    }
    for field in ("service_us", "server_us", "simulator_us", "buyers_us", "wal_bytes"):
        details[f"{prefix}{field}_per_checkout"] = round(median([getattr(one, field) for one in found]))
    return details


async def _measured(server_dsn: str, *, seconds: float, seed: int, buyers: int, side: Side) -> Measured:
    async with ground.database(server_dsn) as dsn, AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-bench-"))
        simulator = await asyncio.to_thread(start, Path(folder) / "books.sqlite")
        stack.push_async_callback(asyncio.to_thread, simulator.stop)
        async with _service(dsn, simulator.url, side) as (port, pid):
            endpoint = {
                "url": f"http://127.0.0.1:{port}/webhooks/simulator",
                "secrets": [ground.WEBHOOK_SECRET],
            }
            await _asked(simulator.url, "PUT", "/_sim/endpoints/stripe", endpoint)
            warm = await Sale(port=port, buyers=buyers, seconds=_WARM_SECONDS, seed=-seed, sku=_SKU).run()
            sale = Sale(port=port, buyers=buyers, seconds=seconds, seed=seed, sku=_SKU)
            gc.collect()
            wal, _ = await ground.wal_position(dsn)
            before = await _cpu(dsn, pid, simulator.pid)
            bought = await sale.run()
            after = await _cpu(dsn, pid, simulator.pid)
            wal_after, _ = await ground.wal_position(dsn)
        await _require(dsn, simulator, warm.checkouts + bought.checkouts, is_ours=side == "ours")
    used = [1e6 * (late - early) / bought.checkouts for early, late in zip(before, after, strict=True)]
    return Measured(
        bought=bought,
        service_us=used[0],
        server_us=used[1],
        simulator_us=used[2],
        buyers_us=used[3],
        wal_bytes=(wal_after - wal) / bought.checkouts,
    )


async def _require(dsn: str, simulator: RunningSimulator, checkouts: int, *, is_ours: bool) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        paid = await connection.fetchval(SQL["paid" if is_ours else "baseline_paid"])
    finally:
        await connection.close()
    books = await _asked(simulator.url, "GET", "/_sim/books")
    charged = sum(
        entry["count"] for entry in books["entries"] if (entry["kind"], entry["state"]) == ("payment_intent", "moved")
    )
    require(
        checkouts == paid == charged,
        f"buyers heard of {checkouts} orders that are PAID; the database has {paid}, the provider {charged} payments",
    )
    if is_ours:
        await ground.checked(dsn)


async def _cpu(dsn: str, service: int, simulator: int) -> tuple[float, ...]:
    server = await cpu.server_seconds(dsn) or 0.0
    return cpu.seconds(service), server, cpu.seconds(simulator), cpu.own_seconds()


@asynccontextmanager
async def _service(dsn: str, simulator_url: str, side: Side) -> AsyncIterator[tuple[int, int]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.bench.checkout_service"),
        *(dsn, simulator_url, http.KEY, _SKU, str(_STOCK), side),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    require(process.stdout is not None, "the service's output is a pipe")
    try:
        yield int(await process.stdout.readline()), process.pid  # type: ignore[union-attr]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _asked(url: str, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - the simulator's own words
    client = Http(url)
    try:
        given = b"" if body is None else json.dumps(body).encode()
        request = client.request(method, path, [], given)
        until = steady() + LIMITS.send_seconds
        reply = await client.send(request, sendable_until=until, answer_seconds=_ANSWER_SECONDS)
    finally:
        await client.close()
    if not isinstance(reply, Reply) or reply.status >= 300:  # noqa: PLR2004 - good ones are below
        message = f"the simulator did not answer: {reply}"
        raise RuntimeError(message)
    return json.loads(reply.body or b"null")
