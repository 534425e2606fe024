"""A ledger as one PostgreSQL function, called once per transfer on 16 asyncpg connections."""

import asyncio
from pathlib import Path

import asyncpg
from asyncpg.prepared_stmt import PreparedStatement

from bench.load import Driven, drive, make_tables
from tallystick.bench.ledger import BASELINE_CONNECTIONS
from tallystick.errors import require
from tallystick.ledger.kinds import Operation, Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Outcome

SCHEMA = Path(__file__).with_name("function.sql").read_text(encoding="utf-8")
BOOKS = """
    SELECT (SELECT sum(balance_micros) FROM peer.account), (SELECT count(*) FROM peer.entry),
           (SELECT count(*) FROM peer.operation)
"""


async def prepare(dsn: str, accounts: list[str]) -> None:
    """Its tables, its function and the accounts."""
    await make_tables(dsn, SCHEMA, accounts)


async def run(dsn: str, accounts: list[str], *, seconds: float, seed: int) -> Driven:
    """As many callers as connections, so that each is always at work."""
    connections = [await asyncpg.connect(dsn) for _ in range(BASELINE_CONNECTIONS)]
    try:
        # Prepared statements in a queue: asyncpg's own pool would send a reset after every call.
        idle: asyncio.Queue[PreparedStatement[asyncpg.Record]] = asyncio.Queue()
        for connection in connections:
            idle.put_nowait(await connection.prepare("SELECT body, is_replay FROM peer.transfer($1, $2, $3, $4)"))

        async def submit(operation: Operation, key: str) -> Outcome:
            if not isinstance(operation, Transfer):
                raise TypeError(operation)
            transfer = await idle.get()
            try:
                row = await transfer.fetchrow(key, operation.debit, operation.credit, operation.amount_micros)
            finally:
                idle.put_nowait(transfer)
            require(row is not None, "the function answers with one row")
            return (Duplicate if row["is_replay"] else Committed)(row["body"].encode())  # type: ignore[index]

        return await drive(submit, accounts, callers=BASELINE_CONNECTIONS, seconds=seconds, seed=seed)
    finally:
        for connection in connections:
            await connection.close()
