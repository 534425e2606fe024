"""Leads: from any id that is printed anywhere, ours or a provider's, to the order or settlement it belongs to.

Some of these ids have no index, because every payment would pay for it and a person asks once in a blue moon: those are
looked for row by row, within a time limit. What was not searched to its end is said.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.checkout.order.rules import order_name
from tallystick.database.explain import named as explain_named
from tallystick.database.explain.explanation import ExplainedStep, Explanation
from tallystick.database.pool import Connection, Database
from tallystick.keys.derived import is_reference, reference_bounds
from tallystick.keys.names import settlement_name
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import transaction_name
from tallystick.money.amounts import format_amount
from tallystick.settings import LIMITS

_SQL = queries.load(__package__, "lead.sql")

# What is looked for, in a person's words.
SEARCHED: Final = (
    "idempotency keys",
    "transactions",
    "accounts",
    "orders",
    "reservation tokens",
    "settlements",
    "approvals",
    "provider keys in every form",
    "the providers' ids of payments, refunds, transfers and payouts",
    "the providers' ids of requests",
    "webhook events and what they tell of",
    "records set aside",
    "breaks, orphans and what proved a lost life",
    "digests of the journal",
    "SKUs",
    "attributions, squads and destinations",
    "accounts at providers",
    "prefixes of API keys",
    "installations and their marks",
)

_TOKEN: Final = re.compile("rt_([0-9a-f]{32})")
_APPROVAL: Final = re.compile("ap_([0-9a-f]{32})")
_DIGEST: Final = re.compile("[0-9a-f]{64}")
# As many digits as a bigint always has room for.
_NUMBER: Final = re.compile("[0-9]{1,18}")
# Long enough to be an id, and without a character that a pattern would take for more than itself.
_IN_EVIDENCE: Final = re.compile("[A-Za-z0-9_-]{6,255}")
# A page for a person: the newest of them.
_EVENTS_SHOWN: Final = 20
_TENANTS_ASKED: Final = 200


class Leads(msgspec.Struct, frozen=True, kw_only=True):
    """Names of orders and settlements, and what was found that is neither. `unfinished`: not searched to the end."""

    orders: tuple[str, ...] = ()
    settlements: tuple[str, ...] = ()
    others: tuple[Explanation, ...] = ()
    unfinished: tuple[str, ...] = ()


async def leads(database: Database, tenant: Tenant, name: str) -> Leads:
    """Where this name leads, of one tenant. Nothing for a text that no column can hold."""
    if "\0" in name:
        return Leads()
    rows: list[asyncpg.Record] = []
    unfinished: list[str] = []
    found: list[Explanation] = []
    async with database.reading(tenant.number) as connection:
        approval = _APPROVAL.fullmatch(name)
        rows += await connection.fetch(
            _SQL["by_name"], tenant.number, name, UUID(hex=approval.group(1)) if approval else None
        )
        rows += await _by_key(connection, tenant, name)
        found += [_reply(row) for row in await connection.fetch(_SQL["reply"], tenant.number, name)]
        for statement, told in _NAMED.items():
            found += told(await connection.fetch(_SQL[statement], tenant.number, name), name)
        for what, statement, values in _slow(name):
            async with _bounded(connection, what, unfinished):
                some = await connection.fetch(_SQL[statement], tenant.number, *values)
                if statement in _TOLD:
                    found += _TOLD[statement](some, name)
                else:
                    rows += some
    return Leads(
        orders=_names(rows, "order", order_name),
        settlements=_names(rows, "settlement", settlement_name),
        others=tuple(found),
        unfinished=tuple(unfinished),
    )


async def outside(database: Database, name: str) -> Leads:
    """What belongs to no tenant: breaks, orphans, lost lives, the installation. For whoever has the database."""
    if "\0" in name:
        return Leads()
    number = int(name) if _NUMBER.fullmatch(name) else None
    async with database.owning() as connection:
        found = [_break(row) for row in await connection.fetch(_SQL["breaks_about"], name, number)]
        found += [_orphan(row) for row in await connection.fetch(_SQL["orphans_about"], name)]
        found += explain_named.lives(await connection.fetch(_SQL["lives_shown_by"], name), name)
        found += explain_named.set_aside(await connection.fetch(_SQL["set_aside"], number))
        (here,) = await connection.fetch(_SQL["installation"])
    if name == here["id"]:
        found.append(explain_named.installation(here))
    return Leads(others=tuple(found))


async def unmarked(database: Database, name: str) -> str:
    """What a mark of this installation, as a provider shows it, was made for; any other name as it is."""
    mine, _, subject = name.partition("/")
    if not subject:
        return name
    async with database.owning() as connection:
        (here,) = await connection.fetch(_SQL["installation"])
    return subject.rpartition("/")[2] if mine == here["id"] else name


async def events_about(database: Database, name: str) -> tuple[list[int], tuple[str, ...]]:
    """Numbers of the newest events that tell of this object, and what was not searched to its end."""
    unfinished: list[str] = []
    numbers: list[int] = []
    if "\0" not in name:
        async with (
            database.reading_as_owner() as connection,
            _bounded(connection, "webhook events by what they tell of", unfinished),
        ):
            numbers = [row["number"] for row in await connection.fetch(_SQL["events_about"], name, _EVENTS_SHOWN)]
    return numbers, tuple(unfinished)


async def other_tenants(database: Database, tenant: Tenant) -> list[Tenant]:
    """The others, up to a bound."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["other_tenants"], tenant.number, _TENANTS_ASKED)
    return [Tenant(row["tenant_id"], row["name"]) for row in rows]


