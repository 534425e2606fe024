"""What holds on MariaDB by other means than on PostgreSQL: by its own triggers, or by `verify` alone."""

from collections.abc import AsyncIterator

import pytest
from asyncmy import errors

from tallystick.commit.port import Contended, Lost
from tallystick.errors import Misconfigured, SchemaMismatch, Unreachable
from tallystick.keys.derived import operation_id
from tallystick.ledger.kinds import Hold, Release, TopUp, Transfer
from tallystick.ledger.mysql import database, migrate
from tallystick.ledger.mysql.address import Address, read_address
from tallystick.ledger.mysql.database import Session
from tallystick.ledger.outcome import Committed
from tests.ledger import stores
from tests.ledger.stores import Books
from tests.servers import Server


@pytest.fixture
async def books(mariadb: Server) -> AsyncIterator[Books]:
    """A database of its own: these tests damage it."""
    dsn = mariadb.fresh_database()
    await migrate.migrate(dsn)
    async with stores.opened(dsn) as opened:
        for name, floor in (("world", None), ("alice", 0), ("held", 0)):
            await opened.put(name, floor=floor)
        async with opened.engine() as engine:
            topup = TopUp(account="alice", source="world", amount_micros=100, currency="USD")
            hold = Hold(account="alice", held="held", amount_micros=40, currency="USD")
            await engine.submit(opened.tenant, topup, "given")
            held = await engine.submit(opened.tenant, hold, "hold")
            assert isinstance(held, Committed)
            await engine.submit(opened.tenant, Release(hold=held.transaction.id), "release")
        yield opened


async def run(books: Books, *statements: str) -> None:
    async with books.database.writing() as session:
        for statement in statements:
            await session.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tally_entry SET amount_micros = 1",
        "DELETE FROM tally_entry",
        "UPDATE tally_operation SET body = 'x'",
        "DELETE FROM tally_operation",
        "UPDATE tally_closing SET operation_id = closed_id",
        "DELETE FROM tally_closing",
        "UPDATE tally_journal SET digest = REPEAT('x', 32)",
        "DELETE FROM tally_journal",
        "DELETE FROM tally_account",
        "UPDATE tally_account SET currency = 'EUR'",
        "UPDATE tally_account SET id = CONCAT(id, 'x')",
        "UPDATE tally_account SET balance_micros = balance_micros + 1 WHERE id = 'alice'",
        "UPDATE tally_account SET entries = entries + 1",
        "UPDATE tally_account SET posted_at = '1999-01-01'",
        "UPDATE tally_account SET floor_micros = 101 WHERE id = 'alice'",
        "INSERT INTO tally_account (tenant_id, id, currency, balance_micros) VALUES (1, 'x', 'USD', 5)",
        "INSERT INTO tally_tenant (name) VALUES ('Not A Name')",
        "INSERT INTO tally_closing SELECT tenant_id - 1, operation_id, closed_id FROM tally_closing",
        "TRUNCATE TABLE tally_operation",
    ],
)
async def test_the_database_itself_refuses_to_rewrite_history(books: Books, statement: str) -> None:
    """Whoever can repair the books with a quick UPDATE can also rob them with one."""
    written = await books.written(books.tenant)
    with pytest.raises(errors.MySQLError):
        await run(books, statement)
    assert await books.written(books.tenant) == written
    assert await books.broken() == {}


ENTRY = (
    "INSERT INTO tally_entry "
    "SELECT a.tenant_id, a.number, a.entries + 1, o.id, 7, a.balance_micros + 7, a.posted_at "
    "FROM tally_account a JOIN tally_operation o ON o.idempotency_key = 'given' WHERE a.id = 'alice'"
)
BALANCE = "UPDATE tally_account SET balance_micros = balance_micros + 7, entries = entries + 1 WHERE id = 'alice'"
PLACEHOLDER = "INSERT INTO tally_operation (tenant_id, id) VALUES (1, REPEAT('x', 16))"
EVENT = "INSERT INTO tally_outbox (tenant_id, topic, operation_id) SELECT tenant_id, 'x', id FROM tally_operation"


