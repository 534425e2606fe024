"""Migrations: once each, in order, and never backwards."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

import tallystick
from tallystick.database import migrate as migrating
from tallystick.database.migrate import Migration, migrate, migrations, require_current
from tallystick.errors import MigrationBlocked, Misconfigured, SchemaMismatch, Unreachable
from tallystick.settings import LIMITS
from tests import servers
from tests.ledgers import fetchval

# The second for which a migration waits, and a slow machine.
LONGEST_WAIT_SECONDS = 2.5
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('tally.later')"
WAITS = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass('tally.' || $1)
   AND mode = 'AccessExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def until_locked(watcher: asyncpg.Connection, table: str) -> None:
    """Until somebody waits to have the table for himself."""
    async with asyncio.timeout(30):
        while not await watcher.fetchval(WAITS, table):
            await asyncio.sleep(0.01)


@pytest.fixture(params=["embedded18", "postgres15"])
def dsn(request: pytest.FixtureRequest) -> str:
    server: servers.Postgres = request.getfixturevalue(request.param)
    return server.empty_database()


async def test_a_second_run_applies_nothing(dsn: str) -> None:
    assert [m.number for m in await migrate(dsn)] == [m.number for m in migrations()]
    assert await migrate(dsn) == []


async def test_several_at_once_apply_each_migration_once(dsn: str) -> None:
    """Two processes that start together must not both create the tables."""
    applied = await asyncio.gather(*(migrate(dsn) for _ in range(4)))
    assert sorted(len(one) for one in applied) == [0, 0, 0, len(migrations())]


async def test_a_newer_database_that_leaves_this_code_working_is_worked_on(dsn: str) -> None:
    """The version before runs on, and is started again, while the next one is rolled out."""
    await migrate(dsn)
    newest = migrations()[-1].number
    future = [*migrations(), Migration(newest + 1, "future", f"-- oldest code: {newest}\nCREATE TABLE tally.next ();")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrating, "migrations", lambda: future)
        assert await migrate(dsn) == future[-1:]
    await require_current(dsn)
    assert await migrate(dsn) == []


async def test_a_newer_database_that_says_this_code_cannot_is_refused(dsn: str) -> None:
    await migrate(dsn)
    future = [*migrations(), Migration(9999, "future", "-- oldest code: 9999\nCREATE TABLE tally.next ();")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrating, "migrations", lambda: future)
        await migrate(dsn)
    for refused in (migrate, require_current):
        with pytest.raises(SchemaMismatch, match="must know migration 9999"):
            await refused(dsn)


async def test_what_is_missing_is_said_by_its_numbers(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = migrations()
    needed = all_of_them[-1].number
    with pytest.raises(
        SchemaMismatch, match=f"has no schema of Tallystick yet, this version needs {needed}: run `tally m"
    ):
        await require_current(dsn)
    monkeypatch.setattr(migrating, "migrations", lambda: all_of_them[:3])
    await migrate(dsn)
    monkeypatch.setattr(migrating, "migrations", lambda: all_of_them)
    with pytest.raises(SchemaMismatch, match=f"at migration 3, this version needs {needed}: run `tally migrate`"):
        await require_current(dsn)


async def test_a_database_of_the_version_before_has_no_column_for_it_and_is_read(dsn: str) -> None:
    await migrate(dsn)
    await fetchval(dsn, "ALTER TABLE tally.migration DROP COLUMN oldest_code")
    await fetchval(dsn, "DROP TABLE tally.migration_step")
    await require_current(dsn)
    assert await migrate(dsn) == []
    assert await fetchval(dsn, "SELECT max(oldest_code) FROM tally.migration") == 0


async def test_a_step_that_meets_a_lock_lets_the_others_pass_and_comes_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a table has everybody wait behind him: a writer must not wait for whom the migration waits for."""
    await migrate(dsn)
    change = Migration(9998, "wide", "ALTER TABLE tally.account ADD COLUMN wide integer;")
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), change])
    async with connected(dsn) as holder, connected(dsn) as writer:
        held = holder.transaction()
        await held.start()
        await holder.execute("SELECT count(*) FROM tally.account")
        running = asyncio.create_task(migrate(dsn))
        await until_locked(writer, "account")
        began = time.monotonic()
        # Behind the migration, which is behind the holder.
        await writer.execute("INSERT INTO tally.account (tenant_id, id, currency) VALUES (1, 'passed', 'USD')")
        waited = time.monotonic() - began
        assert not running.done()
        await held.rollback()
        assert await running == [change]
    assert waited < LONGEST_WAIT_SECONDS


async def test_a_lock_that_is_never_to_be_had_ends_in_words_and_changes_nothing(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(dsn)
    change = Migration(9998, "wide", "ALTER TABLE tally.account ADD COLUMN wide integer;")
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), change])
    limits = replace(LIMITS, migration_tries=2, migration_lock_seconds=0.1, migration_first_pause_seconds=0.01)
    monkeypatch.setattr(migrating, "LIMITS", limits)
    async with connected(dsn) as holder, holder.transaction():
        await holder.execute("SELECT count(*) FROM tally.account")
        with pytest.raises(MigrationBlocked, match=r"migration 9998 \(wide\), step 1: in 2 tries"):
            await migrate(dsn)
    assert await fetchval(dsn, "SELECT max(number) FROM tally.migration") == migrations()[-1].number