def _slow(name: str) -> list[tuple[str, LiteralString, tuple[Any, ...]]]:
    """What this name could be that only reading row by row can tell."""
    anything: list[tuple[str, LiteralString, tuple[Any, ...]]] = [
        ("attributions, squads and destinations", "settlements_of", (name, explain_named.SETTLEMENTS_SHOWN)),
        ("accounts at providers", "sent_from", (name,)),
        ("the providers' ids in answers", "by_answer", (name,)),
    ]
    if token := _TOKEN.fullmatch(name):
        return [*anything, ("reservation tokens", "by_token", (UUID(hex=token.group(1)),))]
    if _DIGEST.fullmatch(name):
        return [*anything, ("digests of the journal", "by_digest", (bytes.fromhex(name),))]
    if not _IN_EVIDENCE.fullmatch(name):
        return anything
    word = rf"(^|[^[:alnum:]_]){name}($|[^[:alnum:]_])"
    return [*anything, ("the providers' ids of requests", "by_evidence", (name.encode(), word))]


@asynccontextmanager
async def _bounded(connection: Connection, what: str, unfinished: list[str]) -> AsyncIterator[None]:
    """A search that ends in time, with or without an answer; inside the caller's transaction."""
    # By hand: the driver's own transactions do not nest in one that was begun by hand.
    await connection.execute(f"SAVEPOINT search; SET LOCAL statement_timeout = {int(LIMITS.explain_seconds * 1000):d}")
    try:
        yield
    except asyncpg.QueryCanceledError:
        unfinished.append(what)
    await connection.execute("ROLLBACK TO SAVEPOINT search")


async def _by_key(connection: Connection, tenant: Tenant, name: str) -> list[asyncpg.Record]:
    bounds = reference_bounds(name)
    if bounds is None:
        return []
    rows = [
        row for row in await connection.fetch(_SQL["keys"], tenant.number, *bounds) if is_reference(row["key"], name)
    ]
    meant = [row["key"] for row in rows]
    return list(await connection.fetch(_SQL["by_key"], tenant.number, meant)) if meant else []


def _names(rows: Sequence[asyncpg.Record], what: str, named: Any) -> tuple[str, ...]:  # noqa: ANN401 - a name's writer
    return tuple(dict.fromkeys(named(row["id"].bytes) for row in rows if row["what"] == what and row["id"] is not None))


def _reply(row: asyncpg.Record) -> Explanation:
    told = ExplainedStep(row["at"], f"asked: {_text(row['request'])}; answered: {_text(row['body'])}")
    return Explanation("reply", row["key"], "a call that was answered once under this key", (told,))


def _journaled_all(rows: Sequence[asyncpg.Record], _: str) -> list[Explanation]:
    return [_journaled(row) for row in rows]


def _journaled(row: asyncpg.Record) -> Explanation:
    of = transaction_name(row["operation_id"].bytes) if row["operation_id"] else _text(row["body"])
    summary = f"{row['subject']}, number {row['number']} of transaction {row['xid']}: {of}"
    return Explanation("journal", row["digest"], summary, ())


def _break(row: asyncpg.Record) -> Explanation:
    amount = format_amount(row["amount_micros"], row["currency"])
    summary = f"{row['kind']}: {row['provider']} says {row['word']} of {row['purpose']} {row['object_id']}, {amount}"
    return Explanation("break", str(row["number"]), summary, tuple(_ends(row)))


def _ends(row: asyncpg.Record) -> Sequence[ExplainedStep]:
    steps = [ExplainedStep(row["found_at"], "found")]
    at: datetime | None = row["resolved_at"]
    if at is not None:
        steps.append(ExplainedStep(at, f"resolved by {row['resolved_by']}: {row['resolution']}"))
    return steps


def _orphan(row: asyncpg.Record) -> Explanation:
    amount = format_amount(row["amount_micros"], row["currency"])
    summary = (
        f"{row['provider']} has {amount}, {row['state']}, under the reference {row['reference']}: no row explains it"
    )
    return Explanation("orphan", row["provider_id"], summary, (ExplainedStep(row["found_at"], "found"),))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# Statements whose rows are something of their own, and not the way to an order or a settlement.
_NAMED: Final[Mapping[LiteralString, Callable[[Sequence[asyncpg.Record], str], list[Explanation]]]] = {
    "skus": explain_named.skus,
    "keys_of_the_api": explain_named.api_keys,
    "destinations": explain_named.destinations,
}
_TOLD: Final[Mapping[str, Callable[[Sequence[asyncpg.Record], str], list[Explanation]]]] = {
    "by_digest": _journaled_all,
    "settlements_of": explain_named.settlements_of,
    "sent_from": explain_named.sent_from,
}
