"""The receiver of `tally bench webhooks` in a process of its own: ours, or the baseline.

python -m tallystick.bench.webhooks_service DSN {ours,baseline}     prints the port, serves until SIGTERM

At its end it prints one line of JSON: peak of memory in use, in MB, and seconds of processor time since it listened.
"""

import asyncio
import gc
import sys

import msgspec
import uvloop

from tallystick import app
from tallystick.bench import ground
from tallystick.bench.processor import own_seconds
from tallystick.bench.settlement_memory import megabytes
from tallystick.bench.webhooks_baseline import baseline
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.secret import Secret
from tallystick.settings import Settings


class Used(msgspec.Struct, frozen=True):
    """What the receiver took."""

    peak_mb: float
    cpu_seconds: float


async def main(dsn: str, side: str) -> None:
    """As `tally serve` does it."""
    gc.set_threshold(50_000)

    before = 0.0

    def listening(_host: str, port: int) -> None:
        nonlocal before
        before = own_seconds()
        print(port, flush=True)  # noqa: T201 - read by the bench

    if side == "ours":
        async with app.running(_settings(dsn), migrating=False) as service:
            await serve(build(service), "127.0.0.1", 0, on_listening=listening)
    else:
        async with baseline(dsn) as simple:
            await serve(simple, "127.0.0.1", 0, on_listening=listening)
    told = Used(megabytes("VmHWM"), round(own_seconds() - before, 3))
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")


def _settings(dsn: str) -> Settings:
    return Settings(database_url=dsn, simulator_webhook_secret=Secret(ground.WEBHOOK_SECRET))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2]))
