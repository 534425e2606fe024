"""The collector: finishes charges that somebody began and nobody finished, until told to stop.

    collect ── something was finished ─> the next at once
            ── less, or nothing ───────> a short pause
            ── the database is away ───> a growing pause     nothing is lost by waiting: what is due stays due
            ── it was restored ────────> a long pause        until `tally recover` has asked the providers

A process that died between its commit and the provider's answer leaves such a charge. It may be killed anywhere, and
any number may run side by side.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.flows.payment import Collected, Payments
from tallystick.settings import LIMITS, Limits
from tallystick.workers.pause import in_short, pause_after_failure, rest

log = structlog.get_logger("tallystick.worker")

_RESTORED_SECONDS: Final = 30.0


class CollectorWorker:
    """Asks about, and finishes, pending charges of every tenant."""

    name = "collector (charges)"

    def __init__(self, payments: Payments, *, limits: Limits = LIMITS) -> None:
        """The payments stay the caller's to close."""
        self._payments = payments
        self._limits = limits

    async def run_once(self) -> Collected:
        """One chunk of what is due."""
        return await self._payments.collect()

    async def run(self, stopping: asyncio.Event) -> None:
        """Collect until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        while not stopping.is_set():
            try:
                collected = await self.run_once()
            except InvariantBroken:
                raise
            except RestoredDatabase as restored:
                log.error("collector_stopped", reason=str(restored))
                pause = _RESTORED_SECONDS
            except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over, whatever it was
                failures += 1
                pause = pause_after_failure(failures)
                log.warning("collector_interrupted", reason=in_short(error), next_try_seconds=pause)
            else:
                failures = 0
                is_done = not (collected.completed or collected.failed)
                pause = self._limits.payment_pause_seconds if is_done else 0.0
                if collected.claimed:
                    log.info("collected", **{name: n for name, n in msgspec.structs.asdict(collected).items() if n})
            await rest(stopping, pause)
