"""The financial sweeper: what is owed to customers goes back to them. What is owed stays owed while it rests."""

import msgspec
import structlog

from tallystick.checkout.refund.flow import Refunds, SweptRefunds
from tallystick.settings import LIMITS, Limits
from tallystick.workers.worker import Loop

log = structlog.get_logger("tallystick.worker")


class RefunderWorker(Loop[SweptRefunds]):
    """Sends, and asks about, the refunds of every tenant that are due."""

    name = "financial sweeper (refunds)"
    interrupted = "refunds_interrupted"
    stopped = "refunds_stopped"

    def __init__(self, refunds: Refunds, *, limits: Limits = LIMITS) -> None:
        """The refunds stay the caller's to close."""
        super().__init__(limits=limits)
        self._refunds = refunds

    async def run_once(self) -> SweptRefunds:
        """One chunk of what is due."""
        return await self._refunds.sweep()

    def after(self, done: SweptRefunds) -> float:
        """The next at once where something was finished."""
        if done.claimed:
            log.info("refunds_swept", **{name: n for name, n in msgspec.structs.asdict(done).items() if n})
        return 0.0 if done.completed or done.failed else self._limits.refund_pause_seconds
