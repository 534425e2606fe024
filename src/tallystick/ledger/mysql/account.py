"""Accounts on MariaDB and MySQL: make, change, read. The same functions as `ledger.account.store` has."""

from datetime import UTC, datetime

import msgspec

from tallystick.audit.author import current
from tallystick.audit.digest import step_digest
from tallystick.commit.port import Contended, plain_errors
from tallystick.errors import InFlight
from tallystick.ledger.account.store import AccountView, EntryView, Put, change_fault, put_fault
from tallystick.ledger.claims import Tenant
from tallystick.ledger.mysql import statements
from tallystick.ledger.mysql.database import Database, Session
from tallystick.ledger.outcome import Rejected, transaction_name
from tallystick.ledger.rules import account_unknown
from tallystick.ledger.velocity import VelocityLimit
from tallystick.settings import LIMITS

_SQL = statements.load("account.sql")

_BEYOND_EVERY_ENTRY = 2**63 - 1


async def put(
    database: Database,
    tenant: Tenant,
    account_id: str,
    *,
    currency: str,
    floor_micros: int | None,
    limits: tuple[VelocityLimit, ...],
) -> Put | Rejected:
    """Make the account, or give it this floor and these limits. Naturally idempotent; journaled."""
    refusal = put_fault(account_id, currency, floor_micros, limits)
    if refusal is not None:
        return refusal
    # Twice: the first may lose a race for the same new id, and the second then finds it made.
    with plain_errors():
        for _ in range(2):
            try:
                async with database.writing() as session:
                    return await _put(session, tenant, account_id, currency, floor_micros, limits)
            except Contended as contended:
                if contended.held:
                    raise
    raise InFlight(LIMITS.lock_wait_seconds)


async def _put(  # noqa: PLR0917 - those of put
    session: Session,
    tenant: Tenant,
    account_id: str,
    currency: str,
    floor_micros: int | None,
    limits: tuple[VelocityLimit, ...],
) -> Put | Rejected:
    found = await session.rows(_SQL["lock"], tenant.number, account_id)
    held, balance = found[0][1:] if found else (currency, 0)
    refusal = change_fault(account_id, held=held, balance_micros=balance, currency=currency, floor_micros=floor_micros)
    if refusal is not None:
        return refusal
    if not found:
        await session.execute(_SQL["create"], tenant.number, account_id, currency, floor_micros, bool(limits))
    ((number, _, _),) = found or await session.rows(_SQL["lock"], tenant.number, account_id)
    await session.execute(_SQL["change"], floor_micros, bool(limits), tenant.number, number)
    await session.execute(_SQL["clear_limits"], tenant.number, number)
    await session.insert(
        _SQL["add_limit"],
        [(tenant.number, number, limit.window_seconds, limit.max_count, limit.max_sum_micros) for limit in limits],
    )
    body = msgspec.json.encode(
        {"account": account_id, "currency": currency, "floor_micros": floor_micros, "limits": limits}
    )
    await session.execute(_SQL["journal"], tenant.number, body, step_digest(tenant.name, "account", body), current())
    return Put.KEPT if found else Put.CREATED


async def read(database: Database, tenant: Tenant, account_id: str) -> AccountView | Rejected:
    """The account now."""
    async with database.reading() as session:
        found = await session.rows(_SQL["read"], tenant.number, account_id)
        if not found:
            return account_unknown(account_id)
        ((number, _, currency, floor, balance, entries, created_at),) = found
        limits = await session.rows(_SQL["limits"], tenant.number, number)
    kept = tuple(VelocityLimit(*limit) for limit in limits)
    return AccountView(account_id, currency, floor, balance, entries, _utc(created_at), kept)


async def balance_at(
    database: Database, tenant: Tenant, account_id: str, moment: datetime
) -> tuple[int, int] | Rejected:
    """Balance and number of entries at the end of that moment."""
    async with database.reading() as session:
        number = await _number(session, tenant, account_id)
        if number is None:
            return account_unknown(account_id)
        found = await session.rows(_SQL["balance_at"], tenant.number, number, moment.astimezone(UTC))
    return (found[0][0], found[0][1]) if found else (0, 0)


async def list_accounts(database: Database, tenant: Tenant, *, after: str, most: int) -> list[AccountView]:
    """Accounts by id, after the one named."""
    async with database.reading() as session:
        rows = await session.rows(_SQL["list"], tenant.number, after, most)
    return [
        AccountView(id_, currency, floor, balance, entries, _utc(created_at))
        for id_, currency, floor, balance, entries, created_at in rows
    ]


async def list_entries(
    database: Database, tenant: Tenant, account_id: str, *, before: int | None, most: int
) -> list[EntryView] | Rejected:
    """Entries, newest first, with the running balance."""
    async with database.reading() as session:
        account_number = await _number(session, tenant, account_id)
        if account_number is None:
            return account_unknown(account_id)
        rows = await session.rows(_SQL["entries"], tenant.number, account_number, before or _BEYOND_EVERY_ENTRY, most)
    return [
        EntryView(number, transaction_name(operation_id), amount, balance, _utc(at))
        for number, operation_id, amount, balance, at in rows
    ]


async def _number(session: Session, tenant: Tenant, account_id: str) -> int | None:
    found = await session.rows(_SQL["read"], tenant.number, account_id)
    return int(found[0][0]) if found else None


def _utc(stored: datetime) -> datetime:
    """The column has no time zone; what we write there is UTC."""
    return stored.replace(tzinfo=UTC)
