"""What the database holds of webhook events by itself, attacked by raw SQL as its owner; the days of their bodies."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from tallystick import queries
from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.settings import LIMITS
from tallystick.webhooks import inbox, store
from tallystick.webhooks.rules import End
from tests import servers
from tests.deliveries import delivery
from tests.ledgers import broken
from tests.settlements import pass_time

LEASE = timedelta(minutes=5)
VERIFY = queries.load("tallystick.database", "verify.sql")["webhooks"]


@pytest.fixture(params=["embedded18", "postgres15"])
def dsn(request: pytest.FixtureRequest) -> str:
    server: servers.Server = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest_asyncio.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    await migrate(dsn)
    opened = await postgres.connect(dsn, connections=LIMITS.lanes + 4)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def owner(dsn: str, database: Database) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def append(database: Database, *numbers: int) -> list[int]:
    async with database.writing() as connection:
        return await inbox.append(connection, [delivery(number) for number in numbers])


async def refused(connection: asyncpg.Connection, state: str, statement: str, *arguments: object) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement, *arguments)
    assert raised.value.sqlstate == state, (statement, raised.value)


async def in_status(database: Database, owner: asyncpg.Connection, status: str) -> None:
    """One event that came to this status as a worker brings it there."""
    await append(database, 1)
    if status == "UNPROCESSED":
        return
    (claimed,) = await store.claim(database, most=1, lease=LEASE, by="tests")
    if status != "IN_PROCESSING":
        end = End(status, 0, "because")  # type: ignore[arg-type]
        assert await store.record(database, [(claimed, end)]) == {claimed.number}
    assert await owner.fetchval("SELECT status FROM tally.webhook_events") == status


CHANGES = (
    "number = number + 1",
    "provider = 'stripe'",
    "event_id = 'evt_mine'",
    "type = 'mine'",
    "purpose = 'payout'",
    "provider_id = 'pi_mine'",
    "reference = 'mine'",
    "parent = 'mine'",
    "amount_micros = amount_micros + 1",
    "currency = 'USD'",
    "state = 'failed'",
    "word = 'mine'",
    "received_at = now()",
    "occurred_at = now()",
    "object_id = 'mine'",
    "object_purpose = 'transfer'",
)


async def test_what_a_provider_told_never_changes(database: Database, owner: asyncpg.Connection) -> None:
    await append(database, 1)
    for change in CHANGES:
        await refused(owner, "TS004", f"UPDATE tally.webhook_events SET {change}")


LEASED = "claim_number = claim_number + 1, processing_until = now() + interval '1 hour'"
JUMPS = (
    ("UNPROCESSED", "status = 'PROCESSED_OK', processed_at = now(), claim_number = 1", "TS004"),
    ("UNPROCESSED", "status = 'PROCESSED_COMPENSATED', processed_at = now(), claim_number = 1", "TS004"),
    ("UNPROCESSED", "status = 'DEAD_LETTER', reason = 'x', claim_number = 1", "TS004"),
    ("UNPROCESSED", "status = 'IN_PROCESSING', processing_until = now()", "TS004"),
    ("UNPROCESSED", "status = 'IN_PROCESSING', processing_until = now(), claim_number = 2", "TS004"),
    ("UNPROCESSED", "status = 'IN_PROCESSING', claim_number = 1", "23514"),
    ("UNPROCESSED", "status = 'LOST'", "TS004"),
    ("UNPROCESSED", "claim_number = 7", "TS004"),
    ("UNPROCESSED", "tries = -1", "23514"),
    ("IN_PROCESSING", LEASED, "TS004"),
    ("IN_PROCESSING", "claim_number = claim_number - 1", "TS004"),
    ("IN_PROCESSING", "processing_until = NULL", "23514"),
    ("IN_PROCESSING", "status = 'PROCESSED_OK', processing_until = NULL", "23514"),
    ("IN_PROCESSING", "status = 'PROCESSED_OK', processed_at = now()", "23514"),
    ("IN_PROCESSING", "status = 'DEAD_LETTER', processing_until = NULL, reason = NULL", "23514"),
    ("IN_PROCESSING", "status = 'UNPROCESSED', processing_until = NULL, claim_number = 0", "TS004"),
    ("PROCESSED_OK", "status = 'UNPROCESSED', processed_at = NULL", "TS004"),
    ("PROCESSED_OK", f"status = 'IN_PROCESSING', processed_at = NULL, {LEASED}", "TS004"),
    ("PROCESSED_OK", "status = 'PROCESSED_COMPENSATED'", "TS004"),
    ("PROCESSED_OK", "tries = 3", "TS004"),
    ("PROCESSED_COMPENSATED", "status = 'UNPROCESSED', processed_at = NULL", "TS004"),
    ("PROCESSED_COMPENSATED", "status = 'PROCESSED_OK'", "TS004"),
    ("DEAD_LETTER", "status = 'PROCESSED_OK', processed_at = now()", "TS004"),
    ("DEAD_LETTER", f"status = 'IN_PROCESSING', {LEASED}", "TS004"),
)


@pytest.mark.parametrize(
    "status", ["UNPROCESSED", "IN_PROCESSING", "PROCESSED_OK", "PROCESSED_COMPENSATED", "DEAD_LETTER"]
)
async def test_no_step_is_left_out_or_taken_back(database: Database, owner: asyncpg.Connection, status: str) -> None:
    await in_status(database, owner, status)
    for begun, change, state in JUMPS:
        if begun == status:
            await refused(owner, state, f"UPDATE tally.webhook_events SET {change}")


async def test_a_lease_is_taken_over_only_when_it_is_over(
    dsn: str, database: Database, owner: asyncpg.Connection
) -> None:
    """By the database's clock, and by the database itself: not even a worker with a bug takes what another holds."""
    await in_status(database, owner, "IN_PROCESSING")
    await refused(owner, "TS004", f"UPDATE tally.webhook_events SET {LEASED}")
    await pass_time(dsn, timedelta(hours=1))
    await owner.execute(f"UPDATE tally.webhook_events SET {LEASED}")


