"""Accounts on PostgreSQL: make, change, read."""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.digest import step_digest
from tallystick.commit.port import Contended, plain_errors
from tallystick.database.pool import Connection, Database
from tallystick.errors import InFlight
from tallystick.ledger.claims import Tenant
from tallystick.ledger.kinds import RESERVED, account_fault, account_reserved, currency_fault
from tallystick.ledger.outcome import Rejected, transaction_name
from tallystick.ledger.rules import account_unknown
from tallystick.ledger.velocity import VelocityLimit, limits_fault
from tallystick.money.amounts import MAX_MICROS
from tallystick.settings import LIMITS
from tallystick.settlement.postings import clearing, fees

_SQL = queries.load(__package__, "store.sql")

_BEYOND_EVERY_ENTRY = 2**63 - 1


class AccountView(msgspec.Struct, frozen=True):
    """An account as callers see it. `floor_micros` null: it may go below zero without bound."""

    id: str
    currency: str
    floor_micros: int | None
    balance_micros: int
    entries: int
    created_at: datetime
    limits: tuple[VelocityLimit, ...] = ()


class EntryView(msgspec.Struct, frozen=True):
    """One line of an account's book, with the balance after it."""

    number: int
    transaction: str
    amount_micros: int
    balance_micros: int
    at: datetime


class Put(Enum):
    """What a PUT of an account did."""

    CREATED = "created"
    KEPT = "kept"


async def put(
    database: Database,
    tenant: Tenant,
    account_id: str,
    *,
    currency: str,
    floor_micros: int | None,
    limits: tuple[VelocityLimit, ...],
    may_bound: bool = True,
) -> Put | Rejected:
    """Make the account, or give it this floor and these limits. Naturally idempotent; journaled.

    Not `may_bound`: an ordinary account may be made, with floor 0 and no limits; what bounds one stays as it is.
    """
    refusal = put_fault(account_id, currency, floor_micros, limits)
    if refusal is not None:
        return refusal
    with plain_errors():
        for _ in range(2):
            try:
                async with database.writing() as connection:
                    return await _put(
                        connection, tenant, account_id, (currency, floor_micros, limits), may_bound=may_bound
                    )
            except Contended as contended:
                if contended.held:
                    raise
    raise InFlight(LIMITS.lock_wait_seconds)


def put_fault(
    account_id: object, currency: object, floor_micros: object, limits: tuple[VelocityLimit, ...]
) -> Rejected | None:
    """What is wrong with an account as it was asked for, before anything is read."""
    refusal = account_fault(account_id) or currency_fault(currency)
    if refusal is not None:
        return refusal
    if floor_micros is not None and (type(floor_micros) is not int or abs(floor_micros) > MAX_MICROS):
        return Rejected(
            "floor_invalid", f"{floor_micros!r:.80} is not a floor.", "Send whole micros, or null for none."
        )
    return _flow_fault(str(account_id), str(currency)) or limits_fault(limits)


def _flow_fault(account_id: str, currency: str) -> Rejected | None:
    """A floor, a limit or another currency on an account of a flow would stop that flow in the middle.

    Clearing and fees are the tenant's to fund, to draw on and to bound, in the one currency they have by name.
    """
    if account_id.startswith(RESERVED):
        return account_reserved(account_id)
    if account_id.startswith((clearing(""), fees(""))) and account_id not in (clearing(currency), fees(currency)):
        return Rejected(
            "currency_mismatch",
            f"{account_id} is used by settlements in the currency of its name, and {currency} was asked for.",
            f"Use {clearing(currency)} or {fees(currency)}.",
        )
    return None


async def _put(
    connection: Connection,
    tenant: Tenant,
    account_id: str,
    wanted: tuple[str, int | None, tuple[VelocityLimit, ...]],
    *,
    may_bound: bool,
) -> Put | Rejected:
    currency, floor_micros, limits = wanted
    row = await connection.fetchrow(_SQL["lock"], tenant.number, account_id)
    if not may_bound and _bounds(row) != (floor_micros, _in_order(limits)):
        return _may_not_bound(account_id, is_there=row is not None)
    held, balance = (currency, 0) if row is None else (row["currency"], row["balance_micros"])
    refusal = change_fault(account_id, held=held, balance_micros=balance, currency=currency, floor_micros=floor_micros)
    if refusal is not None:
        return refusal
    if row is None:
        number = await connection.fetchval(
            _SQL["create"], tenant.number, account_id, currency, floor_micros, bool(limits)
        )
        if number is None:
            raise Contended("the account was made by somebody else meanwhile", held=False)
    else:
        number = row["number"]
        await connection.execute(_SQL["change"], tenant.number, number, floor_micros, bool(limits))
        await connection.execute(_SQL["clear_limits"], tenant.number, number)
    for limit in limits:
        await connection.execute(
            _SQL["add_limit"],
            tenant.number,
            number,
            limit.window_seconds,
            limit.max_count,
            limit.max_sum_micros,
        )
    body = msgspec.json.encode(
        {"account": account_id, "currency": currency, "floor_micros": floor_micros, "limits": limits}
    )
    await connection.execute(_SQL["journal"], tenant.number, body, step_digest(tenant.name, "account", body))
    return Put.CREATED if row is None else Put.KEPT


