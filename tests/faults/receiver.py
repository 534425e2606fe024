"""A webhook receiver in a process of its own, to be killed.

python -m tests.faults.receiver DSN     prints its port, serves until it is ended
"""

import asyncio
import os
import sys

from tallystick import app
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.settings import Settings
from tests.deliveries import TRUSTED
from tests.planted.bugs import BUGS


async def main(dsn: str) -> None:
    async with app.running(Settings(database_url=dsn, simulator_webhook_secret=TRUSTED)) as service:
        await serve(build(service), "127.0.0.1", 0, on_listening=lambda _host, port: print(port, flush=True))


if __name__ == "__main__":
    planted = os.environ.get("TALLY_TEST_PLANT")
    if planted is not None:
        BUGS[planted].plant()
    asyncio.run(main(sys.argv[1]))
