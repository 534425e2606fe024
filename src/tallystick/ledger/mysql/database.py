"""Connections to MariaDB or MySQL, and what a broken one means.

Autocommit is off and the isolation is READ COMMITTED: a statement sees what was committed before it began, so
what is read after a lock is what the lock protects; and there are no gap locks to wait for by accident.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncmy
from asyncmy import errors
from asyncmy.cursors import Cursor

from tallystick.commit.port import Contended, Lost
from tallystick.errors import Misconfigured, Unreachable
from tallystick.ledger.mysql.address import Address, read_address
from tallystick.settings import LIMITS

Row = tuple[Any, ...]

_LOCK_WAIT_TIMEOUT = 1205
_DEADLOCK = 1213
_DUPLICATE = 1062
# Somebody was quicker and is done. 1020: MariaDB's name for a row that changed under a snapshot.
_OVERTAKEN = frozenset({_DEADLOCK, _DUPLICATE, 1020})
# These say that the server went away or may not write now, not that our statement was wrong.
_GONE = frozenset({
    1040,  # too many connections
    1053,  # the server is shutting down
    1152,  # aborted connection
    1158, 1159, 1160, 1161,  # packets lost on the way
    1184,  # aborted new connection
    1290, 1792, 1836,  # read-only: demoted, or not yet promoted
    1317,  # our statement was killed
    1637,  # too many transactions
    1927, 4031,  # our connection was killed, or idle in a transaction for too long
    1969, 3024,  # our statement took too long
})  # fmt: skip
_REFUSED = frozenset({1044, 1045, 1049, 1698})
# The driver's own codes: connection refused, gone away, lost during a query, out of step.
_DRIVER_CODES = range(2000, 2100)

_OLDEST_MARIADB = (10, 11)
_OLDEST_MYSQL = (8, 0, 21)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-MariaDB)?")

# Whole seconds, and no fewer than one.
_LOCK_WAIT_SECONDS = max(1, round(LIMITS.lock_wait_seconds))
_SESSION = (
    # Strict: a value that does not fit is an error, never a shorter value.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', "
    f"time_zone = '+00:00', innodb_lock_wait_timeout = {_LOCK_WAIT_SECONDS}, "
    "transaction_isolation = 'READ-COMMITTED'"
)
_MARIADB_SESSION = _SESSION.replace("transaction_isolation", "tx_isolation") + (
    f", max_statement_time = {{seconds:g}}, idle_transaction_timeout = {LIMITS.idle_transaction_seconds:.0f}"
)
# MySQL bounds only reads, and has no limit for an idle transaction: a stopped process holds its locks until
# the server misses its connection.
_MYSQL_SESSION = _SESSION + ", max_execution_time = {seconds:.0f}000"


class _Cursor(Cursor):
    async def _show_warnings(self, _connection: object) -> None:
        """The driver would fetch and log a warning for every key that was used before: that is no news."""


class Session:
    """One connection, used by one task at a time."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - the driver's class has no useful types
        """Use `Database`."""
        self._connection = connection
        self.is_open = True

    async def rows(self, statement: str, *parameters: object) -> Sequence[Row]:
        """The rows of the first result."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, parameters)
            return tuple(await cursor.fetchall())

    async def row_sets(self, statements: str, *parameters: object) -> list[Sequence[Row]]:
        """The rows of every result, for several statements in one round trip."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(statements, parameters)
            found: list[Sequence[Row]] = [tuple(await cursor.fetchall())]
            while await cursor.nextset():
                found.append(tuple(await cursor.fetchall()))
            return found

    async def execute(self, statement: str, *parameters: object) -> int:
        """How many rows it changed."""
        async with self._connection.cursor() as cursor:
            return int(await cursor.execute(statement, parameters))

    async def script(self, statements: str) -> None:
        """Several statements without parameters, to the last one or the first error."""
        async with self._connection.cursor() as cursor:
            await cursor.execute(statements)
            while await cursor.nextset():
                pass

    async def insert(self, statement: str, rows: Sequence[Row]) -> int:
        """How many rows went in. Statements of at most a megabyte, well within max_allowed_packet."""
        if not rows:
            return 0
        async with self._connection.cursor() as cursor:
            return int(await cursor.executemany(statement, rows))

    async def commit(self) -> None:
        await self._connection.commit()

    async def roll_back(self) -> None:
        """Or give the connection up: the server then rolls back by itself."""
        if not self.is_open:
            return
        try:
            await self._connection.rollback()
        except (errors.MySQLError, OSError, asyncio.CancelledError):
            self.abandon()

    def abandon(self) -> None:
        """Close without a word. Whatever was open on it is rolled back by the server."""
        self.is_open = False
        self._connection.close()

    async def close(self) -> None:
        self.is_open = False
        await self._connection.ensure_closed()

    @property
    def server(self) -> str:
        """The server's version, as it says it."""
        return str(self._connection.get_server_info())


