"""The shop of `tally bench checkout` in a process of its own: ours, or one of the two it is compared with.

python -m tallystick.bench.checkout_service DSN SIMULATOR KEY SKU STOCK {ours,plain,lean}

Prints the port, serves until SIGTERM.
"""

import asyncio
import gc
import sys
from typing import Literal

import uvloop

from tallystick import app
from tallystick.access import store as tenants
from tallystick.bench import checkout_plain, ground
from tallystick.bench.checkout_lean import lean
from tallystick.bench.checkout_shop import make
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.secret import Secret
from tallystick.settings import Settings
from tallystick.workers.crew import crew, working

Side = Literal["ours", "plain", "lean"]


async def main(dsn: str, simulator: str, key: str, sku: str, stock: int, *, side: Side) -> None:
    """As `tally up` does it: the API, the webhook receiver and every worker."""
    gc.set_threshold(50_000)
    if side == "ours":
        async with app.running(_settings(dsn), migrating=False, simulator_url=simulator) as service:
            owner = await tenants.ensure_tenant(service.database, "default")
            await tenants.add_key(service.database, owner, "admin", key)
            await service.orders.set_stock(owner, sku, stock)
            async with working(crew(service)):
                await serve(build(service), "127.0.0.1", 0, on_listening=_listening)
        return
    await make(dsn, sku, stock)
    if side == "plain":
        await checkout_plain.serve(dsn, simulator, _listening)
    else:
        async with lean(dsn, simulator) as simple:
            await serve(simple, "127.0.0.1", 0, on_listening=_listening)


def _listening(_host: str, port: int) -> None:
    print(port, flush=True)  # noqa: T201 - read by the bench


def _settings(dsn: str) -> Settings:
    return Settings(database_url=dsn, simulator_webhook_secret=Secret(ground.WEBHOOK_SECRET))


if __name__ == "__main__":
    dsn, simulator, key, sku, stock, side = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(dsn, simulator, key, sku, int(stock), side=side))  # type: ignore[arg-type]
