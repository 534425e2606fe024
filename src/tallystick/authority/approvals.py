"""Approvals: what waits for a second person, on PostgreSQL.

Each is asked for and decided in its caller's transaction: in the commit of what it is about.
"""

from datetime import datetime
from typing import Final, Literal
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import is_somebody, person_of
from tallystick.database.pool import Connection, Database
from tallystick.keys.names import settlement_id, settlement_name
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected

_SQL: Final = queries.load(__package__, "approvals.sql")

Action = Literal["new_generation", "payout", "refund_confirm", "refund_failed", "refund_keep"]
# The others' subject is an order; their own flow decides them.
OF_SETTLEMENTS: Final = ("new_generation", "payout")


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a second person, or was decided by one: a payout, another generation of one, or a refund.

    `settlement`, or `order`, is what it is about.
    """

    id: str
    settlement: str | None
    order: str | None
    action: Action
    generation: int
    reason: str
    evidence: str
    asked_by: str
    asked_at: datetime
    decision: Literal["approved", "rejected"] | None
    decided_by: str | None
    decided_at: datetime | None
    decided_why: str | None


async def lock_approval(connection: Connection, tenant: Tenant, name: str) -> asyncpg.Record | None:
    """What a second person is asked about, locked; None: there is no such approval."""
    id_ = approval_id(name)
    return None if id_ is None else await connection.fetchrow(_SQL["lock_approval"], tenant.number, id_)


async def settle_approval(
    connection: Connection, asked: asyncpg.Record, *, is_approved: bool, by: str, reason: str
) -> asyncpg.Record:
    """Write down what the second person decided, once; the database compares the two persons again."""
    verdict = "approved" if is_approved else "rejected"
    return await _one(connection, "approve", asked["tenant_id"], asked["id"], verdict, by, reason)


async def ask_approval(
    connection: Connection,
    tenant: int,
    subject: UUID,
    action: Action,
    *,
    reason: str,
    evidence: str,
    by: str,
    generation: int = 0,
) -> tuple[ApprovalView, bool]:
    """Ask a second person about a subject. Asked before and not decided yet, it is that very approval: then False."""
    waiting = await connection.fetchrow(_SQL["open_approval"], tenant, subject, action)
    if waiting is not None:
        return seen(waiting), False
    given = (tenant, uuid4(), subject, action, generation, reason, evidence, by)
    return seen(await _one(connection, "ask", *given)), True


async def read_approval(database: Database, tenant: Tenant, name: str) -> ApprovalView | Rejected:
    """One approval by its id."""
    id_ = approval_id(name)
    if id_ is None:
        return approval_unknown(name)
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["approval"], tenant.number, id_)
    return approval_unknown(name) if row is None else seen(row)


async def list_approvals(database: Database, tenant: Tenant, *, most: int) -> list[ApprovalView]:
    """Those that wait for a decision, oldest first."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["approvals"], tenant.number, most)
    return [seen(row) for row in rows]


def approval_id(name: str) -> UUID | None:
    """The id behind a written one; None when it is not one of ours."""
    return settlement_id("st_" + name.removeprefix("ap_")) if name.startswith("ap_") else None


def approval_unknown(name: str) -> Rejected:
    """The refusal for an approval this tenant does not have."""
    return Rejected(
        "approval_unknown",
        f"There is no approval {name!r:.80}.",
        "Use the id that the request for it returned (ap_ and 32 hexadecimal digits).",
    )


def approval_name(id_: UUID) -> str:
    """How an approval's id is written."""
    return "ap_" + id_.hex


def undecidable(asked: asyncpg.Record, *, is_approved: bool, by: str) -> Rejected | None:
    """Why this person cannot decide it: it is decided, or he is no second one."""
    name = approval_name(asked["id"])
    if asked["decision"] is not None:
        return Rejected(
            "already_decided",
            f"{name} was {asked['decision']} by {asked['decided_by']} at {asked['decided_at']:%Y-%m-%d %H:%M} UTC.",
            "Nothing remains to be decided.",
        )
    return _not_second(name, asked["asked_by"], asked["asker"], by, is_approved=is_approved)


def _not_second(name: str, asked_by: str, asker: str | None, by: str, *, is_approved: bool) -> Rejected | None:
    """A second person is another person, not another key. `asker`: whose key asked, where only the key is on record."""
    first, second = asker or person_of(asked_by), person_of(by)
    if first == second:
        return Rejected(
            "second_person_needed",
            f"{second} asked for {name} and cannot decide it, with whatever key.",
            "Have another person decide, with a key of his own name.",
        )
    nobody = [one for one in (first, second) if not is_somebody(one)]
    if is_approved and nobody:
        return Rejected(
            "second_person_needed",
            f"{name} was asked for by {asked_by} and would be approved by {by}: {nobody[0]} is no person's name, so "
            "that both may be the same person.",
            "Approve with a key that was made for a person (`tally keys create --for NAME --role approver`). If the "
            "key that asked has no name, reject this and ask again with one that has.",
        )
    return None


async def _one(connection: Connection, statement: str, *arguments: object) -> asyncpg.Record:
    (row,) = await connection.fetch(_SQL[statement], *arguments)
    return row


def seen(row: asyncpg.Record) -> ApprovalView:
    """A row, as callers see it."""
    return ApprovalView(
        id=approval_name(row["id"]),
        settlement=settlement_name(row["subject"].bytes) if row["action"] in OF_SETTLEMENTS else None,
        order=None if row["action"] in OF_SETTLEMENTS else msgspec.json.decode(row["evidence"])["order"],
        **{field: row[field] for field in ApprovalView.__struct_fields__ if field not in ("id", "settlement", "order")},
    )
