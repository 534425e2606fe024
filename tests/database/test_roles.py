"""The service under a role that does not own its tables: it does all of its work, and cannot change a rule."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

import tallystick
from tallystick.database import roles
from tallystick.database.migrate import grant, migrate, require_current
from tallystick.database.verify import verify
from tallystick.errors import Misconfigured
from tests import servers
from tests.checkouts import compare
from tests.cli.commands import tally
from tests.cli.test_embedded_killed import started
from tests.ledgers import fetchval, ledger
from tests.providers.worlds import Control
from tests.services import PATIENCE_SECONDS, Started, settings, trade
from tests.settlements import halves, superuser


@pytest.fixture(params=["embedded18", "postgres15"])
def server(request: pytest.FixtureRequest) -> servers.Postgres:
    found: servers.Postgres = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def acting(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def login(server: servers.Postgres, dsn: str, *statements: str) -> str:
    """A user of its own in this database; `{user}` in the statements is his name. His DSN."""
    database = urlsplit(dsn).path.removeprefix("/")
    user = f"app_{database}"
    async with acting(superuser(dsn)) as administrator:
        await administrator.execute(f"CREATE ROLE {user} LOGIN")
        for statement in statements:
            await administrator.execute(statement.format(user=user))
    return server.dsn(database, user=user)


@pytest.fixture
async def owned(server: servers.Postgres) -> str:
    """A database as `tally migrate` leaves it, and its owner."""
    dsn = server.empty_database()
    shown = tally("migrate", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    return dsn


@pytest.fixture
async def served(server: servers.Postgres, owned: str) -> str:
    """The address of a service that is a member of the service's role, and nothing else."""
    return await login(server, owned, "GRANT tallystick_service TO {user}")


async def test_migrate_makes_the_role_and_prints_what_it_may(server: servers.Postgres) -> None:
    dsn = server.empty_database()
    first, second = tally("migrate", dsn=dsn), tally("migrate", dsn=dsn)
    for shown in (first, second):
        assert shown.returncode == 0, shown.stderr
        assert re.search(r"owner +tally:", shown.stderr)
        assert re.search(r"SELECT, INSERT on [^\n]*\bjournal\b", shown.stderr)
        assert "IN ROLE tallystick_service;" in shown.stderr
        assert not re.search(r"UPDATE[^\n]* on [^\n]*\bjournal\b", shown.stderr)
    might = (
        "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcanlogin FROM pg_roles WHERE rolname = 'tallystick_service'"
    )
    async with acting(dsn) as owner:
        assert [tuple(row) for row in await owner.fetch(might)] == [(False, False, False, False)]


async def test_the_role_has_the_name_of_the_settings(server: servers.Postgres) -> None:
    dsn = server.empty_database()
    shown = tally("migrate", dsn=dsn, TALLY_SERVICE_ROLE="till_role")
    assert (shown.returncode, "IN ROLE till_role;" in shown.stderr) == (0, True), shown.stderr
    await require_current(await login(server, dsn, "GRANT till_role TO {user}"), writing=True)
    assert tally("migrate", dsn=dsn, TALLY_SERVICE_ROLE="Robert'); --").returncode == 2


async def test_who_could_change_the_rules_is_told_which_role_cannot(
    server: servers.Postgres, owned: str, served: str
) -> None:
    """The owner and a superuser; a member of the service's own role hears nothing."""
    told = {
        owned: "works as tally, which owns the tables",
        superuser(owned): "works as postgres, which is a superuser",
    }
    for dsn, wanted in told.items():
        async with acting(dsn) as connection:
            note = await roles.might(connection, "tallystick_service")
            assert note is not None
            assert wanted in note
            assert "`tally migrate` made tallystick_service" in note
            assert "IN ROLE tallystick_service; and name tally_app in TALLY_DATABASE_URL" in note
            assert "makes nobody, which cannot; it is not there yet" in str(await roles.might(connection, "nobody"))
            assert "TALLY_SERVICE_ROLE" in str(await roles.might(connection, None))
    async with acting(served) as connection:
        assert await roles.might(connection, "tallystick_service") is None


