"""The announcer: tells whoever waits, in this process and in every other, which orders a commit has changed.

    commit ──> changed(tenant, orders) ──> those who listen in this process, at once
                                      └──> one NOTIFY for all that changed since the last, in a transaction of its own

It is the speed, not the guarantee: a process may die between its commit and its announcement. Whoever waits compares
with the database as well (`checkout.status.flow`), and nothing is kept in memory for longer than that takes.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Self
from uuid import UUID

import structlog

from tallystick.checkout.status import store
from tallystick.checkout.status.store import OrderName
from tallystick.database.pool import Database
from tallystick.errors import TallystickError
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.announcer")


class Announcer:
    """Announces changed orders. Use as an async context manager; leaving it announces what is left."""

    def __init__(self, database: Database, *, limits: Limits = LIMITS) -> None:
        """The database stays the caller's to close."""
        self._database = database
        self._limits = limits
        # By this its own announcements are known, when they come back.
        self.signature = store.signature()
        # In the order they changed, each once.
        self._changed: dict[OrderName, None] = {}
        self._news = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None
        self._listener: Callable[[Sequence[OrderName]], None] = lambda _places: None

    async def __aenter__(self) -> Self:
        """Start announcing."""
        self._telling = asyncio.create_task(self._tell(), name="order announcer")
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Announce what is left, stop."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        await self._announce()

    def changed(self, tenant_number: int, order_ids: Iterable[UUID]) -> None:
        """A commit that may have changed these orders, their payments or refunds is behind us. Never fails or waits."""
        places = [(tenant_number, id_) for id_ in order_ids]
        self._listener(places)
        self._changed.update(dict.fromkeys(places))
        self._news.set()

    def listen(self, listener: Callable[[Sequence[OrderName]], None]) -> None:
        """Have this called at once with what this process itself has changed."""
        self._listener = listener

    async def _tell(self) -> None:
        """The first at once; while that is on its way the next gather."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._announce()
            await asyncio.sleep(self._limits.status_notify_seconds)

    async def _announce(self) -> None:
        if not self._changed:
            return
        places, self._changed = self._changed, {}
        announcements = store.payloads(places, by=self.signature, most=self._limits.status_notify_payloads)
        try:
            async with asyncio.timeout(self._limits.statement_seconds):
                await store.notify(self._database, announcements)
        except (TallystickError, TimeoutError) as error:
            # Those who wait find it by themselves, and what others keep in memory is older than it may be by now.
            log.warning("orders_not_announced", orders=len(places), reason=str(error) or type(error).__name__)
