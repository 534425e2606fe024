"""Verify: the constitution against the rows, all in one snapshot, safe to run beside a working engine."""

from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.database.pool import GONE, TELLTALE, reachable
from tallystick.database.roles import require_sight
from tallystick.errors import Unreachable
from tallystick.keys.derived import OPERATION_VERSION
from tallystick.settings import LIMITS

_SQL = queries.load(__package__, "verify.sql")

# Of one kind: who has more of them has seen enough.
_MOST_NOTES: Final = 20

_PROMISES = {
    "conservation": "every transaction and all balances sum to zero per currency",
    "solvency": "no account is below its floor",
    "balances": "every balance equals its entries, numbered without a gap",
    "one_effect_per_key": "every key has one outcome, and the books show exactly that",
    "closings": "every hold released and every refund closed what it names, once",
    "accounts": "every floor and limit is the last one journaled",
    "journal": "every step is journaled once, under the digest of its bytes",
    "intents": "every send was committed before, one at a time, and is journaled",
    "settlements": "every payout's money is where its state says, under the one key its content gives",
    "orders": "no SKU is oversold, and what it promises is what its orders hold, each under its own key",
    "payments": "every charge and refund is under the one key its content gives, once, sent and journaled as it says",
    "checkout": "every payment that succeeded is PAID, refunded or owed, and its money is where that says",
    "webhooks": "every event that was acknowledged is there once, with its body, and stands where a worker finds it",
    "tenants": "no row refers to another tenant's",
    "guards": "the database's own rules are in force",
}


class Verdict(msgspec.Struct, frozen=True):
    """What was found about one invariant. `broken` counts the places where it does not hold.

    `notes` are no breach: what a person should know beside it.
    """

    invariant: str
    promise: str
    checked: int
    broken: int
    notes: tuple[str, ...] = ()


async def _unbounded(connection: "asyncpg.Connection[Any]") -> tuple[str, ...]:
    """Clearing accounts without a floor, which those of new tenants have: anything can be promised out of them."""
    rows = await connection.fetch(_SQL["unbounded_clearing"], _MOST_NOTES)
    return tuple(
        f"{row['id']} of tenant {row['name']} has no floor: payouts can be promised that no money came in for. "
        f"Give it one (PUT /v1/accounts/{row['id']})."
        for row in rows
    )


async def verify(dsn: str) -> AsyncIterator[Verdict]:
    """One verdict per invariant, as each is reached. Reads everything: minutes with tens of millions of rows."""
    with reachable():
        connection = await asyncpg.connect(dsn, timeout=LIMITS.connect_seconds, server_settings=TELLTALE)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await require_sight(connection)
            # Sorting millions of entries on disk is several times slower.
            await connection.execute("SET LOCAL work_mem = '256MB'")
            for name, promise in _PROMISES.items():
                statement = _SQL[name].replace("{version}", OPERATION_VERSION)
                try:
                    # A row that cannot even be read is a broken one, and must not end the others' check.
                    async with connection.transaction():
                        ((broken, checked),) = await connection.fetch(statement)
                except asyncpg.DataError:
                    broken, checked = 1, 1
                notes = await _unbounded(connection) if name == "solvency" else ()
                yield Verdict(name, promise, checked, broken, notes)
    except GONE as error:
        raise Unreachable(str(error) or type(error).__name__) from error
    finally:
        await connection.close(timeout=LIMITS.close_seconds)