GONE = (
    "DELETE FROM tally.webhook_events",
    "TRUNCATE tally.webhook_events",
    "DELETE FROM tally.webhook_guard",
    "UPDATE tally.webhook_guard SET dedup_key = 'mine'",
    "TRUNCATE tally.webhook_guard",
    "DELETE FROM tally.webhook_body",
    "UPDATE tally.webhook_body SET body = ''",
    "TRUNCATE tally.webhook_body",
    "TRUNCATE tally.webhook_body_default",
)


async def test_nothing_that_was_acknowledged_goes_away(database: Database, owner: asyncpg.Connection) -> None:
    await append(database, 1)
    for statement in GONE:
        await refused(owner, "TS004", statement)
    # Nor by way of the partition itself.
    day = await owner.fetchval("SELECT tableoid::regclass FROM tally.webhook_body")
    for statement in (f"DELETE FROM {day}", f"UPDATE {day} SET body = ''", f"TRUNCATE {day}"):
        await refused(owner, "TS004", statement)


RAW = (
    "INSERT INTO tally.webhook_events (number, provider, event_id, type, received_at, due_at{more}) "
    "VALUES (nextval('tally.webhook_number'), 'simulator', 'raw', 't', now(), now(){values})"
)
DONE = ", status, processed_at", ", 'PROCESSED_OK', now()"
MOVEMENT = (
    ", purpose, provider_id, reference, parent, amount_micros, currency, state, word",
    ", 'charge', '7', '', '', 1, 'EUR', 'moved', 'x'",
)
NAMED = ", object_id, object_purpose", ", '7', 'transfer'"
BORN_WRONG = (
    # Done at once is only what tells of no movement, and names none.
    (DONE[0] + MOVEMENT[0], DONE[1] + MOVEMENT[1], "TS004"),
    (DONE[0] + NAMED[0], DONE[1] + NAMED[1], "TS004"),
    (", status, reason", ", 'DEAD_LETTER', 'x'", "TS004"),
    (", status, processed_at", ", 'PROCESSED_COMPENSATED', now()", "TS004"),
    (", status, claim_number, processed_at", ", 'PROCESSED_OK', 1, now()", "TS004"),
    (", status, claim_number, processing_until", ", 'IN_PROCESSING', 1, now()", "TS004"),
    (", tries", ", 3", "TS004"),
    (", claim_number", ", 3", "TS004"),
    (", amount_micros", ", 5", "23514"),
    (", purpose", ", 'gift'", "23514"),
    (", object_id, object_purpose", ", '7', 'gift'", "23514"),
    (", object_purpose", ", 'transfer'", "23514"),
    (", object_id", ", ''", "23514"),
    (
        ", object_id, purpose, provider_id, reference, parent, amount_micros, currency, state, word",
        ", '7', 'transfer', '7', '', '', 1, 'EUR', 'moved', 'x'",
        "23514",
    ),
)


