"""After a restore, on PostgreSQL: which payouts must be asked about, and whether sending is safe again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import uuid4

import msgspec

from tallystick import queries
from tallystick.core.keys import forms_of, is_reference, reference_bounds
from tallystick.core.provider import Movement
from tallystick.core.settlement import KEY_DIFFERS, Disputed, settlement_id
from tallystick.store import whereabouts
from tallystick.store.database import Connection, Database
from tallystick.store.settlement_review import key_bounds
from tallystick.store.settling import Claimed, Evidence, Result, claimed_row, post_claims, record

_SQL = queries.load(__package__, "recovery.sql")
# Why a life began that nothing hinted at.
_RUN: Final = "recover"


class Open(msgspec.Struct, frozen=True):
    """Payouts of a provider that are not asked about yet; `last` is when the last of them may be."""

    provider: str
    rows: int
    last: datetime
    now: datetime


async def distrust(database: Database) -> None:
    """Nothing is sent from here on, until `confirm`. Raises InFlight: somebody who looked before has not ended yet.

    What was sent before is on its way for as long after this. A run that was not finished goes on: nothing was sent
    from here since it began.
    """
    async with database.stepping() as connection:
        await connection.execute(_SQL["alone"])
        goes_on = await connection.fetchval(_SQL["goes_on"])
        await connection.execute(_SQL["distrust"])
        if not goes_on:
            await whereabouts.begin_life(connection, _RUN)


async def mark(database: Database, provider: str, *, due_at: datetime, by: str, most: int) -> tuple[int, int]:
    """Mark some unfinished payouts of a provider; (0, 0) when none is left. How many, and how many with a wrong key."""
    async with database.stepping() as connection:
        token = uuid4()
        rows = await connection.fetch(_SQL["mark_pending"], provider, due_at, token, by, most)
        claimed = [claimed_row(row) for row in rows]
        if claimed:
            await post_claims(connection, claimed, token=token, by=by)
        more = await connection.fetch(_SQL["mark_processing"], provider, due_at, token, by, most)
        claimed += [claimed_row(row) for row in more]
        held = await connection.fetch(_SQL["mark_held"], provider, most)
        wrong = [row for row in claimed if row.key != _recomputed(row)]
        later = {form: row for row in claimed for form in forms_of(_recomputed(row, row.generation + 1))}
        moved = await connection.fetch(_SQL["orphaned"], provider, list(later))
        results = [_key_differs(row) for row in wrong]
        results += [_moved_later(later[row["reference"]]) for row in moved if later[row["reference"]] not in wrong]
        if results:
            await record(connection, results, by=by)
    return len(claimed) + len(held), len(wrong)


async def ask_again(database: Database, provider: str, *, due_at: datetime) -> None:
    """Have what an earlier run got no answer about asked again by then."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["ask_again"], provider, due_at)


async def open_rows(database: Database) -> list[Open]:
    """What is still to be asked about."""
    async with database.owning() as connection:
        return [Open(*row) for row in await connection.fetch(_SQL["open"])]


async def elsewhere(database: Database, providers: Sequence[str]) -> dict[str, int]:
    """Providers that are not among these and once were used, with their unfinished payouts, charges and refunds."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["elsewhere"], list(providers))
    return {row["provider"]: row["rows"] for row in rows}


async def last_known(database: Database) -> tuple[datetime | None, datetime]:
    """When this database last remembers a send, as of when it was first distrusted; and its time now."""
    async with database.owning() as connection:
        ((at, now),) = await connection.fetch(_SQL["last_known"])
    return at, now


async def keep_if_orphan(database: Database, provider: str, movement: Movement) -> bool:
    """Whether no row here explains the movement, though its reference could be a key of ours.

    It is kept unless something that was sent from here explains it; rows that wait under its key or name ask first.
    """
    bounds = _bounds(movement)
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
    bounds = {place: found for place, one in enumerate(movements) if (found := _bounds(one)) is not None}
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
    bounds = _bounds(movement)
    if bounds is None:
        return
    async with database.stepping() as connection:
        # In this order: what is kept is known.
        await whereabouts.prove(connection, provider, why, movement, key=bounds[0])
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


async def confirm(database: Database) -> None:
    """Sending is safe from this database, on this line of its history."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["confirm"])


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


def _bounds(movement: Movement) -> tuple[bytes, bytes] | None:
    """Between which keys the one lies that its reference may be; None: it is none of ours."""
    return key_bounds(movement.reference) or reference_bounds(movement.reference)


def _recomputed(row: Claimed, generation: int | None = None) -> bytes:
    return row.key_of(row.generation if generation is None else generation)


def _moved_later(row: Claimed) -> Result:
    """The lost life had given it another generation, and paid that."""
    seen = Evidence(what="contradicted", found="later_generation_moved")
    return Result(claimed=row, verdict=Disputed("later_generation_moved"), evidence=(seen,), ask_first=True)


def _key_differs(row: Claimed) -> Result:
    stored = Evidence(what=KEY_DIFFERS, found=row.key.hex(), detail=f"its content gives {_recomputed(row).hex()}")
    return Result(claimed=row, verdict=Disputed(KEY_DIFFERS), evidence=(stored,))
