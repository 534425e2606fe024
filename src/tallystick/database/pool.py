"""Connections to PostgreSQL, and what a broken one means.

Writers run as the owner. Reads for a tenant run as `tallystick_reader` inside `reading()`, where row-level
security shows that tenant's rows alone.

Behind a pooler that lends a server connection for one transaction (PgBouncer) nothing of a session outlasts a COMMIT:
not its settings, not what was prepared in it. There everything is a transaction that brings its settings along, nothing
is prepared, and what needs a session of its own (LISTEN, temporary tables, another role) goes to the server directly.

A COMMIT that was answered with a warning is a COMMIT whose outcome is unknown: where standbys must confirm, a wait that
somebody cut short ends in "committed here, perhaps nowhere else". A failover would lose it, and with it the permit to
send that it gave.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from tallystick.audit import author
from tallystick.commit.port import Contended, Lost, plain_errors
from tallystick.database.fair_slots import OWN, FairSlots
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
    # A migration has changed a table since the statement was prepared. The driver has forgotten it by now.
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
_MIGRATED = (asyncpg.InvalidCachedStatementError, asyncpg.OutdatedSchemaCacheError)

_OLDEST_SERVER = 15

# Said before anything is done: later it would be a lock without a limit, or a plan that was made for empty tables.
BEHIND_A_POOLER = (
    "TALLY_DATABASE_URL leads to a pooler, not to PostgreSQL itself: {reason}. Nothing was started. Set "
    "TALLY_DATABASE_DIRECT_URL to the server's own address: LISTEN and migrations go there, and everything else works "
    "through the pooler in transaction mode. Or set TALLY_DATABASE_URL to it."
)
_IN_FORCE = "SELECT current_setting('synchronous_commit'), current_setting('plan_cache_mode')"
_WHERE = """
SELECT s.system_identifier, d.oid, current_user::text FROM pg_control_system() AS s, pg_database AS d
 WHERE d.datname = current_database()