async def test_an_event_begins_unprocessed_unless_it_concerns_nobody(
    database: Database, owner: asyncpg.Connection
) -> None:
    for more, values, state in BORN_WRONG:
        await refused(owner, state, RAW.format(more=more, values=values))
    await owner.execute(RAW.format(more=DONE[0], values=DONE[1]))


async def test_no_tenant_reads_events(database: Database, owner: asyncpg.Connection) -> None:
    """They are the provider's word to the operator, and name every tenant's payments."""
    await append(database, 1)
    for table in ("webhook_events", "webhook_guard", "webhook_body", "webhook_body_default", "webhook_cursor"):
        async with owner.transaction():
            await owner.execute("SET LOCAL ROLE tallystick_reader")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with owner.transaction():
                    await owner.execute(f"SELECT * FROM tally.{table}")


DAMAGE = (
    "DELETE FROM tally.webhook_body",
    "DELETE FROM tally.webhook_guard",
    "DELETE FROM tally.webhook_events",
    "UPDATE tally.webhook_guard SET dedup_key = 'mine' WHERE dedup_key = 'evt_1'",
    "UPDATE tally.webhook_events SET event_id = 'mine' WHERE event_id = 'evt_1'",
    "INSERT INTO tally.webhook_body VALUES (now(), -1, '')",
)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_verify_sees_what_went_missing(dsn: str, database: Database, damage: str) -> None:
    await append(database, 1, 2)
    assert await broken(dsn) == {}
    connection = await asyncpg.connect(dsn.replace("tally@", "postgres@"))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(damage)
    finally:
        await connection.close()
    assert (await broken(dsn)).keys() == {"webhooks"}


async def test_one_batch_may_tell_the_same_twice(database: Database) -> None:
    assert await append(database, 1, 2, 1, 3, 2) == [1, 1, 0, 1, 0]
    assert await append(database, 3, 4) == [0, 1]


async def test_a_key_too_long_for_an_index_is_known_again(database: Database, owner: asyncpg.Connection) -> None:
    told = delivery(1)
    long = type(told)(told.provider, (msgspec.structs.replace(told.events[0], dedup_key="é" * 9_000),))
    for expected in (1, 0):
        async with database.writing() as connection:
            assert await inbox.append(connection, [long]) == [expected]
    assert (await owner.fetchval("SELECT event_id FROM tally.webhook_events")).startswith("sha256:")


async def _partitions(owner: asyncpg.Connection) -> list[str]:
    rows = await owner.fetch(
        "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'tally.webhook_body'::regclass ORDER BY 1"
    )
    return [row["name"] for row in rows]


def _name(day: datetime) -> str:
    return f"webhook_body_{day:%Y%m%d}"


