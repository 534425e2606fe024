"""Which charges and refunds of ours events tell of: by the provider's id, else by our key in the reference."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.checkout.payment.rules import Status as ChargeStatus
from tallystick.database.literal import texts
from tallystick.database.pool import Connection
from tallystick.keys.derived import is_reference, reference_bounds
from tallystick.ledger.claims import Tenant
from tallystick.providers.words import Movement
from tallystick.webhooks.inbox import ClaimedEvent

_SQL: Final = queries.load(__package__, "finding.sql")
_REFUND_SQL: Final = queries.load("tallystick.checkout.refund", "store.sql")

# An order of a tenant, by the tenant's number.
OrderName = tuple[int, UUID]
# An event, and what it tells of.
Telling = tuple[ClaimedEvent, Movement]


class FoundCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The charge that an event tells of."""

    tenant: Tenant
    order_id: UUID
    key: bytes
    status: ChargeStatus
    payment_intent_id: str | None

    @property
    def place(self) -> OrderName:
        """Its order."""
        return self.tenant.number, self.order_id


class FoundRefund(msgspec.Struct, frozen=True, kw_only=True):
    """The refund that an event tells of."""

    tenant: Tenant
    order_id: UUID
    key: bytes

    @property
    def place(self) -> OrderName:
        """Its order."""
        return self.tenant.number, self.order_id


async def charges(connection: Connection, told: Sequence[Telling]) -> dict[int, FoundCharge]:
    """The charge that each event tells of: by the provider's id of the payment, else by our key in its reference."""
    rows = await _rows(connection, told, _SQL["charges_by_id"], _SQL["charges_by_key"])
    return {number: _charge(row) for number, row in rows.items()}


async def refunds(
    connection: Connection, told: Sequence[Telling]
) -> tuple[dict[int, FoundRefund], dict[int, OrderName]]:
    """The refund of ours that each event tells of, and the order of the payment that it gives back."""
    if not told:
        return {}, {}
    named = await _rows(connection, told, _REFUND_SQL["by_id"], _REFUND_SQL["by_key"])
    found = {number: _refund(row) for number, row in named.items()}
    # One that failed gave nothing back: were it somebody else's, to take it for ours would end one that is on its way.
    nameless = [
        (event, movement)
        for event, movement in told
        if event.number not in found
        and not movement.reference
        and movement.parent
        and movement.state not in ("failed", "returned")
    ]
    if nameless:
        rows = await connection.fetch(
            _REFUND_SQL["by_payment"],
            [event.provider for event, _ in nameless],
            [movement.parent for _, movement in nameless],
            [movement.amount_micros for _, movement in nameless],
            [movement.currency for _, movement in nameless],
        )
        found |= {nameless[row["place"] - 1][0].number: _refund(row) for row in rows}
    parents = await connection.fetch(
        _SQL["charges_by_id"],
        texts([event.provider for event, _ in told]),
        texts([movement.parent for _, movement in told]),
    )
    ours = {told[row["place"] - 1][0].number: (row["tenant_id"], row["order_id"]) for row in parents}
    return found, ours


async def _rows(connection: Connection, told: Sequence[Telling], by_id: str, by_key: str) -> dict[int, asyncpg.Record]:
    """The row that each event means, by its number."""
    if not told:
        return {}
    named = texts([event.provider for event, _ in told]), texts([movement.id for _, movement in told])
    rows = await connection.fetch(by_id, *named)
    found = {told[row["place"] - 1][0].number: row for row in rows}
    keyed = [
        (event, movement, bounds)
        for event, movement in told
        if event.number not in found
        for bounds in [reference_bounds(movement.reference)]
        if bounds is not None
    ]
    if not keyed:
        return found
    rows = await connection.fetch(
        by_key,
        [event.provider for event, _, _ in keyed],
        [low for _, _, (low, _) in keyed],
        [high for _, _, (_, high) in keyed],
    )
    for row in rows:
        event, movement, _ = keyed[row["place"] - 1]
        if is_reference(row["idempotency_key"], movement.reference):
            found[event.number] = row
    return found


def _charge(row: asyncpg.Record) -> FoundCharge:
    return FoundCharge(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        order_id=row["order_id"],
        key=row["idempotency_key"],
        status=row["status"],
        payment_intent_id=row["payment_intent_id"],
    )


def _refund(row: asyncpg.Record) -> FoundRefund:
    return FoundRefund(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        order_id=row["order_id"],
        key=row["idempotency_key"],
    )
