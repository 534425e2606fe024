"""Charges that nobody answered for, on PostgreSQL: which they are, and what a person found out about one."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from tallystick import queries
from tallystick.checkout.order.rules import order_name, order_unknown
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment import store as payment
from tallystick.checkout.payment.rules import Payable, Status, written_until
from tallystick.database.pool import Connection, Database
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement import store as attempts
from tallystick.movement.rules import decode_charge
from tallystick.movement.steps import NOTHING_SENT, History
from tallystick.providers.words import Charge
from tallystick.webhooks import inbox
from tallystick.webhooks.inbox import Told

_SQL = queries.load(__package__, "store.sql")


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """The newest charge of an order, and what was sent for it.

    `not_after`: until when bytes of it may have been written (`checkout.payment.rules.written_until`).
    """

    key: bytes
    attempt: int
    claim_number: int
    provider: str
    status: Status
    instruction: Charge
    order: Payable
    history: History
    not_after: datetime | None
    now: datetime


class Unanswered(msgspec.Struct, frozen=True, kw_only=True):
    """A charge whose outcome nobody knows, as a person sees it. `absent_at`: complete books did not show it then."""

    tenant: str
    order_id: str
    order_status: str
    attempt: int
    provider: str
    amount_micros: int
    currency: str
    created_at: datetime
    tries: int
    reason: str | None
    due_at: datetime
    absent_at: datetime | None


async def newest(database: Database, tenant: Tenant, order_id: UUID) -> Open | None:
    """The newest charge of an order, without a lock; None: it was never charged."""
    async with database.owning() as connection:
        return await _newest(connection, tenant, order_id)


async def _newest(connection: Connection, tenant: Tenant, order_id: UUID) -> Open | None:
    row = await connection.fetchrow(_SQL["newest"], tenant.number, order_id)
    if row is None:
        return None
    name = tenant.number, row["idempotency_key"]
    sent = await attempts.sent(connection, row["provider"], [name])
    history = msgspec.structs.replace(sent.get(name, NOTHING_SENT), since=row["since"])
    return Open(
        key=row["idempotency_key"],
        attempt=row["attempt"],
        claim_number=row["claim_number"],
        provider=row["provider"],
        status=row["status"],
        instruction=decode_charge(row["instruction"]),
        order=payment.payable(row, row["order_status"]),
        history=history,
        not_after=written_until(history, row["settled_from"]),
        now=row["now"],
    )


async def locked(connection: Connection, tenant: Tenant, order_id: UUID) -> Open | Rejected | None:
    """The same, with the order's lock: who charges, pays, cancels or sweeps it waits."""
    if await connection.fetchrow(_SQL["lock_order"], tenant.number, order_id) is None:
        return order_unknown(order_name(order_id.bytes))
    return await _newest(connection, tenant, order_id)


async def resolve(
    connection: Connection,
    tenant: Tenant,
    order_id: UUID,
    charge: Open,
    *,
    payment_intent_id: str | None,
    reason: str | None,
    response: bytes,
    told: Sequence[Told],
) -> OrderView:
    """What a person found out, and what follows from it, inside the caller's transaction; the order as it then is."""
    status = "FAILED" if payment_intent_id is None else "COMPLETED"
    await connection.fetchrow(_SQL["resolve"], tenant.number, charge.key, status, payment_intent_id, reason, response)
    if told:
        await inbox.append(connection, told)
    return (await payment.orders_with_payment(connection, tenant.number, [order_id]))[order_id]


async def unanswered(database: Database, *, older_than: timedelta, most: int) -> list[Unanswered]:
    """Charges of every tenant that nobody answered for, the oldest first."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["list"], older_than, most)
    return [
        Unanswered(**{**dict(row), "order_id": order_name(row["order_id"].bytes)})  # the rest has the same names
        for row in rows
    ]
