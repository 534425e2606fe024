"""The test servers themselves: a crash test is worth nothing if its crash is none."""

import asyncmy
import asyncpg
import pytest

from tallystick.database.migrate import migrate
from tests.ledgers import fetchval
from tests.servers import OLDEST_POSTGRES, Server

IS_HERE = "SELECT w.system = h.system AND w.database = h.database FROM tally.whereabouts w, tally.here() AS h"


@pytest.fixture(params=["embedded18", "postgres15"])
def postgres(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.mark.parametrize(("fixture", "version"), [("embedded18", 18), ("postgres15", OLDEST_POSTGRES)])
async def test_each_server_is_the_version_that_it_is_called(
    request: pytest.FixtureRequest, fixture: str, version: int
) -> None:
    """A newer one under the name of the oldest would hide what only the oldest breaks at."""
    server: Server = request.getfixturevalue(fixture)
    number = await fetchval(server.fresh_database(), "SELECT current_setting('server_version_num')::integer")
    assert int(number) // 10_000 == version
    assert OLDEST_POSTGRES == 15, "what README and docs promise"


async def test_what_was_committed_survives_a_crash_of_postgresql(postgres: Server) -> None:
    dsn = postgres.fresh_database()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    postgres.stop(immediate=True)
    assert connection.is_closed() or await _is_cut(connection)
    postgres.start()
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT number FROM kept") == 7
    await connection.close()


async def _is_cut(connection: asyncpg.Connection) -> bool:
    try:
        await connection.fetchval("SELECT 1")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return True
    return False


async def test_a_fresh_database_is_migrated_and_nobody_s_backup(postgres: Server) -> None:
    """It is a copy of another one; taken for a restored backup, it would send nothing."""
    dsn = postgres.fresh_database()
    assert await migrate(dsn) == []
    assert await fetchval(dsn, IS_HERE)


async def test_fresh_databases_are_apart_and_made_for_a_role_that_is_no_superuser(postgres: Server) -> None:
    first, second = postgres.fresh_database(), postgres.fresh_database()
    assert first != second
    connection = await asyncpg.connect(second)
    assert await connection.fetchval("SHOW is_superuser") == "off"
    await connection.close()


async def test_what_was_committed_survives_a_crash_of_mariadb(mariadb: Server) -> None:
    database = mariadb.fresh_database()
    address, name = database.removeprefix("mysql://root@").split("/")
    host, port = address.split(":")
    connection = await asyncmy.connect(host=host, port=int(port), user="root", db=name, autocommit=True)
    async with connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE kept (number INT) ENGINE=InnoDB")
        await cursor.execute("INSERT INTO kept VALUES (7)")
    mariadb.stop(immediate=True)
    mariadb.start()
    connection = await asyncmy.connect(host=host, port=int(port), user="root", db=name)
    async with connection.cursor() as cursor:
        await cursor.execute("SELECT number FROM kept")
        assert await cursor.fetchone() == (7,)
    connection.close()
