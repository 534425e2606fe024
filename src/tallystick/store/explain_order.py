"""Explain an order: reserved under which key, until when, and how it ended."""

from datetime import datetime
from typing import Final

from asyncpg.pgproto.pgproto import UUID

from tallystick import queries
from tallystick.core.idempotency import Tenant
from tallystick.core.keys import operation_id
from tallystick.core.money import format_amount
from tallystick.core.order import Status, order_id, order_name
from tallystick.core.outcome import Rejected
from tallystick.store import order
from tallystick.store.database import Database
from tallystick.store.explanation import Explanation, Step
from tallystick.store.order import OrderView

_SQL = queries.load(__package__, "explain.sql")

_WHERE: Final[dict[Status, str]] = {
    "PENDING": "the stock is held for its buyer, who has not paid",
    "PAID": "the stock is sold",
    "CANCELLED": "somebody gave it up, and the stock is for sale again",
    "CANCELLED_BY_SWEEPER": "nobody paid in time, and the stock is for sale again",
}


async def explain_order(database: Database, tenant: Tenant, name: str) -> Explanation | None:
    """The order of that id, or reserved under that key."""
    id_ = order_id(name)
    if id_ is None and not name.isascii():
        return None
    found = await order.read(database, tenant, name if id_ else order_name(operation_id(tenant.name, name)))
    if isinstance(found, Rejected):
        return None
    async with database.reading(tenant.number) as connection:
        ((key, now),) = await connection.fetch(_SQL["order_key"], tenant.number, UUID(found.id.removeprefix("or_")))
    return Explanation("order", found.id, _summary(found, now), tuple(_steps(found, key)))


def _summary(view: OrderView, now: datetime) -> str:
    text = (
        f"{view.status}: {view.quantity} of {view.sku} for {format_amount(view.amount_micros, view.currency)}; "
        f"{_WHERE[view.status]}"
    )
    if view.status == "PENDING" and view.expires_at <= now:
        text += "; its time is over, and the sweeper gives it back after the grace"
    return text


def _steps(view: OrderView, key: str) -> list[Step]:
    steps = [
        Step(view.created_at, f"reserved under key {key!r}, with token {view.reservation_token}"),
        Step(view.expires_at, "its time ends; unpaid after the grace, it is swept"),
    ]
    if view.status != "PENDING":
        steps.append(Step(view.changed_at, f"{view.status}, journaled as order.{view.status.lower()}"))
    return sorted(steps, key=lambda step: step.at)
