"""A COMMIT whose wait for the standbys was cut short is not one that a payment may rest on."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tallystick.commit.port import Lost
from tallystick.database import pool as postgres
from tallystick.database.pool import Database
from tallystick.errors import OutcomeUnknown
from tallystick.settings import LIMITS
from tests.failover.cluster import Cluster
from tests.providers.worlds import WORLDS, Control
from tests.sends import send_alone
from tests.settlements import books, shop

# Told soon that nobody knows: the batch is not tried again for five seconds.
HURRIED = replace(LIMITS, outage_seconds=0.2)
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'tallystick'"
CANCEL = (
    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity"
    " WHERE wait_event = 'SyncRep' AND application_name = 'tallystick'"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.start()
    yield made
    made.remove()


@pytest.fixture
def dsn(cluster: Cluster) -> str:
    return cluster.primary.fresh_database()


async def opened(dsn: str) -> Database:
    return await postgres.connect(dsn, connections=4, limits=HURRIED)


async def cut_short(cluster: Cluster, work: "asyncio.Task[Any]") -> int:
    """Every wait for the standbys is cancelled as soon as there is one, until the work has ended. How many were."""
    cut = 0
    watcher = await asyncpg.connect(cluster.primary.dsn("postgres", user="postgres"))
    try:
        while not work.done():
            cut += await watcher.fetchval(CANCEL)
            await asyncio.sleep(0.005)
    finally:
        await watcher.close()
    return cut


async def test_a_commit_that_the_standbys_confirm_is_believed(cluster: Cluster, dsn: str) -> None:
    database = await opened(dsn)
    try:
        async with database.writing() as connection:
            await connection.execute("CREATE TABLE public.kept (n integer)")
    finally:
        await database.close()
    assert await cluster.primary.ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == 2


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_whose_wait_was_cut_short_is_in_doubt(cluster: Cluster, dsn: str, end: str) -> None:
    """It is committed here: the server says so, with a warning that must not be passed over."""
    database = await opened(dsn)
    try:
        async with database.writing() as connection:
            await connection.execute("CREATE TABLE public.kept (n integer)")

        async def write() -> None:
            async with database.writing() as connection:
                await connection.execute("INSERT INTO public.kept VALUES (1)")

        with cluster.standbys["anna"].halted(), cluster.standbys["bert"].halted():
            writing = asyncio.create_task(write())
            while not await cluster.primary.ask(WAITING):
                await asyncio.sleep(0.005)
            await cluster.primary.ask(CANCEL.replace("pg_cancel_backend", end))
            with pytest.raises(Lost) as lost:
                await writing
        assert lost.value.commit_sent
        name = dsn.split("@/")[1].split("?", maxsplit=1)[0]
        assert await cluster.primary.ask("SELECT count(*) FROM public.kept", database=name) == 1
    finally:
        await database.close()


async def test_what_only_finds_a_commit_in_doubt_waits_for_the_standbys_too(cluster: Cluster, dsn: str) -> None:
    """A transaction that writes nothing does not wait. Run again after a doubt it would turn it into a certainty."""
    database = await opened(dsn)
    try:
        async with database.writing() as connection:
            await connection.execute("CREATE TABLE public.kept (n integer PRIMARY KEY)")

        async def write() -> None:
            async with database.writing() as connection:
                await connection.execute("INSERT INTO public.kept VALUES (1) ON CONFLICT DO NOTHING")

        with cluster.standbys["anna"].halted(), cluster.standbys["bert"].halted():
            for _ in range(3):
                writing = asyncio.create_task(write())
                assert await cut_short(cluster, writing) == 1
                assert isinstance(writing.exception(), Lost)
        await write()
    finally:
        await database.close()


async def test_nothing_is_sent_on_a_leave_that_a_failover_would_lose(
    cluster: Cluster, dsn: str, control: Control
) -> None:
    async with shop(dsn, control, limits=HURRIED) as till:
        view = await till.create("a")
        with cluster.standbys["anna"].halted(), cluster.standbys["bert"].halted():
            ticking = asyncio.create_task(till.tick())
            assert await cut_short(cluster, ticking) >= 1
            assert ticking.exception() is not None
        assert books(control) == []
        assert await till.attempts(view) == [None], "the permit is committed here, and was not used"
        await till.until_quiet()
        assert (await till.read(view.id)).status == "transferred"
        assert len(books(control)) == 1


async def test_a_sender_is_told_that_its_leave_is_in_doubt(cluster: Cluster, dsn: str, control: Control) -> None:
    """The way that charges and refunds take: the batch is run again, and each time nobody confirms it."""
    stripe = next(world for world in WORLDS if world.name == "stripe")
    async with shop(dsn, control, limits=HURRIED) as till:
        with cluster.standbys["anna"].halted(), cluster.standbys["bert"].halted():
            sending = asyncio.create_task(
                send_alone(
                    till.database,
                    till.sender,
                    till.providers["simulator"],
                    till.tenant,
                    stripe.instruction(),
                    since=datetime.now(UTC),
                    name="simulator",
                    limits=HURRIED,
                )
            )
            assert await cut_short(cluster, sending) >= 1
            assert isinstance(sending.exception(), OutcomeUnknown)
        assert books(control) == []
