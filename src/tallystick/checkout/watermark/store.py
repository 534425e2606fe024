"""The watermark on PostgreSQL: who appends webhooks now, and the oldest of them that nobody has decided."""

from datetime import datetime

from tallystick import queries
from tallystick.database.pool import Database

_SQL = queries.load(__package__, "store.sql")


async def mark(database: Database) -> tuple[datetime, frozenset[str]]:
    """The database's time, and the transactions that were appending then."""
    async with database.owning() as connection:
        ((at, writing),) = await connection.fetch(_SQL["mark"])
    return at, frozenset(writing)


async def oldest(database: Database, *, enough: datetime | None) -> datetime | None:
    """When the first undecided event was received; one that was received by `enough` may stand for an older one."""
    async with database.owning() as connection:
        found: datetime | None = await connection.fetchval(_SQL["oldest"], enough)
    return found


async def deadline(database: Database) -> datetime | None:
    """When the first pending order expires, or has."""
    async with database.owning() as connection:
        found: datetime | None = await connection.fetchval(_SQL["deadline"])
    return found