async def test_days_are_made_ahead_and_bodies_roll_over(database: Database, owner: asyncpg.Connection) -> None:
    now: datetime = (await owner.fetchval("SELECT now()")).astimezone(UTC)
    days = [_name(now + timedelta(days=ahead)) for ahead in range(LIMITS.webhook_days_ahead + 1)]
    assert await _partitions(owner) == [*days, "webhook_body_default"]
    assert await store.keep_days(database, ahead=LIMITS.webhook_days_ahead, detach_after=None) == (0, [])
    assert await store.keep_days(database, ahead=LIMITS.webhook_days_ahead + 2, detach_after=None) == (2, [])
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=3)
    for number, at in enumerate((midnight - timedelta(microseconds=1), midnight)):
        await owner.execute("INSERT INTO tally.webhook_body VALUES ($1, $2, '')", at, number)
    placed = await owner.fetch(
        "SELECT relname AS name FROM tally.webhook_body b JOIN pg_class c ON c.oid = b.tableoid ORDER BY number"
    )
    assert [row["name"] for row in placed] == [_name(now + timedelta(days=day)) for day in (2, 3)]


async def test_without_any_partition_webhooks_are_stored_all_the_same(
    dsn: str, database: Database, owner: asyncpg.Connection
) -> None:
    """A keeper that has been dead for weeks loses nothing; the day that was begun so stays where it began."""
    for name in (await _partitions(owner))[:-1]:
        await owner.execute(f"DROP TABLE tally.{name}")
    assert await append(database, 1, 2) == [1, 1]
    assert await owner.fetchval("SELECT count(*) FROM tally.webhook_body_default") == 2
    assert (await store.figures(database)).bodies_without_a_day == 2
    made, _ = await store.keep_days(database, ahead=LIMITS.webhook_days_ahead, detach_after=None)
    assert made == LIMITS.webhook_days_ahead
    assert await append(database, 2, 3) == [0, 1]
    assert await broken(dsn) == {}


async def test_days_are_made_while_webhooks_are_being_stored(
    dsn: str, database: Database, owner: asyncpg.Connection
) -> None:
    """A transaction that has stored a webhook and is still open: neither waits for the other."""
    async with database.writing() as connection:
        await inbox.append(connection, [delivery(1)])
        assert await store.keep_days(database, ahead=LIMITS.webhook_days_ahead + 1, detach_after=None) == (1, [])
        await inbox.append(connection, [delivery(2)])
    assert await broken(dsn) == {}


async def test_an_old_day_is_detached_when_all_of_it_is_finished(
    dsn: str, database: Database, owner: asyncpg.Connection
) -> None:
    old = datetime(2020, 1, 1, 12, tzinfo=UTC)
    await owner.execute(
        "CREATE TABLE tally.webhook_body_20200101 (LIKE tally.webhook_body INCLUDING ALL);"
        "ALTER TABLE tally.webhook_body ATTACH PARTITION tally.webhook_body_20200101"
        " FOR VALUES FROM ('2020-01-01 00:00Z') TO ('2020-01-02 00:00Z')"
    )
    await owner.execute("INSERT INTO tally.webhook_guard VALUES ('simulator', 'evt_old', 0)")
    await owner.execute("INSERT INTO tally.webhook_body VALUES ($1, 0, 'old')", old)
    await owner.execute(
        "INSERT INTO tally.webhook_events (number, provider, event_id, type, received_at, due_at)"
        " VALUES (0, 'simulator', 'evt_old', 't', $1, $1)",
        old,
    )
    await append(database, 1)
    assert await store.keep_days(database, ahead=0, detach_after=30) == (0, [])
    claimed = await store.claim(database, most=10, lease=LEASE, by="tests")
    await store.record(database, [(one, End("PROCESSED_OK", 0)) for one in claimed])
    assert await store.keep_days(database, ahead=0, detach_after=30) == (0, ["webhook_body_20200101"])
    assert await owner.fetchval("SELECT body FROM tally.webhook_body_20200101") == b"old"
    assert await store.body(database, 0, old) is None
    assert await owner.fetchval("SELECT count(*) FROM tally.webhook_body") == 1
    assert await broken(dsn) == {}


