"""Connections to PostgreSQL, and what a broken one means.

Writers run as the owner. Reads for a tenant run as `tallystick_reader` inside `reading()`, where row-level
security shows that tenant's rows alone.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg

from tallystick.engine.port import Contended, Lost, told_plainly
from tallystick.errors import Misconfigured, Unreachable
from tallystick.settings import LIMITS, Limits

Connection = asyncpg.Connection

# These say that the server went away or cannot work, not that our statement was wrong.
GONE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # What asyncpg raises on an idle connection that the server has just ended.
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    # No room on its disk, or a disk that fails. (Out of memory is not among them: a smaller batch may fit.)
    asyncpg.DiskFullError,
    asyncpg.PostgresIOError,
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

_OLDEST_SERVER = 15

# A server that loses what it acknowledged makes every promise of the engine void.
_CARELESS = (
    "SELECT string_agg(name, ' and ') FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"
)


def _session(limits: Limits) -> dict[str, str]:
    # Planned once per connection. Tables grow from nothing to millions of rows under a cached plan: without
    # sequential scans the plan made on the first day is still the right one on the last.
    return {
        "application_name": "tallystick",
        "timezone": "UTC",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
        # Array literals (store.literal) say NULL and mean it, whatever the server was told to take that for.
        "array_nulls": "on",
        "lock_timeout": f"{limits.lock_wait_seconds * 1000:.0f}",
        "statement_timeout": f"{limits.statement_seconds * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{limits.idle_transaction_seconds * 1000:.0f}",
    }


class Database:
    """Connections to one PostgreSQL database, opened when first needed and kept."""

    def __init__(self, dsn: str, connections: int, limits: Limits) -> None:
        """Use `connect`. A stack of our own: a driver's pool costs 40 microseconds a turn, and a reset."""
        self._dsn = dsn
        self._limits = limits
        self._session = _session(limits)
        self._slots = asyncio.Semaphore(connections)
        # Reads may not take the connections of the lanes: a flood of them would stop the writers.
        self._reader_slots = asyncio.Semaphore(max(min(connections - limits.lanes, limits.readers), 1))
        self._idle: list[Connection] = []

    async def close(self) -> None:
        """Give the idle connections back to the server."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=self._limits.close_seconds)
            except GONE:
                connection.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside any transaction. Raises Lost when there is none to be had."""
        async with self._slots:
            connection = self._kept() or await self._another()
            try:
                yield connection
            except BaseException as error:
                # A statement may have been cut off in flight: what the connection says of itself is then old.
                if isinstance(error, GONE) or not isinstance(error, Exception):
                    connection.terminate()
                raise
            finally:
                # Left inside a transaction only when something broke: such a connection is not worth saving.
                if connection.is_closed() or connection.is_in_transaction():
                    connection.terminate()
                else:
                    self._idle.append(connection)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            # The server may have ended it while it was idle.
            if not connection.is_closed():
                return connection
        return None

    async def _another(self) -> Connection:
        try:
            return await self.open()
        except (*GONE, asyncpg.PostgresError) as error:
            raise Lost(_plain(error), commit_sent=False) from error

    async def open(self) -> Connection:
        """One more connection, with the session as the engine needs it."""
        connection = await asyncpg.connect(
            self._dsn, timeout=self._limits.connect_seconds, server_settings=self._session
        )
        try:
            async with asyncio.timeout(self._limits.connect_seconds):
                # Committed means durable. A stronger setting (remote_apply) stays as it is.
                if await connection.fetchval("SHOW synchronous_commit") == "off":
                    await connection.execute("SET synchronous_commit = on")
            _bound_silence(connection, self._limits)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def keep(self, connection: Connection) -> None:
        """Have an open connection used before another is opened."""
        self._idle.append(connection)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """One transaction as the owner. Commits at the end of the block; raises Lost or Contended."""
        commit_sent = False
        async with self.connection() as connection:
            try:
                # One timer for all of it: neither a stuck server process nor a vanished one may hold the callers.
                async with asyncio.timeout(self._limits.transaction_seconds):
                    await connection.execute("BEGIN")
                    yield connection
                    commit_sent = True
                    await connection.execute("COMMIT")
            except GONE as error:
                connection.terminate()
                raise Lost(_plain(error), commit_sent=commit_sent) from error
            except asyncpg.PostgresError as error:
                await _roll_back(connection)
                if commit_sent:
                    raise Lost(_plain(error), commit_sent=True) from error
                if isinstance(error, CONTENDED):
                    held = isinstance(error, asyncpg.LockNotAvailableError)
                    raise Contended(str(error), held=held) from error
                raise
            except Exception:
                await _roll_back(connection)
                raise

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[Connection]:
        """`writing` for a caller outside group commit. Raises InFlight, OutcomeUnknown and Unreachable."""
        with told_plainly():
            async with self.writing() as connection:
                yield connection

    @asynccontextmanager
    async def stating(self) -> AsyncIterator[Connection]:
        """One statement as the owner, which is a transaction of its own: no round trips for BEGIN and COMMIT.

        Raises Contended, and Lost: whether it was committed is then never known.
        """
        async with self.connection() as connection:
            try:
                async with asyncio.timeout(self._limits.transaction_seconds):
                    yield connection
            except GONE as error:
                connection.terminate()
                raise Lost(_plain(error), commit_sent=True) from error
            except asyncpg.PostgresError as error:
                if isinstance(error, CONTENDED):
                    held = isinstance(error, asyncpg.LockNotAvailableError)
                    raise Contended(str(error), held=held) from error
                raise

    @asynccontextmanager
    async def owning(self) -> AsyncIterator[Connection]:
        """A connection as the owner for single statements that no tenant asked for."""
        try:
            async with self._reader_slots, self.connection() as connection:
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


