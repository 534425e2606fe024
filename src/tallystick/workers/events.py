"""Workers of webhooks: events are processed, missed ones fetched, and the days of their bodies kept.

    events    woken at once by the database's notification, and by itself every few seconds: a notification can be lost
    backfill  one for each provider that has a list of events
    keeper    partitions ahead of time, old ones detached by policy

Each may be killed anywhere, and any number may run side by side.
"""

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from tallystick.errors import InvariantBroken, TallystickError
from tallystick.flows.events import Backfill, BodyKeeper, Events, Processed
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.worker")


class EventsWorker:
    """Processes events until told to stop; what is claimed is finished first."""

    name = "webhook events"

    def __init__(self, events: Events, *, limits: Limits = LIMITS) -> None:
        """One claim at a time."""
        self._events = events
        self._limits = limits

    async def run_once(self) -> Processed:
        """One batch."""
        return await self._events.run_once()

    async def run(self, stopping: asyncio.Event) -> None:
        """Batch after batch while there are any. Raises InvariantBroken, and nothing else."""
        ear = self._events.ear()
        failures = 0
        try:
            while not stopping.is_set():
                # Before the claim: what is announced while it runs is looked for again.
                ear.heard.clear()
                try:
                    await ear.open()
                    processed = await self.run_once()
                except InvariantBroken:
                    raise
                except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over
                    failures += 1
                    pause = pause_under_pressure(failures, self._limits)
                    log.warning("events_interrupted", reason=in_short(error), next_try_seconds=pause)
                    # Who pauses for the database's sake is not woken by it.
                    await rest(pause, stopping)
                    continue
                failures = 0
                self._tell(processed)
                if not processed.claimed:
                    await rest(self._limits.event_pause_seconds, stopping, ear.heard)
        finally:
            await ear.close()

    def _tell(self, processed: Processed) -> None:
        counts = {name: count for name, count in msgspec.structs.asdict(processed).items() if count}
        if counts:
            log.info("events_processed", **counts)


class Periodic:
    """Runs something every so many seconds; sooner after a failure, and later again while it goes on failing."""

    def __init__(
        self, name: str, once: Callable[[], Awaitable[object]], *, every_seconds: float, limits: Limits = LIMITS
    ) -> None:
        """`once` is safe to be killed and to run again."""
        self.name = name
        self._once = once
        self._every = every_seconds
        self._limits = limits

    async def run_once(self) -> object:
        """Once."""
        return await self._once()

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        while not stopping.is_set():
            try:
                await self.run_once()
            except InvariantBroken:
                raise
            except Exception as error:  # noqa: BLE001 - like the other workers
                failures += 1
                pause = min(pause_under_pressure(failures, self._limits), self._every)
                log.warning("worker_interrupted", worker=self.name, reason=in_short(error), next_try_seconds=pause)
            else:
                failures = 0
                pause = self._every
            await rest(pause, stopping)


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


def pause_under_pressure(failures: int, limits: Limits) -> float:
    """Seconds until the next try after so many failures in a row: doubled, up to the longest."""
    return min(limits.event_pause_seconds * (1 << min(failures - 1, 16)), limits.event_longest_pause_seconds)


async def rest(seconds: float, *enough: asyncio.Event) -> None:
    """Until one of the events is set, or about so long."""
    if any(event.is_set() for event in enough):
        return
    # Spread out: workers that were started together, or lost the database together, must not come back together.
    jitter = random.uniform(0.7, 1.3)  # noqa: S311 - no secret
    waiting = [asyncio.create_task(event.wait()) for event in enough]
    try:
        await asyncio.wait(waiting, timeout=seconds * jitter, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def in_short(error: Exception) -> str:
    """What broke."""
    if isinstance(error, TallystickError):
        return str(error).split(". ", 1)[0]
    # As text: a log that shows local values would show credentials.
    return "".join(traceback.format_exception(error))
