"""The load every side gets: the mix of `tally bench ledger`, in a closed loop."""

import asyncio
import gc
import time

import asyncpg
import msgspec

from tallystick.bench.ledger import Load, Submit

# Before the clock starts: connections are open, statements prepared, code warm.
WARM_UP_SECONDS = 1.0
# Keys come from the seed: the warm-up's must be others than the run's.
WARM_UP_SEED = 1_000


class Driven(msgspec.Struct, frozen=True):
    """What a side did in one run. All but the rate has the warm-up in it, as the server's counters have.

    `committed`: None where the driver counts answers alone, replays among them.
    """

    answered: int
    committed: int | None
    operations_per_second: float


async def drive(submit: Submit, accounts: list[str], *, callers: int, seconds: float, seed: int) -> Driven:
    """Warm up, then count what is answered in time."""
    warm, _ = await _drive(submit, accounts, callers=callers, seconds=WARM_UP_SECONDS, seed=WARM_UP_SEED + seed)
    load, rate = await _drive(submit, accounts, callers=callers, seconds=seconds, seed=seed)
    return Driven(
        answered=warm.answered + load.answered,
        committed=warm.answers["committed"] + load.answers["committed"],
        operations_per_second=rate,
    )


async def _drive(submit: Submit, accounts: list[str], *, callers: int, seconds: float, seed: int) -> tuple[Load, float]:
    load = Load(submit, accounts, hot=False, seed=seed)
    gc.collect()
    began = time.perf_counter()
    running = asyncio.gather(*(load.caller(began + seconds) for _ in range(callers)))
    await asyncio.wait([running], timeout=seconds)
    rate = load.answered / (time.perf_counter() - began)
    # What is still under way is waited for, but neither it nor the wait counts: DBOS answers a twin by a poll
    # every second, and one of them at the end would cost it a quarter of its figure.
    await running
    return load, rate


async def make_tables(dsn: str, schema: str, accounts: list[str]) -> None:
    """A peer's tables with our accounts, like ours without a floor: no transfer is refused."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(schema)
        await connection.execute("INSERT INTO peer.account (id) SELECT unnest($1::text[])", accounts)
        await connection.execute("ANALYZE peer.account")
    finally:
        await connection.close()
