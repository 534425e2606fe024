"""What the database holds of the intake by itself, attacked by raw SQL as its owner."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from tallystick.audit.author import acting
from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.settings import LIMITS
from tallystick.webhooks.intake import store
from tallystick.webhooks.intake.store import SetAside
from tallystick.webhooks.record import Delivered
from tests import servers
from tests.deliveries import delivery, stored
from tests.ledgers import broken


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


def aside(offset: int, value: bytes | None = b"x", span: int = 1) -> SetAside:
    return SetAside(partition=0, first_offset=offset, next_offset=offset + span, reason="because", value=value)


async def test_events_poison_and_place_are_one_commit(database: Database, dsn: str) -> None:
    told = [Delivered(given.provider, given.events) for given in (delivery(1), delivery(2, 3))]
    assert await store.store(database, "t", told, [aside(5)], {0: 6, 1: 2}) == (3, 1)
    with pytest.raises(asyncpg.CheckViolationError):
        await store.store(database, "t", [Delivered("simulator", delivery(9).events)], [aside(7, b"x", 2)], {0: 9})
    assert set(await stored(dsn)) == {"evt_1", "evt_2", "evt_3"}
    assert await store.offsets(database, "t", [0, 1, 2]) == {0: 6, 1: 2}
    assert await store.offsets(database, "other", [0]) == {}
    assert await broken(dsn) == {}


async def test_a_record_set_aside_twice_is_one_row_and_another_value_is_another(database: Database) -> None:
    """A topic that was made anew has other records under the same numbers."""
    assert await store.store(database, "t", [], [aside(1)], {}) == (0, 1)
    assert await store.store(database, "t", [], [aside(1)], {}) == (0, 0)
    assert await store.store(database, "t", [], [aside(1, b"y")], {}) == (0, 1)
    assert await store.store(database, "t", [], [aside(1, None, 4)], {}) == (0, 1)
    assert await store.count_poison(database) == 3


ATTACKS = {
    "DELETE FROM tally.webhook_poison": "TS004",
    "TRUNCATE tally.webhook_poison": "TS004",
    "UPDATE tally.webhook_poison SET value = 'other'": "TS004",
    "UPDATE tally.webhook_poison SET reason = 'other'": "TS004",
    "UPDATE tally.webhook_poison SET first_offset = 9, next_offset = 10": "TS004",
    "UPDATE tally.webhook_poison SET resolved_at = now()": "23514",
    "DELETE FROM tally.webhook_offset": "TS004",
    "TRUNCATE tally.webhook_offset": "TS004",
    "UPDATE tally.webhook_offset SET next_offset = -1": "23514",
}


@pytest.mark.parametrize("statement", ATTACKS)
async def test_what_was_acknowledged_cannot_be_made_away_with(
    database: Database, owner: asyncpg.Connection, statement: str
) -> None:
    await store.store(database, "t", [], [aside(1)], {0: 2})
    with pytest.raises(asyncpg.PostgresError) as raised:
        await owner.execute(statement)
    assert raised.value.sqlstate == ATTACKS[statement], raised.value


async def test_it_is_resolved_once(database: Database, owner: asyncpg.Connection) -> None:
    await store.store(database, "t", [], [aside(1)], {})
    (view,) = await store.list_poison(database, after=0, most=10)
    with acting("anna/tsk_anna"):
        assert await store.dismiss(database, view.number, "it was ours to test")
    assert await owner.fetchval("SELECT resolved_by FROM tally.webhook_poison") == "anna/tsk_anna"
    assert not await store.dismiss(database, view.number, "again")
    with pytest.raises(asyncpg.PostgresError):
        await owner.execute("UPDATE tally.webhook_poison SET resolution = 'another', resolved_at = now()")
    assert await store.list_poison(database, after=0, most=10) == []


async def test_what_concerns_every_record_is_no_records_own_fault() -> None:
    """A full disk that made poison of everything would empty the topic into it."""
    for error in (asyncpg.DiskFullError, asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError):
        assert not store.is_own_fault(error("x"))
    for own in (asyncpg.CharacterNotInRepertoireError, asyncpg.CheckViolationError, asyncpg.ProgramLimitExceededError):
        assert store.is_own_fault(own("x"))
    assert not store.is_own_fault(OSError())
