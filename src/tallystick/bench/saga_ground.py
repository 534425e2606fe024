"""The ground of `tally bench saga`: orders that are charged, what the provider tells of them, and whoever works it off.

Every order is reserved and charged as a buyer does it; only the provider's telling is appended without a signature.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.access import store as tenants
from tallystick.bench.settlement_ground import CountingDatabase
from tallystick.bench.settlement_provider import Instant
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import OrderReserved
from tallystick.checkout.order.store import OrderView, Reserved, SkuView
from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.payment.rules import Paying
from tallystick.checkout.refund.flow import Refunds
from tallystick.checkout.saga.flow import Saga
from tallystick.database import pool as postgres
from tallystick.errors import require
from tallystick.ledger.claims import Tenant
from tallystick.movement.flow import Sender
from tallystick.providers.port import Provider
from tallystick.providers.words import Answer, Charge, Done, Event, Exchange, Instruction, Movement, Sending
from tallystick.settings import LIMITS
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events

SQL: Final = queries.load(__package__, "saga.sql")

BASELINE_CONNECTIONS: Final = 16
_SKUS: Final = 100
# More than any bench sells of one.
_STOCK: Final = 1_000_000_000
_METHOD: Final = "pm_card_visa"
_LEASE: Final = timedelta(minutes=5)
# Lanes of orders, of payments and theirs, of refunds and of the sender; the baseline's; reads.
_CONNECTIONS: Final = 6 * LIMITS.lanes + BASELINE_CONNECTIONS + LIMITS.readers
_AT_ONCE: Final = LIMITS.lanes * LIMITS.batch
# The planner takes any index of an empty table for as good as any other, until autovacuum has counted its first rows.
_FIRST: Final = LIMITS.batch
# A buyer of the bench waits for as long as it takes.
_PATIENT: Final = replace(LIMITS, payment_wait_seconds=120.0, saga_wait_seconds=30.0)


class Till(Instant):
    """A provider inside this process that takes every charge at once."""

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Done, if it is a charge."""
        if not isinstance(instruction, Charge):
            return await super().send(instruction, sending)
        key = instruction.key.hex()
        id_ = f"pi_{key[:24]}"
        movement = Movement(
            provider="instant",
            purpose="charge",
            id=id_,
            amount_micros=instruction.amount_micros,
            currency=instruction.currency,
            state="moved",
            status="succeeded",
            reference=key,
        )
        said = f'{{"id":"{id_}","object":"payment_intent","status":"succeeded"}}'
        exchange = Exchange(asked="POST /v1/payment_intents", status=200, request_id=f"req_{key[:14]}", said=said)
        return Done(movement=movement, evidence=(exchange,))


class Told(msgspec.Struct, frozen=True):
    """What the provider tells in one go."""

    provider: str
    events: tuple[Event, ...]


class Shop(msgspec.Struct, frozen=True):
    """A database with what works on it."""

    dsn: str
    database: CountingDatabase
    tenant: Tenant
    name: str
    orders: Orders
    payments: Payments
    saga: Saga

    def events(self, by: str, *, chunk: int = LIMITS.event_chunk) -> Events:
        """One worker."""
        limits = replace(_PATIENT, event_chunk=chunk)
        handlers: dict[str, Saga] = {"charge": self.saga, "refund": self.saga}
        return Events(self.database, handlers, lease=_LEASE, by=by, limits=limits)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(dsn: str, name: str, provider: Provider) -> AsyncIterator[Shop]:
    """As `app.running` puts it together, over this provider."""
    async with AsyncExitStack() as stack:
        # Refuses a server whose commits are not durable.
        await (await postgres.connect(dsn, connections=1)).close()
        database = CountingDatabase(dsn, _CONNECTIONS, LIMITS)
        stack.push_async_callback(database.close)
        known = {name: provider}
        sender = await stack.enter_async_context(Sender(database, known))
        orders = await stack.enter_async_context(Orders(database, ttl=timedelta(seconds=3600), grace=timedelta()))
        payments = await stack.enter_async_context(Payments(database, known, sender, provider=name, limits=_PATIENT))
        refunds = await stack.enter_async_context(Refunds(database, known, sender, limits=_PATIENT))
        saga = Saga(database, refunds, sender.witness, limits=_PATIENT)
        tenant = await tenants.ensure_tenant(database, "default")
        yield Shop(dsn, database, tenant, name, orders, payments, saga)


