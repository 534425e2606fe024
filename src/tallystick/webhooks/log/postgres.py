"""The log on PostgreSQL: deliveries in group commit; workers are woken outside of the writing transaction."""

import asyncio
from types import TracebackType
from typing import Self

import structlog

from tallystick.commit.group import GroupCommit
from tallystick.database.pool import Database
from tallystick.errors import TallystickError
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks import store
from tallystick.webhooks.log.port import Answered, Backlog, Delivery
from tallystick.webhooks.store import AppendWork

log = structlog.get_logger("tallystick.webhooks.log")


class PostgresLog:
    """Appends to `tally.webhook_events`. Use as an async context manager; leaving it stores what waits."""

    def __init__(self, database: Database, *, limits: Limits = LIMITS) -> None:
        """The database stays the caller's to close."""
        self._database = database
        self._limits = limits
        self._news = asyncio.Event()
        self._group: GroupCommit[Delivery, int] = GroupCommit(
            AppendWork(database, lambda _fresh: self._news.set()), limits=limits, joining=True, paced=True
        )
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._group.__aenter__()
        self._telling = asyncio.create_task(self._tell(), name="webhook notifier")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what waits, stop."""
        await self._group.__aexit__(kind, error, trace)
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """Deliveries that no lane has taken yet."""
        return self._group.waiting

    @property
    def batches(self) -> int:
        """Transactions that stored a batch."""
        return self._group.batches

    def append(self, delivery: Delivery) -> "asyncio.Future[int]":
        """See the port."""
        return self._group.submit(delivery, source=delivery.provider)

    async def check(self) -> tuple[str, ...]:
        """See the port. The database was looked at when it was connected to."""
        return ()

    async def backlog(self) -> Backlog | None:
        """See the port."""
        return None

    def append_for(self, answered: Answered, delivery: Delivery) -> None:
        """See `port.Direct`."""
        self._group.submit_for(answered, delivery, source=delivery.provider)

    async def _tell(self) -> None:
        """One notification for everything that was stored since the last one."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await store.notify(self._database)
            except TallystickError as error:
                # The workers' own poll finds it.
                log.warning("webhook_not_announced", reason=str(error))
            await asyncio.sleep(self._limits.webhook_notify_seconds)
