"""Paying many pending settlements in a process of its own, to see what memory that takes.

python -m tallystick.bench.settlement_memory DSN     pays all that is pending, prints one line of JSON
"""

import asyncio
import gc
import resource
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from tallystick.bench.settlement_ground import opened, statuses
from tallystick.bench.settlement_provider import NAME, Instant

_LOOK_SECONDS = 0.1
_PARTS = 10
_STATUS = Path("/proc/self/status")


class Paid(msgspec.Struct, frozen=True):
    """What it took. `at_each_tenth_mb`: memory in use when so much was paid; flat means that it does not climb."""

    rows: int
    seconds: float
    start_mb: float
    peak_mb: float
    at_each_tenth_mb: list[float]


async def main(dsn: str) -> Paid:
    """One tick over everything."""
    provider = Instant()
    async with opened(dsn, {NAME: provider}) as ground:
        pending = (await statuses(ground)).get("pending", 0)
        gc.collect()
        start = megabytes("VmRSS")
        tenths: list[float] = []
        looking = asyncio.create_task(_look(provider, pending, tenths))
        began = time.perf_counter()
        ticked = await ground.settler.tick()
        seconds = time.perf_counter() - began
        looking.cancel()
    return Paid(ticked.transferred, round(seconds, 1), start, megabytes("VmHWM"), tenths)


async def _look(provider: Instant, pending: int, tenths: list[float]) -> None:
    while len(tenths) < _PARTS:
        if provider.transfers * _PARTS >= pending * (len(tenths) + 1):
            tenths.append(megabytes("VmRSS"))
        await asyncio.sleep(_LOOK_SECONDS)


def megabytes(name: str) -> float:
    """From the kernel's own account of this program. getrusage would count what its parent had before it began."""
    if not _STATUS.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = (line.split() for line in _STATUS.read_text(encoding="utf-8").splitlines())
    return round(next(int(line[1]) for line in lines if line[0] == f"{name}:") / 1024, 1)


if __name__ == "__main__":
    # As every bench: most objects live for one chunk.
    gc.set_threshold(50_000)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(main(sys.argv[1]))) + b"\n")
