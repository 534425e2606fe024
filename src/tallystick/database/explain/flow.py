"""Explain: everything known of a key or an id, in the order it happened.

A key of a caller's, a transaction, an account, an order, a settlement, a provider key; or any other id that leads to
one of these (`explain.lead`): a token, an approval, a provider's id of a payment, a refund, a transfer or a request.
"""

import re

import msgspec
from asyncpg.pgproto.pgproto import UUID

from tallystick import queries
from tallystick.audit.author import UNSIGNED
from tallystick.audit.digest import step_digest
from tallystick.checkout.order.explain import explain_order
from tallystick.database.explain.explanation import ExplainedStep, Explanation, Known, attempt_steps
from tallystick.database.explain.lead import leads
from tallystick.database.pool import Database
from tallystick.keys.derived import operation_id
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected, read_transaction, transaction_id, transaction_name
from tallystick.money.amounts import format_amount
from tallystick.movement import store as intent
from tallystick.settlement.explain import explain_settlements

__all__ = ["ExplainedStep", "Explanation", "Known", "explain"]

_SQL = queries.load(__package__, "flow.sql")

# The newest entries of an account; the rest is paged through the API.
_ENTRIES_SHOWN = 20
_PROVIDER_KEY = re.compile("[0-9a-f]{64}")


async def explain(database: Database, tenant: Tenant, name: str) -> Known:
    """Everything this tenant has under that key or id."""
    led = await leads(database, tenant, name)
    found = [
        await _operation(database, tenant, transaction_id(name)),
        await _operation(database, tenant, operation_id(tenant.name, name)) if name.isascii() else None,
        await explain_order(database, tenant, name),
        await _account(database, tenant, name),
        *await explain_settlements(database, tenant, name),
        *[await explain_order(database, tenant, order) for order in led.orders],
        *[one for settlement in led.settlements for one in await explain_settlements(database, tenant, settlement)],
        *await _intents(database, tenant, name),
        *led.others,
    ]
    # Under several of its names at once a thing is still shown once.
    once = {(one.what, one.id): one for one in found if one is not None}
    return Known(tuple(once.values()), led.unfinished)


async def _operation(database: Database, tenant: Tenant, id_: bytes | None) -> Explanation | None:
    if id_ is None:
        return None
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["operation"], tenant.number, UUID(id_))
    if row is None:
        return None
    transaction = read_transaction(row["body"])
    at = transaction.at
    steps = [
        ExplainedStep(at, f"committed under key {row['key']!r} as {transaction.kind}: {row['request'].decode()}"),
        ExplainedStep(at, f"by {transaction.author or UNSIGNED}"),
        *(
            ExplainedStep(
                at,
                f"entry {entry.number} of {entry.account}: {format_amount(entry.amount_micros, entry.currency)}, "
                f"balance {format_amount(entry.balance_micros, entry.currency)}",
            )
            for entry in transaction.entries
        ),
        ExplainedStep(
            at,
            f"journaled under digest {step_digest(tenant.name, 'operation', row['request'], row['body']).hex()}",
        ),
    ]
    if transaction.closes is not None:
        steps.append(ExplainedStep(at, f"closes {transaction.closes}"))
    if row["closed_by"] is not None:
        closer = await _operation(database, tenant, row["closed_by"].bytes)
        closed_at = closer.timeline[0].at if closer else at
        steps.append(ExplainedStep(closed_at, f"released or refunded by {transaction_name(row['closed_by'].bytes)}"))
    moved = " and ".join(
        f"{format_amount(entry.amount_micros, entry.currency)} to {entry.account}"
        for entry in transaction.entries
        if entry.amount_micros > 0
    )
    return Explanation("transaction", transaction.id, f"{transaction.kind}: {moved or 'moved no money'}", tuple(steps))


async def _intents(database: Database, tenant: Tenant, name: str) -> list[Explanation]:
    """What was asked of providers under a key, in the form of 64 hexadecimal digits."""
    if not _PROVIDER_KEY.fullmatch(name):
        return []
    return [
        Explanation("intent", name, _asked(found), tuple(attempt_steps(found)))
        for found in await intent.read(database, tenant, bytes.fromhex(name))
    ]


def _asked(found: intent.IntentView) -> str:
    asked = msgspec.json.decode(found.instruction)
    last = found.attempts[-1] if found.attempts else None
    state = "no attempt" if last is None else f"last answer {last.answer or 'none: nobody knows yet'}"
    amount = format_amount(asked["amount_micros"], asked["currency"])
    return f"{found.purpose} of {amount} at {found.provider} ({found.account}), {len(found.attempts)} attempts, {state}"


async def _account(database: Database, tenant: Tenant, name: str) -> Explanation | None:
    found = await account.read(database, tenant, name)
    if isinstance(found, Rejected):
        return None
    floor = "none" if found.floor_micros is None else format_amount(found.floor_micros, found.currency)
    entries = await account.list_entries(database, tenant, name, before=None, most=_ENTRIES_SHOWN)
    steps = (
        []
        if isinstance(entries, Rejected)
        else [
            ExplainedStep(
                entry.at,
                f"entry {entry.number}: {format_amount(entry.amount_micros, found.currency)} by {entry.transaction}, "
                f"balance {format_amount(entry.balance_micros, found.currency)}",
            )
            for entry in reversed(entries)
        ]
    )
    summary = f"balance {format_amount(found.balance_micros, found.currency)}, floor {floor}, {found.entries} entries"
    return Explanation("account", found.id, summary, (ExplainedStep(found.created_at, "account made"), *steps))