async def test_steps_that_are_done_are_not_done_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that was interrupted between two of its transactions goes on with the second."""
    await migrate(dsn)
    broken = "CREATE TABLE tally.half (n integer);\n-- step\nSELECT 1 / 0;"
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), Migration(9998, "two", broken)])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(dsn)
    with pytest.raises(SchemaMismatch, match="this version needs 9998"):
        await require_current(dsn)
    mended = Migration(9998, "two", broken.replace("1 / 0", "1"))
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), mended])
    assert await migrate(dsn) == [mended]
    edited = Migration(9999, "three", "SELECT 1;\n-- step\nSELECT 1 / 0;")
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), mended, edited])
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(dsn)
    edited = Migration(9999, "three", "SELECT 2;\n-- step\nSELECT 1;")
    with pytest.raises(SchemaMismatch, match="Step 1 of migration 9999"):
        await migrate(dsn)


INDEX = Migration(
    9998, "indexed", "-- step: concurrently\nCREATE INDEX CONCURRENTLY IF NOT EXISTS later ON tally.account (id);"
)


async def test_an_index_that_broke_off_is_dropped_and_made_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it would be kept up by every write, used by no read, and taken for the index itself."""
    await migrate(dsn)
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), INDEX])
    async with connected(dsn) as holder, connected(dsn) as breaking:
        async with holder.transaction():
            await holder.execute("UPDATE tally.tenant SET name = name")
            await breaking.execute("SET lock_timeout = '50ms'")
            # It waits for every writer that was there before it: this one does not end.
            await holder.execute("LOCK TABLE tally.account IN ROW EXCLUSIVE MODE")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await breaking.execute("CREATE INDEX CONCURRENTLY later ON tally.account (id)")
        assert await fetchval(dsn, IS_VALID) is False
    assert await migrate(dsn) == [INDEX]
    assert await fetchval(dsn, IS_VALID) is True


async def test_two_at_once_make_an_index_concurrently(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one that waits in a statement is a transaction, for which the first one's index would wait in turn."""
    await migrate(dsn)
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), INDEX])
    applied = await asyncio.gather(*(migrate(dsn) for _ in range(3)))
    assert sorted(len(one) for one in applied) == [0, 0, 1]
    assert await fetchval(dsn, IS_VALID) is True


def test_a_concurrent_step_has_nothing_that_could_not_be_run_twice() -> None:
    with pytest.raises(ValueError, match="IF"):
        Migration(1, "x", "-- step: concurrently\nCREATE INDEX CONCURRENTLY i ON tally.account (id);").steps[
            0
        ].statements()
    for migration in migrations():
        for step in migration.steps:
            assert not step.is_concurrent or step.statements()


async def test_a_migration_that_was_edited_is_refused(dsn: str) -> None:
    await migrate(dsn)
    await fetchval(dsn, "UPDATE tally.migration SET digest = 'other'")
    with pytest.raises(SchemaMismatch, match="other contents"):
        await migrate(dsn)


async def test_a_migration_that_fails_leaves_nothing_behind(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*migrations(), Migration(9998, "broken", "CREATE TABLE tally.half (); SELECT 1 / 0")]
    monkeypatch.setattr(migrating, "migrations", lambda: broken)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(dsn)
    assert await fetchval(dsn, "SELECT to_regclass('tally.half')") is None
    assert await fetchval(dsn, "SELECT max(number) FROM tally.migration") == migrations()[-1].number


async def test_an_address_nobody_answers_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await migrate("postgresql://nobody@127.0.0.1:1/nothing")


async def test_an_address_that_is_none_is_misconfigured() -> None:
    with pytest.raises(Misconfigured):
        await migrate("http://example.org")


def test_numbers_are_unique_and_without_a_gap() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))


# A row for a tenant, a person, a key, a provider or a setting: to read all of them takes a millisecond.
SMALL = {
    "tenant",
    "api_key",
    "velocity_limit",
    "settlement_policy",
    "checkout_policy",
    "approval",
    "sku",
    "whereabouts",
    "breaker",
    "webhook_cursor",
    "webhook_offset",
    "webhook_poison",
    "payment_break",
    "orphan",
}
# The version before has these; what came with it is not looked at.
RELEASED = 12
# Whatever its spelling: an index that one of them hid would be made under a lock.
MADE = re.compile(
    r"\bCREATE\s+(?:UNIQUE\s+)?INDEX\s+(?P<aside>CONCURRENTLY\s+)?(?:IF\s+NOT\s+EXISTS\s+)?"
    r"(?:(?!ON\s)(?P<name>[\w\"]+)\s+)?ON\s+(?:ONLY\s+)?(?:\"?tally\"?\s*\.\s*)?\"?(?P<table>\w+)",
    re.IGNORECASE,
)


