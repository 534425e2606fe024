"""Orphans: movements that this database did not make, as far as it knows; a life that was lost may have.

They are found in a provider's books, kept, and asked about before anything is sent for the same subject.
"""

from collections.abc import Sequence
from typing import Final

from tallystick import queries
from tallystick.database.pool import Connection, Database
from tallystick.keys.derived import is_reference, reference_bounds
from tallystick.keys.names import settlement_id
from tallystick.movement.life import store as life
from tallystick.providers.words import Movement

_SQL: Final = queries.load(__package__, "orphans.sql")


async def keep_if_orphan(database: Database, provider: str, movement: Movement) -> bool:
    """Whether no row here explains the movement, though its reference could be a key of ours.

    It is kept unless something that was sent from here explains it; rows that wait under its key or name ask first.
    """
    bounds = reference_bounds(movement.reference)
    if bounds is None:
        return False
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["known_keys"], provider, *bounds)
        if any(is_reference(row["key"], movement.reference) for row in rows):
            return False
        await _keep(connection, provider, movement, bounds)
        rows = await connection.fetch(_SQL["rows_of_key"], provider, *bounds)
    return not any(is_reference(row["key"], movement.reference) for row in rows)


async def installation(database: Database) -> str:
    """What the movements of this database are known by."""
    async with database.owning() as connection:
        found: str = await connection.fetchval(_SQL["installation"])
    return found


async def unexplained(database: Database, provider: str, movements: Sequence[Movement]) -> list[Movement]:
    """Those that bear what could be a key of ours, and that neither an attempt recorded here nor an orphan explains."""
    bounds = {
        place: found for place, one in enumerate(movements) if (found := reference_bounds(one.reference)) is not None
    }
    if not bounds:
        return []
    async with database.owning() as connection:
        rows = await connection.fetch(
            _SQL["sent_or_known"],
            provider,
            list(bounds),
            [first for first, _ in bounds.values()],
            [last for _, last in bounds.values()],
            [movements[place].id for place in bounds],
        )
    explained = {
        row["place"]
        for row in rows
        if row["key"] is None or is_reference(row["key"], movements[row["place"]].reference)
    }
    return [movements[place] for place in bounds if place not in explained]


async def lost_life(database: Database, provider: str, movement: Movement, why: str) -> None:
    """A movement that proves one is kept, and sending to its provider stops, in one commit."""
    bounds = reference_bounds(movement.reference)
    if bounds is None:
        return
    async with database.stepping() as connection:
        # In this order: what is kept is known.
        await life.prove(connection, provider, why, movement, key=bounds[0])
        await _keep(connection, provider, movement, bounds)


async def given_back(
    database: Database, provider: str, payment: str, *, amount_micros: int, currency: str
) -> str | None:
    """The provider's id of a refund of so much of this payment that a lost life made and nothing here asks for."""
    async with database.owning() as connection:
        found: str | None = await connection.fetchval(
            _SQL["given_back_elsewhere"], provider, payment, amount_micros, currency
        )
    return found


async def report_given_back(database: Database) -> int:
    """Have a person know what a lost life gave back of payments that are recorded here. How many are new."""
    async with database.owning() as connection:
        if not await connection.fetchval(_SQL["knows_of_refunds"]):
            return 0
    async with database.stepping() as connection:
        return len(await connection.fetch(_SQL["report_given_back"]))


async def _keep(connection: Connection, provider: str, movement: Movement, bounds: tuple[bytes, bytes]) -> None:
    await connection.execute(
        _SQL["add_orphan"],
        provider,
        movement.reference,
        movement.id,
        movement.amount_micros,
        movement.currency,
        movement.state,
        settlement_id(movement.about),
        movement.purpose,
        *bounds,
        movement.created_at,
        movement.parent or None,
        movement.status,
    )
    await connection.execute(_SQL["named_rows"], provider, *bounds, settlement_id(movement.about))
