"""Breaks on PostgreSQL: money at a provider that nothing here explains, or that contradicts what is here."""

from datetime import datetime
from typing import Final

import msgspec

from tallystick import queries
from tallystick.checkout.order.rules import order_name
from tallystick.database.pool import Database
from tallystick.providers.words import Movement

_SQL: Final = queries.load(__package__, "break_store.sql")
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000
# For those who report one in their own transaction.
ADD: Final = _SQL["add"]


class BreakView(msgspec.Struct, frozen=True, kw_only=True):
    """What nothing here explains, or contradicts what is here."""

    number: int
    kind: str
    provider: str
    purpose: str
    object_id: str
    word: str
    amount_micros: int
    currency: str
    order_id: str | None
    event_number: int | None
    found_at: datetime
    resolved_at: datetime | None
    resolution: str | None
    resolved_by: str | None


async def list_breaks(database: Database, *, is_all: bool, most: int) -> list[BreakView]:
    """Newest first; without `is_all` those that are open."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["list"], is_all, most)
    return [
        BreakView(
            **{
                **dict(row),
                "order_id": None if row["order_id"] is None else order_name(row["order_id"].bytes),
            }
        )
        for row in rows
    ]


async def report_unknown(database: Database, provider: str, movement: Movement, *, word: str) -> None:
    """A person must know of a movement that nothing here asked for. The same word of it once."""
    columns = "missing_here", provider, movement.purpose, movement.id, word, movement.amount_micros, movement.currency
    async with database.stepping() as connection:
        await connection.execute(ADD, *([value] for value in (*columns, None, None, None)))


async def resolve(database: Database, number: int, *, resolution: str, by: str) -> bool:
    """A person has looked. False: there is no such open break."""
    async with database.stepping() as connection:
        found = await connection.fetchval(_SQL["resolve"], number, resolution, by)
    return found is not None


async def figures(database: Database) -> tuple[int, int]:
    """Open breaks, and payments that wait for a person's decision; each up to a bound."""
    async with database.owning() as connection:
        ((breaks_, reviews),) = await connection.fetch(_SQL["figures"], _MOST_COUNTED)
    return breaks_, reviews
