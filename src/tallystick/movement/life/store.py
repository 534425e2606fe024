"""Whereabouts on PostgreSQL: whether this is the life of the database that was here before, and what is unread."""

from datetime import datetime, timedelta
from time import monotonic

import asyncpg
import msgspec
import structlog

from tallystick import queries
from tallystick.database.pool import Connection, Database
from tallystick.movement.life.rules import DatabasePlace, Seen, hint
from tallystick.providers.words import Movement

_SQL = queries.load(__package__, "store.sql")
log = structlog.get_logger("tallystick.whereabouts")
# What this process saw last, by the database it is of.
_SEEN: dict[str, Seen] = {}
# A life is begun also where everything that is stored is the same.
_WHATEVER = True


class Unread(msgspec.Struct, frozen=True):
    """A provider's books are to be read from `known_until` on. Since `began_at` nobody but this life has sent."""

    known_until: datetime
    began_at: datetime
    life: int
    now: datetime


async def notice(connection: Connection, *, hold: bool = False) -> bool:
    """Look where we are, inside the caller's transaction; what hints at another life begins one in the same commit.

    `hold`: until that commit nobody can begin to distrust this database; who did will have seen what it writes.
    False: somebody who distrusts this database has stopped it (`tally recover`), and nothing may be sent.
    """
    asked = monotonic()
    (row,) = await connection.fetch(_SQL["look"] + (" FOR SHARE OF w" if hold else ""))
    known = DatabasePlace(row["system"], row["timeline"], row["database"], row["started_at"], row["intents"])
    seen = Seen(
        place=DatabasePlace(
            row["system_now"],
            row["timeline_now"],
            row["database_now"],
            row["started_at_now"],
            row["intents_now"],
        ),
        position=row["position"],
        now=row["now"],
        asked=asked,
        steady=monotonic(),
    )
    name = f"{seen.place.system}/{seen.place.database}"
    remembered = _SEEN.get(name)
    if not row["is_trusted"]:
        return False
    why = hint(known, seen, remembered)
    if why is None:
        if remembered is None or seen.steady > remembered.steady:
            _SEEN[name] = seen
        return True
    is_forced = known == seen.place
    begun = await connection.fetchval(_SQL["begin_life"], why, is_forced)
    _SEEN[name] = seen
    if begun is not None:
        log.warning("another_life", why=why, life=begun, next="the providers' books are read; sending goes on")
    return True


async def unread(database: Database, provider: str) -> Unread | None:
    """What of a provider's books is still to be read; None: nothing."""
    async with database.owning() as connection:
        return await unread_in(connection, provider)


async def unread_in(connection: Connection, provider: str) -> Unread | None:
    """The same in a transaction of the caller's."""
    row: asyncpg.Record | None = await connection.fetchrow(_SQL["unread"], provider)
    return None if row is None else Unread(row["known_until"], row["began_at"], row["life"], row["now"])


async def settled(database: Database, provider: str, settles_in: timedelta) -> int | None:
    """The newest unread life before which nothing can be on its way to this provider any more; None: too early."""
    async with database.owning() as connection:
        found: int | None = await connection.fetchval(_SQL["settled"], provider, settles_in)
    return found


async def alone_since(connection: Connection, provider: str) -> datetime:
    """Since when nobody but this life of the database can have begun to send there."""
    found: datetime = await connection.fetchval(_SQL["alone_since"], provider)
    return found


async def begin_life(connection: Connection, why: str) -> None:
    """Whatever is stored: from here on the providers' books are to be read."""
    await connection.execute(_SQL["begin_life"], why, _WHATEVER)


async def begin(database: Database, why: str) -> None:
    """The same in a transaction of its own."""
    async with database.stepping() as connection:
        await begin_life(connection, why)


async def prove(connection: Connection, provider: str, why: str, shown: Movement, *, key: bytes) -> None:
    """This provider has shown that a life was lost: nothing is sent to it until its books are read.

    Inside the caller's transaction. What the books have shown before proves nothing new. `key` is what it bears.
    """
    life = await connection.fetchval(_SQL["prove"], provider, shown.created_at, why, shown.id, key)
    if life is not None:
        log.error(
            "lost_life_proven",
            provider=provider,
            why=why,
            shown_by=shown.id,
            life=life,
            next="past the memory of its keys nothing is sent there until its books are read",
        )


async def stopped(database: Database) -> list[str]:
    """Providers to which nothing is sent until their books are read."""
    async with database.owning() as connection:
        return [row["provider"] for row in await connection.fetch(_SQL["stopped"])]


async def read(database: Database, provider: str, life: int, how: str) -> None:
    """The provider's books have been read completely, up to that life."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["read"], provider, life, how)
