"""Explain a webhook event: what the provider told, how it stands, and the order or settlement it concerned.

For the operator alone: an event is the provider's word to him, and belongs to no tenant. What it concerned is shown of
one tenant.
"""

import re
from collections.abc import Iterator
from typing import Final

import asyncpg

from tallystick import queries
from tallystick.checkout.order.explain import explain_order
from tallystick.checkout.order.rules import order_name
from tallystick.database.explain.explanation import ExplainedStep, Explanation, Known
from tallystick.database.explain.lead import events_about
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.money.amounts import format_amount
from tallystick.settlement.explain import explain_settlements
from tallystick.webhooks import store as webhook

_SQL = queries.load(__package__, "explain.sql")
_PROVIDER_KEY: Final = re.compile("[0-9a-f]{64}")


async def explain_events(database: Database, tenant: Tenant, name: str) -> list[Explanation]:
    """The events of that number, or of that id at a provider."""
    numbers = sorted(await webhook.find(database, name))
    return [*await _events(database, tenant, numbers), *await _verdicts(database, name, numbers)]


async def explain_told(database: Database, tenant: Tenant, name: str) -> Known:
    """The newest events that tell of the object of that id."""
    numbers, unfinished = await events_about(database, name)
    return Known(tuple(await _events(database, tenant, sorted(numbers))), unfinished)


async def _events(database: Database, tenant: Tenant, numbers: list[int]) -> list[Explanation]:
    if not numbers:
        return []
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["events"], numbers)
    return [await _explained(database, tenant, row) for row in rows]


async def _verdicts(database: Database, name: str, numbers: list[int]) -> list[Explanation]:
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["verdicts"], numbers)
    found = []
    for row in rows:
        reason = f" ({row['reason']})" if row["reason"] else ""
        summary = (
            f"{row['status']}{reason}, number {row['number']}; what it told was let go, with the bodies of its day"
        )
        steps = ExplainedStep(row["received_at"], "stored"), ExplainedStep(row["processed_at"], row["status"])
        found.append(Explanation("event", name, summary, steps))
    return found


async def _explained(database: Database, tenant: Tenant, row: asyncpg.Record) -> Explanation:
    steps = sorted(_steps(row), key=lambda step: step.at)
    concerned = await _concerned(database, tenant, row)
    summary = f"{row['provider']} told {row['type']}: {_standing(row)}; {concerned}"
    return Explanation("event", row["event_id"], summary, tuple(steps))


def _standing(row: asyncpg.Record) -> str:
    reason = f" ({row['reason']})" if row["reason"] else ""
    tried = f"claimed {row['claim_number']} times, failed {row['tries']} times"
    text = f"{row['status']}{reason}, number {row['number']}, {tried}"
    if row["status"] == "DEAD_LETTER":
        return f"{text}; nothing of it was acted on, `tally events retry {row['number']}` tries it again"
    return text


def _steps(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    if row["occurred_at"] is not None:
        yield ExplainedStep(row["occurred_at"], f"happened, says {row['provider']}")
    yield ExplainedStep(row["received_at"], f"stored: {_told(row)}; {_evidence(row)}")
    if row["status"] == "IN_PROCESSING":
        yield ExplainedStep(
            row["processing_until"], f"{row['claimed_by']} has it until then, unless it renews its lease"
        )
    if row["status"] == "UNPROCESSED":
        yield ExplainedStep(row["due_at"], "due" + (f" again: {row['reason']}" if row["reason"] else ""))
    if row["processed_at"] is not None:
        yield ExplainedStep(row["processed_at"], f"{row['status']}, by {row['claimed_by']}")


def _told(row: asyncpg.Record) -> str:
    if row["purpose"] is not None:
        amount = format_amount(row["amount_micros"], row["currency"])
        reference = f", reference {row['reference']}" if row["reference"] else ""
        return f"{row['purpose']} {row['provider_id']} of {amount} is {row['state']} ({row['word']}){reference}"
    if row["object_purpose"] is not None:
        return f"it names {row['object_purpose']} {row['object_id']}, which is fetched from {row['provider']}"
    return "it tells of no money we know of" + (f", and names {row['object_id']}" if row["object_id"] else "")


def _evidence(row: asyncpg.Record) -> str:
    if row["body_bytes"] is not None:
        return f"its body of {row['body_bytes']} bytes is kept"
    return "its body went with the day it came, which was detached" if row["is_detached"] else "ITS BODY IS MISSING"


async def _concerned(database: Database, tenant: Tenant, row: asyncpg.Record) -> str:
    """By our reference, and by the provider's id: an answer that was lost left only the first."""
    names = [name for name in (row["provider_id"], row["parent"], row["object_id"]) if name]
    keys = [bytes.fromhex(row["reference"])] if _PROVIDER_KEY.fullmatch(row["reference"] or "") else []
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["orders"], tenant.number, keys, names)
    orders = [await explain_order(database, tenant, order_name(one["order_id"].bytes)) for one in rows]
    found = {one.id: one for one in orders if one is not None}
    for name in (*names, *(key.hex() for key in keys)):
        found |= {one.id: one for one in await explain_settlements(database, tenant, name)}
    if not found:
        return f"it concerns nothing of tenant {tenant.name}"
    return "; ".join(f"it concerns {one.what} {one.id}: {one.summary}" for one in found.values())
