"""Migrations: numbered SQL files, applied once each, in order, under a lock.

The database remembers the digest of what was applied: a file edited afterwards, or a database that is ahead
of this code, is refused before anything is touched.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources

import asyncpg

from tallystick.errors import SchemaMismatch, Unreachable
from tallystick.settings import LIMITS
from tallystick.store.database import reachable

# Any two numbers that nobody else uses for an advisory lock in this database.
_LOCK = (0x7A11, 0x57CC)
# A migration of a large table may take a while; longer than this, somebody should look.
_LOCK_SECONDS = 60

_TABLE = """
CREATE SCHEMA IF NOT EXISTS tally;
CREATE TABLE IF NOT EXISTS tally.migration (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


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


def migrations() -> list[Migration]:
    """All migrations of this code, in order."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


async def migrate(dsn: str) -> list[Migration]:
    """Bring the database to this code's schema; returns what was applied. Safe to run twice at once."""
    with reachable():
        connection = await asyncpg.connect(dsn, timeout=LIMITS.connect_seconds)
    try:
        # A session lock, not one per transaction: each migration commits on its own.
        await connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
        try:
            await connection.execute("SELECT pg_advisory_lock($1, $2)", *_LOCK)
        except asyncpg.LockNotAvailableError as error:
            message = f"another process holds the migration lock for more than {_LOCK_SECONDS} s"
            raise Unreachable(message) from error
        return await _apply(connection, migrations())
    finally:
        await connection.close(timeout=LIMITS.close_seconds)


async def require_current(dsn: str) -> None:
    """Raise SchemaMismatch unless the database has exactly this code's schema. Changes nothing."""
    with reachable():
        connection = await asyncpg.connect(dsn, timeout=LIMITS.connect_seconds)
    try:
        rows = await connection.fetch("SELECT number, digest FROM tally.migration ORDER BY number")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        rows = []
    finally:
        await connection.close(timeout=LIMITS.close_seconds)
    if [tuple(row) for row in rows] != [(migration.number, migration.digest) for migration in migrations()]:
        message = "The database does not have this version's schema. Nothing was changed. Run `tally migrate` first."
        raise SchemaMismatch(message)


async def _apply(connection: asyncpg.Connection, wanted: list[Migration]) -> list[Migration]:
    await connection.execute(_TABLE)
    applied = {row["number"]: row for row in await connection.fetch("SELECT number, name, digest FROM tally.migration")}
    newest = max((migration.number for migration in wanted), default=0)
    if applied and max(applied) > newest:
        message = (
            f"The database has migration {max(applied)} and this version of Tallystick knows {newest}. "
            f"Nothing was changed. Install the version that migrated it, or a newer one."
        )
        raise SchemaMismatch(message)
    fresh = []
    for migration in wanted:
        row = applied.get(migration.number)
        if row is None:
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(
                    "INSERT INTO tally.migration (number, name, digest) VALUES ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.digest,
                )
            fresh.append(migration)
        elif row["digest"] != migration.digest:
            message = (
                f"Migration {migration.number} ({migration.name}) was applied with other contents than this "
                f"version of Tallystick has. Nothing was changed. Install the version that applied it."
            )
            raise SchemaMismatch(message)
    return fresh
