"""The ground a bench runs on: a private server or a private database, with accounts in it."""

import asyncio
import secrets
import tempfile
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from tallystick import app
from tallystick.database.migrate import migrate
from tallystick.database.verify import verify
from tallystick.settings import Settings

# Signs what the benches' own simulators send.
WEBHOOK_SECRET = "whsec_bench"  # noqa: S105 - made up, and believed by nothing else
# Each try waits up to 5 s in the server for sessions that are just ending.
_DROP_TRIES = 5


@asynccontextmanager
async def server(settings: Settings) -> AsyncIterator[str]:
    """DSN of the server to use: the configured one, or an embedded one that is thrown away afterwards."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with tempfile.TemporaryDirectory(prefix="tally-bench-", ignore_cleanup_errors=True) as folder:
        # The server may run as another user, who must be able to enter.
        Path(folder).chmod(0o755)  # noqa: ASYNC240 - nothing else runs yet
        async with app.database_address(Settings(home=Path(folder) / "home"), making=True) as (dsn, _notes):
            yield dsn


@asynccontextmanager
async def database(server_dsn: str) -> AsyncIterator[str]:
    """A database of our own on that server, migrated, and dropped at the end."""
    name = f"tally_bench_{secrets.token_hex(4)}"
    await _execute(server_dsn, f"CREATE DATABASE {name}")
    parts = urllib.parse.urlsplit(server_dsn)
    dsn = urllib.parse.urlunsplit(parts._replace(path=f"/{name}"))
    try:
        await migrate(dsn)
        yield dsn
    finally:
        await _drop(server_dsn, name)


async def make_accounts(dsn: str, count: int) -> list[str]:
    """Accounts `acct:0`... without a floor, so that no operation is refused and every one costs the same."""
    names = [f"acct:{number}" for number in range(count)]
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "INSERT INTO tally.account (tenant_id, id, currency) "
            "SELECT (SELECT tenant_id FROM tally.tenant WHERE name = 'default'), id, 'USD' FROM unnest($1::text[]) id",
            names,
        )
        await connection.execute("UPDATE tally.account SET floor_micros = NULL")
        await connection.execute("ANALYZE tally.account")
    finally:
        await connection.close()
    return names


async def checked(dsn: str) -> None:
    """Stop the bench when an invariant does not hold: a fast wrong ledger is worth nothing."""
    async for verdict in verify(dsn):
        if verdict.broken:
            message = f"{verdict.invariant}: {verdict.broken} of {verdict.checked} broken"
            raise SystemExit(message)


async def wal_position(dsn: str) -> tuple[int, int]:
    """Bytes of WAL and number of commits so far in this database's server."""
    connection = await asyncpg.connect(dsn)
    try:
        # The counters of other sessions arrive when these end or are idle; our own must not use old ones.
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        wal = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        commits = await connection.fetchval(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
    finally:
        await connection.close()
    return int(wal), int(commits)


async def _drop(server_dsn: str, name: str) -> None:
    """Without FORCE: the server then ends its own workers there (autovacuum), which we may not do."""
    for _ in range(_DROP_TRIES - 1):
        try:
            await _execute(server_dsn, f"DROP DATABASE {name}")
        except asyncpg.ObjectInUseError:
            await asyncio.sleep(0.5)
        else:
            return
    await _execute(server_dsn, f"DROP DATABASE {name}")


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