@pytest.mark.parametrize(
    ("statements", "broken"),
    [
        ([ENTRY, BALANCE], {"conservation", "one_effect_per_key"}),
        ([ENTRY], {"conservation", "balances", "one_effect_per_key"}),
        ([PLACEHOLDER], {"one_effect_per_key", "journal"}),
        ([EVENT], {"journal"}),
        (["DROP TRIGGER tally_closing_stays", "DELETE FROM tally_closing"], {"closings"}),
    ],
    ids=["unbalanced", "unmoved", "placeholder", "event-twice", "reopened"],
)
async def test_verify_sees_what_no_trigger_can(books: Books, statements: list[str], broken: set[str]) -> None:
    """A check that cannot fail proves nothing."""
    assert await books.broken() == {}
    await run(books, *statements)
    assert (await books.broken()).keys() == broken


async def test_a_refused_operation_leaves_no_placeholder(books: Books) -> None:
    async with books.engine() as engine:
        too_much = Transfer(debit="alice", credit="held", amount_micros=101, currency="USD")
        await engine.submit_many(books.tenant, [(too_much, f"k{n}") for n in range(20)])
    assert await books.count("operation") == 3


async def test_a_placeholder_is_seen_by_nobody_until_it_is_filled(books: Books) -> None:
    """A twin that read it as an answer would replay nothing at all."""
    async with books.stranger() as stranger:
        await stranger.hold_key(books.tenant, operation_id(books.tenant.name, "k"))
        assert await books.count("operation") == 3


@pytest.mark.parametrize("commit_sent", [False, True])
@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (errors.OperationalError(1205, "lock wait timeout"), Contended("", held=True)),
        (errors.OperationalError(1213, "deadlock"), Contended("", held=False)),
        (errors.IntegrityError(1062, "duplicate entry"), Contended("", held=False)),
        (errors.OperationalError(2006, "gone away"), Lost("", commit_sent=False)),
        (errors.OperationalError(2013, "lost during query"), Lost("", commit_sent=False)),
        (errors.OperationalError(1053, "shutdown"), Lost("", commit_sent=False)),
        (errors.OperationalError(1927, "killed"), Lost("", commit_sent=False)),
        (errors.InterfaceError(0, "not connected"), Lost("", commit_sent=False)),
        (errors.InternalError("packet sequence number wrong"), Lost("", commit_sent=False)),
        (ConnectionResetError(), Lost("", commit_sent=False)),
        (TimeoutError(), Lost("", commit_sent=False)),
    ],
    ids=lambda value: str(value.args[0]) if isinstance(value, errors.MySQLError) else type(value).__name__,
)
def test_what_an_error_means(error: Exception, meaning: Contended | Lost, *, commit_sent: bool) -> None:
    """Taking a lost COMMIT for one that failed would let the caller pay again under another key."""
    found = database._meaning(error, commit_sent=commit_sent)
    assert type(found) is type(meaning)
    if isinstance(found, Lost):
        assert found.commit_sent is commit_sent
    elif isinstance(meaning, Contended):
        assert found is not None
        assert found.held is meaning.held


def test_an_error_that_is_nobodys_fault_but_the_items_belongs_to_it_unless_it_is_the_commits() -> None:
    refused = errors.OperationalError(1644, "tally: an entry is never changed")
    assert database._meaning(refused, commit_sent=False) is None
    assert isinstance(database._meaning(errors.OperationalError(1180, "disk"), commit_sent=True), Lost)


async def test_a_connection_killed_by_the_server_is_lost_and_not_used_again(books: Books) -> None:
    async with books.database.reading() as session:
        ((doomed,),) = await session.rows("SELECT CONNECTION_ID()")
    with pytest.raises(Lost) as caught:
        await _killed_while_writing(books, doomed)
    assert caught.value.commit_sent is False
    assert (await books.account("alice")).balance_micros == 100


