"""Explain names that stand for no movement of their own: stock, keys, destinations, squads, accounts, lost lives."""

from collections.abc import Iterator, Sequence
from typing import Final

import asyncpg

from tallystick.database.explain.explanation import ExplainedStep, Explanation
from tallystick.keys.names import settlement_name
from tallystick.money.amounts import format_amount

# The newest settlements of a squad or a destination; the rest is listed by the API.
SETTLEMENTS_SHOWN: Final = 20


def skus(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """The stock of a SKU."""
    return [
        Explanation(
            "sku",
            name,
            f"stock {row['stock']}: {row['reserved']} reserved, {row['sold']} sold, {row['backordered']} backordered",
            (),
        )
        for row in rows
    ]


def api_keys(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """Whose key it is that stands behind an author's name. The key itself is stored nowhere."""
    return [Explanation("key of the API", name, f"{row['role']} of {row['owner']}", tuple(_life(row))) for row in rows]


def _life(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    yield ExplainedStep(row["created_at"], "made")
    if row["revoked_at"] is not None:
        yield ExplainedStep(row["revoked_at"], "revoked")


def destinations(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """Where payouts may go, as a tenant made it known."""
    return [
        Explanation("known destination", f"{name} at {row['provider']}", _known(row), tuple(_knowing(row)))
        for row in rows
    ]


def _known(row: asyncpg.Record) -> str:
    return f"made known by {row['added_by']}" + (", and withdrawn" if row["withdrawn_at"] is not None else "")


def _knowing(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    yield ExplainedStep(row["added_at"], f"made known by {row['added_by']}")
    if row["withdrawn_at"] is not None:
        yield ExplainedStep(row["withdrawn_at"], "withdrawn")


def settlements_of(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """The newest settlements of an attribution, a squad or a destination."""
    found = []
    for what in dict.fromkeys(row["what"] for row in rows):
        some = [row for row in rows if row["what"] == what]
        count = some[0]["count"]
        shown = "" if count == len(some) else f"; the newest {len(some)} are shown"
        summary = f"{count} settlement{'' if count == 1 else 's'}{shown}"
        found.append(Explanation(what, name, summary, tuple(_settlement(row) for row in reversed(some))))
    return found


def _settlement(row: asyncpg.Record) -> ExplainedStep:
    amount = format_amount(row["amount_micros"], row["currency"])
    return ExplainedStep(
        row["created_at"],
        f"settlement {settlement_name(row['id'].bytes)} of {amount} to {row['destination']}: {row['status']}",
    )


def sent_from(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """The account at a provider in whose books instructions were made."""
    return [
        Explanation(
            f"account at {row['provider']}",
            name,
            f"{row['count']} instruction{'' if row['count'] == 1 else 's'} sent with it",
            (ExplainedStep(row["first"], "the first"), ExplainedStep(row["last"], "the last")),
        )
        for row in rows
    ]


def lives(rows: Sequence[asyncpg.Record], name: str) -> list[Explanation]:
    """Lives of the database that were lost, by the movement that proved it."""
    return [
        Explanation(
            "lost life",
            str(row["number"]),
            f"{name} at {row['provider']} proves it: {row['why']}",
            (ExplainedStep(row["began_at"], "proven; what was lost is looked for in the provider's books"),),
        )
        for row in rows
    ]


def set_aside(rows: Sequence[asyncpg.Record]) -> list[Explanation]:
    """A record of Kafka that could not be stored."""
    return [
        Explanation(
            "record set aside",
            str(row["number"]),
            f"{row['topic']}/{row['partition']} from {row['first_offset']} on: {row['reason']}",
            tuple(_setting(row)),
        )
        for row in rows
    ]


def _setting(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    yield ExplainedStep(row["found_at"], "found (`tally events poison`)")
    if row["resolved_at"] is not None:
        by = "" if row["resolved_by"] is None else f" by {row['resolved_by']}"
        yield ExplainedStep(row["resolved_at"], f"resolved{by}: {row['resolution']}")


def installation(row: asyncpg.Record) -> Explanation:
    """This installation, as its marks at providers name it."""
    return Explanation(
        "installation",
        row["id"],
        "this one: it marks what it makes at providers",
        (ExplainedStep(row["made_at"], "made"),),
    )
