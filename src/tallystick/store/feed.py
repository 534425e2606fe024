"""Reading journal and outbox without losing a row.

Numbers are handed out before transactions commit, so `number > last` skips the rows of a slow one. A cursor is
(transaction, number), and no row is returned while an older transaction still runs. A long-running transaction
anywhere in the server therefore holds the feed back; it never makes it wrong.
"""

from typing import Literal, NamedTuple

import msgspec

from tallystick import queries
from tallystick.core.outcome import transaction_name
from tallystick.store.database import Database

_SQL = queries.load(__package__, "feed.sql")


class Cursor(NamedTuple):
    """Where a reader stands: the last row it has seen."""

    xid: int
    number: int


START = Cursor(0, 0)


class Row(msgspec.Struct, frozen=True):
    """One row of a feed. `transaction` names the operation it is about; other rows bring a body."""

    cursor: Cursor
    tenant_id: int
    topic: str
    transaction: str | None
    body: bytes | None
    digest: bytes | None


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
