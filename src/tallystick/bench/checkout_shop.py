"""The shop that most would write: one transaction for each step, on 16 connections, over plain tables.

    reserve   one conditional UPDATE of the stock, one INSERT
    pay       the intent, committed; the provider; the answer, committed
    webhook   one INSERT; then PAID, the stock and the event's end in a transaction of their own
    status    one SELECT

In its favour: no ledger and no evidence; an event is processed as soon as it is stored, by the process that has it in
memory. Who takes the requests and calls the provider is `checkout_plain` or `checkout_lean`.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries

CONNECTIONS: Final = 16
SQL: Final = queries.load(__package__, "checkout.sql")
PAID: Final = "payment_intent.succeeded"


class Reserved(msgspec.Struct, frozen=True):
    """An order that waits for its payment."""

    id: str
    reservation_token: str
    status: str = "PENDING"


class Wanted(msgspec.Struct, frozen=True):
    """A charge that is committed to, and not made yet."""

    key: bytes
    amount_micros: int
    currency: str


async def make(dsn: str, sku: str, stock: int) -> None:
    """Its tables, and what is for sale."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SQL["make"])
        await connection.execute(SQL["stock"], sku, stock)
    finally:
        await connection.close()


@asynccontextmanager
async def shop(dsn: str) -> AsyncIterator["Shop"]:
    """Open for as long as the block lasts; what was acknowledged is then processed."""
    async with asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        opened = Shop(pool)
        yield opened
        await opened.finish()


class Shop:
    """What its handlers do."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        """Sells what `make` put up."""
        self._pool = pool
        self._processing: set[asyncio.Task[None]] = set()

    async def reserve(self, key: str, sku: str, quantity: int, amount_micros: int, currency: str) -> Reserved | None:
        """None: it is sold out."""
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.execute(SQL["take"], sku, quantity) == "UPDATE 0":
                return None
            (row,) = await connection.fetch(SQL["order"], key, sku, quantity, amount_micros, currency)
        return Reserved(str(row["id"]), str(row["reservation_token"]))

    async def intend(self, order: UUID, token: UUID) -> Wanted | None:
        """What is to be charged, committed; None: there is no such order that can be paid."""
        key = hashlib.sha256(f"{order} {token} 1".encode()).digest()
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(SQL["payable"], order, token)
            if row is None:
                return None
            await connection.execute(SQL["intend"], key.hex(), order, row["amount_micros"])
        return Wanted(key, row["amount_micros"], row["currency"])

    async def charged(self, wanted: Wanted, payment: str) -> None:
        """What the provider answered."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(SQL["charged"], wanted.key.hex(), payment)

    async def take(self, event_id: str, kind: str, reference: str, body: bytes) -> None:
        """Store a webhook, and have it processed. `reference` is the key of the charge it is about."""
        async with self._pool.acquire() as connection, connection.transaction():
            number = await connection.fetchval(SQL["event"], event_id, kind, body.decode())
        if number is not None:
            task = asyncio.create_task(self._process(number, reference if kind == PAID else None))
            self._processing.add(task)
            task.add_done_callback(self._processing.discard)

    async def _process(self, number: UUID, paid: str | None) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            if paid is not None:
                sold = await connection.fetchrow(SQL["pay"], paid)
                if sold is not None:
                    await connection.execute(SQL["sell"], sold["sku"], sold["quantity"])
            await connection.execute(SQL["processed"], number)

    async def status(self, order: UUID) -> str:
        """How an order stands."""
        async with self._pool.acquire() as connection:
            return str(await connection.fetchval(SQL["status"], order))

    async def finish(self) -> None:
        """What was acknowledged is processed."""
        await asyncio.gather(*self._processing, return_exceptions=True)