"""
# A setting of our own, which no server minds at the beginning of a session, and which no pooler takes or was told to
# ignore: so the two can be told apart.
TELLTALE = {"tally.direct": "yes"}

# A server that loses what it acknowledged makes every promise of the engine void.
_CARELESS = (
    "SELECT string_agg(name, ' and ') FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'"
)


# Writes to the log, so that its own COMMIT waits for the standbys, and they have all that was committed before it. A
# transaction that only finds what an earlier one wrote would not wait.
_BEGIN_BEHIND = "BEGIN; SELECT pg_logical_emit_message(true, 'tallystick', 'after a commit in doubt')"
_WAIT_BEHIND = "SELECT pg_logical_emit_message(true, 'tallystick', 'after a commit in doubt')"


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
        # Warnings are heard: one of them says that a COMMIT may not outlive this server.
        "client_min_messages": "warning",
        "lock_timeout": f"{limits.lock_wait_seconds * 1000:.0f}",
        "statement_timeout": f"{limits.statement_seconds * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{limits.idle_transaction_seconds * 1000:.0f}",
    }


class Database:
    """Connections to one PostgreSQL database, opened when first needed and kept."""

    def __init__(self, dsn: str, connections: int, limits: Limits, *, direct: str | None = None) -> None:
        """Use `connect`. A stack of our own: a driver's pool costs 40 microseconds a turn, and a reset.

        `direct`: the server's own address, where `dsn` is that of a pooler.
        """
        self._pooler = dsn if direct is not None else None
        self._dsn = dsn if direct is None else direct
        self._limits = limits
        self._session = _session(limits)
        # Behind a pooler these travel with every BEGIN, and cost no round trip.
        self._brought = (
            "".join(f"; SET LOCAL {name} = '{value}'" for name, value in self._session.items()) if direct else ""
        )
        self._slots = asyncio.Semaphore(connections)
        # Reads may not take the connections of the lanes: a flood of them would stop the writers.
        self._readers = FairSlots(max(min(connections - limits.lanes, limits.readers), 1), limits)
        # What must wait for nothing else has connections of its own, beside all others.
        self._asides: dict[str, asyncio.Semaphore] = {}
        self._idle: list[Connection] = []
        # What the server warned of while it worked on the statement before.
        self._warnings: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()
        # COMMITs whose outcome is unknown, and how many of them the standbys have since passed.
        self._in_doubt = 0
        self._passed = 0

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
        async with self._slots, self._lent() as connection:
            yield connection

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
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
            return await (self.open() if self._pooler is None else self._open_pooled(self._pooler))
        except (*GONE, asyncpg.PostgresError) as error:
            raise Lost(_plain(error), commit_sent=False) from error

    async def open(self) -> Connection:
        """One more connection to the server itself, with the session as the engine needs it."""
        connection = await asyncpg.connect(
            self._dsn, timeout=self._limits.connect_seconds, server_settings={**self._session, **TELLTALE}
        )
        try:
            connection.add_log_listener(self._warned)
            async with asyncio.timeout(self._limits.connect_seconds):
                durable, plans = await connection.fetchrow(_IN_FORCE) or (None, None)
                self._require_kept(plans)
                # Committed means durable. A stronger setting (remote_apply) stays as it is.
                if durable == "off":
                    await connection.execute("SET synchronous_commit = on")
            _bound_silence(connection, self._limits)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _require_kept(self, plans: str | None) -> None:
        if plans != self._session["plan_cache_mode"]:
            raise Misconfigured(BEHIND_A_POOLER.format(reason="it does not keep the settings of a session"))

    async def _open_pooled(self, pooler: str) -> Connection:
        """One more connection to the pooler. The server behind it is another one in every transaction."""
        connection = await asyncpg.connect(
            pooler,
            timeout=self._limits.connect_seconds,
            statement_cache_size=0,
            # The only one of them that every pooler takes.
            server_settings={"application_name": self._session["application_name"]},
        )
        connection.add_log_listener(self._warned)
        _bound_silence(connection, self._limits)
        return connection

    async def require_same_server(self) -> None:
        """Raise Misconfigured unless pooler and direct address lead to one database, as one role, and in order."""
        if self._pooler is None:
            return
        direct = await self.open()
        try:
            here = await direct.fetchrow(_WHERE)
            async with self.reading_as_owner() as connection:
                there = await connection.fetchrow(_WHERE)
                durable, plans = await connection.fetchrow(_IN_FORCE) or (None, None)
        finally:
            direct.terminate()
        if plans != self._session["plan_cache_mode"]:
            raise Misconfigured(f"TALLY_DATABASE_URL: the pooler keeps no settings within a transaction ({plans}).")
        if here is None or there is None or tuple(here) != tuple(there):
            raise Misconfigured(
                "TALLY_DATABASE_URL and TALLY_DATABASE_DIRECT_URL lead to different databases, or as different roles. "
                "Nothing was started: what one of them wrote the other would not hear of."
            )
        if durable == "off":
            self._brought += "; SET LOCAL synchronous_commit = on"

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
                    doubts = self._in_doubt
                    await connection.execute(self._begin("BEGIN" if doubts == self._passed else _BEGIN_BEHIND))
                    yield connection
                    commit_sent = True
                    self._warnings.pop(connection, None)
                    await connection.execute("COMMIT")
                self._believe(connection, doubts)
            except GONE as error:
                connection.terminate()
                self._in_doubt += commit_sent
                raise Lost(_plain(error), commit_sent=commit_sent) from error
            except asyncpg.PostgresError as error:
                await _roll_back(connection)
                if commit_sent:
                    self._in_doubt += 1
                    raise Lost(_plain(error), commit_sent=True) from error
                if isinstance(error, CONTENDED):
                    held = isinstance(error, asyncpg.LockNotAvailableError)
                    raise Contended(str(error), held=held) from error
                raise
            except Exception:
                await _roll_back(connection)
                raise

    def _warned(self, connection: Any, message: asyncpg.PostgresLogMessage) -> None:  # noqa: ANN401 - the driver's word
        # By severity alone: the words are in the server's language, and the class of this warning says nothing.
        if message.severity_en == "WARNING":
            self._warnings[connection] = str(message.message)

    def _believe(self, connection: Connection, doubts: int) -> None:
        """What was committed is committed, unless the server said so with a warning. Raises Lost."""
        warning = self._warnings.pop(connection, None)
        if warning is not None:
            self._in_doubt += 1
            raise Lost(warning, commit_sent=True)
        self._passed = max(self._passed, doubts)

    @asynccontextmanager
    async def stepping(self) -> AsyncIterator[Connection]:
        """`writing` for a caller outside group commit. Raises InFlight, OutcomeUnknown and Unreachable."""
        with plain_errors():
            async with self.writing() as connection:
                yield connection

    @asynccontextmanager
    async def stating(self) -> AsyncIterator[Connection]:
        """One statement as the owner, which is a transaction of its own: no round trips for BEGIN and COMMIT.

        Raises Contended, and Lost: whether it was committed is then never known.
        """
        if self._pooler is not None:
            # Outside a transaction what one message prepares the next would not find.
            async with self.writing() as connection:
                yield connection
            return
        async with self.connection() as connection:
            try:
                async with asyncio.timeout(self._limits.transaction_seconds):
                    doubts = self._in_doubt
                    self._warnings.pop(connection, None)
                    if doubts != self._passed:
                        await connection.execute(_WAIT_BEHIND)
                    yield connection
                self._believe(connection, doubts)
            except GONE as error:
                connection.terminate()
                self._in_doubt += 1
                raise Lost(_plain(error), commit_sent=True) from error
            except asyncpg.PostgresError as error:
                if isinstance(error, CONTENDED):
                    held = isinstance(error, asyncpg.LockNotAvailableError)
                    raise Contended(str(error), held=held) from error
                raise

    @asynccontextmanager
    async def owning(self) -> AsyncIterator[Connection]:
        """A connection as the owner for single statements that no tenant asked for."""
        async with self._read(OWN) as connection, self._alone(connection):
            yield connection

    @asynccontextmanager
    async def reading_as_owner(self) -> AsyncIterator[Connection]:
        """One transaction as the owner, beside the lanes: statements that see what was committed when each began."""
        async with self._read(OWN) as connection, _ended(connection):
            await connection.execute(self._begin("BEGIN"))
            yield connection

    @asynccontextmanager
    async def _alone(self, connection: Connection) -> AsyncIterator[None]:
        """Statements that are transactions of their own; behind a pooler they are one together."""
        if self._pooler is None:
            yield
            return
        async with _ended(connection):
            await connection.execute(self._begin("BEGIN"))
            yield

    @asynccontextmanager
    async def _read(self, tenant_number: int) -> AsyncIterator[Connection]:
        try:
            async with self._readers.slot(tenant_number), self.connection() as connection:
                yield connection
        except (Lost, *_MIGRATED, *GONE) as error:
            raise Unreachable(_plain(error)) from error

    @asynccontextmanager
    async def aside(self, name: str) -> AsyncIterator[Connection]:
        """`owning`, on a connection that waits for nobody but others of this name: key_readers at once."""
        slots = self._asides.get(name)
        if slots is None:
            slots = self._asides[name] = asyncio.Semaphore(self._limits.key_readers)
        try:
            async with slots, self._lent() as connection, self._alone(connection):
                yield connection
        except (Lost, *GONE) as error:
            raise Unreachable(_plain(error)) from error

    @asynccontextmanager
    async def reading(self, tenant_number: int) -> AsyncIterator[Connection]:
        """One snapshot of what this tenant may see, enforced by the database.

        Raises ShareUsed when the tenant reads too much at once.
        """
        async with self._read(tenant_number) as connection, _ended(connection):
            await connection.execute(
                f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{self._brought}; SET LOCAL ROLE tallystick_reader; "
                f"SET LOCAL tally.tenant = '{tenant_number:d}'"
            )
            yield connection

    def _begin(self, statement: str) -> str:
        """Whose transaction it is travels with BEGIN, and costs no round trip: the journal's rows name him."""
        signed = author.signed()
        signing = "" if signed is None else f"; SET LOCAL tally.author = {author.written(signed)}"
        return f"{statement}{self._brought}{signing}"


