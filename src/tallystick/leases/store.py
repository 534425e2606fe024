"""Leases that a clock which was ahead has dated, on PostgreSQL: none outlasts the longest there is."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from tallystick import queries
from tallystick.database.pool import Connection, Database

_SQL = queries.load(__package__, "store.sql")


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """How many leases and pauses began anew."""

    payouts: int = 0
    payments: int = 0
    events: int = 0
    orders: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.payouts + self.payments + self.events + self.orders


async def bound(
    database: Database, *, longest: timedelta, lease: timedelta, providers: Sequence[str], most: int
) -> Bounded:
    """Begin anew what ends more than `longest` from now. Of each kind so many at most: the next run goes on."""
    async with database.stepping() as connection:
        # What a person confirmed then was confirmed before now: else nothing is proven absent until that time has come.
        await connection.execute(_SQL["confirmed"], longest)
        return Bounded(
            payouts=await _count(connection, "payouts", longest, lease, most, list(providers)),
            payments=await _count(connection, "payments", longest, lease, most),
            events=await _count(connection, "leases", longest, lease, most)
            + await _count(connection, "events", longest, most),
            orders=await _count(connection, "holds", longest, most),
        )


async def _count(connection: Connection, name: str, *arguments: object) -> int:
    """Rows that the statement changed, as the server says it: `UPDATE 5`."""
    return int((await connection.execute(_SQL[name], *arguments)).split()[-1])
