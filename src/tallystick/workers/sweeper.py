"""The sweeper: gives back the stock of reservations that nobody paid in time, until told to stop.

    sweep ── a full chunk ─────────> the next at once
          ── less, or nothing ─────> a short pause
          ── the database is away ─> a growing pause     nothing is lost by waiting: what is overdue stays overdue

It may be killed anywhere, and any number may run side by side: each reservation is given back once.
"""

import asyncio
from typing import Final

import structlog

from tallystick.core.order import Swept
from tallystick.errors import InvariantBroken
from tallystick.flows.order import Orders
from tallystick.settings import LIMITS, Limits
from tallystick.workers.pause import in_short, pause_after_failure, rest

log = structlog.get_logger("tallystick.worker")

# Chunks of one sweep: a stop waits for no more than these.
_MOST_CHUNKS: Final = 10


class SweeperWorker:
    """Cancels what is overdue, for every tenant."""

    name = "sweeper (reservations)"

    def __init__(self, orders: Orders, *, limits: Limits = LIMITS) -> None:
        """The orders stay the caller's to close."""
        self._orders = orders
        self._limits = limits

    async def run_once(self) -> Swept:
        """One sweep, of a bounded number of reservations."""
        return await self._orders.sweep(most=_MOST_CHUNKS * self._limits.sweep_chunk)

    async def run(self, stopping: asyncio.Event) -> None:
        """Sweep until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        while not stopping.is_set():
            try:
                swept = await self.run_once()
            except InvariantBroken:
                raise
            except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over, whatever it was
                failures += 1
                pause = pause_after_failure(failures)
                log.warning("sweep_interrupted", reason=in_short(error), next_try_seconds=pause)
            else:
                failures = 0
                pause = self._limits.sweep_pause_seconds if swept.is_complete else 0.0
                if swept.cancelled or swept.refused or swept.told:
                    log.info(
                        "swept",
                        cancelled=swept.cancelled,
                        released=swept.released,
                        refused=swept.refused,
                        told=swept.told,
                        held=swept.held,
                    )
            await rest(stopping, pause)
