"""The collector's loop: no pause while there is work, a pause when there is none; an outage does not end it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
from structlog.testing import capture_logs

from tallystick import app
from tallystick.checkout.payment.worker import CollectorWorker
from tallystick.settings import Settings
from tallystick.workers.crew import crew
from tests import servers
from tests.orders import execute
from tests.payments import HURRIED, age, charged, checkout
from tests.providers.worlds import Control
from tests.servers import AT_HOME
from tests.settlements import superuser

# A pause that no test could sit out: who passes, did not pause.
NEVER = replace(HURRIED, payment_pause_seconds=600.0, payment_chunk=1)


@asynccontextmanager
async def at_work(one: CollectorWorker) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    task = asyncio.create_task(one.run(stopping))
    try:
        async with asyncio.timeout(60):
            yield
            stopping.set()
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_goes_on_at_once_while_there_is_work(embedded18: servers.Server, control: Control) -> None:
    dsn = embedded18.fresh_database()
    async with checkout(dsn, control, limits=NEVER) as shop:
        control.plan("stripe.charge:execute_then_drop@1-3")
        orders = [await shop.order(f"k{number}") for number in range(3)]
        for order in orders:
            await shop.pending(order)
        await age(dsn)
        async with at_work(CollectorWorker(shop.payments, limits=NEVER)):
            while any([await shop.statuses(order) != ["COMPLETED"] for order in orders]):
                await asyncio.sleep(0.01)
    assert len(charged(control)) == 3


async def heard(said: list[Any], event: str) -> Any:
    while not (found := [line for line in said if line["event"] == event]):
        await asyncio.sleep(0.01)
    return found[0]


async def test_neither_an_outage_nor_a_restored_database_ends_it(embedded18: servers.Server, control: Control) -> None:
    dsn = embedded18.fresh_database()
    limits = replace(HURRIED, payment_pause_seconds=0.01, worker_restored_seconds=0.01)
    async with checkout(dsn, control, limits=limits) as shop:
        control.plan("stripe.charge:execute_then_drop")
        order = await shop.order()
        await shop.pending(order)
        await age(dsn)
        await execute(superuser(dsn), "UPDATE tally.whereabouts SET database = 0")
        with capture_logs() as said:
            async with at_work(CollectorWorker(shop.payments, limits=limits)):
                stopped = await heard(said, "collector_stopped")
                assert "tally recover" in stopped["reason"]
                assert await shop.statuses(order) == ["PENDING"]
                owner = await asyncpg.connect(dsn)
                async with owner.transaction():
                    # Nobody gets at the log for longer than a worker waits.
                    await owner.execute("LOCK tally.payment_idempotency_log")
                    await execute(superuser(dsn), AT_HOME)
                    await heard(said, "collector_interrupted")
                await owner.close()
                await heard(said, "collected")
        assert await shop.statuses(order) == ["COMPLETED"]


async def test_it_is_one_of_the_crew(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        assert "collector (charges)" in [worker.name for worker in crew(service)]
