"""`tally bench abuse`: genuine webhooks beside senders who mean harm and need no key for it.

    slow      500 connections that promise a megabyte and send a byte now and then; closed, they come again
    forged    5,000 webhooks a second with a wrong signature, by schedule, from 256 addresses
    genuine   so many a second by schedule, from another address; waiting counts from the planned moment

The figure is the genuine ones' p99, and its baseline the same without the others. After each run every acknowledged
event must be in the table, once, and nothing else; and 4,500 forged ones a second must really have been sent. Each load
runs in a process of its own, and so does the receiver.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from tallystick.bench import ground
from tallystick.bench.pauses import watched
from tallystick.bench.result import Result, median, ratio
from tallystick.bench.webhooks import driven_by, received_by, stored_in
from tallystick.bench.webhooks_load import Driven, Order
from tallystick.errors import require
from tallystick.settings import LIMITS, Settings

_PATH: Final = "/webhooks/simulator"
_SLOW: Final = 500
_SLOW_ADDRESS: Final = "127.0.0.3"
# A byte that often: as a whole they come to some thousand packets a second.
_DRIP_SECONDS: Final = 0.25
_FORGED_PER_SECOND: Final = 5_000.0
# What was really sent and answered. Below it, it is the forgers who are slow, and the figure says nothing.
_FEWEST_FORGED_PER_SECOND: Final = 4_500.0
# A shorter run shows that it works, and measures nothing.
_MEASURED_SECONDS: Final = 3.0
_FORGED_CONNECTIONS: Final = 256
# One for each connection: of those of one address the refusals would wait (`http/refusals.py`).
_FORGED_ADDRESS: Final = "127.0.1.0"
_GENUINE_PER_SECOND: Final = 500.0
_GENUINE_CONNECTIONS: Final = 64
# The forgers begin before the genuine, and end after them.
_MARGIN_SECONDS: Final = 1.0


class _Run(msgspec.Struct, frozen=True):
    genuine: Driven
    forged: Driven | None
    receiver_cpu_seconds: float


async def abuse(settings: Settings, *, seconds: float, runs: int, seed: int) -> Result:
    """Medians of several runs beside the others, and of as many alone."""
    alone: list[_Run] = []
    beside: list[_Run] = []
    async with ground.server(settings) as dsn:
        with watched() as halts:
            for run in range(runs):
                alone.append(await _measured(dsn, seed=seed + run, seconds=seconds, is_attacked=False))
                beside.append(await _measured(dsn, seed=seed + run, seconds=seconds, is_attacked=True))
        last = beside[-1].genuine
        halted = halts.details("", since=last.began_at, seconds=last.seconds)
    value, base = (median([one.genuine.p99_ms for one in found]) for found in (beside, alone))
    forged = [one.forged for one in beside if one.forged is not None]
    return Result(
        bench="abuse",
        value=value,
        unit="ms p99 of genuine webhooks, open loop",
        baseline=base,
        ratio=ratio(value, base),
        baseline_is="the same without slow and forged ones",
        details={
            "runs": [one.genuine.p99_ms for one in beside],
            "baseline_runs": [one.genuine.p99_ms for one in alone],
            "p50_ms": median([one.genuine.p50_ms for one in beside]),
            "longest_ms": max(one.genuine.longest_ms for one in beside),
            "genuine_per_second": _GENUINE_PER_SECOND,
            "genuine_behind_ms": max(one.genuine.behind_ms for one in beside),
            "slow_senders": _SLOW,
            "forged_per_second": round(median([one.answered / one.seconds for one in forged])),
            "receiver_cpu_seconds": median([one.receiver_cpu_seconds for one in beside]),
            "baseline_receiver_cpu_seconds": median([one.receiver_cpu_seconds for one in alone]),
            **halted,
        },
    )


async def _measured(server_dsn: str, *, seed: int, seconds: float, is_attacked: bool) -> _Run:
    async with ground.database(server_dsn) as dsn:
        async with received_by(dsn, "ours") as (port, ended):
            forging = None
            async with _slow_senders(port, _SLOW if is_attacked else 0) as slow:
                if is_attacked:
                    forging = asyncio.create_task(driven_by(_forged(port, seed, seconds + 2 * _MARGIN_SECONDS)))
                    await asyncio.sleep(_MARGIN_SECONDS)
                genuine = await driven_by(_genuine(port, seed, seconds))
                forged = None if forging is None else await forging
                require(not is_attacked or slow.dripped > _SLOW * seconds / _DRIP_SECONDS / 2, "few slow senders came")
            used = await ended()
        require(set(genuine.statuses) == {"200"} and not genuine.unanswered, f"not all were acknowledged: {genuine}")
        require(forged is None or set(forged.statuses) == {"400"}, f"not all forged ones were refused: {forged}")
        if forged is not None and seconds >= _MEASURED_SECONDS:
            rate = forged.answered / forged.seconds
            require(rate >= _FEWEST_FORGED_PER_SECOND, f"only {rate:,.0f} forged ones a second were sent")
        stored = await stored_in(dsn, "count")
        require(stored == genuine.distinct, f"{genuine.distinct} events were acknowledged, and {stored} are there")
    return _Run(genuine, forged, used.cpu_seconds)


def _genuine(port: int, seed: int, seconds: float) -> Order:
    return Order(
        ports=(port,),
        path=_PATH,
        secret=ground.WEBHOOK_SECRET,
        seed=seed,
        run=f"{seed:x}",
        count=int(_GENUINE_PER_SECOND * seconds),
        seconds=seconds,
        connections=_GENUINE_CONNECTIONS,
        rate=_GENUINE_PER_SECOND,
    )


def _forged(port: int, seed: int, seconds: float) -> Order:
    return Order(
        ports=(port,),
        path=_PATH,
        secret="whsec_of_somebody_else",  # noqa: S106 - that it is wrong is the point
        seed=seed,
        run=f"f{seed:x}",
        count=int(_FORGED_PER_SECOND * seconds),
        seconds=seconds,
        connections=_FORGED_CONNECTIONS,
        rate=_FORGED_PER_SECOND,
        from_address=_FORGED_ADDRESS,
        addresses=_FORGED_CONNECTIONS,
    )


class _Slow:
    """How many are connected, and whether all were."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._connected = 0
        self.complete = asyncio.Event()
        self.dripped = 0

    def come(self) -> None:
        self._connected += 1
        if self._connected == self._count:
            self.complete.set()

    def go(self) -> None:
        self._connected -= 1


@asynccontextmanager
async def _slow_senders(port: int, count: int) -> AsyncIterator[_Slow]:
    """Connected before the block begins, and again whenever they are closed."""
    slow = _Slow(count)
    tasks = [asyncio.create_task(_drip(port, slow)) for _ in range(count)]
    try:
        if count:
            async with asyncio.timeout(LIMITS.connect_seconds):
                await slow.complete.wait()
        yield slow
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _drip(port: int, slow: _Slow) -> None:
    head = f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMITS.webhook_body_bytes}\r\n\r\n"
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(_SLOW_ADDRESS, 0))
        slow.come()
        try:
            writer.write(head.encode())
            while not reader.at_eof() and not writer.is_closing():
                writer.write(b"x")
                slow.dripped += 1
                await asyncio.sleep(_DRIP_SECONDS)
        except ConnectionError:
            pass
        finally:
            slow.go()
            writer.close()
