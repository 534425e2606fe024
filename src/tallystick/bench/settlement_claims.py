"""What the claim of a chunk costs beside millions of other settlements, finished or pending: its time, and its plan."""

import time
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tallystick import queries
from tallystick.bench.result import median
from tallystick.bench.settlement_ground import SQL
from tallystick.bench.settlement_provider import NAME
from tallystick.database import pool as postgres
from tallystick.database.pool import Database
from tallystick.settings import LIMITS
from tallystick.settlement.tick import store as settling

Status = Literal["transferred", "pending"]

_CLAIMS: Final = 20
# The first claim plans the statement and the last one is explained: neither is timed.
_PENDING: Final = (_CLAIMS + 2) * LIMITS.settlement_chunk
_LOADED_AT_ONCE: Final = 500_000
_LOADING_SECONDS: Final = 3600.0
_STUCK_AFTER: Final = timedelta(seconds=300)
# The statement that pass 1 runs, as it is.
_CLAIM: Final = queries.load("tallystick.settlement.tick", "store.sql")["claim"]


class Claims(msgspec.Struct, frozen=True):
    """Milliseconds of each claim of a chunk, and how the server carries one out."""

    milliseconds: list[float]
    plan: str

    @property
    def median_ms(self) -> float:
        """The figure to report."""
        return round(median(self.milliseconds), 2)


async def claims(dsn: str, *, others: int, status: Status) -> Claims:
    """Load so many others, then some to claim; then claim as a tick does, chunk after chunk, each committed."""
    await _load(dsn, others, status)
    database = await postgres.connect(dsn, connections=2)
    try:
        # Where a tick would begin: after all that it has claimed before.
        after, _ = await _claim(database, 0)
        taken = []
        for _ in range(_CLAIMS):
            after, milliseconds = await _claim(database, after)
            taken.append(milliseconds)
        return Claims(taken, await _plan(database, after))
    finally:
        await database.close()


async def _claim(database: Database, after: int) -> tuple[int, float]:
    async with database.writing() as connection:
        began = time.perf_counter()
        rows = await settling.claim(
            connection,
            NAME,
            after=after,
            most=LIMITS.settlement_chunk,
            stuck_after=_STUCK_AFTER,
            token=uuid4(),
            by="bench",
        )
        milliseconds = 1000 * (time.perf_counter() - began)
    return max(row.number for row in rows), milliseconds


async def _plan(database: Database, after: int) -> str:
    """EXPLAIN ANALYZE of the statement as the session prepares it: one plan for all parameters. Rolled back."""
    connection = await database.open()
    try:
        await connection.execute("BEGIN")
        await connection.execute(f"PREPARE claim AS {_CLAIM}")
        arguments = f"'{NAME}', {after}, {LIMITS.settlement_chunk}, '{_STUCK_AFTER}', '{UUID(int=0)}', 'bench'"
        rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS) EXECUTE claim ({arguments})")
        await connection.execute("ROLLBACK")
    finally:
        await connection.close()
    return "\n".join(row[0] for row in rows)


async def _load(dsn: str, others: int, status: Status) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SQL["unguarded"])
        for first in range(1, others + 1, _LOADED_AT_ONCE):
            last = min(first + _LOADED_AT_ONCE - 1, others)
            await connection.execute(SQL["load"], first, last, NAME, status, timeout=_LOADING_SECONDS)
        last = others + _PENDING
        await connection.execute(SQL["load"], others + 1, last, NAME, "pending", timeout=_LOADING_SECONDS)
        await connection.execute(SQL["guarded"])
        await connection.execute("VACUUM ANALYZE", timeout=_LOADING_SECONDS)
    finally:
        await connection.close()
