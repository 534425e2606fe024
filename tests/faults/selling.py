"""A shop to be killed: API, webhook receiver and every worker in one process, until its standard input is closed.

python -m tests.faults.selling DSN SIMULATOR PORT
"""

import asyncio
import os
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import msgspec
import uvloop

from tallystick import app
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.providers.port import Provider
from tallystick.secret import Secret
from tallystick.settings import LIMITS, Settings
from tallystick.webhooks.flow import Backfill
from tallystick.workers.crew import crew, working
from tallystick.workers.worker import Periodic
from tests.deliveries import TRUSTED
from tests.planted.bugs import BUGS
from tests.providers.worlds import impatient

BUYERS = int(os.environ.get("TALLY_TEST_BUYERS", "400"))
IS_SHORT = BUYERS < 5_000
# Minutes become seconds, in the same proportion: a lease is longer than a permit and an answer together, and what is
# in flight is given longer than the simulator ever delays it. A long run on a busy machine needs more of each.
UNIT_SECONDS = 1.0 if IS_SHORT else 2.0
ANSWER_SECONDS = UNIT_SECONDS
LONGEST_IN_FLIGHT = timedelta(seconds=3 * UNIT_SECONDS)
LEASE_SECONDS = 3 * UNIT_SECONDS
# So short that whoever's webhook is late has lost his reservation.
TTL_SECONDS = 2.5 if IS_SHORT else 40.0
GRACE_SECONDS = 0.3
BACKFILL_SECONDS = 6.0
HURRIED = replace(
    LIMITS,
    send_seconds=2 * UNIT_SECONDS,
    payment_lease_seconds=4 * UNIT_SECONDS,
    payment_stuck_seconds=2 * UNIT_SECONDS,
    payment_wait_seconds=2 * UNIT_SECONDS,
    saga_wait_seconds=1.0,
    saga_look_seconds=5.0,
)

_simulated = app.simulator


def hurried(url: str, webhook_secret: Secret | None = None) -> Provider:
    """The simulator as a provider that is waited for a second instead of minutes."""
    provider = _simulated(url, webhook_secret)
    provider.facts = msgspec.structs.replace(
        provider.facts, longest_in_flight=LONGEST_IN_FLIGHT, answer_seconds=ANSWER_SECONDS
    )
    impatient(provider, ANSWER_SECONDS)
    return provider


def settings(dsn: str, port: int = 0) -> Settings:
    return Settings(
        database_url=dsn,
        port=port,
        simulator_webhook_secret=TRUSTED,
        reservation_ttl_seconds=TTL_SECONDS,
        reservation_grace_seconds=GRACE_SECONDS,
        # Who is not answered gives up at once: else nothing would be left to come late.
        sweep_hold_seconds=0.0,
        lease_seconds=LEASE_SECONDS,
    )


async def main(dsn: str, url: str, port: int) -> None:
    cast("Any", app).simulator = hurried
    own = settings(dsn, port)
    async with app.running(own, limits=HURRIED, migrating=False, simulator_url=url) as service:
        workers = crew(service)
        for name, provider in service.providers.items():
            backfill = Backfill(service.database, name, provider)
            workers.append(Periodic("hurried backfill", backfill.run_once, every_seconds=BACKFILL_SECONDS))
        async with working(workers):
            serving = asyncio.create_task(
                serve(build(service), "127.0.0.1", port, on_listening=lambda _host, at: print(at, flush=True))
            )
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), serving.cancel)
            await asyncio.wait([serving])
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    if planted := os.environ.get("TALLY_TEST_PLANT"):
        BUGS[planted].plant()
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
