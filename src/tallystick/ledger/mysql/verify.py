"""Verify: the constitution against the rows, all in one snapshot, safe to run beside a working engine."""

from collections.abc import AsyncIterator

from tallystick.database.verify import Verdict
from tallystick.keys.derived import OPERATION_VERSION
from tallystick.ledger.mysql import statements
from tallystick.ledger.mysql.database import connect

_SQL = statements.load("verify.sql")

# Whole tables are read here, which takes longer than any statement of the engine may.
_STATEMENT_SECONDS = 3600.0

# The walls between tenants are foreign keys here, so there is no query for them.
_PROMISES = {
    "conservation": "every transaction and all balances sum to zero per currency",
    "solvency": "no account is below its floor",
    "balances": "every balance equals its entries, numbered without a gap",
    "one_effect_per_key": "every key has one outcome, and the books show exactly that",
    "closings": "every hold released and every refund closed what it names, once",
    "journal": "every operation is journaled once, under the digest of its bytes",
}


async def verify(dsn: str) -> AsyncIterator[Verdict]:
    """One verdict per invariant, as each is reached. Reads everything: minutes with millions of rows."""
    database = await connect(dsn, connections=1, statement_seconds=_STATEMENT_SECONDS)
    try:
        async with database.reading() as session:
            for name, promise in _PROMISES.items():
                ((broken, checked),) = await session.rows(_SQL[name].replace("{version}", OPERATION_VERSION))
                yield Verdict(name, promise, int(checked), int(broken))
    finally:
        await database.close()