class Database:
    """A few connections to one database, made when needed."""

    def __init__(self, address: Address, *, connections: int, statement_seconds: float) -> None:
        """Use `connect`."""
        self._address = address
        self._statement_seconds = statement_seconds
        self._room = asyncio.Semaphore(connections)
        self._idle: list[Session] = []

    async def close(self) -> None:
        """Give the connections back to the server."""
        idle, self._idle = self._idle, []
        for session in idle:
            try:
                async with asyncio.timeout(LIMITS.close_seconds):
                    await session.close()
            except (errors.MySQLError, OSError):
                session.abandon()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection outside any transaction; who opens one on it ends it. Raises Lost if there is none."""
        try:
            async with asyncio.timeout(LIMITS.connect_seconds):
                await self._room.acquire()
        except TimeoutError as error:
            raise Lost("every connection is in use", commit_sent=False) from error
        try:
            session = self._idle.pop() if self._idle else await self._open()
            try:
                yield session
            finally:
                self._give_back(session)
        finally:
            self._room.release()

    async def _open(self) -> Session:
        try:
            return await open_session(self._address, self._statement_seconds)
        except (errors.MySQLError, OSError) as error:
            raise Lost(plain(error), commit_sent=False) from error

    def _give_back(self, session: Session) -> None:
        if session.is_open:
            self._idle.append(session)
            return
        # After a restart of the server all are broken: finding out one by one would outlast the outage.
        idle, self._idle = self._idle, []
        for other in idle:
            other.abandon()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Session]:
        """One transaction. Commits at the end of the block; raises Lost or Contended."""
        commit_sent = False
        async with self.session() as session:
            try:
                yield session
                commit_sent = True
                await session.commit()
            except BaseException as error:
                meaning = _meaning(error, commit_sent=commit_sent)
                if isinstance(meaning, Lost) or not isinstance(error, Exception):
                    session.abandon()
                else:
                    await session.roll_back()
                if meaning is None:
                    raise
                raise meaning from error

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        """One snapshot, for statements that name their tenant themselves. Raises Unreachable."""
        async with self._unwritten("REPEATABLE READ") as session:
            yield session

    @asynccontextmanager
    async def glancing(self) -> AsyncIterator[Session]:
        """Sees rows that are not committed yet: good only for knowing that somebody is at work on them."""
        async with self._unwritten("READ UNCOMMITTED") as session:
            yield session

    @asynccontextmanager
    async def _unwritten(self, isolation: str) -> AsyncIterator[Session]:
        try:
            async with self.session() as session:
                try:
                    await session.script(f"SET TRANSACTION ISOLATION LEVEL {isolation}; START TRANSACTION READ ONLY")
                    yield session
                    await session.roll_back()
                except BaseException as error:
                    # A read that failed has nothing to save.
                    session.abandon()
                    meaning = _meaning(error, commit_sent=False)
                    if meaning is None:
                        raise
                    raise meaning from error
        except Lost as lost:
            raise Unreachable(str(lost)) from lost


async def connect(dsn: str, *, connections: int, statement_seconds: float = LIMITS.statement_seconds) -> Database:
    """A database that answers and keeps what it is told, or plain words why not."""
    address = read_address(dsn)
    database = Database(address, connections=connections, statement_seconds=statement_seconds)
    session = await first_session(address)
    try:
        _require_supported(session.server)
        ((flush,),) = await session.rows("SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")
        if flush != 1:
            raise Misconfigured(
                f"The server has innodb_flush_log_at_trx_commit = {flush}, so a crash loses what callers "
                f"were told is committed. Set it to 1."
            )
    finally:
        await session.close()
    return database


async def first_session(address: Address) -> Session:
    """The first connection of a program: what is wrong with the address shows here."""
    try:
        return await open_session(address, LIMITS.statement_seconds)
    except (errors.MySQLError, OSError) as error:
        if _code(error) in _REFUSED:
            raise Misconfigured(f"TALLY_DATABASE_URL: the server refused the connection: {plain(error)}") from error
        raise Unreachable(plain(error)) from error


async def open_session(address: Address, statement_seconds: float) -> Session:
    """A connection with our settings. Raises what the driver raises."""
    connection = await asyncmy.connect(
        **address.arguments(),
        autocommit=False,
        connect_timeout=LIMITS.connect_seconds,
        # Later than the server's own limit, so that the server normally speaks first.
        read_timeout=statement_seconds + 1,
        charset="utf8mb4",
        cursor_cls=_Cursor,
    )
    session = Session(connection)
    try:
        settings = _MARIADB_SESSION if "MariaDB" in session.server else _MYSQL_SESSION
        await session.execute(settings.format(seconds=statement_seconds))
    except BaseException:
        session.abandon()
        raise
    return session


def _require_supported(server: str) -> None:
    found = _VERSION.search(server.removeprefix("5.5.5-"))
    if found is not None:
        version = tuple(int(part) for part in found.groups()[:3])
        if version >= (_OLDEST_MARIADB if "MariaDB" in server else _OLDEST_MYSQL):
            return
    raise Misconfigured(f"MariaDB 10.11 or MySQL 8.0.21 or newer is needed; the server is {server}")


def _meaning(error: BaseException, *, commit_sent: bool) -> Lost | Contended | None:
    """What an error in a transaction says to the engine; None: it belongs to some item of the batch."""
    code = _code(error)
    if code in _OVERTAKEN:
        return Contended(plain(error), held=False)
    if code == _LOCK_WAIT_TIMEOUT:
        return Contended(plain(error), held=True)
    if isinstance(error, OSError | errors.InterfaceError) or code in _GONE or code in _DRIVER_CODES:
        return Lost(plain(error), commit_sent=commit_sent)
    if isinstance(error, errors.MySQLError) and (commit_sent or code is None):
        # A COMMIT that failed in some other way (disk, log, cluster) may yet have reached the log.
        return Lost(plain(error), commit_sent=commit_sent)
    return None


def _code(error: BaseException) -> int | None:
    code = error.args[0] if isinstance(error, errors.MySQLError) and error.args else None
    return code if isinstance(code, int) else None


def plain(error: BaseException) -> str:
    """The server's or the driver's words. They name hosts and users, never passwords."""
    return str(error.args[1]) if _code(error) is not None else str(error) or type(error).__name__
