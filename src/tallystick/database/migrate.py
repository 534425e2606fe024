"""Migrations: numbered SQL files, applied once each, in order, beside a service that goes on writing.

A file is one transaction, unless lines of it begin further steps:

    -- step                    another transaction: a constraint is added NOT VALID in one and validated in the next
    -- step: concurrently      no transaction: CREATE INDEX CONCURRENTLY and DROP INDEX CONCURRENTLY, one after another
    -- oldest code: 15         code that does not know migration 15 cannot work on this schema

Whoever waits for a lock on a table has everybody else wait behind him. So a step waits for a second, gives up, lets
the others pass, and is tried again. Steps that are done are remembered: an interrupted migration goes on where it was.

The database remembers the digest of what was applied: a file edited afterwards is refused before anything is touched.
It also remembers the oldest code that each migration leaves working. So code that finds migrations it has never seen
knows whether it may run beside them: the version before goes on while the next one is rolled out.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

import asyncpg

from tallystick.database.patience import patiently
from tallystick.database.pool import GONE, TELLTALE, reachable
from tallystick.database.roles import Granted, grant_service, require_rights, require_sight
from tallystick.errors import MigrationBlocked, Misconfigured, SchemaMismatch, Unreachable, require
from tallystick.settings import LIMITS

# Any two numbers that nobody else uses for an advisory lock in this database.
_LOCK: Final = (0x7A11, 0x57CC)

_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS tally;
CREATE TABLE IF NOT EXISTS tally.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE tally.migration ADD COLUMN IF NOT EXISTS oldest_code integer NOT NULL DEFAULT 0;
CREATE TABLE IF NOT EXISTS tally.migration_step (
    number     integer NOT NULL,
    step       integer NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (number, step)
);
"""
_HAS_TABLES: Final = "SELECT to_regclass('tally.migration_step') IS NOT NULL"
# Through JSON: a database that a version before this one made has no such column.
_APPLIED: Final = """
SELECT number, digest, coalesce((to_jsonb(m) ->> 'oldest_code')::integer, 0) AS oldest_code FROM tally.migration AS m
"""
_RECORD: Final = "INSERT INTO tally.migration (number, name, digest, oldest_code) VALUES ($1, $2, $3, $4)"
_RECORD_STEP: Final = "INSERT INTO tally.migration_step (number, step, digest) VALUES ($1, $2, $3)"
_STEPS_DONE: Final = "SELECT step, digest FROM tally.migration_step WHERE number = $1"
# What a CREATE INDEX CONCURRENTLY that broke off leaves behind: kept up to date by every write, used by no read.
_IS_INVALID: Final = """
SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                WHERE c.relnamespace = 'tally'::regnamespace AND c.relname = $1 AND NOT i.indisvalid)
"""

