"""Our own side: the engine as it ships, driven as `tally bench ledger` drives it."""

from bench.load import WARM_UP_SECONDS, WARM_UP_SEED, Driven
from tallystick.bench import ground
from tallystick.bench.ledger import grouped

BOOKS = """
    SELECT (SELECT sum(balance_micros) FROM tally.account), (SELECT count(*) FROM tally.entry),
           (SELECT count(*) FROM tally.operation)
"""


async def prepare(dsn: str, accounts: list[str]) -> None:
    """The accounts; the database is made with our tables in it."""
    await ground.make_accounts(dsn, len(accounts))


async def run(dsn: str, accounts: list[str], *, seconds: float, seed: int) -> Driven:
    """Warm up, then run."""
    warm, _ = await grouped(dsn, accounts, seconds=WARM_UP_SECONDS, hot=False, seed=WARM_UP_SEED + seed)
    answered, elapsed = await grouped(dsn, accounts, seconds=seconds, hot=False, seed=seed)
    return Driven(answered=warm + answered, committed=None, operations_per_second=answered / elapsed)
