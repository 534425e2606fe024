"""The worker of intake: batch after batch from the log into the database, with rests when the database is slow."""

import asyncio

import structlog

from tallystick.errors import InvariantBroken
from tallystick.flows.intake import Intake, Taken, pause_after
from tallystick.settings import LIMITS, Limits
from tallystick.workers.events import in_short, pause_under_pressure, rest

log = structlog.get_logger("tallystick.worker")


class IntakeWorker:
    """Reads what receivers appended. May be killed anywhere; any number may run side by side."""

    name = "webhook intake (Kafka)"

    def __init__(self, intake: Intake, *, limits: Limits = LIMITS) -> None:
        """One batch at a time."""
        self._intake = intake
        self._limits = limits

    async def run_once(self) -> Taken:
        """One batch."""
        return await self._intake.run_once()

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    taken = await self.run_once()
                except InvariantBroken:
                    raise
                except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over
                    failures += 1
                    pause = pause_under_pressure(failures, self._limits)
                    log.warning("intake_interrupted", reason=in_short(error), next_try_seconds=pause)
                    await rest(pause, stopping)
                    continue
                failures = 0
                if not taken.records:
                    continue
                log.info("webhooks_taken_in", records=taken.records, fresh=taken.fresh, aside=taken.aside)
                pause = pause_after(taken.seconds, self._limits)
                if pause:
                    log.warning("intake_slowed", rest_seconds=round(pause, 3))
                    await rest(pause, stopping)
        finally:
            await self._intake.close()