def _bounds(row: asyncpg.Record | None) -> tuple[int | None, tuple[VelocityLimit, ...]]:
    """Floor and limits as they are; of an account that is not there, those anybody may give it."""
    if row is None:
        return 0, ()
    return row["floor_micros"], msgspec.json.decode(row["limits"], type=tuple[VelocityLimit, ...])


def _in_order(limits: tuple[VelocityLimit, ...]) -> tuple[VelocityLimit, ...]:
    return tuple(sorted(limits, key=lambda limit: limit.window_seconds))


def _may_not_bound(account_id: str, *, is_there: bool) -> Rejected:
    what = "has another floor or other limits" if is_there else "would begin with a floor other than 0, or with limits"
    return Rejected(
        "forbidden",
        f"{account_id} {what}: what bounds the money of an account is an administrator's to say.",
        "Use a key of the role admin; or ask for the account as it is, or for a new one with floor 0 and no limits.",
    )


def change_fault(
    account_id: str, *, held: str, balance_micros: int, currency: str, floor_micros: int | None
) -> Rejected | None:
    """What is wrong with it against the account as it is; a new one holds nothing of its own currency."""
    if held != currency:
        return Rejected(
            "currency_mismatch",
            f"{account_id} holds {held}, and an account's currency never changes.",
            "Use another account id for another currency.",
        )
    if floor_micros is not None and balance_micros < floor_micros:
        return Rejected(
            "floor_above_balance",
            f"{account_id} holds {balance_micros} micros, less than the floor of {floor_micros} asked for.",
            "Top the account up first, or choose a lower floor.",
        )
    return None


async def read(database: Database, tenant: Tenant, account_id: str) -> AccountView | Rejected:
    """The account now."""
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["read"], tenant.number, account_id)
    if row is None:
        return account_unknown(account_id)
    limits = msgspec.json.decode(row["limits"], type=tuple[VelocityLimit, ...])
    return msgspec.structs.replace(AccountView(*tuple(row)[:-1]), limits=limits)


async def balance_at(
    database: Database, tenant: Tenant, account_id: str, moment: datetime
) -> tuple[int, int] | Rejected:
    """Balance and number of entries at the end of that moment."""
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["balance_at"], tenant.number, account_id, moment)
    return account_unknown(account_id) if row is None else (row["balance_micros"], row["entries"])


async def list_accounts(database: Database, tenant: Tenant, *, after: str, most: int) -> list[AccountView]:
    """Accounts by id, after the one named."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["list"], tenant.number, after, most)
    return [AccountView(*row) for row in rows]


async def list_entries(
    database: Database, tenant: Tenant, account_id: str, *, before: int | None, most: int
) -> list[EntryView] | Rejected:
    """Entries, newest first, with the running balance."""
    async with database.reading(tenant.number) as connection:
        if await connection.fetchrow(_SQL["read"], tenant.number, account_id) is None:
            return account_unknown(account_id)
        rows = await connection.fetch(_SQL["entries"], tenant.number, account_id, before or _BEYOND_EVERY_ENTRY, most)
    return [
        EntryView(number, transaction_name(operation_id.bytes), amount, balance, at)
        for number, operation_id, amount, balance, at in rows
    ]


async def ensure(connection: Connection, wanted: Mapping[tuple[int, str], tuple[str, int | None, str]]) -> None:
    """Make those that are not there, inside the caller's transaction: by tenant and name currency, floor and author."""
    names = sorted(wanted)
    await connection.execute(
        _SQL["ensure"],
        [tenant for tenant, _ in names],
        [account for _, account in names],
        [wanted[name][0] for name in names],
        [wanted[name][1] for name in names],
        [wanted[name][2] for name in names],
    )