async def connect(dsn: str, *, connections: int, limits: Limits = LIMITS) -> Database:
    """Open the first connection, or say in plain words why that is not possible."""
    database = Database(dsn, connections, limits)
    with reachable():
        connection = await database.open()
        version = connection.get_server_version()
        careless = await connection.fetchval(_CARELESS)
    database.keep(connection)
    if version.major < _OLDEST_SERVER:
        await database.close()
        message = f"PostgreSQL {_OLDEST_SERVER} or newer is needed; the server is {version.major}.{version.minor}."
        raise Misconfigured(message)
    if careless:
        await database.close()
        message = f"The server runs with {careless} off: what it calls committed can be lost. Turn it on."
        raise Misconfigured(message)
    return database


@contextmanager
def reachable() -> Iterator[None]:
    """Turn what can go wrong with a first connection into a sentence for the person who set it up."""
    try:
        yield
    except (asyncpg.InvalidCatalogNameError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        message = f"TALLY_DATABASE_URL: the server refused the connection: {error}"
        raise Misconfigured(message) from error
    except (ValueError, asyncpg.ClientConfigurationError):
        # Not in the parser's words: they may repeat a part of the password.
        message = "TALLY_DATABASE_URL is not an address like postgresql://user:password@host:port/database"
        raise Misconfigured(message) from None
    except (Lost, *GONE) as error:
        raise Unreachable(_plain(error)) from error


def _bound_silence(connection: Connection, limits: Limits) -> None:
    """Let the kernel end an idle connection whose server vanished without a word."""
    transport: asyncio.BaseTransport = connection._transport  # type: ignore[attr-defined]  # noqa: SLF001 - not public
    wire = transport.get_extra_info("socket")
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with socket.socket(fileno=os.dup(wire.fileno())) as options:
        options.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", limits.silence_seconds),
            ("TCP_KEEPINTVL", limits.silence_seconds),
            ("TCP_KEEPCNT", 2),
            ("TCP_USER_TIMEOUT", 1000 * limits.silence_seconds * 3),
        ):
            # Not every system has all of them.
            if hasattr(socket, name):
                options.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


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
