"""Rules that the database holds by itself, whatever the code above it does."""

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from tallystick.access import store as tenant
from tallystick.database.verify import verify
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.ledger.kinds import Hold, Release, Transfer
from tallystick.ledger.outcome import Committed, Rejected
from tallystick.ledger.velocity import VelocityLimit
from tests import servers
from tests.ledgers import Ledger, ledger
from tests.settlements import superuser

FRESH = UUID("00000000-0000-4000-8000-000000000001")


@pytest_asyncio.fixture(params=["embedded18", "postgres15"])
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    """Two tenants with the same account ids; `default` has 100 in a."""
    server: servers.Server = request.getfixturevalue(request.param)
    async with ledger(server.fresh_database()) as one:
        await one.account("a", 100)
        await one.account("b")
        other = await tenant.ensure_tenant(one.database, "other")
        for name in ("a", "b", "world"):
            await account.put(one.database, other, name, currency="USD", floor_micros=None, limits=())
        assert isinstance(
            await one.engine.submit(other, Transfer(debit="a", credit="b", amount_micros=7, currency="USD"), "k"),
            Committed,
        )
        yield one


@pytest_asyncio.fixture
async def owner(books: Ledger) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(books.dsn)
    yield connection
    await connection.close()


OPERATION = "INSERT INTO tally.operation VALUES ($1, $2, 'raw', '{}', '{}', now())"
ENTRY = (
    "INSERT INTO tally.entry SELECT $1, number, entries + 1, $2, leg.amount, balance_micros + leg.amount, "
    "clock_timestamp() FROM (VALUES ('a', $3::bigint), ('b', $4::bigint)) AS leg (id, amount) "
    "JOIN tally.account USING (id) WHERE tenant_id = $5"
)


async def test_entries_that_do_not_sum_to_zero_are_refused(owner: asyncpg.Connection) -> None:
    """Conservation, also against raw SQL."""
    async with owner.transaction():
        await owner.execute(OPERATION, 1, FRESH)
        await owner.execute(ENTRY, 1, FRESH, -5, 5, 1)
    with pytest.raises(asyncpg.PostgresError, match="conservation") as raised:
        await owner.execute(ENTRY, 1, FRESH, -5, 6, 1)
    assert raised.value.sqlstate == "TS002"


async def test_an_account_below_its_floor_is_refused(owner: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="solvency"):
        async with owner.transaction():
            await owner.execute(OPERATION, 1, FRESH)
            await owner.execute(ENTRY, 1, FRESH, -101, 101, 1)


async def test_entries_must_continue_the_running_balance(owner: asyncpg.Connection) -> None:
    """A lost update shows as a balance that does not follow from the one before."""
    skewed = ENTRY.replace("balance_micros + leg.amount", "balance_micros + leg.amount + 1")
    with pytest.raises(asyncpg.PostgresError, match="running balance") as raised:
        async with owner.transaction():
            await owner.execute(OPERATION, 1, FRESH)
            await owner.execute(skewed, 1, FRESH, -5, 5, 1)
    assert raised.value.sqlstate == "TS001"


async def test_an_entry_cannot_name_another_tenants_account(owner: asyncpg.Connection) -> None:
    """The ids are the same in both tenants; the numbers are not, and the pair is what counts."""
    with pytest.raises(asyncpg.PostgresError, match="not this tenant's"):
        async with owner.transaction():
            await owner.execute(OPERATION, 1, FRESH)
            await owner.execute(ENTRY, 1, FRESH, -5, 5, 2)


async def test_an_entry_cannot_name_another_tenants_operation(owner: asyncpg.Connection) -> None:
    foreign = await owner.fetchval("SELECT id FROM tally.operation WHERE tenant_id = 2")
    with pytest.raises(asyncpg.PostgresError, match="does not have") as raised:
        await owner.execute(ENTRY, 1, foreign, -5, 5, 1)
    assert raised.value.sqlstate == "TS003"


@pytest.mark.parametrize("table", ["journal", "outbox"])
async def test_journal_and_outbox_rows_name_an_operation_of_their_tenant(owner: asyncpg.Connection, table: str) -> None:
    foreign = await owner.fetchval("SELECT id FROM tally.operation WHERE tenant_id = 2")
    columns = "subject, digest" if table == "journal" else "topic"
    values = "'x', sha256('x')" if table == "journal" else "'x'"
    with pytest.raises(asyncpg.PostgresError, match="does not have"):
        await owner.execute(
            f"INSERT INTO tally.{table} (tenant_id, operation_id, {columns}) VALUES (1, $1, {values})",
            foreign,
        )


