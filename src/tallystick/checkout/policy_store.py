"""Checkout policies on PostgreSQL: what a tenant wants done with money that does not fit."""

from datetime import datetime
from typing import Final

import msgspec

from tallystick import queries
from tallystick.checkout.saga.rules import Policy
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant

_SQL: Final = queries.load(__package__, "policy_store.sql")


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant wants done with money that does not fit; `changed_by` None: it is the default."""

    late: str
    other_amount: str
    changed_by: str | None = None
    changed_at: datetime | None = None


async def read(database: Database, tenant: Tenant) -> PolicyView:
    """What the tenant wants done with money that does not fit."""
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["read"], tenant.number)
    return PolicyView(late="refund", other_amount="refund") if row is None else PolicyView(**dict(row))


async def put(database: Database, tenant: Tenant, wanted: Policy, *, by: str) -> PolicyView:
    """Set it, for payments that are decided from now on."""
    async with database.stepping() as connection:
        row = await connection.fetchrow(_SQL["put"], tenant.number, wanted.late, wanted.other_amount, by)
    return PolicyView(**dict(row or {}))
