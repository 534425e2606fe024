"""The financial sweeper: what is owed to customers goes back to them, until told to stop.

    sweep ── something was finished ─> the next at once
          ── less, or nothing ───────> a short pause
          ── the database is away ───> a growing pause     nothing is lost by waiting: what is owed stays owed
          ── it was restored ────────> a long pause        until `tally recover` has asked the providers

It may be killed anywhere, and any number may run side by side.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.flows.refund import Refunds, SweptRefunds
from tallystick.settings import LIMITS, Limits
from tallystick.workers.pause import in_short, pause_after_failure, rest

log = structlog.get_logger("tallystick.worker")

_RESTORED_SECONDS: Final = 30.0


class RefunderWorker:
    """Sends, and asks about, the refunds of every tenant that are due."""

    name = "financial sweeper (refunds)"

    def __init__(self, refunds: Refunds, *, limits: Limits = LIMITS) -> None:
        """The refunds stay the caller's to close."""
        self._refunds = refunds
        self._limits = limits

    async def run_once(self) -> SweptRefunds:
        """One chunk of what is due."""
        return await self._refunds.sweep()

    async def run(self, stopping: asyncio.Event) -> None:
        """Sweep until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        while not stopping.is_set():
            try:
                swept = await self.run_once()
            except InvariantBroken:
                raise
            except RestoredDatabase as restored:
                log.error("refunds_stopped", reason=str(restored))
                pause = _RESTORED_SECONDS
            except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over, whatever it was
                failures += 1
                pause = pause_after_failure(failures)
                log.warning("refunds_interrupted", reason=in_short(error), next_try_seconds=pause)
            else:
                failures = 0
                is_done = not (swept.completed or swept.failed)
                pause = self._limits.refund_pause_seconds if is_done else 0.0
                if swept.claimed:
                    log.info("refunds_swept", **{name: n for name, n in msgspec.structs.asdict(swept).items() if n})
            await rest(stopping, pause)
