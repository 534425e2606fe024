"""Behind PgBouncer in transaction mode: everything works, with a direct address; without one it says why not."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from tallystick.access import store as tenant
from tallystick.database import pool as database
from tallystick.errors import Misconfigured
from tallystick.ledger.account import store as account
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kinds, Transfer
from tallystick.ledger.outcome import Committed
from tallystick.ledger.store import PostgresLedger
from tallystick.settings import LIMITS
from tests import servers
from tests.checkouts import compare
from tests.cli.commands import tally
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.servers import cannot_be_tested
from tests.services import PATIENCE_SECONDS, Started, settings, trade
from tests.settlements import halves

# Of every kind that the engine's session has: what a pooler might be told to ignore.
SWALLOWED = "array_nulls,plan_cache_mode,enable_seqscan,jit,lock_timeout,statement_timeout,client_min_messages,"
SWALLOWED += "idle_in_transaction_session_timeout,extra_float_digits"


def _pooled(server: servers.Postgres, **more: str) -> Iterator[servers.PgBouncer]:
    found = servers.pgbouncer(server, **more)
    if isinstance(found, servers.Missing):
        cannot_be_tested(f"{found.name}: {found.reason}")
    try:
        found.start()
        yield found
    finally:
        found.remove()


@pytest.fixture(scope="module")
def pooler(embedded18: servers.Postgres) -> Iterator[servers.PgBouncer]:
    yield from _pooled(embedded18)


@pytest.fixture(scope="module")
def swallowing(embedded18: servers.Postgres) -> Iterator[servers.PgBouncer]:
    """One that its operator has told to ignore what he does not know."""
    yield from _pooled(embedded18, ignore_startup_parameters=SWALLOWED)


@pytest.fixture(scope="module")
def deaf(embedded18: servers.Postgres) -> Iterator[servers.PgBouncer]:
    """The same, and told to ignore the telltale as well: by its first answer it cannot be told from a server."""
    yield from _pooled(embedded18, ignore_startup_parameters=",".join([SWALLOWED, *database.TELLTALE]))


@pytest.fixture
def dsn(embedded18: servers.Postgres) -> str:
    return embedded18.fresh_database()


@pytest.mark.parametrize("kind", ["pooler", "swallowing"])
async def test_all_of_the_service_works_through_it(
    kind: str, request: pytest.FixtureRequest, dsn: str, control: Control, tmp_path: Path
) -> None:
    pooler: servers.PgBouncer = request.getfixturevalue(kind)
    pooled = pooler.address(dsn)
    more = {"TALLY_HOME": str(tmp_path), "TALLY_DATABASE_DIRECT_URL": dsn, **settings(control)}
    assert tally("migrate", dsn=pooled, **more).returncode == 0
    made = tally("keys", "create", "--role", "admin", "--for", "somebody", dsn=pooled, **more)
    assert made.returncode == 0, made.stderr
    with Started("serve", pooled, {**more, "TALLY_PORT": "0"}) as said, Started("work", pooled, more):
        await trade(said, made.stdout.strip(), control)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await fetchval(dsn, "SELECT status FROM tally.settlement_state") != "transferred":
                await asyncio.sleep(0.05)
        assert await fetchval(dsn, "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'") >= 2
    for command in (("settle",), ("sweep",), ("reconcile",), ("explain", "move"), ("events", "list"), ("keys", "list")):
        shown = tally(*command, dsn=pooled, **more)
        assert shown.returncode == 0, (command, shown.stderr)
    entries = [entry for kind_ in ("payment_intent", "refund") for entry in control.made("stripe", kind_)]
    books = await compare(dsn, entries)
    assert (books.is_equal, books.orders) == (True, {"PAID": 1}), books
    assert (await halves(dsn, control)).is_equal
    verified = tally("verify", "--json", dsn=pooled, **more)
    assert json.loads(verified.stdout)["holds"] is True


@pytest.mark.parametrize("kind", ["pooler", "swallowing"])
@pytest.mark.parametrize("command", [("serve",), ("work",), ("verify",), ("migrate",), ("keys", "list")], ids=" ".join)
def test_without_a_direct_address_it_says_why_it_does_not_start(
    command: tuple[str, ...], kind: str, request: pytest.FixtureRequest, dsn: str, tmp_path: Path
) -> None:
    pooler: servers.PgBouncer = request.getfixturevalue(kind)
    shown = tally(*command, dsn=pooler.address(dsn), TALLY_PORT="0", TALLY_HOME=str(tmp_path))
    assert shown.returncode == 2, shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("tally: TALLY_DATABASE_URL leads to a pooler, ")
    assert "TALLY_DATABASE_DIRECT_URL" in shown.stderr


def test_a_direct_address_of_another_database_is_refused(
    pooler: servers.PgBouncer, dsn: str, embedded18: servers.Postgres, tmp_path: Path
) -> None:
    other = embedded18.fresh_database()
    more = {"TALLY_DATABASE_DIRECT_URL": other, "TALLY_HOME": str(tmp_path), "TALLY_PORT": "0"}
    shown = tally("serve", dsn=pooler.address(dsn), **more)
    assert (shown.returncode, "lead to different databases" in shown.stderr) == (2, True), shown.stderr


async def test_every_transaction_brings_its_settings_along(pooler: servers.PgBouncer, dsn: str) -> None:
    """A lock without a limit, or a plan made for empty tables, is what a lost setting looks like a month later."""
    await asyncio.gather(*(_held(pooler.address(dsn)) for _ in range(4)))
    opened = await database.connect(pooler.address(dsn), connections=8, direct=dsn)
    asked = "SELECT pg_backend_pid(), current_setting('lock_timeout'), current_setting('plan_cache_mode'), current_user"
    pids: dict[str, set[int]] = {}
    for way, expected in (
        ("writing", "tally"),
        ("stating", "tally"),
        ("owning", "tally"),
        ("reading", "tallystick_reader"),
    ):
        for _ in range(8):
            async with getattr(opened, way)(*((1,) if way == "reading" else ())) as connection:
                pid, *found = await connection.fetchrow(asked)
            assert found == [f"{LIMITS.lock_wait_seconds * 1000:.0f}ms", "force_generic_plan", expected], way
            pids.setdefault(way, set()).add(pid)
    assert min(len(found) for found in pids.values()) > 1, "the same server connection each time proves nothing"
    async with asyncio.timeout(10), opened.owning() as connection:
        # What is left outside a transaction is the server's own.
        await connection.execute("COMMIT")
        assert await connection.fetchval("SHOW lock_timeout") == "0"
        await connection.execute("BEGIN")
    await opened.close()


async def test_two_engines_through_it_spend_no_money_twice(pooler: servers.PgBouncer, dsn: str) -> None:
    async with AsyncExitStack() as stack:
        engines = []
        for _ in range(2):
            opened = await database.connect(pooler.address(dsn), connections=12, direct=dsn)
            stack.push_async_callback(opened.close)
            engines.append(await stack.enter_async_context(Engine(PostgresLedger(opened), Kinds(()))))
        owner = await tenant.ensure_tenant(opened, "default")
        for name, floor in (("world", None), ("a", 0), ("b", 0)):
            await account.put(opened, owner, name, currency="USD", floor_micros=floor, limits=())
        fund = Transfer(debit="world", credit="a", amount_micros=100, currency="USD")
        assert isinstance(await engines[0].submit(owner, fund, "fund"), Committed)
        move = Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
        outcomes = await asyncio.gather(
            *(engine.submit(owner, move, f"move-{number}") for number in range(150) for engine in engines)
        )
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert (kinds.count("Committed"), kinds.count("Duplicate"), kinds.count("Rejected")) == (100, 100, 100)
    assert await fetchval(dsn, "SELECT balance_micros FROM tally.account WHERE id = 'b'") == 100
    assert await broken(dsn) == {}


async def test_a_pooler_in_the_library_s_way_is_refused_in_words(pooler: servers.PgBouncer, dsn: str) -> None:
    with pytest.raises(Misconfigured, match="leads to a pooler"):
        await database.connect(pooler.address(dsn), connections=1)


async def test_a_pooler_that_loses_the_settings_in_silence_is_refused_in_words(
    deaf: servers.PgBouncer, dsn: str
) -> None:
    """Nothing but the settings themselves shows it: locks would be waited for without a limit."""
    with pytest.raises(Misconfigured, match=r"leads to a pooler.*does not keep the settings of a session"):
        await database.connect(deaf.address(dsn), connections=1)


async def test_the_pooler_is_one(pooler: servers.PgBouncer, dsn: str) -> None:
    """The tests above would pass before a plain server as well."""
    await asyncio.gather(*(_held(pooler.address(dsn)) for _ in range(4)))
    connection = await asyncpg.connect(pooler.address(dsn), statement_cache_size=0)
    pids = set()
    for _ in range(4):
        async with connection.transaction():
            pids.add(await connection.fetchval("SELECT pg_backend_pid()"))
    await connection.close()
    assert len(pids) > 1


async def _held(address: str) -> int:
    connection = await asyncpg.connect(address, statement_cache_size=0)
    async with connection.transaction():
        pid = int(await connection.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.1)"))
    await connection.close()
    return pid