@pytest.mark.parametrize(("command", "ready"), [("serve", "API +http"), ("work", "Ctrl-C finishes")])
def test_a_service_that_could_change_its_rules_says_so_once(
    embedded18: servers.Postgres, tmp_path: Path, command: str, ready: str
) -> None:
    settings = {"TALLY_DATABASE_URL": embedded18.fresh_database(), "TALLY_PROVIDER": "simulator"}
    with started(tmp_path / "home", command, **settings) as process:
        process.wait_for(ready)
        assert process.said.count("works as tally, which owns the tables") == 1, process.said


FORBIDDEN = [
    "ALTER TABLE tally.journal DISABLE TRIGGER append_only",
    "ALTER TABLE tally.entry DISABLE TRIGGER ALL",
    "DROP TRIGGER append_only ON tally.journal",
    "DROP TABLE tally.journal",
    "DROP SCHEMA tally CASCADE",
    "TRUNCATE tally.outbox",
    "UPDATE tally.journal SET subject = 'x'",
    "DELETE FROM tally.journal",
    "UPDATE tally.entry SET amount_micros = 1",
    "UPDATE tally.operation SET key = 'x'",
    "DELETE FROM tally.settlement",
    "DELETE FROM tally.orphan",
    "DELETE FROM tally.webhook_guard",
    "UPDATE tally.migration SET digest = 'x'",
    "SET session_replication_role = replica",
    "CREATE OR REPLACE FUNCTION tally.refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
    "ALTER TABLE tally.account DISABLE ROW LEVEL SECURITY",
    "CREATE POLICY mine ON tally.account TO PUBLIC USING (true)",
    "CREATE TABLE tally.mine ()",
    "SET ROLE tally",
]


async def test_it_cannot_change_a_rule(served: str) -> None:
    async with acting(served) as service:
        for statement in FORBIDDEN:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await service.execute(statement)


async def test_all_of_the_service_works_under_it(owned: str, served: str, control: Control, tmp_path: Path) -> None:
    """Operations, orders, payments, webhooks, payouts, sweeps, the keeper of days, and every command that judges."""
    more = {"TALLY_HOME": str(tmp_path), **settings(control)}
    made = tally("keys", "create", "--role", "admin", "--for", "somebody", dsn=served, **more)
    assert made.returncode == 0, made.stderr
    with Started("serve", served, {**more, "TALLY_PORT": "0"}) as said, Started("work", served, more):
        await trade(said, made.stdout.strip(), control)
    assert tally("sweep", dsn=served, **more).returncode == 0
    settled = tally("settle", "--json", dsn=served, **more)
    assert settled.returncode == 0, settled.stderr
    await _until(owned, "SELECT status = 'transferred' FROM tally.settlement_state", True)
    entries = [entry for kind in ("payment_intent", "refund") for entry in control.made("stripe", kind)]
    books = await compare(owned, entries)
    assert (books.is_equal, books.orders) == (True, {"PAID": 1}), books
    assert (await halves(owned, control)).is_equal
    verified = json.loads(tally("verify", "--json", dsn=served, **more).stdout)
    assert verified["holds"] is True
    checked = {row["invariant"]: row["checked"] for row in verified["invariants"]}
    assert min(checked[name] for name in ("conservation", "journal", "settlements", "orders", "webhooks")) > 0
    reads = [(name, "list") for name in ("keys", "events", "breaks", "payments", "refunds", "outbox")]
    for command in (*reads, ("explain", "move"), ("reconcile",), ("approvals",), ("outbox", "read", "warehouse")):
        shown = tally(*command, dsn=served, **more)
        assert shown.returncode == 0, (command, shown.stderr)
    place = json.loads(shown.stdout.splitlines()[-1])["place"]
    for command in (("outbox", "relayed", "warehouse", place), ("retain",)):
        shown = tally(*command, dsn=served, **more)
        assert shown.returncode == 0, (command, shown.stderr)


