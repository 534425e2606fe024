"""The worker of intake: goes on after trouble, rests when the database is slow, leaves nothing half done."""

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tallystick.errors import InvariantBroken
from tallystick.settings import LIMITS
from tallystick.webhooks.intake.flow import Taken, pause_after
from tallystick.webhooks.intake.worker import IntakeWorker
from tallystick.workers.crew import crew
from tests import kafka as brokers
from tests import servers
from tests.deliveries import delivery, stored
from tests.ledgers import fetchval
from tests.webhooks.log.grounds import PATIENCE_SECONDS, QUICK, grounds

EAGER = replace(QUICK, worker_first_pause_seconds=0.05)


@pytest.mark.parametrize(
    ("took", "rests"),
    [
        (0.0, 0.0),
        (LIMITS.kafka_slow_seconds, 0.0),
        (0.75, 0.75),
        (8.0, 8.0),
        (90.0, LIMITS.intake_longest_rest_seconds),
    ],
)
def test_a_slow_database_is_left_as_much_time_as_was_taken_of_it(took: float, rests: float) -> None:
    assert pause_after(took, LIMITS) == rests


async def test_it_goes_on_when_the_trouble_is_over(embedded18: servers.Server, kafka: brokers.Single) -> None:
    """The database takes nothing for a while; the worker is in the crew, and the event wakes those who process it."""
    dsn = embedded18.fresh_database()
    async with grounds(dsn, kafka.bootstrap, limits=EAGER) as ground:
        assert [worker.name for worker in crew(ground.service)].count("webhook intake (Kafka)") == 1
        assert ground.service.intake is not None
        listener = await asyncpg.connect(dsn)
        heard = asyncio.Event()
        await listener.add_listener("tally_webhook", lambda *_: heard.set())
        holder = await asyncpg.connect(dsn)
        await holder.execute("BEGIN; INSERT INTO tally.webhook_guard VALUES ('simulator', 'evt_1', 0)")
        await ground.service.log.append(delivery(1))
        worker = IntakeWorker(ground.service.intake, limits=EAGER)
        stopping = asyncio.Event()
        running = asyncio.create_task(worker.run(stopping))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await fetchval(dsn, "SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            while await fetchval(dsn, "SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            assert await stored(dsn) == {}
            await holder.execute("ROLLBACK")
            await heard.wait()
            assert set(await stored(dsn)) == {"evt_1"}
            stopping.set()
            await running
        await holder.close()
        await listener.close()


class Broken:
    def __init__(self) -> None:
        self.closed = False

    async def run_once(self) -> Taken:
        raise InvariantBroken("a bug")

    async def close(self) -> None:
        self.closed = True


async def test_a_broken_invariant_ends_it_and_others_take_over() -> None:
    intake: Any = Broken()
    with pytest.raises(InvariantBroken):
        await IntakeWorker(intake).run(asyncio.Event())
    assert intake.closed
