"""The settlement worker: ticks of one provider.

One worker for each provider: one that hangs holds up nobody else's payouts. Stopping lets the tick under way finish
what it holds. What was claimed and not recorded is found again when overdue.
"""

from typing import Final

import msgspec
import structlog

from tallystick.settings import LIMITS, Limits
from tallystick.settlement.tick.flow import Settler, Ticked
from tallystick.workers.worker import Loop

log = structlog.get_logger("tallystick.worker")

# A tick claims what the provider takes in about this long: a stop waits for it, and so do those that are stuck.
_TICK_SECONDS: Final = 5.0
# And never more than this, however fast the provider says it is.
_MOST_ROWS: Final = 5_000


class SettlementWorker(Loop[Ticked]):
    """Pays, and recovers what is stuck, through one provider. `settler` is for that provider alone."""

    interrupted = "settlement_interrupted"
    stopped = "settlement_stopped"

    def __init__(self, settler: Settler, provider: str, *, requests_per_second: float, limits: Limits = LIMITS) -> None:
        """`requests_per_second` is what the provider takes."""
        super().__init__(limits=limits)
        self.name = f"settlement ({provider})"
        self._about = {"provider": provider}
        self._settler = settler
        self._provider = provider
        self._most = max(1, min(_MOST_ROWS, int(requests_per_second * _TICK_SECONDS)))

    async def run_once(self) -> Ticked:
        """One tick, of a bounded number of rows."""
        return await self._settler.tick(most=self._most)

    def after(self, done: Ticked) -> float:
        """The next at once where something was decided."""
        self._tell(done)
        return pause_after(done, self._limits)

    def _tell(self, ticked: Ticked) -> None:
        if not ticked.claimed and not ticked.reclaimed:
            return
        counts = {name: count for name, count in msgspec.structs.asdict(ticked).items() if type(count) is int and count}
        log.info("settled", provider=self._provider, **counts)
        if ticked.disputed:
            log.warning("settlements_need_a_person", provider=self._provider, disputed=ticked.disputed)
        if ticked.reclaims_are_frequent:
            log.warning(
                "reclaims_are_frequent",
                provider=self._provider,
                reclaimed=ticked.reclaimed,
                claimed=ticked.claimed,
                hint="the cold path should be cold: look for killed workers, a slow provider or a short timeout",
            )


def pause_after(ticked: Ticked, limits: Limits) -> float:
    """Seconds until the next tick."""
    # What is claimed from a provider that is down only waits: the queue must not be emptied into that state.
    decided = ticked.transferred + ticked.failed + ticked.disputed
    return 0.0 if decided else limits.settlement_pause_seconds
