"""Migrations: numbered SQL files, applied once each, in order, under a lock. The rules are PostgreSQL's.

One thing differs: DDL commits by itself here, so an interrupted migration is half done. It is recorded only
when whole, and every file can be run again.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import resources

from asyncmy import errors

from tallystick.database.migrate import Applied, Migration, conflict, lack
from tallystick.errors import Misconfigured, SchemaMismatch, Unreachable
from tallystick.ledger.mysql.address import read_address
from tallystick.ledger.mysql.database import Session, first_session, plain
from tallystick.settings import LIMITS

_TABLE = """
CREATE TABLE IF NOT EXISTS tally_migration (
    number     INT NOT NULL PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    digest     CHAR(64) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin
"""
# Names of locks are shared by the whole server, and at most 64 characters long.
_LOCK = "CONCAT('tally-migrate-', LEFT(SHA2(DATABASE(), 256), 32))"
_BINARY_LOG_NEEDS_TRUST = 1419
_NO_SUCH_TABLE = 1146


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
    session = await first_session(read_address(dsn))
    try:
        async with _alone(session):
            return await _apply(session, migrations())
    except (errors.MySQLError, OSError) as error:
        if error.args[:1] == (_BINARY_LOG_NEEDS_TRUST,):
            raise Misconfigured(
                "The server writes a binary log and lets only administrators create triggers. No migration "
                "was recorded. Have one run: SET GLOBAL log_bin_trust_function_creators = 1; and try again."
            ) from error
        raise Unreachable(plain(error)) from error
    finally:
        session.abandon()


async def require_current(dsn: str) -> None:
    """Raise SchemaMismatch unless the database has exactly this code's schema. Changes nothing."""
    session = await first_session(read_address(dsn))
    try:
        applied = await _applied(session)
    except errors.ProgrammingError as error:
        if error.args[:1] != (_NO_SUCH_TABLE,):
            raise
        applied = {}
    except (errors.MySQLError, OSError) as error:
        raise Unreachable(plain(error)) from error
    finally:
        session.abandon()
    wanted = migrations()
    if (fault := _newer(applied, wanted) or conflict(applied, wanted) or lack(applied, wanted)) is not None:
        raise SchemaMismatch(fault)


def _newer(applied: Mapping[int, Applied], wanted: Sequence[Migration]) -> str | None:
    # Here no migration says yet which code it leaves working: none may be assumed to.
    newest = max((migration.number for migration in wanted), default=0)
    if not applied or max(applied) <= newest:
        return None
    return (
        f"The database has migration {max(applied)} and this version of Tallystick knows {newest}. "
        f"Nothing was changed. Install the version that migrated it, or a newer one."
    )


async def _applied(session: Session) -> dict[int, Applied]:
    rows: Iterable[tuple[int, str]] = await session.rows("SELECT number, digest FROM tally_migration")
    return {number: Applied(digest) for number, digest in rows}


@asynccontextmanager
async def _alone(session: Session) -> AsyncIterator[None]:
    ((got,),) = await session.rows(f"SELECT GET_LOCK({_LOCK}, {LIMITS.statement_seconds:.0f})")
    if got != 1:
        raise Unreachable("another process is migrating this database")
    # Given back when the connection closes.
    yield


async def _apply(session: Session, wanted: list[Migration]) -> list[Migration]:
    await session.execute(_TABLE)
    applied = await _applied(session)
    if (fault := _newer(applied, wanted) or conflict(applied, wanted)) is not None:
        raise SchemaMismatch(fault)
    fresh = [migration for migration in wanted if migration.number not in applied]
    for migration in fresh:
        await session.script(migration.sql)
        await session.execute(
            "INSERT INTO tally_migration (number, name, digest) VALUES (%s, %s, %s)",
            *(migration.number, migration.name, migration.digest),
        )
        await session.commit()
    return fresh
