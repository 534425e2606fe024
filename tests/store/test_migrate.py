"""Migrations: once each, in order, and never backwards."""

import asyncio

import asyncpg
import pytest

from tallystick.errors import Misconfigured, SchemaMismatch, Unreachable
from tallystick.store import migrate as migrating
from tallystick.store.migrate import Migration, migrate, migrations
from tests import servers
from tests.ledgers import fetchval


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


async def test_a_database_that_is_ahead_of_the_code_is_refused(dsn: str) -> None:
    await migrate(dsn)
    await fetchval(dsn, "INSERT INTO tally.migration VALUES (9999, 'future', 'x')")
    with pytest.raises(SchemaMismatch, match="9999"):
        await migrate(dsn)


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