async def _killed_while_writing(books: Books, doomed: int) -> None:
    async with books.database.writing() as session:
        assert await session.rows("SELECT CONNECTION_ID()") == ((doomed,),)
        killer = await database.first_session(read_address(books.dsn))
        await killer.execute(f"KILL {doomed}")
        await killer.close()
        await session.rows("SELECT 1")


async def test_migrating_again_changes_nothing_and_a_changed_migration_is_refused(books: Books) -> None:
    assert await migrate.migrate(books.dsn) == []
    await run(books, "UPDATE tally_migration SET digest = 'another'")
    with pytest.raises(SchemaMismatch, match="other contents"):
        await migrate.migrate(books.dsn)
    await run(books, "UPDATE tally_migration SET number = 99 WHERE number = 1")
    with pytest.raises(SchemaMismatch, match="migration 99"):
        await migrate.migrate(books.dsn)


async def test_a_database_that_was_not_migrated_says_so_and_stays_as_it_is(mariadb: Server) -> None:
    dsn = mariadb.empty_database()
    with pytest.raises(SchemaMismatch, match=r"no schema of Tallystick yet.*tally migrate"):
        await migrate.require_current(dsn)
    session = await database.first_session(read_address(dsn))
    assert await session.rows("SHOW TABLES") == ()
    await session.close()


async def test_an_interrupted_migration_is_simply_run_again(mariadb: Server) -> None:
    """DDL commits by itself here: what was cut off in the middle must not need a person."""
    dsn = mariadb.empty_database()
    session = await database.first_session(read_address(dsn))
    sql = migrate.migrations()[0].sql
    await session.script(sql[: sql.index("CREATE TABLE IF NOT EXISTS tally_entry")])
    await session.close()
    assert [migration.name for migration in await migrate.migrate(dsn)] == [one.name for one in migrate.migrations()]


async def test_a_server_that_forgets_commits_in_a_crash_is_refused(books: Books) -> None:
    await run(books, "SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        with pytest.raises(Misconfigured, match="innodb_flush_log_at_trx_commit = 2"):
            await database.connect(books.dsn, connections=1)
    finally:
        await run(books, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")


async def test_a_wrong_address_is_said_in_words_and_without_the_password(mariadb: Server) -> None:
    dsn = mariadb.fresh_database()
    with pytest.raises(Misconfigured, match="refused"):
        await database.connect(f"{dsn}_not_there", connections=1)
    with pytest.raises(Unreachable) as caught:
        await database.connect("mysql://user:secret@127.0.0.1:1/db", connections=1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    ["mysql://host/db", "mysql://user@host", "mysql://user@host:port/db", "mysql://user@host/db?colour=red"],
)
def test_an_address_that_is_none_is_refused(dsn: str) -> None:
    with pytest.raises(Misconfigured):
        read_address(dsn)


def test_an_address_is_read_with_its_escapes() -> None:
    read = read_address("mariadb://us%40er:p%3Aw@db.example/ledger?socket=/run/db.sock&ssl_ca=/ca.pem")
    assert read == Address("db.example", 3306, "us@er", "ledger", "p:w", "/run/db.sock", "/ca.pem")
    assert "p:w" not in repr(read)


async def test_values_come_back_as_they_went_in(mariadb: Server) -> None:
    """The driver writes values into the statement's text: a quote that slips through is an injection."""
    session: Session = await database.first_session(read_address(mariadb.fresh_database()))
    nasty = bytes(range(256)) + b"'); DROP TABLE x; -- %s %% \\'"
    text = "'\"\\%s %% \0\n\r\x1a ☃ 𝄞"
    assert await session.rows("SELECT %s, %s", nasty, text) == ((nasty, text),)
    await session.close()