async def _until(dsn: str, question: str, answer: object) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fetchval(dsn, question) != answer:
            await asyncio.sleep(0.05)


async def test_the_service_s_days_are_made_by_the_owner_s_functions(owned: str, served: str) -> None:
    async with acting(served) as service:
        assert await service.fetchval("SELECT tally.webhook_body_ahead(9)") == 2
    async with acting(owned) as owner:
        assert await owner.fetchval("SELECT tally.webhook_body_ahead(10)") == 1


async def test_an_operation_in_the_caller_s_own_transaction_works_under_it(owned: str, served: str) -> None:
    async with tallystick.open(database_url=served) as books, acting(served) as mine:
        for name in ("a", "b"):
            await books.put_account(name, currency="USD", floor_micros=None)
        move = tallystick.Transfer(debit="a", credit="b", amount_micros=5, currency="USD")
        async with mine.transaction():
            await books.submit(move, idempotency_key="mine", connection=mine)
    assert await fetchval(owned, "SELECT balance_micros FROM tally.account WHERE id = 'b'") == 5


JUDGES = (
    ("verify",),
    ("verify", "--json"),
    ("explain", "fund-a"),
    ("keys", "list"),
    ("settle",),
    ("reconcile",),
    ("sweep",),
    ("recover",),
    ("events", "list"),
    ("breaks", "list"),
    ("policy", "show"),
    ("payments", "list"),
    ("payments", "resolve", "or_1", "--outcome", "never_charged", "--evidence", "the dashboard"),
    ("refunds", "list"),
    ("refunds", "decide", "or_1", "--payment", "pi_1", "--decision", "keep"),
    ("approvals",),
    ("outbox", "list"),
    ("outbox", "read", "warehouse"),
    ("outbox", "relayed", "warehouse", "1:1"),
    ("outbox", "forget", "warehouse"),
    ("retain",),
    ("retain", "--dry-run"),
)


@pytest.fixture
async def blind(server: servers.Postgres, owned: str) -> str:
    """Somebody who may read every table and is shown no row: row-level security is in force, and no policy is his."""
    async with ledger(owned) as one:
        await one.account("a", 100)
    return await login(
        server,
        owned,
        "GRANT USAGE ON SCHEMA tally TO {user}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tally TO {user}",
    )


@pytest.mark.parametrize("command", JUDGES, ids=" ".join)
def test_who_is_not_shown_every_row_judges_nothing(command: tuple[str, ...], blind: str) -> None:
    shown = tally(*command, dsn=blind)
    assert (shown.returncode, "holds" in shown.stdout) == (2, False), shown.stdout
    last = shown.stderr.splitlines()[-1]
    assert re.match(r"tally: The role app_\w+ does not see every row of tally\.account, ", last), shown.stderr
    assert "GRANT tallystick_service TO" in last
    assert "Traceback" not in shown.stderr


PARTS = {
    "some rows": "DROP POLICY everything ON tally.account; CREATE POLICY part ON tally.account TO {user} "
    "USING (id > '')",
    "writes": "DROP POLICY everything ON tally.account; CREATE POLICY part ON tally.account FOR INSERT TO {user} "
    "WITH CHECK (true)",
    "another": "DROP POLICY everything ON tally.account; CREATE POLICY part ON tally.account TO tally USING (true)",
    "restricted": "CREATE POLICY part ON tally.account AS RESTRICTIVE TO {user} USING (id > '')",
}