async def charge(shop: Shop, rows: int, *, seed: int) -> list[tuple[OrderView, str]]:
    """So many orders, each charged: with the provider's ids of their payments."""
    for number in range(_SKUS):
        require(isinstance(await shop.orders.set_stock(shop.tenant, _sku(number), _STOCK), SkuView), "no stock")
    chance = random.Random(seed)  # noqa: S311 - a load, not a secret
    bought: list[tuple[OrderView, str]] = []
    while len(bought) < rows:
        # The first few alone: see `_FIRST`.
        last = min(len(bought) + (_AT_ONCE if bought else _FIRST), rows)
        is_first = not bought
        bought += await asyncio.gather(
            *(_bought(shop, _wish(chance), f"saga-{seed}-{number}") for number in range(len(bought), last))
        )
        if is_first:
            await vacuum(shop)
    return bought


async def _bought(shop: Shop, wish: OrderReserved, key: str) -> tuple[OrderView, str]:
    made = await shop.orders.reserve(shop.tenant, wish, key)
    if not isinstance(made, Reserved):
        message = f"an order of the bench was refused: {made}"
        raise TypeError(message)
    order = made.view
    paid = await shop.payments.pay(
        shop.tenant, order.id, order.reservation_token, idempotency_key=key, payment_method=_METHOD
    )
    if not isinstance(paid, Paying) or paid.payment.payment_intent_id is None:
        message = f"a charge of the bench was not taken: {paid}"
        raise TypeError(message)
    return order, paid.payment.payment_intent_id


def _wish(chance: random.Random) -> OrderReserved:
    amount = 10_000 * chance.randrange(100, 100_000)
    return OrderReserved(sku=_sku(chance.randrange(_SKUS)), quantity=1, amount_micros=amount, currency="EUR")


def _sku(number: int) -> str:
    return f"bench-{number}"


async def sweep(shop: Shop) -> None:
    """Nobody has told us of the payments in time: the sweeper takes all of the orders."""
    connection = await asyncpg.connect(shop.dsn)
    try:
        await connection.execute(SQL["expire"])
    finally:
        await connection.close()
    swept = await shop.orders.sweep()
    require(swept.is_complete, f"not every order was swept: {swept}")


async def tell(shop: Shop, bought: Sequence[tuple[OrderView, str]]) -> None:
    """The provider tells that the money of each has come."""
    for start in range(0, len(bought), LIMITS.batch):
        part = tuple(_event(shop.name, order, payment) for order, payment in bought[start : start + LIMITS.batch])
        async with shop.database.writing() as connection:
            (fresh,) = await inbox.append(connection, [Told(shop.name, part)])
        require(fresh == len(part), "an event of the bench was there before")
    await vacuum(shop)


def _event(provider: str, order: OrderView, payment: str) -> Event:
    movement = Movement(
        provider=provider,
        purpose="charge",
        id=payment,
        amount_micros=order.amount_micros,
        currency=order.currency,
        state="moved",
        status="succeeded",
    )
    return Event(
        provider=provider,
        type="payment_intent.succeeded",
        dedup_key=f"evt_{payment}",
        change_key=f"evt_{payment}",
        object_id=payment,
        occurred_at=None,
        movement=movement,
        body=b'{"id":"evt_%b","object":"event","type":"payment_intent.succeeded"}' % payment.encode(),
    )


async def vacuum(shop: Shop) -> None:
    """What autovacuum does within a minute: the bench does not wait for it, and is not met by it half-way."""
    connection = await shop.database.open()
    try:
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("VACUUM ANALYZE", timeout=3600)
    finally:
        await connection.close()


async def ends(dsn: str) -> dict[str, int]:
    """How many orders, refunds and events stand how."""
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(SQL["ends"])
    finally:
        await connection.close()
    return dict(row or {})
