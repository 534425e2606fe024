"""The service in a process of its own, for the HTTP benches.

python -m tallystick.bench.service DSN KEY LANES BATCH     prints the port, serves until SIGTERM
"""

import asyncio
import dataclasses
import gc
import resource
import sys

import uvloop

from tallystick import app
from tallystick.access import store as tenants
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.settings import LIMITS, Settings

_PATIENCE_SECONDS = 60.0


async def main(dsn: str, key: str, lanes: int, batch: int) -> None:
    """As `tally serve` does it, with the engine's limits given."""
    gc.set_threshold(50_000)
    # One by one, a batch's thousand operations take longer than callers are kept waiting on a slow machine.
    limits = dataclasses.replace(LIMITS, lanes=lanes, batch=batch, wait_seconds=_PATIENCE_SECONDS)
    async with app.running(Settings(database_url=dsn), limits=limits) as service:
        owner = await tenants.ensure_tenant(service.database, "default")
        await tenants.add_key(service.database, owner, "admin", key)
        await serve(
            build(service),
            "127.0.0.1",
            0,
            on_listening=lambda _host, port: print(port, flush=True),  # noqa: T201
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(peak, flush=True)  # noqa: T201 - read by the bench


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
