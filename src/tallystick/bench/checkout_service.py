"""The shop of `tally bench checkout` in a process of its own: ours, or the baseline.

python -m tallystick.bench.checkout_service DSN SIMULATOR KEY SKU STOCK {ours,baseline}

Prints the port, serves until SIGTERM.
"""

import asyncio
import gc
import sys

import uvloop

from tallystick import app
from tallystick.bench.checkout_baseline import baseline, make
from tallystick.settings import Settings
from tallystick.store import tenant as tenants
from tallystick.web.api import build
from tallystick.web.server import serve
from tallystick.workers.crew import crew, working


async def main(dsn: str, simulator: str, key: str, sku: str, stock: int, *, is_ours: bool) -> None:
    """As `tally up` does it: the API, the webhook receiver and every worker."""
    gc.set_threshold(50_000)
    if is_ours:
        async with app.running(Settings(database_url=dsn), migrating=False, simulator_url=simulator) as service:
            owner = await tenants.ensure_tenant(service.database, "default")
            await tenants.add_key(service.database, owner, "admin", key)
            await service.orders.set_stock(owner, sku, stock)
            async with working(crew(service)):
                await serve(build(service), "127.0.0.1", 0, on_listening=_listening)
    else:
        await make(dsn, sku, stock)
        async with baseline(dsn, simulator) as simple:
            await serve(simple, "127.0.0.1", 0, on_listening=_listening)


def _listening(_host: str, port: int) -> None:
    print(port, flush=True)  # noqa: T201 - read by the bench


if __name__ == "__main__":
    dsn, simulator, key, sku, stock, side = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(dsn, simulator, key, sku, int(stock), is_ours=side == "ours"))
