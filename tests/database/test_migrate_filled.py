"""Migrations on a database that holds much and is written to meanwhile: nobody waits for longer than a second or two.

The schema of the version before is filled; then everything since is applied, and one migration more that does to every
large table what a migration may do to one, while somebody keeps a transaction open and others write to every table.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tallystick.database import migrate as migrating
from tallystick.database.migrate import Migration, migrate, migrations
from tests import servers
from tests.database.test_migrate import connected
from tests.ledgers import fetchval
from tests.settlements import superuser

# The last migration of the version before (tests/acceptance/released.py).
RELEASED = 12
ROWS = 100_000
FILLED = Path(__file__).with_name("filled.sql").read_text(encoding="utf-8")
# A lock is waited for a second; the rest is for a machine that has other things to do.
LONGEST_WAIT_SECONDS = 2.5
LARGE = ("operation", "settlement", "orders", "attempt", "webhook_events")

MIGRATION = Migration(
    9000,
    "everything_at_once",
    "".join(f"ALTER TABLE tally.{name} ADD COLUMN later text DEFAULT 'x' NOT NULL;\n" for name in LARGE)
    + "".join(
        f"-- step\nALTER TABLE tally.{name} ADD CONSTRAINT later_{name} CHECK (later <> '') NOT VALID;\n"
        f"-- step\nALTER TABLE tally.{name} VALIDATE CONSTRAINT later_{name};\n"
        f"-- step: concurrently\nCREATE INDEX CONCURRENTLY IF NOT EXISTS later_{name}_index ON tally.{name} (later);\n"
        for name in LARGE
    ),
)

TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = 'tally'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
   AND relname NOT LIKE 'migration%' ORDER BY relname
"""
HELD_UP = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
CLEARING = "SELECT count(*) FROM tally.account WHERE id LIKE 'settlement:clearing:%' AND floor_micros IS NULL"
INVALID = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
UNCHECKED = "SELECT count(*) FROM pg_constraint WHERE NOT convalidated AND connamespace = 'tally'::regnamespace"


@pytest.mark.parametrize("server", ["embedded18", "postgres15"])
async def test_writers_wait_a_moment_while_a_filled_database_is_migrated(
    server: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    found: servers.Postgres = request.getfixturevalue(server)
    dsn = found.empty_database()
    wanted = [*migrations(), MIGRATION]
    monkeypatch.setattr(migrating, "migrations", lambda: wanted[:RELEASED])
    await migrate(dsn)
    await _fill(dsn)
    monkeypatch.setattr(migrating, "migrations", lambda: wanted)

    async with connected(dsn) as holder, connected(dsn) as watcher:
        tables = [row["relname"] for row in await watcher.fetch(TABLES)]
        stopping = asyncio.Event()
        writing = [asyncio.create_task(_write(dsn, table, stopping)) for table in tables]
        held = holder.transaction()
        await held.start()
        await holder.execute("".join(f"LOCK TABLE tally.{name} IN ROW EXCLUSIVE MODE;" for name in LARGE))
        running = asyncio.create_task(migrate(dsn))
        await _given_up(watcher, running)
        await held.rollback()
        applied = await running
        stopping.set()
        waits = dict(zip(tables, await asyncio.gather(*writing), strict=True))
    assert [one.number for one in applied] == [one.number for one in wanted[RELEASED:]]
    assert await fetchval(dsn, INVALID) == await fetchval(dsn, UNCHECKED) == 0
    assert await fetchval(dsn, "SELECT count(*) FROM tally.operation") == ROWS
    assert await fetchval(dsn, CLEARING) == 1, "a clearing account without a floor keeps that"
    table, (longest, writes) = max(waits.items(), key=lambda found: found[1][0])
    assert min(count for _, count in waits.values()) > 0
    assert longest < LONGEST_WAIT_SECONDS, f"{longest:.2f} s for {table}"
    record_property(
        "counted",
        f"migrations {RELEASED + 1} and on, {ROWS:,} rows a table, {found.name}: a writer waited {longest:.2f} s at "
        f"most, for {table} ({writes} writes to it)",
    )


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(superuser(dsn))
    try:
        await connection.execute(FILLED.replace("{rows}", str(ROWS)))
    finally:
        await connection.close()


async def _write(dsn: str, table: str, stopping: asyncio.Event) -> tuple[float, int]:
    """The lock that every insert, update and delete takes, again and again: the longest wait for it, and how often."""
    longest, count = 0.0, 0
    async with connected(dsn) as writer:
        while not stopping.is_set():
            began = time.monotonic()
            async with writer.transaction():
                await writer.execute(f"LOCK TABLE tally.{table} IN ROW EXCLUSIVE MODE")
            longest, count = max(longest, time.monotonic() - began), count + 1
            await asyncio.sleep(0.01)
    return longest, count


async def _given_up(watcher: asyncpg.Connection, running: "asyncio.Task[list[Migration]]") -> None:
    """Until the migration has waited for somebody, given up, and waited again."""
    async with asyncio.timeout(120):
        for is_waiting in (True, False, True):
            while bool(await watcher.fetchval(HELD_UP)) is not is_waiting:
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