async def test_the_poll_looks_at_open_events_alone(database: Database, owner: asyncpg.Connection) -> None:
    """However many are finished, its plan knows only the partial indexes."""
    statement = queries.load("tallystick.webhooks", "store.sql")["claim"]
    async with database.connection() as connection:
        await connection.execute(f"PREPARE poll (integer, interval, text) AS {statement}")
        rows = await connection.fetch("EXPLAIN EXECUTE poll (10, '5 min', 'tests')")
        await connection.execute("DEALLOCATE poll")
    plan = "\n".join(row[0] for row in rows)
    assert "webhook_due" in plan
    assert "webhook_leased" in plan
    assert "Tid Scan" in plan
    assert "Seq Scan" not in plan


async def test_appending_joins_by_hash_whatever_was_planned(database: Database) -> None:
    """Arrays have no statistics: a nested loop would look at every pair of a batch of a thousand."""
    statement = queries.load("tallystick.webhooks", "inbox.sql")["append"]
    async with database.connection() as connection:
        await connection.execute(f"PREPARE append ({'text, ' * 16} bytea) AS {statement}")
        rows = await connection.fetch(f"EXPLAIN EXECUTE append ({'NULL, ' * 16} NULL)")
        await connection.execute("DEALLOCATE append")
    plan = "\n".join(row[0] for row in rows)
    assert "Nested Loop" not in plan, plan


async def test_bodies_of_every_length_are_each_its_own(database: Database, owner: asyncpg.Connection) -> None:
    """They travel as one: a place that is off by one would give every event its neighbour's evidence."""
    (told,) = delivery(1).events
    bodies = {f"k{length}": bytes([length % 256]) * length for length in (0, 1, 2, 7, 1_024, 2, 70_000, 3)}
    events = tuple(msgspec.structs.replace(told, dedup_key=key, body=body) for key, body in bodies.items())
    async with database.writing() as connection:
        assert await inbox.append(connection, [type(delivery(1))("simulator", events)]) == [len(bodies)]
    rows = await owner.fetch("SELECT event_id, body FROM tally.webhook_events JOIN tally.webhook_body USING (number)")
    assert {row["event_id"]: row["body"] for row in rows} == bodies


async def test_odd_characters_are_kept_apart(database: Database, owner: asyncpg.Connection) -> None:
    """Those that the statement itself uses to tell elements apart, and texts that are empty."""
    (told,) = delivery(1).events
    movement = told.movement
    assert movement is not None
    odd = [
        msgspec.structs.replace(told, dedup_key="a\x1eb", type="x\x1ey", occurred_at=None),
        msgspec.structs.replace(told, dedup_key="a", movement=msgspec.structs.replace(movement, parent="p\x1d", id="")),
        msgspec.structs.replace(told, dedup_key="b", type="", movement=None),
        msgspec.structs.replace(told, dedup_key='{"\\,', movement=msgspec.structs.replace(movement, reference='"{,')),
    ]
    async with database.writing() as connection:
        assert await inbox.append(connection, [type(delivery(1))("simulator", tuple(odd))]) == [4]
        # Alone, an empty text is a whole column.
        assert await inbox.append(
            connection, [type(delivery(1))("simulator", (msgspec.structs.replace(odd[2], dedup_key="c"),))]
        ) == [1]
    rows = await owner.fetch("SELECT event_id, type, purpose, provider_id, parent, reference FROM tally.webhook_events")
    found = {row["event_id"]: tuple(row)[1:] for row in rows}
    reference = f"{1:064x}"
    assert found.pop(next(key for key in found if key.startswith("sha256:"))) == (
        "x\ufffdy",
        "charge",
        "pi_1",
        "",
        reference,
    )
    assert found == {
        "a": ("payment_intent.succeeded", "charge", "", "p\x1d", reference),
        "b": ("", None, None, None, None),
        "c": ("", None, None, None, None),
        '{"\\,': ("payment_intent.succeeded", "charge", "pi_1", "", '"{,'),
    }
