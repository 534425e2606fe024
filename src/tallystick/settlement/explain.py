"""Explain a settlement: creation with its fee, claims, attempts, questions, decisions and postings, as one timeline."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.database.explain.explanation import (
    ExplainedStep,
    Explanation,
    approval_steps,
    attempt_steps,
    exchange_text,
    waiting,
)
from tallystick.database.pool import Database
from tallystick.keys.derived import settlement_key
from tallystick.keys.names import settlement_id, settlement_name
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected, read_transaction
from tallystick.money.amounts import format_amount
from tallystick.movement import store as intent
from tallystick.providers.words import Exchange
from tallystick.settlement import store as settlement
from tallystick.settlement.postings import SettlementCreated, created_request, in_transit, payable
from tallystick.settlement.store import EventView

_SQL = queries.load(__package__, "explain.sql")
_PROVIDER_KEY: Final = re.compile("[0-9a-f]{64}")
# Entries looked at after each moment: those of one commit share its time, and a commit has at most this many.
_ENTRIES_AFTER: Final = 1_000
# Told by the approval itself, which says more.
_OF_APPROVALS: Final = ("generation_asked", "generation_approved", "generation_rejected")

_WHERE: Final = {
    "held": "the money is payable, and waits for a second person",
    "pending": "the money is payable, and not sent yet",
    "processing": "the money is in transit: claimed, and no final answer is recorded",
    "transferred": "the provider has paid it",
    "failed": "known not to have moved: the money is payable again",
    "disputed": "the money stays in transit until a person decides",
}


async def explain_settlements(database: Database, tenant: Tenant, name: str) -> list[Explanation]:
    """The settlements of that id, that provider key (any generation's) or that transfer id at the provider."""
    return [await _explain(database, tenant, one) for one in await _names(database, tenant, name)]


async def _names(database: Database, tenant: Tenant, name: str) -> list[str]:
    if settlement_id(name) is not None:
        found = await settlement.read(database, tenant, name)
        return [] if isinstance(found, Rejected) else [name]
    if _PROVIDER_KEY.fullmatch(name):
        async with database.reading(tenant.number) as connection:
            rows = await connection.fetch(_SQL["by_key"], tenant.number, bytes.fromhex(name))
        return [settlement_name(row["id"].bytes) for row in rows]
    # PostgreSQL knows no NUL, and no provider's id has one.
    return [] if "\0" in name else await settlement.find_by_transfer(database, tenant, name)


async def _explain(database: Database, tenant: Tenant, name: str) -> Explanation:
    row: Any = await settlement.row_of(database, tenant, name)
    events = await settlement.events(database, tenant, row["id"])
    steps = [_made(row), *_claims(row), *(step for event in events for step in _event(event))]
    moments = [row["created_at"], row["changed_at"], *(event.at for event in events)]
    moments += [at for at in (row["processing_since"], row["claimed_at"]) if at is not None]
    for generation in range(row["generation"] + 1):
        key = _key(row, tenant, generation)
        for found in await intent.read(database, tenant, key):
            which = f"key {key.hex()}" + (f" (generation {generation})" if row["generation"] else "")
            steps.append(
                ExplainedStep(found.first_sent_at, f"sent to {found.provider} ({found.account}) under {which}")
            )
            steps += list(attempt_steps(found))[1:]
            moments += [attempt.answered_at for attempt in found.attempts if attempt.answered_at is not None]
    async with database.reading(tenant.number) as connection:
        approvals = await connection.fetch(_SQL["approvals"], tenant.number, row["id"])
        operations = await _operations(connection, row, name, sorted(set(moments)))
    steps += [step for approval in approvals for step in approval_steps(approval)]
    steps += [_posted(operation) for operation in operations]
    return Explanation("settlement", name, _summary(row, approvals), tuple(sorted(steps, key=lambda step: step.at)))


async def _operations(
    connection: "asyncpg.Connection[Any]", row: asyncpg.Record, name: str, moments: Sequence[datetime]
) -> list[asyncpg.Record]:
    wish = SettlementCreated(**{field: row[field] for field in SettlementCreated.__struct_fields__})
    accounts = [payable(row["squad_id"], row["currency"]), in_transit(row["provider"], row["currency"])]
    return await connection.fetch(
        _SQL["operations"],
        row["tenant_id"],
        accounts,
        moments,
        _ENTRIES_AFTER,
        created_request(wish),
        f'"{name}"'.encode(),
    )


def _key(row: asyncpg.Record, tenant: Tenant, generation: int) -> bytes:
    return settlement_key(
        tenant=tenant.name,
        currency=row["currency"],
        provider=row["provider"],
        attribution_id=row["attribution_id"],
        squad_id=row["squad_id"],
        net_micros=row["net_micros"],
        generation=generation,
    )


def _summary(row: asyncpg.Record, approvals: Sequence[asyncpg.Record]) -> str:
    status, currency = row["status"], row["currency"]
    reason = f" ({row['reason']})" if row["reason"] else ""
    known_as = f", known there as {row['transfer_id']}" if row["transfer_id"] else ""
    text = (
        f"{status}{reason}: {format_amount(row['amount_micros'], currency)} to {row['destination']} by "
        f"{row['provider']}{known_as}; {_WHERE[status]}"
    )
    residue = row["net_micros"] - row["amount_micros"]
    if residue:
        text += f"; {format_amount(residue, currency)} is less than {row['provider']} can write, and stays payable"
    return text + waiting(approvals)


def _made(row: asyncpg.Record) -> ExplainedStep:
    currency = row["currency"]
    gross, fee, net = (format_amount(row[f"{name}_micros"], currency) for name in ("gross", "fee", "net"))
    return ExplainedStep(
        row["created_at"],
        f"created for attribution {row['attribution_id']}, squad {row['squad_id']}: "
        f"gross {gross}, fee {fee}, net {net}",
    )


def _claims(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    """The last claim is stored with its worker; of those before it, that they were."""
    since, claimed = row["processing_since"], row["claimed_at"]
    if since is not None and since != claimed:
        yield ExplainedStep(since, "became processing")
    if claimed is not None:
        takeover = f"; may be taken over from {row['due_at']:%H:%M:%S.%f}" if row["status"] == "processing" else ""
        asked = "; the provider is asked before anything is sent" if row["ask_first"] else ""
        yield ExplainedStep(claimed, f"claimed by {row['claimed_by']}; tries so far: {row['tries']}{takeover}{asked}")
    if row["status"] not in ("pending", "processing"):
        known_as = f" as {row['transfer_id']}" if row["status"] == "transferred" else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        yield ExplainedStep(row["changed_at"], f"{row['status']}{known_as}{reason}")


def _event(event: EventView) -> Iterator[ExplainedStep]:
    """A question, a decision or late news. Its body is what its writer thought worth keeping."""
    if event.what in _OF_APPROVALS:
        return
    body: dict[str, Any] = msgspec.json.decode(event.body)
    exchanges = msgspec.convert(body.pop("exchanges", ()), type=list[Exchange])
    for exchange in exchanges:
        yield ExplainedStep(event.at, f"{event.what} by {event.by}: {exchange_text(exchange)}")
    told = [str(body[name]).strip() for name in ("found", "detail", "reason") if body.get(name)]
    told += [f"{name} {body[name]}" for name in ("evidence", "transfer_id") if body.get(name)]
    yield ExplainedStep(event.at, f"{event.what} by {event.by}: {'; '.join(told)}")


def _posted(row: asyncpg.Record) -> ExplainedStep:
    """A posting may cover many settlements: which way, not all of its entries."""
    transaction = read_transaction(row["body"])
    request = msgspec.json.decode(row["request"])
    if transaction.kind == "settlement.created":
        legs = ", ".join(
            f"{format_amount(entry.amount_micros, entry.currency)} to {entry.account}" for entry in transaction.entries
        )
        return ExplainedStep(row["at"], f"posted by {transaction.id} under key {transaction.idempotency_key!r}: {legs}")
    among = len(request["items"])
    others = f", with {among - 1} others" if among > 1 else ""
    return ExplainedStep(row["at"], f"posted by {transaction.id}: {request['move']}{others}")
