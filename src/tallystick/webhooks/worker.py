"""Workers of webhooks: events are processed, missed ones fetched, and the days of their bodies kept.

events    woken at once by the database's notification, and by itself every few seconds: a notification can be lost
backfill  one for each provider that has a list of events
keeper    partitions ahead of time, old ones detached by policy
"""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog

from tallystick.errors import InvariantBroken
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.flow import Backfill, BodyKeeper, Events, Processed
from tallystick.workers.worker import Loop, Periodic

log = structlog.get_logger("tallystick.worker")


class EventsWorker(Loop[Processed]):
    """Processes events until told to stop; what is claimed is finished first."""

    name = "webhook events"
    interrupted = "events_interrupted"

    def __init__(self, events: Events, *, limits: Limits = LIMITS) -> None:
        """One claim at a time, unless events queue up."""
        super().__init__(limits=limits)
        self._events = events
        self._ear = events.ear()

    async def run_once(self) -> Processed:
        """One batch."""
        return await self._events.run_once()

    async def turn(self, stopping: asyncio.Event) -> Processed:
        """A batch; and if it was full, side by side with others for as long as they are.

        Only then: of a few events, one batch costs less than two.
        """
        # Before the claim: what is announced while it runs is looked for again.
        self._ear.heard.clear()
        await self._ear.open()
        processed = await self.run_once()
        self._tell(processed)
        if processed.claimed >= self._limits.event_chunk:
            ended = await asyncio.gather(
                *(self._while_full(stopping) for _ in range(self._limits.event_workers)), return_exceptions=True
            )
            failed = [one for one in ended if isinstance(one, BaseException)]
            # A broken invariant is not hidden by an outage beside it.
            for error in sorted(failed, key=lambda one: not isinstance(one, InvariantBroken)):
                raise error
        return processed

    async def _while_full(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            processed = await self.run_once()
            self._tell(processed)
            if processed.claimed < self._limits.event_chunk:
                return

    def woken_by(self) -> Sequence[asyncio.Event]:
        """An event was stored."""
        return (self._ear.heard,)

    def after(self, done: Processed) -> float:
        """Batch after batch while there are any."""
        return 0.0 if done.claimed else self._limits.event_pause_seconds

    async def close(self) -> None:
        """Nobody listens any more."""
        await self._ear.close()

    def _tell(self, processed: Processed) -> None:
        counts = {name: count for name, count in msgspec.structs.asdict(processed).items() if count}
        if counts:
            log.info("events_processed", **counts)


def backfill_worker(backfill: Backfill, limits: Limits = LIMITS) -> Periodic:
    """Reads one provider's list of events."""
    return Periodic(
        f"webhook backfill ({backfill.name})",
        backfill.run_once,
        every_seconds=limits.webhook_backfill_seconds,
        limits=limits,
    )


def keeping_worker(keeper: BodyKeeper, limits: Limits = LIMITS) -> Periodic:
    """Looks after the partitions of bodies."""
    return Periodic("webhook bodies", keeper.run_once, every_seconds=limits.webhook_keeping_seconds, limits=limits)