_STEP: Final = re.compile(r"^-- step(: concurrently)?$", re.MULTILINE)
_OLDEST_CODE: Final = re.compile(r"^-- oldest code: ([0-9]+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_CREATED: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+)\s+ON tally\.", re.IGNORECASE)
_DROPPED: Final = re.compile(r"DROP INDEX CONCURRENTLY IF EXISTS tally\.(\w+)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction of a migration; or, concurrent, statements that may not be in one."""

    sql: str
    is_concurrent: bool = False

    @property
    def digest(self) -> str:
        """Of what was done."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self) -> list[str]:
        """Of a concurrent step. Raises ValueError at what could not be run a second time."""
        found = [text.strip() for text in _COMMENT.sub("", self.sql).split(";")]
        for text in filter(None, found):
            if not (_CREATED.match(text) or _DROPPED.fullmatch(text)):
                raise ValueError(f"a concurrent step makes and drops indexes alone, IF [NOT] EXISTS: {text[:60]!r}")
        return [text for text in found if text]


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `migrations/`: `0001_ledger.sql` is number 1, name `ledger`."""

    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        """What the database compares the file by."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def steps(self) -> list[Step]:
        """In order. What stands before the first line `-- step` is a transaction."""
        first, *rest = _STEP.split(self.sql)
        further = [Step(sql, is_concurrent=bool(mark)) for mark, sql in zip(rest[::2], rest[1::2], strict=True)]
        return [step for step in (Step(first), *further) if _COMMENT.sub("", step.sql).strip()]

    @property
    def oldest_code(self) -> int:
        """The migration that code must know to work on this schema; 0: any may, that worked before it."""
        found = _OLDEST_CODE.search(self.sql)
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Applied:
    """What a database says of one of its migrations."""

    digest: str
    oldest_code: int = 0


# Every room's own, right below the package; their numbers go on over all rooms.
FOLDERS: Final[tuple[Traversable, ...]] = tuple(
    room / "migrations"
    for room in sorted(resources.files("tallystick").iterdir(), key=lambda room: room.name)
    if (room / "migrations").is_dir()
)


def migrations() -> list[Migration]:
    """All migrations of this code, in order."""
    found: dict[int, Migration] = {}
    for file in (file for folder in FOLDERS for file in folder.iterdir() if file.name.endswith(".sql")):
        digits, _, name = file.name.removesuffix(".sql").partition("_")
        number = int(digits)
        require(number not in found, f"two migrations have the number {number}")
        found[number] = Migration(number, name, file.read_text(encoding="utf-8"))
    return [found[number] for number in sorted(found)]


def conflict(applied: Mapping[int, Applied], wanted: Sequence[Migration]) -> str | None:
    """Why code with these migrations may neither work on such a database nor migrate it. None: it may."""
    for migration in wanted:
        row = applied.get(migration.number)
        if row is not None and row.digest != migration.digest:
            return (
                f"Migration {migration.number} ({migration.name}) was applied with other contents than this "
                f"version of Tallystick has. Nothing was changed. Install the version that applied it."
            )
    known = max((migration.number for migration in wanted), default=0)
    if (needed := max((row.oldest_code for row in applied.values()), default=0)) > known:
        return (
            f"The database has migration {max(applied)}, beside which a version must know migration {needed}; this "
            f"version of Tallystick knows {known}. Nothing was changed. Install the version that migrated it, or a "
            f"newer one."
        )
    return None


def lack(applied: Mapping[int, Applied], wanted: Sequence[Migration]) -> str | None:
    """What such a database lacks for this code. None: nothing; more than this code knows is no lack."""
    missing = [migration.number for migration in wanted if migration.number not in applied]
    if not missing:
        return None
    there = f"is at migration {missing[0] - 1}" if applied else "has no schema of Tallystick yet"
    return f"This database {there}, this version needs {wanted[-1].number}: run `tally migrate`."


async def migrate(dsn: str) -> list[Migration]:
    """Bring the database to this code's schema; returns what was applied. Safe to run twice at once, and to kill.

    Raises MigrationBlocked when others hold what it needs for too long: what was applied stays, and a further run goes
    on from there.
    """
    async with _connected(dsn) as connection:
        # Whatever the role or the database was given: to check a constraint may take minutes, and nobody waits for it.
        await connection.execute("SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0")
        await _alone(connection)
        return await _apply(connection, migrations())


async def grant(dsn: str, service: str) -> Granted:
    """Make the role that services work as, and give it what the schema needs. Safe to repeat."""
    async with _connected(dsn) as connection:
        await _alone(connection)
        return await grant_service(connection, service)


async def require_current(dsn: str, *, writing: bool = False) -> None:
    """Raise unless this code may work on the database as it is, as this role. Changes nothing.

    SchemaMismatch: it lacks migrations, or is too new. Misconfigured: the role does not see every row; or, where there
    is `writing` to be done, may not do all of it.
    """
    async with _connected(dsn) as connection:
        try:
            applied = await _applied(connection)
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
            applied = {}
        wanted = migrations()
        if (fault := conflict(applied, wanted) or lack(applied, wanted)) is not None:
            raise SchemaMismatch(fault)
        await require_sight(connection)
        if writing:
            await require_rights(connection)


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    with reachable():
        connection = await asyncpg.connect(dsn, timeout=LIMITS.connect_seconds, server_settings=TELLTALE)
    try:
        yield connection
    except asyncpg.InsufficientPrivilegeError as error:
        raise Misconfigured(
            f"TALLY_DATABASE_URL: its user has too little right here: {error}. `tally migrate` needs the owner of the "
            f"tables; everything else a member of the service's role, which `tally migrate` makes."
        ) from error
    except GONE as error:
        raise Unreachable(str(error) or type(error).__name__) from error
    finally:
        try:
            await connection.close(timeout=LIMITS.close_seconds)
        except GONE:
            # The server went first: what was done is done, and there is nothing left to part from.
            connection.terminate()


async def _alone(connection: asyncpg.Connection) -> None:
    """Hold the lock of migrations until the connection ends.

    Asked for again and again, not waited for: a waiting statement is a transaction, which an index that is made
    concurrently would wait for in its turn. And a session's lock, not a transaction's: each step commits on its own.
    """
    for _ in range(round(LIMITS.migration_wait_seconds / LIMITS.migration_look_seconds)):
        if await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *_LOCK):
            return
        await asyncio.sleep(LIMITS.migration_look_seconds)
    raise MigrationBlocked(
        f"another process has been migrating this database for more than {LIMITS.migration_wait_seconds:g} s"
    )


async def _applied(connection: asyncpg.Connection) -> dict[int, Applied]:
    return {row["number"]: Applied(row["digest"], row["oldest_code"]) for row in await connection.fetch(_APPLIED)}


async def _apply(connection: asyncpg.Connection, wanted: list[Migration]) -> list[Migration]:
    if not await connection.fetchval(_HAS_TABLES):
        await patiently("the table of migrations", lambda: _in_transaction(connection, _TABLES), LIMITS)
    applied = await _applied(connection)
    if (fault := conflict(applied, wanted)) is not None:
        raise SchemaMismatch(fault)
    fresh = [migration for migration in wanted if migration.number not in applied]
    for migration in fresh:
        await _apply_one(connection, migration)
    return fresh


async def _apply_one(connection: asyncpg.Connection, migration: Migration) -> None:
    done = {row["step"]: row["digest"] for row in await connection.fetch(_STEPS_DONE, migration.number)}
    steps = list(enumerate(migration.steps, start=1))
    for number, step in steps:
        is_last = number == len(steps)
        if number in done and done[number] != step.digest:
            raise SchemaMismatch(
                f"Step {number} of migration {migration.number} ({migration.name}) was applied with other contents "
                f"than this version of Tallystick has. Nothing was changed. Install the version that applied it."
            )
        if number not in done:
            await _apply_step(connection, migration, number, is_last=is_last)


async def _apply_step(connection: asyncpg.Connection, migration: Migration, number: int, *, is_last: bool) -> None:
    step = migration.steps[number - 1]
    name = f"migration {migration.number} ({migration.name}), step {number}"
    if step.is_concurrent:
        for statement in step.statements():
            await patiently(name, lambda text=statement: _concurrently(connection, text), LIMITS)  # type: ignore[misc]

    async def record() -> None:
        if len(migration.steps) > 1:
            await connection.execute(_RECORD_STEP, migration.number, number, step.digest)
        if is_last:
            await connection.execute(_RECORD, migration.number, migration.name, migration.digest, migration.oldest_code)

    await patiently(name, lambda: _in_transaction(connection, "" if step.is_concurrent else step.sql, record), LIMITS)


async def _nothing() -> None:
    pass


async def _in_transaction(
    connection: asyncpg.Connection, sql: str, record: Callable[[], Awaitable[None]] = _nothing
) -> None:
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LIMITS.migration_lock_seconds * 1000:.0f}ms'")
        try:
            if sql:
                await connection.execute(sql)
        except asyncpg.RaiseError as error:
            # What a migration itself refuses, for want of a role mostly; its hint says what to do.
            raise Misconfigured(f"{error}. {error.hint or ''}".strip()) from error
        await record()


async def _concurrently(connection: asyncpg.Connection, statement: str) -> None:
    # Nobody waits behind this one: it may wait for the transactions that began before it.
    await connection.execute(f"SET lock_timeout = '{LIMITS.migration_index_seconds * 1000:.0f}ms'")
    made = _CREATED.match(statement)
    if made is not None:
        await _drop_invalid(connection, made[1])
    try:
        await connection.execute(statement)
    except asyncpg.PostgresError:
        if made is not None:
            await _drop_invalid(connection, made[1])
        raise


async def _drop_invalid(connection: asyncpg.Connection, index: str) -> None:
    if await connection.fetchval(_IS_INVALID, index):
        await connection.execute(f'DROP INDEX CONCURRENTLY IF EXISTS tally."{index}"')
