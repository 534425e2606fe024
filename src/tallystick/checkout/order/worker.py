"""The sweeper: gives back the stock of reservations that nobody paid in time, until told to stop."""

from typing import Final

import structlog

from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import Swept
from tallystick.settings import LIMITS, Limits
from tallystick.workers.worker import Loop

log = structlog.get_logger("tallystick.worker")

# Chunks of one sweep: a stop waits for no more than these.
_MOST_CHUNKS: Final = 10


class SweeperWorker(Loop[Swept]):
    """Cancels what is overdue, for every tenant: each reservation is given back once."""

    name = "sweeper (reservations)"
    interrupted = "sweep_interrupted"

    def __init__(self, orders: Orders, *, limits: Limits = LIMITS) -> None:
        """The orders stay the caller's to close."""
        super().__init__(limits=limits)
        self._orders = orders

    async def run_once(self) -> Swept:
        """One sweep, of a bounded number of reservations."""
        return await self._orders.sweep(most=_MOST_CHUNKS * self._limits.sweep_chunk)

    def after(self, done: Swept) -> float:
        """The next at once where there may be more."""
        if done.cancelled or done.refused or done.told:
            log.info(
                "swept",
                cancelled=done.cancelled,
                released=done.released,
                refused=done.refused,
                told=done.told,
                held=done.held,
            )
        return self._limits.sweep_pause_seconds if done.is_complete else 0.0
