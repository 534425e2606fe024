"""The collector: finishes charges that somebody began and nobody finished.

A process that died between its commit and the provider's answer leaves such a charge.
"""

import msgspec
import structlog

from tallystick.checkout.payment.flow import Collected, Payments
from tallystick.settings import LIMITS, Limits
from tallystick.workers.worker import Loop

log = structlog.get_logger("tallystick.worker")


class CollectorWorker(Loop[Collected]):
    """Asks about, and finishes, pending charges of every tenant."""

    name = "collector (charges)"
    interrupted = "collector_interrupted"
    stopped = "collector_stopped"

    def __init__(self, payments: Payments, *, limits: Limits = LIMITS) -> None:
        """The payments stay the caller's to close."""
        super().__init__(limits=limits)
        self._payments = payments

    async def run_once(self) -> Collected:
        """One chunk of what is due."""
        return await self._payments.collect()

    def after(self, done: Collected) -> float:
        """The next at once where something was finished."""
        if done.claimed:
            log.info("collected", **{name: n for name, n in msgspec.structs.asdict(done).items() if n})
        return 0.0 if done.completed or done.failed else self._limits.payment_pause_seconds
