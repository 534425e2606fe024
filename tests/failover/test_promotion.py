"""The promotion that ships: the old primary is left without standbys, and the one that has most takes over."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tallystick.store import database as postgres
from tests.failover.cluster import Cluster
from tests.failover.promotion import promote


@pytest.fixture
def confirmed() -> Iterator[Cluster]:
    made = Cluster()
    made.start()
    yield made
    made.remove()


async def test_the_standby_that_confirmed_is_the_one_that_is_promoted(confirmed: Cluster) -> None:
    """One standby was away while the other confirmed: whichever is named first, the one with the commits wins."""
    name = confirmed.primary.fresh_database().split("@/")[1].split("?", maxsplit=1)[0]
    await confirmed.primary.ask("CREATE TABLE public.kept (n integer)", database=name)
    behind, ahead = confirmed.standbys["anna"], confirmed.standbys["bert"]
    behind.stop()
    for number in range(20):
        await confirmed.primary.ask("INSERT INTO public.kept VALUES ($1)", number, database=name)
    confirmed.primary.kill()
    behind.start()
    promoted = await asyncio.to_thread(promote, confirmed, "anna", "bert")
    assert promoted is ahead
    assert await promoted.ask("SELECT count(*) FROM public.kept", database=name) == 20
    # The other follows it: a commit is confirmed again.
    await promoted.ask("INSERT INTO public.kept VALUES (20)", database=name)
    assert await promoted.ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == 1


async def test_an_old_primary_without_its_standbys_can_no_longer_commit(confirmed: Cluster) -> None:
    """It was not dead, only out of sight: what it would give leave to now would be lost."""
    name = confirmed.primary.fresh_database().split("@/")[1].split("?", maxsplit=1)[0]
    await confirmed.primary.ask("CREATE TABLE public.kept (n integer)", database=name)
    await asyncio.to_thread(promote, confirmed, "anna", "bert")
    writing = asyncio.create_task(
        confirmed.primary.ask("INSERT INTO public.kept VALUES (1) RETURNING n", database=name)
    )
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    while not await confirmed.primary.ask(waiting):
        await asyncio.sleep(0.01)
    assert not writing.done()
    confirmed.primary.kill()
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await writing


async def test_a_standby_that_cannot_be_reached_stops_the_promotion(confirmed: Cluster) -> None:
    """It may still confirm what the old primary commits."""
    confirmed.standbys["anna"].stop()
    with pytest.raises(AssertionError, match="Nothing was promoted"):
        await asyncio.to_thread(promote, confirmed, "anna", "bert")
    assert await confirmed.standbys["bert"].ask("SELECT pg_is_in_recovery()")


async def test_a_promotion_that_is_refused_takes_no_standby_away(confirmed: Cluster) -> None:
    """The primary may be well: without its standbys it would wait at each COMMIT, and nobody was told."""
    before = await confirmed.standbys["bert"].ask("SHOW primary_conninfo")
    confirmed.standbys["anna"].stop()
    with pytest.raises(AssertionError, match="bert reads from its primary again"):
        await asyncio.to_thread(promote, confirmed, "anna", "bert")
    assert await confirmed.standbys["bert"].ask("SHOW primary_conninfo") == before
    async with asyncio.timeout(30):
        while not await confirmed.primary.ask("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"):
            await asyncio.sleep(0.05)
        await confirmed.primary.ask("CREATE TABLE committed ()")


async def test_a_promotion_that_is_run_again_makes_no_second_primary(confirmed: Cluster) -> None:
    """The terminal was lost, and with it what the first run said."""
    primary = await asyncio.to_thread(promote, confirmed, "anna", "bert")
    with pytest.raises(AssertionError, match=r"(?s)is a primary already.*Nothing was promoted"):
        await asyncio.to_thread(promote, confirmed, "anna", "bert")
    standing = [await one.ask("SELECT pg_is_in_recovery()") for one in confirmed.standbys.values()]
    assert sorted(standing) == [False, True]
    async with asyncio.timeout(30):
        await primary.ask("CREATE TABLE committed ()")


async def test_one_address_for_all_servers_leads_to_the_new_primary(confirmed: Cluster) -> None:
    """As an application is told it, once and for all."""
    dsn = confirmed.primary.fresh_database()
    everywhere = confirmed.addresses(dsn)
    database = await postgres.connect(everywhere, connections=2)
    try:
        async with database.writing() as connection:
            await connection.execute("CREATE TABLE public.kept (n integer)")
        confirmed.primary.kill()
        promoted = await asyncio.to_thread(promote, confirmed, "anna", "bert")
        async with database.writing() as connection:
            await connection.execute("INSERT INTO public.kept VALUES (1)")
    finally:
        await database.close()
    name = dsn.split("@/")[1].split("?", maxsplit=1)[0]
    assert await promoted.ask("SELECT count(*) FROM public.kept", database=name) == 1
