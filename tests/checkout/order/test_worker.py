"""The sweeper's loop: no pause while there is work, a pause when there is none, and it outlives an outage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tallystick import app
from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.worker import SweeperWorker
from tallystick.errors import InvariantBroken
from tallystick.settings import LIMITS, Limits, Settings
from tallystick.workers.crew import crew, working
from tests import servers
from tests.faults.wire import wire
from tests.ledgers import broken
from tests.orders import A_MOMENT, NONE, Store, emptied, expired, store, wish

# A pause that no test could sit out: who passes, did not pause.
NEVER = replace(LIMITS, sweep_pause_seconds=600.0, sweep_chunk=2)
EAGER = replace(LIMITS, sweep_pause_seconds=0.02, worker_first_pause_seconds=0.01, worker_longest_pause_seconds=0.05)


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


@asynccontextmanager
async def hasty(dsn: str, *, limits: Limits = LIMITS) -> AsyncIterator[Store]:
    """Reservations hold a moment."""
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=limits) as shop:
        await shop.put(200)
        yield shop


@asynccontextmanager
async def at_work(one: SweeperWorker) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()
    task = asyncio.create_task(one.run(stopping))
    try:
        async with asyncio.timeout(60):
            yield stopping
            stopping.set()
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def available(shop: Store, wanted: int) -> None:
    while (await shop.figures())[2] != wanted:
        await asyncio.sleep(0.01)


async def test_it_goes_on_at_once_while_there_is_work(dsn: str) -> None:
    """Fifty, at most twenty in a sweep: with a pause between two of them this would not end."""
    async with hasty(dsn, limits=NEVER) as shop:
        await asyncio.gather(*(shop.made(f"k{number}") for number in range(50)))
        await expired(dsn)
        worker = SweeperWorker(shop.orders, limits=NEVER)
        assert await worker.run_once() == Swept(cancelled=20, released=20, is_complete=False)
        async with at_work(worker):
            await available(shop, 200)
    assert await broken(dsn) == {}


async def test_a_stop_ends_a_pause(dsn: str) -> None:
    async with hasty(dsn, limits=NEVER) as shop, at_work(SweeperWorker(shop.orders, limits=NEVER)) as stopping:
        await asyncio.sleep(0)
        stopping.set()


async def test_it_sweeps_what_expires_while_it_runs_and_outlives_an_outage(
    dsn: str,
) -> None:
    async with (
        hasty(dsn) as shop,
        wire(dsn) as (cable, address),
        store(address, grace=NONE, limits=EAGER) as swept,
        at_work(SweeperWorker(swept.orders, limits=EAGER)),
    ):
        await shop.made("a", wish(quantity=3))
        await available(shop, 200)
        cable.is_down = True
        # Once it was refused a connection it has none left.
        with capture_logs() as said:
            while not any(event["event"] == "sweep_interrupted" for event in said):
                await swept.database.close()
                await asyncio.sleep(0.01)
        await shop.made("b", wish(quantity=5))
        await expired(dsn)
        assert (await shop.figures())[2] == 195
        cable.is_down = False
        await available(shop, 200)
    assert await broken(dsn) == {}


async def test_a_broken_invariant_ends_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hasty(dsn) as shop:
        worker = SweeperWorker(shop.orders)

        async def broken_run() -> Swept:
            raise InvariantBroken("more was given back than was held")

        monkeypatch.setattr(worker, "run_once", broken_run)
        with pytest.raises(InvariantBroken):
            async with working([worker]):
                await asyncio.sleep(60)


async def test_every_process_that_works_sweeps(dsn: str) -> None:
    """With the times of the settings."""
    settings = Settings(database_url=dsn, reservation_ttl_seconds=0.001, reservation_grace_seconds=0.0)
    async with app.running(settings) as service, hasty(dsn) as shop:
        tenant = shop.tenant
        made = await service.orders.reserve(tenant, wish(), "k")
        assert not hasattr(made, "code"), made
        await expired(dsn)
        (sweeper,) = [worker for worker in crew(service) if isinstance(worker, SweeperWorker)]
        assert await sweeper.run_once() == Swept(cancelled=1, released=1)
