"""After a restore, on PostgreSQL: which payouts must be asked about, and whether sending is safe again."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import uuid4

import msgspec

from tallystick import queries
from tallystick.database.pool import Database
from tallystick.keys.derived import forms_of
from tallystick.movement.evidence import Evidence
from tallystick.movement.life import store as life
from tallystick.movement.steps import KEY_DIFFERS, Disputed
from tallystick.settlement.tick.store import ClaimedSettlement, SettlementResult, claimed_row, post_claims, record

_SQL = queries.load(__package__, "store.sql")
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
            await life.begin_life(connection, _RUN)


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


async def confirm(database: Database) -> None:
    """Sending is safe from this database, on this line of its history."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["confirm"])


def _recomputed(row: ClaimedSettlement, generation: int | None = None) -> bytes:
    return row.key_of(row.generation if generation is None else generation)


def _moved_later(row: ClaimedSettlement) -> SettlementResult:
    """The lost life had given it another generation, and paid that."""
    seen = Evidence(what="contradicted", found="later_generation_moved")
    return SettlementResult(claimed=row, verdict=Disputed("later_generation_moved"), evidence=(seen,), ask_first=True)


def _key_differs(row: ClaimedSettlement) -> SettlementResult:
    stored = Evidence(what=KEY_DIFFERS, found=row.key.hex(), detail=f"its content gives {_recomputed(row).hex()}")
    return SettlementResult(claimed=row, verdict=Disputed(KEY_DIFFERS), evidence=(stored,))
