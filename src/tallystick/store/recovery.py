"""After a restore, on PostgreSQL: which payouts must be asked about, and whether sending is safe again."""

from collections.abc import Sequence
from datetime import datetime
from uuid import uuid4

import msgspec

from tallystick import queries
from tallystick.core.keys import forms_of, settlement_key
from tallystick.core.provider import Movement
from tallystick.core.settlement import Disputed, settlement_id
from tallystick.store.database import Database
from tallystick.store.settlement_review import key_bounds
from tallystick.store.settling import Claimed, Evidence, Result, claimed_row, post_claims, record

_SQL = queries.load(__package__, "recovery.sql")


class Open(msgspec.Struct, frozen=True):
    """Payouts of a provider that are not asked about yet; `last` is when the last of them may be."""

    provider: str
    rows: int
    last: datetime
    now: datetime


async def distrust(database: Database) -> None:
    """Nothing is sent from here on, until `confirm`."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["distrust"])


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
        wrong = [row for row in claimed if row.key != _recomputed(row)]
        later = {form: row for row in claimed for form in forms_of(_recomputed(row, row.generation + 1))}
        moved = await connection.fetch(_SQL["orphaned"], provider, list(later))
        results = [_key_differs(row) for row in wrong]
        results += [_moved_later(later[row["reference"]]) for row in moved if later[row["reference"]] not in wrong]
        if results:
            await record(connection, results, by=by)
    return len(claimed), len(wrong)


async def open_rows(database: Database) -> list[Open]:
    """What is still to be asked about."""
    async with database.owning() as connection:
        return [Open(*row) for row in await connection.fetch(_SQL["open"])]


async def elsewhere(database: Database, providers: Sequence[str]) -> dict[str, int]:
    """Providers that are not among these and once were used, with their unfinished payouts."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["elsewhere"], list(providers))
    return {row["provider"]: row["rows"] for row in rows}


async def last_known(database: Database) -> tuple[datetime | None, datetime]:
    """When this database last remembers a send, as of when it was first distrusted; and its time now."""
    async with database.owning() as connection:
        ((at, now),) = await connection.fetch(_SQL["last_known"])
    return at, now


async def keep_if_orphan(database: Database, provider: str, movement: Movement) -> bool:
    """Whether no row here explains the movement, though its reference could be a key of ours. It is then kept."""
    bounds = key_bounds(movement.reference)
    if bounds is None:
        return False
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["known_keys"], provider, *bounds)
        if any(movement.reference in forms_of(row["key"]) for row in rows):
            return False
        await connection.execute(
            _SQL["add_orphan"],
            provider,
            movement.reference,
            movement.id,
            movement.amount_micros,
            movement.currency,
            movement.state,
            settlement_id(movement.about),
        )
    return True


async def confirm(database: Database) -> None:
    """Sending is safe from this database, on this line of its history."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["confirm"])


def _recomputed(row: Claimed, generation: int | None = None) -> bytes:
    return settlement_key(
        tenant=row.tenant.name,
        currency=row.currency,
        provider=row.provider,
        attribution_id=row.attribution_id,
        squad_id=row.squad_id,
        net_micros=row.net_micros,
        generation=row.generation if generation is None else generation,
    )


def _moved_later(row: Claimed) -> Result:
    """The lost life had given it another generation, and paid that."""
    seen = Evidence(what="contradicted", found="later_generation_moved")
    return Result(claimed=row, verdict=Disputed("later_generation_moved"), evidence=(seen,), ask_first=True)


def _key_differs(row: Claimed) -> Result:
    stored = Evidence(what="key_differs", found=row.key.hex(), detail=f"its content gives {_recomputed(row).hex()}")
    return Result(claimed=row, verdict=Disputed("key_differs"), evidence=(stored,))