@pytest.mark.parametrize("part", PARTS)
async def test_a_policy_that_may_hide_rows_is_no_sight(part: str, owned: str, blind: str) -> None:
    user = urlsplit(blind).username
    async with acting(owned) as owner:
        for table in await _walled(owned):
            await owner.execute(f"CREATE POLICY everything ON tally.{table} TO {user} USING (true)")
        seen = [verdict async for verdict in verify(blind)]
        assert (sum(one.broken for one in seen), min(one.checked for one in seen[:4])) == (0, 1)
        await owner.execute(PARTS[part].format(user=user))
    with pytest.raises(Misconfigured, match=r"does not see every row of tally\.account:"):
        await require_current(blind)
    with pytest.raises(Misconfigured, match="does not see every row"):
        _ = [verdict async for verdict in verify(blind)]


async def _walled(dsn: str) -> list[str]:
    async with acting(dsn) as owner:
        rows = await owner.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = 'tally'::regnamespace AND relrowsecurity"
        )
    return [row["relname"] for row in rows]


async def test_an_owner_who_is_bound_himself_judges_nothing(owned: str) -> None:
    async with acting(owned) as owner:
        await owner.execute("ALTER TABLE tally.entry FORCE ROW LEVEL SECURITY")
    shown = tally("verify", dsn=owned)
    assert (shown.returncode, "tally.entry" in shown.stderr, "holds" in shown.stdout) == (2, True, False)


@pytest.mark.parametrize("command", [("serve",), ("work",), ("migrate",), ("keys", "list"), ("verify",)], ids=" ".join)
async def test_a_stranger_is_told_in_one_sentence(
    command: tuple[str, ...], server: servers.Postgres, owned: str, tmp_path: Path
) -> None:
    stranger = await login(server, owned)
    shown = tally(*command, dsn=stranger, TALLY_PORT="0", TALLY_HOME=str(tmp_path))
    assert shown.returncode == 2, shown.stderr
    assert shown.stderr.splitlines()[-1].startswith("tally: ")
    assert "permission denied" in shown.stderr
    # And what to do: which of the two he must be depends on what he wanted.
    advice = "`tally migrate` needs the owner of the tables; everything else a member of the service's role"
    assert advice in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("command", ["serve", "work", "up"])
async def test_who_may_only_read_starts_no_service(
    command: str, server: servers.Postgres, owned: str, tmp_path: Path
) -> None:
    reads = ("GRANT USAGE ON SCHEMA tally TO {user}", "GRANT SELECT ON ALL TABLES IN SCHEMA tally TO {user}")
    auditor = await login(server, owned, *reads, "ALTER ROLE {user} BYPASSRLS")
    more = {"TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0", "TALLY_HOME": str(tmp_path)}
    shown = tally(command, dsn=auditor, **more)
    assert shown.returncode == 2, shown.stderr
    assert re.search(r"tally: The role app_\w+ lacks INSERT, UPDATE.* on tally\.account, ", shown.stderr), shown.stderr
    assert tally("verify", dsn=auditor).returncode == 0
    written = tally("keys", "create", "--for", "somebody", dsn=auditor)
    assert (written.returncode, "permission denied" in written.stderr) == (2, True), written.stderr
    assert "Traceback" not in written.stderr


async def test_an_owner_who_may_make_no_roles_is_told_what_to_ask_for(server: servers.Postgres) -> None:
    dsn = server.empty_database()
    poor = await login(
        server,
        dsn,
        "GRANT tallystick_reader TO {user}",
        f"GRANT CREATE ON DATABASE {urlsplit(dsn).path[1:]} TO {{user}}",
    )
    await migrate(poor)
    granted = await grant(poor, "a_role_that_nobody_made")
    assert granted.note is not None
    assert "CREATE ROLE" in granted.note
    shown = tally("migrate", dsn=poor, TALLY_SERVICE_ROLE="a_role_that_nobody_made")
    assert (shown.returncode, "have an administrator run" in shown.stderr) == (0, True), shown.stderr
    await require_current(poor, writing=True)


async def test_a_role_that_could_change_the_rules_is_refused(owned: str) -> None:
    with pytest.raises(Misconfigured, match="could change every rule"):
        await grant(owned, "tally")
