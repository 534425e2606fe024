"""Orders on a real database, for the tests.

Store    one process's worth of a shop, at one tenant's disposal; several on one database are several processes
expired  reservations that hold a moment only are past it, by the database's clock
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from tallystick.access.store import ensure_tenant
from tallystick.checkout.order import store as orders_store
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import OrderReserved, claim_of
from tallystick.checkout.order.store import OrderView, Reserved, SkuView
from tallystick.checkout.postings import PaymentItem, PaymentMoved
from tallystick.checkout.postings_store import post
from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Limits
from tests.ledgers import fetchval
from tests.settlements import empty, superuser

TTL = timedelta(seconds=600)
GRACE = timedelta(seconds=30)
NONE = timedelta()
# Over before anybody can look.
A_MOMENT = timedelta(milliseconds=1)
# Whoever waits for a lock that a test holds, waits until it is let go.
LONG = replace(LIMITS, lock_wait_seconds=30.0)
LAMP = OrderReserved(sku="lamp", quantity=1, amount_micros=25_000_000, currency="EUR")


def wish(sku: str = "lamp", quantity: Any = 1, amount_micros: Any = 25_000_000, currency: Any = "EUR") -> OrderReserved:
    return OrderReserved(sku=sku, quantity=quantity, amount_micros=amount_micros, currency=currency)


@dataclass(frozen=True)
class Store:
    """A gate in front of a database, as one tenant."""

    dsn: str
    database: Database
    tenant: Tenant
    orders: Orders

    async def reserve(self, key: str, asked: OrderReserved = LAMP) -> Any:
        return await self.orders.reserve(self.tenant, asked, key)

    async def made(self, key: str, asked: OrderReserved = LAMP) -> OrderView:
        """A reservation that must be granted."""
        answer = await self.reserve(key, asked)
        assert isinstance(answer, Reserved), answer
        return answer.view

    async def put(self, stock: int, sku: str = "lamp") -> SkuView:
        found = await self.orders.set_stock(self.tenant, sku, stock)
        assert isinstance(found, SkuView), found
        return found

    async def figures(self, sku: str = "lamp") -> tuple[int, int, int]:
        """Reserved, sold, available."""
        found = await self.orders.sku(self.tenant, sku)
        assert isinstance(found, SkuView), found
        return found.reserved, found.sold, found.available

    async def status(self, name: str) -> str:
        found = await self.orders.read(self.tenant, name)
        assert isinstance(found, OrderView), found
        return found.status

    async def pay(self, *names: str) -> int:
        """What the saga does: PENDING to PAID. How many it moved."""
        ids = [name.removeprefix("or_") for name in names]
        return await receive(self.dsn, "tenant_id = $1 AND id = ANY($2::uuid[])", self.tenant.number, ids, pays=True)


@asynccontextmanager
async def store(
    dsn: str, *, limits: Limits = LIMITS, tenant: str = "default", ttl: timedelta = TTL, grace: timedelta = GRACE
) -> AsyncIterator[Store]:
    """Open for business, with connections of its own."""
    await migrate(dsn)
    opened = await postgres.connect(dsn, connections=limits.lanes + limits.order_steps + 6, limits=limits)
    try:
        owner = await ensure_tenant(opened, tenant)
        async with Orders(opened, ttl=ttl, grace=grace, limits=limits) as orders:
            yield Store(dsn, opened, owner, orders)
    finally:
        await opened.close()


async def emptied(dsn: str) -> str:
    """The same database, as if nothing had ever happened in it: a new one for each test would take a second."""
    await migrate(dsn)
    await empty(dsn)
    return dsn


async def expired(dsn: str) -> None:
    """Returns when every reservation is past its deadline by the database's clock: for those that hold a moment."""
    while not await fetchval(dsn, "SELECT coalesce(max(expires_at) < clock_timestamp(), true) FROM tally.orders"):
        await asyncio.sleep(0)


async def receive(dsn: str, where: str = "true", *arguments: Any, pays: bool = False) -> int:
    """The money of pending orders has come, says somebody who need not say from where: they may be PAID by hand.

    Of how many. With `pays` they are PAID in the same transaction.
    """
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            locked = await connection.fetch(
                f"SELECT tenant_id, id, sku FROM tally.orders WHERE status = 'PENDING' AND {where} FOR NO KEY UPDATE",
                *arguments,
            )
            ids = [row["id"] for row in locked]
            await connection.execute("SET LOCAL session_replication_role = replica")
            rows = await connection.fetch(
                "INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key,"
                " amount_micros, currency, fate, event_number, received_at)"
                " SELECT tenant_id, id, 'by_hand', 'pi_' || id, ''::bytea, amount_micros, currency, 'PAID', 0, now()"
                " FROM tally.orders WHERE id = ANY($1) RETURNING *,"
                " (SELECT name FROM tally.tenant t WHERE t.tenant_id = payment_receipt.tenant_id) AS tenant",
                ids,
            )
            await connection.execute("SET LOCAL session_replication_role = origin")
            if pays:
                paid = "UPDATE tally.orders SET status = 'PAID', changed_at = clock_timestamp() WHERE id = ANY($1)"
                await connection.execute(paid, ids)
    finally:
        await connection.close()
    await _post(dsn, rows)
    return len(rows)


async def _post(dsn: str, receipts: Sequence[asyncpg.Record]) -> None:
    opened = await postgres.connect(dsn, connections=1)
    try:
        async with opened.writing() as connection:
            await post(
                connection,
                [
                    PaymentMoved(
                        Tenant(row["tenant_id"], row["tenant"]),
                        "paid",
                        row["provider"],
                        row["currency"],
                        PaymentItem(row["order_id"].hex, row["payment_intent_id"], row["amount_micros"]),
                    )
                    for row in receipts
                ],
            )
    finally:
        await opened.close()


async def execute(dsn: str, statement: str, *arguments: Any) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return str(await connection.execute(statement, *arguments))
    finally:
        await connection.close()


def code(answer: object) -> str:
    return answer.code if isinstance(answer, Rejected) else type(answer).__name__


def encoded(answer: object) -> bytes:
    assert isinstance(answer, Reserved), answer
    return msgspec.json.encode(answer.view)


async def orders_of(dsn: str, where: str = "true") -> int:
    return int(await fetchval(dsn, f"SELECT count(*) FROM tally.orders WHERE {where}"))


async def waits(dsn: str, for_how_many: int = 1) -> None:
    """Returns when so many sessions wait for a lock: then the interleaving is the one the test wants."""
    while (
        await fetchval(
            dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        < for_how_many
    ):
        await asyncio.sleep(0.005)


@asynccontextmanager
async def in_flight(shop: Store, *keys: str, asked: Any = LAMP) -> AsyncIterator[list[Any]]:
    """Reservations in a transaction that commits when the block ends: another process, seen in the middle."""
    async with shop.database.writing() as connection:
        claims = [claim_of(shop.tenant, asked, key) for key in keys]
        yield await orders_store.reserve(connection, claims, ttl=TTL)


@asynccontextmanager
async def sweeping(shop: Store) -> AsyncIterator[int]:
    """A sweep in a transaction that commits when the block ends."""
    async with shop.database.writing() as connection:
        rows = await connection.fetch(orders_store._SQL["overdue"], NONE, 100, None, [], None)
        names = [row["tenant_id"] for row in rows], [row["id"] for row in rows]
        done = await connection.fetch(orders_store._SQL["finish"], *names, "CANCELLED_BY_SWEEPER")
        yield len(done)
