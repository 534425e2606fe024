"""Orders that are paid, on a real database against a real simulator.

Checkout  one process's worth of a shop that charges, at one tenant's disposal; several on one database are several
age       what was sent and what waits becomes older; orders, which would expire, do not
charged   what the provider's own books say was charged
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg

from tallystick.access.store import ensure_tenant
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import order_id
from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.checkout.payment import store
from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.payment.rules import Paid, Paying, PaymentPending, PaymentView
from tallystick.checkout.payment.store import ChargeRow
from tallystick.checkout.release.flow import Releases
from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement.flow import Sender
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS, Limits
from tests.orders import TTL, wish
from tests.providers.worlds import WORLDS, Control, World, impatient
from tests.settlements import superuser

STRIPE = next(world for world in WORLDS if world.name == "stripe")
# Those that take charges.
CHARGING = [world for world in WORLDS if world.name != "wise"]
# More than a claim, a permit and the longest time in flight: what was sent before can no longer be on its way.
A_WHILE = timedelta(minutes=5)
# Silence is silence after a moment, so that no test waits half a minute for it.
HURRIED = replace(LIMITS, payment_wait_seconds=20.0)

_MOMENTS = {
    # Not created_at and completed_at: the journal has them too.
    "tally.payment_idempotency_log": ("due_at",),
    "tally.intent": ("first_sent_at", "since"),
    "tally.attempt": ("sent_at", "not_after", "answered_at"),
    "tally.whereabouts": ("confirmed_at",),
    "tally.life": ("known_until", "began_at"),
}


async def age(dsn: str, span: timedelta = A_WHILE, *, in_one_snapshot: bool = False) -> None:
    """Let that much time pass for what was sent.

    `in_one_snapshot`: beside those at work, so that an attempt they make meanwhile is not made older than its intent.
    """
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction(isolation="repeatable_read" if in_one_snapshot else None):
            await connection.execute("SET LOCAL session_replication_role = replica")
            for table, columns in _MOMENTS.items():
                moved = ", ".join(f"{column} = {column} - $1::interval" for column in columns)
                await connection.execute(f"UPDATE {table} SET {moved}", span)
    finally:
        await connection.close()


def new_key() -> str:
    """An Idempotency-Key that nobody used."""
    return f"click-{uuid4().hex}"


def charged(control: Control, world: World = STRIPE) -> list[dict[str, Any]]:
    """Every payment object in the provider's own books, whatever became of it, oldest first."""
    return control.made(world.name, "payment_intent" if world.name == "stripe" else "charge")


# How long a provider out of reach keeps an order from being swept.
HOLD = timedelta(hours=1)


@dataclass(frozen=True)
class Checkout:
    """A shop that charges, as one tenant."""

    dsn: str
    control: Control
    world: World
    database: Database
    tenant: Tenant
    orders: Orders
    payments: Payments
    provider: Provider

    async def order(self, key: str = "k", *, sku: str = "lamp", **fields: Any) -> OrderView:
        """A reservation that holds."""
        await self.orders.set_stock(self.tenant, sku, 1_000)
        made = await self.orders.reserve(self.tenant, wish(sku, currency=self.world.currency, **fields), key)
        assert isinstance(made, Reserved), made
        return made.view

    async def pay(self, order: OrderView, *, key: str | None = None, **more: Any) -> Paid:
        """One click, as a rule under a new key. Where the provider needs the card with the charge, it has one."""
        given = {"payment_method": self.world.payment_method, **more}
        token = given.pop("token", order.reservation_token)
        return await self.payments.pay(self.tenant, order.id, token, idempotency_key=key or new_key(), **given)

    async def paying(self, order: OrderView, **more: Any) -> Paying:
        answer = await self.pay(order, **more)
        assert isinstance(answer, Paying), answer
        return answer

    async def pending(self, order: OrderView, **more: Any) -> PaymentPending:
        answer = await self.pay(order, **more)
        assert isinstance(answer, PaymentPending), answer
        return answer

    async def refused(self, order: OrderView, **more: Any) -> str:
        answer = await self.pay(order, **more)
        assert isinstance(answer, Rejected), answer
        return answer.code

    async def view(self, order: OrderView) -> PaymentView | None:
        found = await self.payments.order(self.tenant, order.id)
        assert isinstance(found, OrderView), found
        return found.payment

    async def log(self, order: OrderView) -> list[ChargeRow]:
        uuid = order_id(order.id)
        assert uuid is not None
        return await store.read(self.database, self.tenant, uuid)

    async def statuses(self, order: OrderView) -> list[str]:
        return [row.status for row in await self.log(order)]

    async def answers(self) -> list[str | None]:
        """What came of every attempt so far, in order; None: never answered."""
        async with self.database.owning() as connection:
            rows = await connection.fetch("SELECT answer FROM tally.attempt ORDER BY sent_at, number")
        return [row["answer"] for row in rows]


@asynccontextmanager
async def checkout(
    dsn: str,
    control: Control,
    world: World = STRIPE,
    *,
    limits: Limits = HURRIED,
    ttl: timedelta = TTL,
    grace: timedelta = timedelta(),
    tenant: str = "default",
    answer_seconds: float = 0.5,
) -> AsyncIterator[Checkout]:
    """Open for business, with connections and a provider of its own."""
    await migrate(dsn)
    async with AsyncExitStack() as stack:
        database = await postgres.connect(dsn, connections=6 * limits.lanes + 12, limits=limits)
        stack.push_async_callback(database.close)
        provider = world.make(control.url, "", "")
        impatient(provider, answer_seconds)
        stack.push_async_callback(provider.close)
        known = {world.name: provider}
        sender = await stack.enter_async_context(Sender(database, known, limits=limits))
        releases = Releases(database, known, sender, hold=HOLD, limits=limits)
        orders = await stack.enter_async_context(
            Orders(database, ttl=ttl, grace=grace, releases=releases, limits=limits)
        )
        payments = await stack.enter_async_context(
            Payments(database, known, sender, provider=world.name, limits=limits)
        )
        owner = await ensure_tenant(database, tenant)
        yield Checkout(dsn, control, world, database, owner, orders, payments, provider)
