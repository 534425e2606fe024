"""After a restore, on PostgreSQL: which charges and refunds must be asked about, and which are still undecided."""

from datetime import datetime
from typing import Literal

import msgspec

from tallystick import queries
from tallystick.database.pool import Database
from tallystick.movement.steps import KEY_DIFFERS

_SQL = queries.load(__package__, "payment_store.sql")

Kind = Literal["CHARGE", "REFUND"]


class Unfinished(msgspec.Struct, frozen=True):
    """Unfinished charges or refunds of a provider that must be asked about; `last`: when the last of them may be.

    `waiting_for_person`: nobody could tell, and a person was called. The others are `undecided`.
    """

    kind: Kind
    provider: str
    undecided: int
    waiting_for_person: int
    last: datetime
    now: datetime


async def mark(
    database: Database, kind: Kind, provider: str, *, due_at: datetime, can_be_asked: bool, most: int
) -> tuple[int, int]:
    """Mark some unfinished ones of a provider; (0, 0) when none is left. How many, and how many with a wrong key."""
    async with database.stepping() as connection:
        ((marked, differ),) = await connection.fetch(
            _SQL["mark"], kind, provider, due_at, most, can_be_asked, KEY_DIFFERS
        )
    return marked, differ


async def ask_again(database: Database, provider: str, *, due_at: datetime) -> None:
    """Have what an earlier run got no answer about asked again by then."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["ask_again"], provider, due_at)


async def standing(database: Database) -> list[Unfinished]:
    """What must still be asked about, by kind and provider."""
    async with database.owning() as connection:
        return [Unfinished(*row) for row in await connection.fetch(_SQL["standing"])]
