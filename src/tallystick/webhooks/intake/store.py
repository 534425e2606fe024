"""Intake on PostgreSQL: what was read from a log is stored, with how far that was, in one commit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.database.pool import Database
from tallystick.webhooks import inbox
from tallystick.webhooks.record import Delivered

_SQL: Final = queries.load(__package__, "store.sql")

# Rows that are counted for the figures.
_MOST_COUNTED: Final = 10_000
# SQLSTATE classes that are a value's own fault: data exception, integrity, program limit. Anything else (a full disk, a
# missing right, a schema that is behind) concerns every record, and none of them must be set aside for it.
_OWN_FAULTS: Final = ("22", "23", "54")


# The delivery, or why it is none.
Decode = Callable[[bytes | None], Delivered | str]


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot be stored as a webhook, or a span of records that the log deleted unread (no value)."""

    partition: int
    first_offset: int
    next_offset: int
    reason: str
    key: bytes | None = None
    value: bytes | None = None
    # Seconds since 1970, by the log's clock; None: it has none.
    appended: float | None = None


class PoisonView(msgspec.Struct, frozen=True, kw_only=True):
    """A record set aside, as people see it. `bytes` None: a gap."""

    number: int
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    bytes: int | None
    reason: str
    appended_at: datetime | None
    found_at: datetime


async def offsets(database: Database, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """How far this database has read, of the partitions it ever read. Raises Unreachable."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["offsets"], topic, list(partitions))
    return {row["partition"]: row["next_offset"] for row in rows}


async def store(
    database: Database,
    topic: str,
    deliveries: Sequence[Delivered],
    aside: Sequence[SetAside],
    read: Mapping[int, int],
) -> tuple[int, int]:
    """Store all of it and that it was read, in one commit. How many events were new, and how many were set aside.

    Raises Unreachable, InFlight and OutcomeUnknown, after which it may simply be done again; and what the database says
    of a value that it does not take (`is_own_fault`).
    """
    async with database.stepping() as connection:
        fresh = sum(await inbox.append(connection, deliveries))
        rows = await connection.fetch(_SQL["set_aside"], topic, *_columns(aside)) if aside else []
        if read:
            partitions = sorted(read)
            await connection.execute(_SQL["move"], topic, partitions, [read[partition] for partition in partitions])
    return fresh, len(rows)


def is_own_fault(error: Exception) -> bool:
    """Whether a value is to blame, and not the database: it would be refused tomorrow too."""
    if isinstance(error, asyncpg.PostgresError):
        return (getattr(error, "sqlstate", None) or "")[:2] in _OWN_FAULTS
    # What the driver cannot even write down: a surrogate, a number beyond every column.
    return isinstance(error, asyncpg.DataError | UnicodeError | OverflowError)


async def list_poison(database: Database, *, after: int, most: int) -> list[PoisonView]:
    """What was set aside and is not resolved, oldest first."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["open"], after, most)
    return [PoisonView(**dict(row)) for row in rows]


async def retry(database: Database, number: int, decode: Decode) -> str | int | None:
    """Read it once more; store it and resolve it in one commit.

    How many events were new; why it still cannot be stored; None: it is not there, or is resolved.
    """
    async with database.stepping() as connection:
        row = await connection.fetchrow(_SQL["value"], number)
        if row is None:
            return None
        found = decode(row["value"])
        if isinstance(found, str):
            return found
        fresh = sum(await inbox.append(connection, [found]))
        await connection.execute(_SQL["resolve"], number, f"stored: {fresh} new event(s)")
    return fresh


async def dismiss(database: Database, number: int, reason: str) -> bool:
    """Leave it at that, for a reason. False: it is not there, or is resolved."""
    async with database.stepping() as connection:
        return await connection.fetchval(_SQL["resolve"], number, reason) is not None


async def count_poison(database: Database) -> int:
    """How many wait for a person, up to a bound."""
    async with database.owning() as connection:
        found: int = await connection.fetchval(_SQL["count_open"], _MOST_COUNTED)
    return found


def _columns(aside: Iterable[SetAside]) -> list[list[object]]:
    rows = [(a.partition, a.first_offset, a.next_offset, a.key, a.value, a.reason, a.appended) for a in aside]
    return [list(column) for column in zip(*rows, strict=True)]
