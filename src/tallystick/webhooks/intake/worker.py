"""The worker of intake: batch after batch from the log into the database, with rests when the database is slow."""

import structlog

from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.intake.flow import Intake, Taken, pause_after
from tallystick.workers.worker import Loop

log = structlog.get_logger("tallystick.worker")


class IntakeWorker(Loop[Taken]):
    """Reads what receivers appended."""

    name = "webhook intake (Kafka)"
    interrupted = "intake_interrupted"

    def __init__(self, intake: Intake, *, limits: Limits = LIMITS) -> None:
        """One batch at a time."""
        super().__init__(limits=limits)
        self._intake = intake

    async def run_once(self) -> Taken:
        """One batch; it waits by itself where nothing lies there."""
        return await self._intake.run_once()

    def after(self, done: Taken) -> float:
        """The next at once, unless the database was slow."""
        if not done.records:
            return 0.0
        log.info("webhooks_taken_in", records=done.records, fresh=done.fresh, aside=done.aside)
        pause = pause_after(done.seconds, self._limits)
        if pause:
            log.warning("intake_slowed", rest_seconds=round(pause, 3))
        return pause

    async def close(self) -> None:
        """Others of the group take over at once."""
        await self._intake.close()
