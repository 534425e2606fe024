"""The promotion that ships: the old primary is left without standbys, and the one that has most takes over."""

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import asyncpg
import pytest

from tallystick.database import pool as postgres
from tests.failover.cluster import Cluster, Member
from tests.failover.promotion import promote


@pytest.fixture
def confirmed() -> Iterator[Cluster]:
    made = Cluster()
    made.start()
    yield made
    made.remove()


async def kept(cluster: Cluster) -> str:
    """A database with a table for what must not be lost; the name of it."""
    name = cluster.primary.fresh_database().split("@/")[1].split("?", maxsplit=1)[0]
    await cluster.primary.ask("CREATE TABLE public.kept (n integer)", database=name)
    return name


async def keep(cluster: Cluster, name: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        await cluster.primary.ask("INSERT INTO public.kept VALUES ($1)", number, database=name)


async def seen(member: Member, is_true: str) -> None:
    async with asyncio.timeout(30):
        while not await member.ask(is_true):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("furthest", ["anna", "bert"], ids=["named first", "named last"])
async def test_the_standby_that_confirmed_is_the_one_that_is_promoted(confirmed: Cluster, furthest: str) -> None:
    """One standby was away while the other confirmed: whichever is named first, the one with the commits wins."""
    name = await kept(confirmed)
    ahead = confirmed.standbys[furthest]
    (behind,) = (one for one in confirmed.standbys.values() if one is not ahead)
    behind.stop()
    await keep(confirmed, name, range(20))
    confirmed.primary.kill()
    behind.start()
    promoted = await asyncio.to_thread(promote, confirmed, "anna", "bert")
    assert promoted is ahead
    assert await promoted.ask("SELECT count(*) FROM public.kept", database=name) == 20
    # The other follows it: a commit is confirmed again.
    await promoted.ask("INSERT INTO public.kept VALUES (20)", database=name)
    assert await promoted.ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == 1


async def test_what_was_confirmed_and_not_yet_replayed_counts(confirmed: Cluster) -> None:
    """A long question holds a standby's replay up. What it has on its disk it has confirmed all the same."""
    name = await kept(confirmed)
    behind, ahead = confirmed.standbys["anna"], confirmed.standbys["bert"]
    await ahead.ask("SELECT pg_wal_replay_pause()")
    await seen(ahead, "SELECT pg_get_wal_replay_pause_state() = 'paused'")
    await keep(confirmed, name, range(10))
    written = await confirmed.primary.ask("SELECT pg_current_wal_flush_lsn()::text")
    await seen(behind, f"SELECT pg_last_wal_replay_lsn() >= '{written}'")
    behind.stop()
    await keep(confirmed, name, range(10, 20))
    confirmed.primary.kill()
    behind.start()
    # It has replayed more, and received less.
    assert await ahead.ask(f"SELECT pg_last_wal_replay_lsn() < '{written}' AND pg_last_wal_receive_lsn() > '{written}'")
    promoted = await asyncio.to_thread(promote, confirmed, "anna", "bert")
    assert promoted is ahead
    assert await promoted.ask("SELECT count(*) FROM public.kept", database=name) == 20


# Says each time how many receivers the script was told of.
WATCHED = """#!/bin/sh
case "$*" in *pg_stat_wal_receiver*) "{psql}" "$@" | tee -a "{said}" ;; *) exec "{psql}" "$@" ;; esac
"""


async def test_nobody_is_promoted_while_a_standby_still_receives(confirmed: Cluster, tmp_path: Path) -> None:
    """It could confirm a commit of the old primary after it was asked how far it is: that commit would be lost."""
    name = await kept(confirmed)
    said = tmp_path / "said"
    said.touch()
    watched = tmp_path / "psql"
    watched.write_text(WATCHED.format(psql=confirmed.primary._programs / "psql", said=said))
    watched.chmod(0o755)
    slow = confirmed.standbys["anna"]
    await seen(slow, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)")
    receiver = await slow.ask("SELECT pid FROM pg_stat_wal_receiver")
    os.kill(receiver, signal.SIGSTOP)
    try:
        await keep(confirmed, name, range(20))
        promoting = asyncio.create_task(asyncio.to_thread(promote, confirmed, "anna", "bert", first=tmp_path))
        while said.read_text().count("1") < 3 and not promoting.done():
            await asyncio.sleep(0.01)
        assert not promoting.done()
        standing = [await one.ask("SELECT pg_is_in_recovery()") for one in confirmed.standbys.values()]
        assert standing == [True, True]
    finally:
        os.kill(receiver, signal.SIGCONT)
    promoted = await promoting
    assert await promoted.ask("SELECT count(*) FROM public.kept", database=name) == 20


async def test_an_old_primary_without_its_standbys_can_no_longer_commit(confirmed: Cluster) -> None:
    """It was not dead, only out of sight: what it would give leave to now would be lost."""
    name = await kept(confirmed)
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