async def connect(dsn: str, *, connections: int, limits: Limits = LIMITS, direct: str | None = None) -> Database:
    """Open the first connection, or say in plain words why that is not possible.

    `direct`: the server's own address, where `dsn` is that of a pooler.
    """
    database = Database(dsn, connections, limits, direct=direct)
    with reachable():
        connection = await database.open()
        version = connection.get_server_version()
        careless = await connection.fetchval(_CARELESS)
        await database.require_same_server()
    if direct is None:
        database.keep(connection)
    else:
        await connection.close(timeout=limits.close_seconds)
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
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError) as error:
        reason = "it does not keep what was prepared in a session"
        raise Misconfigured(BEHIND_A_POOLER.format(reason=reason)) from error
    except asyncpg.ProtocolViolationError as error:
        raise Misconfigured(BEHIND_A_POOLER.format(reason=error)) from error
    except (Lost, *GONE) as error:
        raise Unreachable(_plain(error)) from error


@asynccontextmanager
async def _ended(connection: Connection) -> AsyncIterator[None]:
    """What is begun in the block is committed at its end, or rolled back."""
    try:
        yield
        await connection.execute("COMMIT")
    except BaseException:
        await _roll_back(connection)
        raise


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


def plight(error: BaseException | None) -> str | None:
    """What the server itself says keeps it from serving, directly or not, in words that anybody may read."""
    while error is not None:
        if isinstance(error, asyncpg.TooManyConnectionsError):
            return "takes no more connections (max_connections)"
        if isinstance(error, asyncpg.DiskFullError):
            return "has no room left on its disk"
        error = error.__cause__
    return None


def _plain(error: BaseException) -> str:
    """The driver's words, in one line. They name hosts and states, never passwords."""
    words = (str(error) or type(error).__name__).split("\n", 1)[0]
    return f"the database's disk is full: {words}" if isinstance(error, asyncpg.DiskFullError) else words
