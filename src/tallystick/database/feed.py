"""Reading journal and outbox without losing a row.

Numbers are handed out before transactions commit, so `number > last` skips the rows of a slow one. A cursor is
(transaction, number), and no row is returned while an older transaction still runs. A long-running transaction
anywhere in the server therefore holds the feed back; it never makes it wrong.
"""

from datetime import date
from typing import Literal, NamedTuple

import msgspec

from tallystick import queries
from tallystick.database.pool import Database
from tallystick.errors import Misconfigured
from tallystick.ledger.outcome import transaction_name

_SQL = queries.load(__package__, "feed.sql")


class Cursor(NamedTuple):
    """Where a reader stands: the last row it has seen."""

    xid: int
    number: int

    def __str__(self) -> str:
        """As it is written for people and programs."""
        return f"{self.xid}:{self.number}"


START = Cursor(0, 0)


class Row(msgspec.Struct, frozen=True):
    """One row of a feed. `transaction` names the operation it is about; other rows bring a body."""

    cursor: Cursor
    tenant_id: int
    topic: str
    transaction: str | None
    body: bytes | None
    digest: bytes | None


class Follower(NamedTuple):
    """Somebody who reads the outbox, and how far he said that he had."""

    reader: str
    at: Cursor
    day: date
    # Its place is one of another life of this database.
    is_lost: bool


class FollowedRow(msgspec.Struct, frozen=True):
    """A row of the outbox with what it is about: an operation's answer, or the step's own facts."""

    place: str
    tenant: str
    topic: str
    transaction: str | None
    body: msgspec.Raw


async def read(database: Database, feed: Literal["journal", "outbox"], *, after: Cursor, most: int) -> list[Row]:
    """The next rows in commit order; empty when there is nothing that may be read yet."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL[feed], str(after.xid), after.number, most)
    return [
        Row(
            Cursor(int(xid), number),
            tenant,
            topic,
            None if operation_id is None else transaction_name(operation_id.bytes),
            body,
            digest,
        )
        for xid, number, tenant, topic, operation_id, body, digest in rows
    ]


async def relayed(database: Database, reader: str, upto: Cursor) -> None:
    """Say that a follower of the outbox has all rows up to there for good: `tally retain` may then let them go.

    A place before the one it has today changes nothing. Raises Misconfigured where nothing can be read yet.
    """
    async with database.stepping() as connection:
        is_readable = await connection.fetchval(_SQL["relayed"], reader, str(upto.xid), upto.number)
    if not is_readable:
        raise Misconfigured(
            f"{upto.xid}:{upto.number} is ahead of everything that can be read from this database: it is no place that "
            "was told here. Nothing was noted."
        )


async def followers(database: Database, reader: str | None = None) -> list[Follower]:
    """All of them, or the one of that name."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["followers"], reader)
    return [Follower(name, Cursor(int(xid), number), day, is_lost=is_lost) for name, xid, number, day, is_lost in rows]


async def unread(database: Database, reader: str, *, most: int) -> list[FollowedRow]:
    """The next rows for a follower, from the place that `relayed` gave it; a new one begins with the oldest there is.

    The same rows again until it says that it has them. Raises Misconfigured where its place is of a life before: it
    would be shown nothing until the transactions have counted as far again.
    """
    found = await followers(database, reader)
    if found and found[0].is_lost:
        raise Misconfigured(
            f"The follower {reader} has read up to {found[0].at}, which this database has not reached: it was restored "
            "from a dump, and its transactions began to count anew. Run `tally outbox forget` for it, and read again "
            "from the beginning: what it had is told twice, and nothing is missed."
        )
    after = found[0].at if found else START
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["unread"], str(after.xid), after.number, most)
    return [
        FollowedRow(
            place=str(Cursor(int(xid), number)),
            tenant=tenant,
            topic=topic,
            transaction=None if operation_id is None else transaction_name(operation_id.bytes),
            body=msgspec.Raw(body),
        )
        for xid, number, tenant, topic, operation_id, body in rows
    ]


async def forget(database: Database, reader: str) -> bool:
    """Wait for this follower no more. False: there is none of that name. The owner's right alone."""
    async with database.stepping() as connection:
        return await connection.execute(_SQL["forget"], reader) != "DELETE 0"
