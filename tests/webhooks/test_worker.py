"""The workers of webhooks: woken at once, polling as a backstop, backing off under pressure, whole when they stop."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tallystick import app
from tallystick.errors import InvariantBroken, Unreachable
from tallystick.settings import LIMITS, Settings
from tallystick.webhooks.flow import Processed
from tallystick.webhooks.worker import EventsWorker
from tallystick.workers.crew import crew
from tallystick.workers.worker import Periodic
from tests import servers
from tests.deliveries import delivery, stored
from tests.ledgers import fetchval

# A pause that no test could sit out: who passes, was woken.
NEVER = replace(LIMITS, event_pause_seconds=600.0)
EAGER = replace(LIMITS, event_pause_seconds=0.02, worker_first_pause_seconds=0.02)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@asynccontextmanager
async def at_work(worker: Any) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()
    task = asyncio.create_task(worker.run(stopping))
    try:
        yield stopping
    finally:
        stopping.set()
        async with asyncio.timeout(60):
            await task


async def until_processed(dsn: str, count: int) -> None:
    async with asyncio.timeout(60):
        while list((await stored(dsn)).values()).count("PROCESSED_OK") != count:
            await asyncio.sleep(0.01)


async def until_listening(dsn: str) -> None:
    statement = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    async with asyncio.timeout(60):
        while not await fetchval(dsn, statement):
            await asyncio.sleep(0.01)


async def test_a_stored_event_wakes_the_worker_at_once(dsn: str) -> None:
    """It would look by itself in ten minutes. Stored by another process than the one that works."""
    async with (
        app.running(Settings(database_url=dsn)) as one,
        app.running(Settings(database_url=dsn)) as other,
        at_work(EventsWorker(one.events, limits=NEVER)),
    ):
        await until_listening(dsn)
        for turn in range(3):
            await other.log.append(delivery(turn))
            await until_processed(dsn, turn + 1)


async def test_without_any_notification_the_poll_finds_it(dsn: str) -> None:
    async with app.running(Settings(database_url=dsn)) as service, at_work(EventsWorker(service.events, limits=EAGER)):
        await until_listening(dsn)
        await fetchval(
            dsn,
            "INSERT INTO tally.webhook_events (number, provider, event_id, type, received_at, due_at)"
            " VALUES (1, 'simulator', 'evt_1', 't', now(), now())",
        )
        await until_processed(dsn, 1)


async def test_a_deaf_worker_listens_again(dsn: str) -> None:
    """Its connection was cut by the server: it wakes up, looks, and opens another."""
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    async with app.running(Settings(database_url=dsn)) as service, at_work(EventsWorker(service.events, limits=NEVER)):
        await until_listening(dsn)
        listener = (
            "SELECT coalesce(max(pid), 0) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
        cut = await fetchval(dsn, listener)
        assert await fetchval(dsn, kill) == 1
        async with asyncio.timeout(30):
            while await fetchval(dsn, listener) in (0, cut):
                await asyncio.sleep(0.01)
        await service.log.append(delivery(1))
        await until_processed(dsn, 1)


async def test_told_to_stop_it_finishes_what_it_holds(dsn: str) -> None:
    async with app.running(Settings(database_url=dsn)) as service:
        for number in range(30):
            await service.log.append(delivery(number))
        async with at_work(EventsWorker(service.events, limits=NEVER)) as stopping:
            await until_processed(dsn, 30)
            stopping.set()
    assert set((await stored(dsn)).values()) == {"PROCESSED_OK"}


class Scripted:
    """Events of which each run goes as it is told."""

    def __init__(self, *runs: Exception | Processed) -> None:
        self._runs: Iterator[Exception | Processed] = iter(runs)
        self.asked = 0

    async def run_once(self) -> Processed:
        self.asked += 1
        turn = next(self._runs, Processed())
        if isinstance(turn, Exception):
            raise turn
        return turn

    def ear(self) -> Any:
        class Ear:
            heard = asyncio.Event()

            async def open(self) -> None:
                self.heard.clear()

            async def close(self) -> None:
                self.heard.clear()

        return Ear()


async def test_an_outage_does_not_end_it() -> None:
    events = Scripted(Unreachable("gone"), ValueError("odd"), Processed(claimed=1, ok=1))
    async with at_work(EventsWorker(events, limits=EAGER)):  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            while events.asked < 5:
                await asyncio.sleep(0.01)


class Meeting(Scripted):
    """After the first, a batch is full only for those who are two at a time in it."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first
        self._inside = 0
        self.most_inside = 0

    async def run_once(self) -> Processed:
        self.asked += 1
        if self.asked == 1:
            return Processed(claimed=self._first)
        self._inside += 1
        self.most_inside = max(self.most_inside, self._inside)
        # Who is alone goes on when it is clear that nobody joins him.
        for _ in range(100):
            await asyncio.sleep(0)
        self._inside -= 1
        return Processed()


@pytest.mark.parametrize(("first", "most"), [(LIMITS.event_chunk, LIMITS.event_workers), (LIMITS.event_chunk - 1, 1)])
async def test_only_what_queues_up_is_worked_off_side_by_side(first: int, most: int) -> None:
    """Of a few events, one batch costs less than two."""
    events = Meeting(first)
    async with at_work(EventsWorker(events, limits=EAGER)):  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            while events.asked < 6:
                await asyncio.sleep(0.01)
    assert events.most_inside == most


async def test_a_broken_invariant_is_not_hidden_by_an_outage_beside_it() -> None:
    full = Processed(claimed=LIMITS.event_chunk)
    worker = EventsWorker(Scripted(full, Unreachable("gone"), InvariantBroken("look")), limits=EAGER)  # type: ignore[arg-type]
    with pytest.raises(InvariantBroken):
        await worker.run(asyncio.Event())


async def test_a_broken_invariant_ends_it() -> None:
    worker = EventsWorker(Scripted(InvariantBroken("look")), limits=EAGER)  # type: ignore[arg-type]
    with pytest.raises(InvariantBroken):
        await worker.run(asyncio.Event())


async def test_a_periodic_worker_goes_on_after_a_failure() -> None:
    turns: list[int] = []

    async def once() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise Unreachable("gone")

    async with at_work(Periodic("tests", once, every_seconds=600, limits=EAGER)):
        async with asyncio.timeout(60):
            while len(turns) < 3:
                await asyncio.sleep(0.01)


async def test_every_worker_of_webhooks_is_in_the_crew(dsn: str) -> None:
    async with app.running(Settings(database_url=dsn)) as service:
        names = {worker.name for worker in crew(service)}
    assert {"webhook events", "webhook backfill (simulator)", "webhook bodies"} <= names
