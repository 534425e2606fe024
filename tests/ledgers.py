"""Engines on real databases, for the tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tallystick.access import store as tenant
from tallystick.database import pool as database
from tallystick.database.migrate import migrate
from tallystick.database.verify import verify
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kind, Kinds, TopUp
from tallystick.ledger.outcome import Committed
from tallystick.ledger.store import PostgresLedger
from tallystick.settings import LIMITS, Limits


class Ledger:
    """One engine on one database, as tenant `default`."""

    def __init__(self, dsn: str, opened: database.Database, engine: Engine, owner: Tenant) -> None:
        self.dsn = dsn
        self.database = opened
        self.engine = engine
        self.tenant = owner

    async def submit(self, operation: Any, key: str) -> Any:
        return await self.engine.submit(self.tenant, operation, key)

    async def account(self, name: str, balance: int = 0, *, floor: int | None = 0, **more: Any) -> None:
        """An account with money in it, which comes from the account `world`."""
        arguments: dict[str, Any] = {"currency": "USD", "limits": (), **more}
        await account.put(self.database, self.tenant, name, floor_micros=floor, **arguments)
        if balance:
            await self.account("world", floor=None)
            topup = TopUp(account=name, source="world", amount_micros=balance, currency="USD")
            assert isinstance(await self.submit(topup, f"fund-{name}"), Committed)

    async def balance(self, name: str) -> int:
        found = await account.read(self.database, self.tenant, name)
        assert isinstance(found, account.AccountView), found
        return found.balance_micros


@asynccontextmanager
async def ledger(
    dsn: str,
    *,
    limits: Limits = LIMITS,
    kinds: tuple[Kind, ...] = (),
    store: type[PostgresLedger] = PostgresLedger,
    tenant_name: str = "default",
) -> AsyncIterator[Ledger]:
    """An engine with its own connections; several on one database are several processes' worth."""
    await migrate(dsn)
    opened = await database.connect(dsn, connections=limits.lanes + 4, limits=limits)
    try:
        owner = await tenant.ensure_tenant(opened, tenant_name)
        async with Engine(store(opened), Kinds(kinds), limits=limits) as engine:
            yield Ledger(dsn, opened, engine, owner)
    finally:
        await opened.close()


async def broken(dsn: str) -> dict[str, int]:
    """The invariants that do not hold, with the number of places."""
    return {verdict.invariant: verdict.broken async for verdict in verify(dsn) if verdict.broken}


async def fetchval(dsn: str, statement: str, *arguments: Any) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        await connection.close()
