"""The collector's loop: no pause while there is work, a pause when there is none; an outage does not end it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tallystick import app
from tallystick.errors import InvariantBroken, RestoredDatabase, Unreachable
from tallystick.flows.payment import Collected
from tallystick.settings import LIMITS, Settings
from tallystick.workers import collector as workers
from tallystick.workers.collector import CollectorWorker
from tallystick.workers.crew import crew
from tests import servers
from tests.payments import HURRIED, age, charged, checkout
from tests.providers.worlds import Control

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


class Scripted:
    """Payments whose runs end as told; then the loop is."""

    def __init__(self, *ends: object) -> None:
        self.ends = list(ends)
        self.is_over = asyncio.Event()

    async def collect(self) -> Collected:
        if not self.ends:
            self.is_over.set()
            return Collected()
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        assert isinstance(end, Collected)
        return end


async def test_an_outage_does_not_end_it_and_a_restored_database_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_RESTORED_SECONDS", 0.0)
    script = Scripted(Unreachable("away"), RestoredDatabase(), Collected(claimed=1, completed=1))
    with capture_logs() as said:
        async with at_work(CollectorWorker(script, limits=replace(LIMITS, payment_pause_seconds=0.01))):  # type: ignore[arg-type]
            await script.is_over.wait()
    events = [line["event"] for line in said]
    assert events == ["collector_interrupted", "collector_stopped", "collected"]
    assert "tally recover" in said[1]["reason"]


async def test_a_broken_invariant_ends_it() -> None:
    script = Scripted(InvariantBroken("two for one"))
    with pytest.raises(InvariantBroken):
        await CollectorWorker(script).run(asyncio.Event())  # type: ignore[arg-type]


async def test_it_is_one_of_the_crew(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        assert "collector (charges)" in [worker.name for worker in crew(service)]