async def test_limits_cannot_hang_on_another_tenants_account(owner: asyncpg.Connection) -> None:
    number = await owner.fetchval("SELECT number FROM tally.account WHERE tenant_id = 2 AND id = 'a'")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await owner.execute("INSERT INTO tally.velocity_limit VALUES (1, $1, 60, 1, NULL)", number)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tally.operation SET body = 'x'",
        "DELETE FROM tally.operation",
        "UPDATE tally.entry SET amount_micros = 1",
        "DELETE FROM tally.entry",
        "TRUNCATE tally.entry",
        "UPDATE tally.journal SET digest = sha256('x')",
        "DELETE FROM tally.journal",
        "DELETE FROM tally.closing",
        "DELETE FROM tally.account",
        "UPDATE tally.account SET balance_micros = balance_micros + 1",
        "UPDATE tally.account SET entries = 0",
        "UPDATE tally.account SET currency = 'EUR'",
        "UPDATE tally.account SET id = 'x' || id",
        "INSERT INTO tally.account (tenant_id, id, currency, balance_micros) VALUES (1, 'rich', 'USD', 5)",
    ],
)
async def test_history_cannot_be_rewritten(owner: asyncpg.Connection, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await owner.execute(statement)
    assert raised.value.sqlstate == "TS004", raised.value


TENANT_TABLES = (
    "tenant",
    "api_key",
    "account",
    "velocity_limit",
    "operation",
    "closing",
    "entry",
    "journal",
    "outbox",
)


@pytest.mark.parametrize("table", TENANT_TABLES)
async def test_a_query_that_forgets_its_where_sees_one_tenant(books: Ledger, table: str) -> None:
    """Row-level security, also on the embedded default, where the owner would see everything.

    Both tenants have rows in every table: of a table that shows nobody anything this would prove nothing.
    """
    limits = (VelocityLimit(window_seconds=60, max_count=1_000),)
    for owner in (Tenant(1, "default"), Tenant(2, "other")):
        assert await tenant.add_key(books.database, owner, "viewer", f"tsk_of_{owner.name}_0123456789")
        await account.put(books.database, owner, "limited", currency="USD", floor_micros=None, limits=limits)
        await account.put(books.database, owner, "held", currency="USD", floor_micros=None, limits=())
        held = await books.engine.submit(
            owner, Hold(account="limited", held="held", amount_micros=1, currency="USD"), "hold"
        )
        assert isinstance(held, Committed)
        released = await books.engine.submit(owner, Release(hold=held.transaction.id, to="b"), "release")
        assert isinstance(released, Committed), released
    for number in (1, 2):
        async with books.database.reading(number) as connection:
            seen = await connection.fetch(f"SELECT DISTINCT tenant_id FROM tally.{table}")
        assert {row["tenant_id"] for row in seen} == {number}


READABLE = """
SELECT c.relname, c.relrowsecurity,
       has_any_column_privilege('tallystick_reader', c.oid, 'SELECT') AS is_readable,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') AS is_a_tenants
  FROM pg_class c WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
 ORDER BY c.relname
"""
# Whatever a policy adds to what the reader sees: for him by name, for a role that he is in, or for everybody.
ADDING = """
SELECT c.relname, p.polname, p.polcmd::text, p.polroles::regrole[]::text[], pg_get_expr(p.polqual, c.oid)
  FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
 WHERE p.polpermissive AND c.relnamespace = 'tally'::regnamespace
   AND EXISTS (SELECT FROM unnest(p.polroles) AS r WHERE r = 0 OR pg_has_role('tallystick_reader', r, 'MEMBER'))
"""
OWN_TENANT = (
    "own_tenant", "r", ["tallystick_reader"], "(tenant_id = ( SELECT tally.current_tenant() AS current_tenant))"
)  # fmt: skip


async def test_every_table_with_a_tenant_is_behind_the_wall(owner: asyncpg.Connection) -> None:
    """A table added later without a policy, or with another one, would be a hole."""
    async with owner.transaction():
        # So that an expression names its schemas, whoever asks.
        await owner.execute("SET LOCAL search_path = pg_catalog")
        tables = await owner.fetch(READABLE)
        policies = await owner.fetch(ADDING)
    assert [row["relname"] for row in tables if row["is_a_tenants"] and not row["relrowsecurity"]] == []
    # What is nobody's in particular is not shown to a tenant at all.
    assert [row["relname"] for row in tables if row["is_readable"] and not row["is_a_tenants"]] == []
    walled: dict[str, list[tuple[object, ...]]] = {row["relname"]: [] for row in tables if row["is_readable"]}
    assert walled.keys() > set(TENANT_TABLES)
    for name, *policy in policies:
        walled.setdefault(name, []).append(tuple(policy))
    assert {name: found for name, found in walled.items() if found != [OWN_TENANT]} == {}


# A row is not a history here: nothing but whose it is matters to the wall, and everything else may be missing.
NOTHING_BUT_A_TENANT = """
DO $$
DECLARE
    one record;
BEGIN
    SET LOCAL client_min_messages = error;
    FOR one IN SELECT conrelid::regclass AS name, conname FROM pg_constraint
                WHERE connamespace = 'tally'::regnamespace AND contype IN ('c', 'f', 'p', 'u', 'x') AND conislocal
                ORDER BY contype = 'p' LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I CASCADE', one.name, one.conname);
    END LOOP;
    FOR one IN SELECT indexrelid::regclass AS name FROM pg_index JOIN pg_class c ON c.oid = indrelid
                WHERE c.relnamespace = 'tally'::regnamespace AND indisunique AND NOT c.relispartition LOOP
        EXECUTE format('DROP INDEX %s', one.name);
    END LOOP;
    FOR one IN SELECT attrelid::regclass AS name, attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
                WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind IN ('r', 'p') AND attnum > 0
                  AND attnotnull AND attidentity = '' AND NOT c.relispartition AND attname <> 'tenant_id'
                ORDER BY attinhcount LOOP
        EXECUTE format('ALTER TABLE %s ALTER %I DROP NOT NULL', one.name, one.attname);
    END LOOP;
END $$;
SET session_replication_role = replica;
"""


async def test_of_every_table_that_the_reader_may_read_he_sees_one_tenant(books: Ledger) -> None:
    """Both tenants have a row in each: of a table that shows nobody anything this would prove nothing."""
    connection = await asyncpg.connect(superuser(books.dsn))
    try:
        await connection.execute(NOTHING_BUT_A_TENANT)
        tables = [row["relname"] for row in await connection.fetch(READABLE) if row["is_readable"]]
        assert set(tables) > set(TENANT_TABLES)
        for table in tables:
            await connection.execute(f"INSERT INTO tally.{table} (tenant_id) OVERRIDING SYSTEM VALUE VALUES (1), (2)")
            there = await connection.fetchval(
                f"SELECT array_agg(DISTINCT tenant_id ORDER BY tenant_id) FROM ONLY tally.{table}"
            )
            assert there == [1, 2], table
    finally:
        await connection.close()
    for number in (1, 2):
        async with books.database.reading(number) as reader:
            seen = {
                table: await reader.fetchval(f"SELECT array_agg(DISTINCT tenant_id) FROM tally.{table}")
                for table in tables
            }
        assert {table: found for table, found in seen.items() if found != [number]} == {}


async def test_every_guard_that_verify_asks_for_is_counted(books: Ledger, owner: asyncpg.Connection) -> None:
    """A constant would say that much was checked where nothing was."""
    before = {verdict.invariant: verdict async for verdict in verify(books.dsn)}["guards"]
    await owner.execute("CREATE TABLE tally.added (tenant_id bigint NOT NULL)")
    added = {verdict.invariant: verdict async for verdict in verify(books.dsn)}["guards"]
    await owner.execute("ALTER TABLE tally.added ENABLE ROW LEVEL SECURITY")
    walled = {verdict.invariant: verdict async for verdict in verify(books.dsn)}["guards"]
    assert (before.broken, added.broken, walled.broken) == (0, 1, 0)
    assert before.checked + 1 == added.checked == walled.checked


async def test_the_reader_without_a_tenant_sees_nothing(owner: asyncpg.Connection) -> None:
    assert await owner.fetchval("SELECT count(*) FROM tally.account") > 0
    async with owner.transaction():
        await owner.execute("SET LOCAL ROLE tallystick_reader")
        assert await owner.fetchval("SELECT count(*) FROM tally.account") == 0


async def test_the_reader_is_bound_and_cannot_write(owner: asyncpg.Connection) -> None:
    (role,) = await owner.fetch(
        "SELECT rolbypassrls, rolsuper, rolcanlogin FROM pg_roles WHERE rolname = 'tallystick_reader'"
    )
    assert tuple(role) == (False, False, False)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with owner.transaction():
            await owner.execute("SET LOCAL ROLE tallystick_reader")
            await owner.execute("INSERT INTO tally.tenant (name) VALUES ('x')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with owner.transaction():
            await owner.execute("SET LOCAL ROLE tallystick_reader")
            await owner.fetch("SELECT digest FROM tally.api_key")


async def test_an_operation_that_names_another_tenants_account_is_refused(books: Ledger) -> None:
    """`only-default` exists, but not for the one who asks."""
    await books.account("only-default", 10)
    other = Tenant(2, "other")
    refused = await books.engine.submit(
        other, Transfer(debit="only-default", credit="a", amount_micros=1, currency="USD"), "steal"
    )
    assert isinstance(refused, Rejected)
    assert refused.code == "account_unknown"
    assert await books.balance("only-default") == 10


async def test_identical_keys_of_two_tenants_are_two_keys(books: Ledger) -> None:
    mine = await books.submit(Transfer(debit="a", credit="b", amount_micros=7, currency="USD"), "k")
    assert isinstance(mine, Committed), "the other tenant used this key before, for the same request"
    assert await books.balance("b") == 7