def indexes(text: str) -> list[tuple[str, str]]:
    """Every index that is not made concurrently there, and its table. None is overlooked: that fails."""
    found = list(MADE.finditer(text))
    assert len(found) == len(re.findall(r"\bCREATE\s+(?:UNIQUE\s+)?INDEX\b", text, re.IGNORECASE)), text
    return [(made["name"] or "without a name", made["table"]) for made in found if not made["aside"]]


def test_no_spelling_hides_an_index() -> None:
    names = ("", "one ", "IF NOT EXISTS one ", 'IF NOT EXISTS "one" ')
    tables = ("tally.orders", '"tally"."orders"', "orders")
    for unique, name, only, table in itertools.product(("", "UNIQUE "), names, ("", "ONLY "), tables):
        statement = f"CREATE {unique}INDEX {name}ON {only}{table} (tenant_id, id);"
        for spelling in (statement, statement.lower(), statement.replace(" ", "\n  ")):
            assert [made for _, made in indexes(spelling)] == ["orders"], spelling
        assert indexes(statement.replace("INDEX", "INDEX CONCURRENTLY")) == []


@pytest.mark.parametrize("migration", migrations()[RELEASED:], ids=lambda migration: f"{migration.number}")
def test_a_migration_holds_no_large_table_while_it_reads_it(migration: Migration) -> None:
    """An index that is not made concurrently, a constraint that is checked when it is added: every writer waits."""
    own = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?tally\.(\w+)", migration.sql)) | SMALL
    faults = []
    for step in migration.steps:
        text = re.sub(r"--.*", "", step.sql)
        faults += [f"index {index} of {table}: CONCURRENTLY" for index, table in indexes(text) if table not in own]
        for table, change in re.findall(r"ALTER TABLE (?:ONLY )?tally\.(\w+)([^;]*)", text):
            if table in own:
                continue
            if re.search(r"ADD (CONSTRAINT|CHECK|FOREIGN|COLUMN[^,]*\b(CHECK|REFERENCES)\b)", change) and (
                "NOT VALID" not in change and "USING INDEX" not in change
            ):
                faults.append(f"constraint of {table}: NOT VALID, and VALIDATE in a step of its own")
            if "VALIDATE CONSTRAINT" in change and re.search(r"ADD (CONSTRAINT|COLUMN)", text):
                faults.append(f"VALIDATE of {table}: in a step of its own, after the one that adds it")
            if re.search(r"SET NOT NULL|\bTYPE\b|ADD (PRIMARY|UNIQUE)", change):
                faults.append(f"{table}: all of it is read under a lock: {change.strip()[:60]}")
    assert faults == []


async def test_a_column_that_is_added_beside_a_working_service_is_no_error(embedded18: servers.Postgres) -> None:
    """What a connection has prepared of that table is void then. The batch is run again; nobody hears of it."""
    dsn = embedded18.fresh_database()
    async with tallystick.open(database_url=dsn) as tally:
        for name in ("a", "b"):
            await tally.put_account(name, currency="EUR", floor_micros=None)
        assert await _works(tally, "before") == ["Committed", "Reserved", "Made"]
        names = "SELECT relname FROM pg_class WHERE relnamespace = 'tally'::regnamespace AND relkind = 'r'"
        async with connected(dsn) as owner:
            for row in await owner.fetch(
                f"{names} AND relname NOT LIKE 'webhook_body%' AND relname <> 'reply_archive'"
            ):
                await owner.execute(f"ALTER TABLE tally.{row['relname']} ADD COLUMN later text")
        for number in range(4):
            assert await _works(tally, f"after-{number}") == ["Committed", "Reserved", "Made"]


async def _works(tally: tallystick.Tally, key: str) -> list[str]:
    await tally.set_stock("lamp", 100)
    move = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="EUR")
    done = await tally.submit(move, idempotency_key=f"move-{key}")
    order = await tally.reserve(
        sku="lamp", quantity=1, amount_micros=5_000_000, currency="EUR", idempotency_key=f"order-{key}"
    )
    payout = await tally.create_settlement(
        attribution_id=key,
        squad_id="s",
        gross_micros=1_000_000,
        currency="EUR",
        destination="acct_1",
        source="a",
        idempotency_key=f"settle-{key}",
    )
    return [type(one).__name__ for one in (done, order, payout)]


async def test_a_server_that_goes_while_we_part_from_it_is_no_fault_of_ours() -> None:
    """It showed as a traceback of a broken pipe at the start of a worker."""
    server = servers.embedded18()
    server.start()
    try:
        dsn = server.fresh_database()
        async with migrating._connected(dsn) as connection:
            server.stop(immediate=True)
            assert not connection.is_closed()
        with pytest.raises(Unreachable):
            await migrating.require_current(dsn)
    finally:
        server.remove()
