"""Connections to PostgreSQL, and what a broken one means.

Writers run as the owner. Reads for a tenant run as `tallystick_reader` inside `reading()`, where row-level
security shows that tenant's rows alone.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tallystick.engine.port import Contended, Lost
from tallystick.errors import Misconfigured, Unreachable
from tallystick.settings import LIMITS

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

# These say that the server went away, not that our statement was wrong.
GONE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.QueryCanceledError,
    asyncio.TimeoutError,
)
# Nothing was written, and the same batch can simply be run again.
CONTENDED = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)

_OLDEST_SERVER = 150_000

# Planned once per connection. Tables grow from nothing to millions of rows under a cached plan: without
# sequential scans the plan made on the first day is still the right one on the last.
_SESSION = {
    "application_name": "tallystick",
    "timezone": "UTC",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    "lock_timeout": f"{LIMITS.lock_wait_seconds * 1000:.0f}",
    "statement_timeout": f"{LIMITS.statement_seconds * 1000:.0f}",
    "idle_in_transaction_session_timeout": f"{LIMITS.idle_transaction_seconds * 1000:.0f}",
}


class Database:
    """A pool of connections to one PostgreSQL database."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        """Use `connect`."""
        self._pool = pool

    async def close(self) -> None:
        """Give the connections back to the server."""
        try:
            await asyncio.wait_for(self._pool.close(), LIMITS.close_seconds)
        except (TimeoutError, *GONE):
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside any transaction."""
        try:
            connection = await self._pool.acquire(timeout=LIMITS.connect_seconds)
        except GONE as error:
            raise Lost(_plain(error), commit_sent=False) from error
        try:
            yield connection
        finally:
            await self._release(connection)

    async def _release(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        # Left inside a transaction only when something broke: such a connection is not worth saving.
        if not connection.is_closed() and connection.is_in_transaction():
            connection.terminate()
        await self._pool.release(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """One transaction as the owner. Commits at the end of the block; raises Lost or Contended."""
        commit_sent = False
        async with self.connection() as connection:
            try:
                await connection.execute("BEGIN")
                yield connection
                commit_sent = True
                await connection.execute("COMMIT")
            except GONE as error:
                raise Lost(_plain(error), commit_sent=commit_sent) from error
            except CONTENDED as error:
                await _roll_back(connection)
                raise Contended(str(error), held=isinstance(error, asyncpg.LockNotAvailableError)) from error
            except BaseException:
                await _roll_back(connection)
                raise

    @asynccontextmanager
    async def owning(self) -> AsyncIterator[Connection]:
        """A connection as the owner for single statements that no tenant asked for."""
        try:
            async with self.connection() as connection:
                yield connection
        except (Lost, *GONE) as error:
            raise Unreachable(_plain(error)) from error

    @asynccontextmanager
    async def reading(self, tenant_number: int) -> AsyncIterator[Connection]:
        """One snapshot of what this tenant may see, enforced by the database."""
        async with self.owning() as connection:
            try:
                await connection.execute(
                    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL ROLE tallystick_reader; "
                    f"SET LOCAL tally.tenant = '{tenant_number:d}'"
                )
                yield connection
                await connection.execute("COMMIT")
            except BaseException:
                await _roll_back(connection)
                raise


async def connect(dsn: str, *, connections: int) -> Database:
    """Open a pool, or say in plain words why that is not possible."""
    try:
        pool = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=connections,
            command_timeout=LIMITS.statement_seconds + 1,
            timeout=LIMITS.connect_seconds,
            server_settings=_SESSION,
            # Settings are per transaction (SET LOCAL): there is nothing to reset, and a round trip to save.
            reset=_nothing_to_reset,
            max_inactive_connection_lifetime=0,
        )
    except (asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        message = f"TALLY_DATABASE_URL: the server refused the connection: {error}"
        raise Misconfigured(message) from error
    except (ValueError, asyncpg.ClientConfigurationError) as error:
        message = f"TALLY_DATABASE_URL is not a PostgreSQL address: {error}"
        raise Misconfigured(message) from error
    except GONE as error:
        raise Unreachable(_plain(error)) from error
    async with pool.acquire() as connection:
        version = connection.get_server_version()
        number = version.major * 10_000
    if number < _OLDEST_SERVER:
        await pool.close()
        message = f"PostgreSQL 15 or newer is needed; the server is {version.major}.{version.minor}"
        raise Misconfigured(message)
    return Database(pool)


async def _nothing_to_reset(_connection: asyncpg.Connection) -> None:
    return


async def _roll_back(connection: Connection) -> None:
    if connection.is_closed() or not connection.is_in_transaction():
        return
    try:
        await connection.execute("ROLLBACK")
    except (*GONE, asyncpg.PostgresError):
        connection.terminate()


def _plain(error: BaseException) -> str:
    """The driver's words. They name hosts and states, never passwords."""
    return str(error) or type(error).__name__
