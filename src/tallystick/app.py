"""Composition root: the only file that knows every adapter."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick import settings as configuration
from tallystick.core.idempotency import Tenant
from tallystick.core.operation import Kind, Kinds
from tallystick.engine.engine import Engine
from tallystick.settings import LIMITS, Settings
from tallystick.store import database as postgres
from tallystick.store import embedded, tenant
from tallystick.store.database import Database
from tallystick.store.migrate import migrate
from tallystick.store.operation import PostgresLedger


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a process needs, running."""

    settings: Settings
    database: Database
    engine: Engine
    notes: tuple[str, ...]

    async def tenant(self, name: str) -> Tenant | None:
        """The tenant of that name."""
        return await tenant.find_tenant(self.database, name)


def settings_with(*, database_url: str | None = None, home: str | Path | None = None) -> Settings:
    """The settings of the environment, with what the caller said himself on top."""
    settings = configuration.load()
    if database_url is not None:
        settings = replace(settings, database_url=database_url)
    elif home is not None:
        settings = replace(settings, home=Path(home), database_url=None)
    return settings


@asynccontextmanager
async def database_address(settings: Settings) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
    """The DSN to use, starting the embedded server if there is none, and what to tell the person about it."""
    if settings.database_url is not None:
        yield settings.database_url, ()
        return
    server = await asyncio.to_thread(embedded.start, settings.home)
    try:
        yield server.dsn, server.notes
    finally:
        await asyncio.to_thread(server.close)


@asynccontextmanager
async def running(settings: Settings, *, kinds: Iterable[Kind] = ()) -> AsyncIterator[Service]:
    """Database, migrations and engine, closed again in reverse order."""
    async with database_address(settings) as (dsn, notes):
        await migrate(dsn)
        database = await postgres.connect(dsn, connections=LIMITS.lanes + LIMITS.readers)
        try:
            async with Engine(PostgresLedger(database), Kinds(kinds)) as engine:
                yield Service(settings, database, engine, notes)
        finally:
            await database.close()
