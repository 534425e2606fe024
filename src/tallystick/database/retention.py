"""Retention: what a tenant lets go, and when. What decisions read is never touched (migrations 23, 31)."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import msgspec

from tallystick import queries
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks import store as webhook

_SQL = queries.load(__package__, "retention.sql")
# Webhooks come before anybody knows whose they are.
EVERYBODY: Final = "every tenant"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Days after which something may go; None: it is kept for good."""

    evidence_days: int | None = None
    reply_days: int | None = None
    outbox_days: int | None = None
    webhook_days: int | None = None


class RetentionView(Retention, frozen=True, kw_only=True):
    """A tenant's policy as it stands, and who made it so."""

    changed_by: str | None = None
    changed_at: datetime | None = None


class Trimmed(msgspec.Struct, frozen=True):
    """What went of one kind, of one tenant's; or what would go."""

    tenant: str
    what: str
    rows: int
    bytes: int


async def read(database: Database, tenant: Tenant) -> RetentionView:
    """The policy of a tenant; without one everything is kept."""
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["read"], tenant.number)
    return RetentionView() if row is None else RetentionView(**dict(row))


async def put(database: Database, tenant: Tenant, wanted: Retention, *, by: str) -> RetentionView:
    """Set the whole policy; journaled."""
    async with database.stepping() as connection:
        days = (wanted.evidence_days, wanted.reply_days, wanted.outbox_days, wanted.webhook_days)
        await connection.execute(_SQL["put"], tenant.number, *days, by)
    return await read(database, tenant)


async def retain(database: Database, *, is_dry: bool, limits: Limits = LIMITS) -> AsyncIterator[Trimmed]:
    """Let go what every tenant's policy lets go, in transactions of a bounded size; safe to kill, and to run twice."""
    async with database.owning() as connection:
        tenants = [Tenant(row["tenant_id"], row["name"]) for row in await connection.fetch(_SQL["tenants"])]
    for tenant in tenants:
        yield await _evidence(database, tenant, is_dry=is_dry, limits=limits)
        for trimmed in await _of_tenant(database, tenant, is_dry=is_dry, limits=limits):
            yield trimmed
    # Before the bodies: the rows of a day follow its bodies with the next run, and a dry run counts what this one does.
    yield await _events(database, is_dry=is_dry, limits=limits)
    yield await _bodies(database, is_dry=is_dry, limits=limits)


async def _evidence(database: Database, tenant: Tenant, *, is_dry: bool, limits: Limits) -> Trimmed:
    """Intent by intent, in the order of their keys: what was looked at is not looked at again."""
    last: bytes | None = b""
    count = size = 0
    while last is not None:
        async with database.stepping() as connection:
            row = await connection.fetchrow(
                _SQL["retain_evidence"], tenant.number, last, limits.retention_chunk, is_dry
            )
        trimmed, freed, last = row or (0, 0, None)
        count, size = count + trimmed, size + freed
    return Trimmed(tenant.name, "attempt evidence", count, size)


async def _of_tenant(database: Database, tenant: Tenant, *, is_dry: bool, limits: Limits) -> list[Trimmed]:
    totals: dict[str, tuple[int, int]] = {}
    # A dry run changes nothing, so a second look would see the same: it counts everything at once.
    most = _EVERYTHING if is_dry else limits.retention_chunk
    for _ in range(1 if is_dry else limits.retention_rounds):
        async with database.stepping() as connection:
            rows = await connection.fetch(_SQL["retain"], tenant.number, most, is_dry)
        for what, trimmed, size in rows:
            count, before = totals.get(what, (0, 0))
            totals[what] = (count + trimmed, before + size)
        if all(trimmed < most for _, trimmed, _ in rows):
            break
    return [Trimmed(tenant.name, what, count, size) for what, (count, size) in totals.items()]


async def _events(database: Database, *, is_dry: bool, limits: Limits) -> Trimmed:
    """Stretch by stretch, in the order of their numbers."""
    last: int | None = 0
    count = size = 0
    while last is not None:
        async with database.stepping() as connection:
            row = await connection.fetchrow(_SQL["retain_webhooks"], last, limits.retention_chunk, is_dry)
        trimmed, freed, last = row or (0, 0, None)
        count, size = count + trimmed, size + freed
    return Trimmed(EVERYBODY, "webhook events but for verdicts", count, size)


async def _bodies(database: Database, *, is_dry: bool, limits: Limits) -> Trimmed:
    """Days to come are made as well: bodies of a day that has none lie where nothing is ever detached."""
    if not is_dry:
        await webhook.keep_days(database, ahead=limits.webhook_days_ahead, detach_after=None)
    async with database.stepping() as connection:
        days = await connection.fetchval(_SQL["body_days"])
        found = [] if days is None else await connection.fetch(_SQL["detachable"], days)
        if found and not is_dry:
            await connection.fetch(_SQL["detach"], days)
    return Trimmed(EVERYBODY, "days of webhook bodies detached", len(found), sum(row["bytes"] for row in found))


_EVERYTHING: Final = 2**31 - 1
