"""A consumer in a process of its own, which kills itself at a point.

python -m tests.webhooks.log.intake_child DSN BOOTSTRAP TOPIC POINT

    before   everything is read, nothing is committed in the database
    between  the database has it, Kafka has not noted it
    after    both have it; the process never said so
"""

import asyncio
import os
import signal
import sys
from typing import Any

from tallystick import app
from tallystick.settings import KafkaSettings, Settings
from tallystick.webhooks.intake import store
from tallystick.webhooks.log.kafka_reader import KafkaReader
from tests.planted.bugs import BUGS
from tests.webhooks.log.grounds import QUICK


def die() -> None:
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def armed(point: str) -> None:
    storing, noting = store.store, KafkaReader.commit

    async def store_or_die(database: Any, topic: str, deliveries: Any, *more: Any) -> Any:
        if point == "before" and deliveries:
            die()
        return await storing(database, topic, deliveries, *more)

    async def note_or_die(self: Any, batch: Any) -> None:
        if point == "between":
            die()
        await noting(self, batch)
        die()

    patched: Any = store
    patched.store = store_or_die
    reader: Any = KafkaReader
    reader.commit = note_or_die


async def main(dsn: str, bootstrap: str, topic: str) -> None:
    settings = Settings(database_url=dsn, kafka=KafkaSettings(bootstrap, topic))
    async with app.running(settings, limits=QUICK) as service:
        assert service.intake is not None
        while True:
            await service.intake.run_once()


if __name__ == "__main__":
    planted = os.environ.get("TALLY_TEST_PLANT")
    if planted is not None:
        BUGS[planted].plant()
    armed(sys.argv[4])
    asyncio.run(main(*sys.argv[1:4]))
