"""The ground of `tally bench settlement`: rows to pay, connections that count, and what pays them."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, cast

import msgspec

from tallystick import queries
from tallystick.access import store as tenants
from tallystick.database import pool as postgres
from tallystick.database.pool import Connection, Database
from tallystick.errors import TallystickError, require
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.movement.flow import Sender
from tallystick.movement.steps import Patience
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS
from tallystick.settlement.flow import Settlements
from tallystick.settlement.postings import SettlementCreated, clearing
from tallystick.settlement.store import Made
from tallystick.settlement.tick.flow import Settler

SQL: Final = queries.load(__package__, "settlement.sql")

SQUADS: Final = 1_000
PATIENCE: Final = Patience(stuck_after=timedelta(seconds=300), budget=8)
BASELINE_CONNECTIONS: Final = 16

_CURRENCY: Final = "EUR"
# Wishes at once: every lane of creation is busy, and no wish waits for long.
_AT_ONCE: Final = LIMITS.lanes * LIMITS.batch
# A lane of its own for everything a service has, and one for each of the baseline's.
_CONNECTIONS: Final = 4 * LIMITS.lanes + LIMITS.settlement_lanes + 1 + LIMITS.readers
# The planner takes any index of an empty table for as good as any other, until autovacuum has counted its first rows.
_FIRST: Final = LIMITS.batch


class CountingDatabase(Database):
    """Counts every statement where it is handed to the driver: BEGIN, COMMIT and each COPY are statements too."""

    statements = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """See `Database`."""
        async with super().connection() as connection:
            yield cast("Connection", _Counted(connection, self))


class _Counted:
    """A connection whose statements are counted."""

    def __init__(self, connection: Connection, database: CountingDatabase) -> None:
        self._connection = connection
        self._database = database

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a connection has
        if name in _STATEMENTS:
            self._database.statements += 1
        return getattr(self._connection, name)


_STATEMENTS: Final = frozenset(
    {"execute", "executemany", "fetch", "fetchrow", "fetchval", "copy_to_table", "copy_records_to_table", "prepare"}
)


class Ground(msgspec.Struct, frozen=True):
    """A database with what works on it."""

    dsn: str
    database: CountingDatabase
    tenant: Tenant
    providers: Mapping[str, Provider]
    settlements: Settlements
    settler: Settler


@asynccontextmanager
async def opened(dsn: str, providers: Mapping[str, Provider], *, by: str = "bench") -> AsyncIterator[Ground]:
    """As `app.running` puts it together, over these providers."""
    async with AsyncExitStack() as stack:
        # Refuses a server whose commits are not durable.
        await (await postgres.connect(dsn, connections=1)).close()
        database = CountingDatabase(dsn, max(_CONNECTIONS, BASELINE_CONNECTIONS), LIMITS)
        stack.push_async_callback(database.close)
        sender = await stack.enter_async_context(Sender(database, providers))
        settlements = await stack.enter_async_context(Settlements(database, providers))
        settler = Settler(database, providers, sender, patience=dict.fromkeys(providers, PATIENCE), by=by)
        tenant = await tenants.ensure_tenant(database, "default")
        # Without a floor: what is measured is paying out, not what came in before.
        await account.put(database, tenant, clearing(_CURRENCY), currency=_CURRENCY, floor_micros=None, limits=())
        yield Ground(dsn, database, tenant, providers, settlements, settler)


async def create(ground: Ground, rows: int, *, seed: int) -> None:
    """So many pending settlements, made as every caller makes them: fee, postings, journal, all of it.

    The ground's providers take turns in them.
    """
    chance = random.Random(seed)  # noqa: S311 - a load, not a secret
    names = list(ground.providers)
    first = 0
    while first < rows:
        # The first few alone: see `_FIRST`.
        last = min(first + (_AT_ONCE if first else _FIRST), rows)
        await _make(ground, [_wish(number, names[number % len(names)], chance, seed) for number in range(first, last)])
        if first == 0:
            await _vacuum(ground)
        first = last
    await _vacuum(ground)


async def _make(ground: Ground, wishes: Sequence[SettlementCreated]) -> None:
    for one in await ground.settlements.create_many(ground.tenant, [(wish, wish.attribution_id) for wish in wishes]):
        if isinstance(one, TallystickError):
            raise one
        require(isinstance(one, Made) and one.is_new, f"a settlement of the bench was not made: {one}")


def _wish(number: int, provider: str, chance: random.Random, seed: int) -> SettlementCreated:
    squad = chance.randrange(SQUADS)
    return SettlementCreated(
        attribution_id=f"bench-{seed}-{number}",
        squad_id=f"squad-{squad}",
        gross_micros=10_000 * chance.randrange(100, 100_000),
        currency=_CURRENCY,
        destination=f"acct_{squad:016}",
        provider=provider,
    )


async def _vacuum(ground: Ground) -> None:
    """What autovacuum does within a minute: the bench does not wait for it, and is not met by it half-way."""
    connection = await ground.database.open()
    try:
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("VACUUM ANALYZE", timeout=3600)
    finally:
        await connection.close()


async def statuses(ground: Ground) -> dict[str, int]:
    """How many rows stand how."""
    async with ground.database.owning() as connection:
        return {row["status"]: row["rows"] for row in await connection.fetch(SQL["statuses"])}
