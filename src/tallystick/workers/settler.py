"""The settlement worker: ticks of one provider, until told to stop.

    tick ── something was decided ──> the next at once
         ── nothing was ───────────> a short pause      nothing is pending, or the provider is down
         ── the database is away ──> a growing pause    what was claimed and not recorded is found again when overdue
         ── it was restored ───────> a long pause       until somebody has run `tally recover`

One worker for each provider: one that hangs holds up nobody else's payouts. It may be killed anywhere, and any number
may run side by side; stopping lets the tick under way finish what it holds.
"""

import asyncio
from typing import Final

import msgspec
import structlog

from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.flows.settling import Settler, Ticked
from tallystick.settings import LIMITS, Limits
from tallystick.workers.pause import in_short, pause_after_failure, rest

log = structlog.get_logger("tallystick.worker")

# A tick claims what the provider takes in about this long: a stop waits for it, and so do those that are stuck.
_TICK_SECONDS: Final = 5.0
# And never more than this, however fast the provider says it is.
_MOST_ROWS: Final = 5_000
# A person has to act first.
_RESTORED_SECONDS: Final = 30.0


class SettlementWorker:
    """Pays, and recovers what is stuck, through one provider. `settler` is for that provider alone."""

    def __init__(self, settler: Settler, provider: str, *, requests_per_second: float, limits: Limits = LIMITS) -> None:
        """`requests_per_second` is what the provider takes."""
        self.name = f"settlement ({provider})"
        self._settler = settler
        self._provider = provider
        self._most = max(1, min(_MOST_ROWS, int(requests_per_second * _TICK_SECONDS)))
        self._limits = limits

    async def run_once(self) -> Ticked:
        """One tick, of a bounded number of rows."""
        return await self._settler.tick(most=self._most)

    async def run(self, stopping: asyncio.Event) -> None:
        """Tick until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        while not stopping.is_set():
            try:
                ticked = await self.run_once()
            except InvariantBroken:
                raise
            except RestoredDatabase as restored:
                log.error("settlement_stopped", provider=self._provider, reason=str(restored))
                pause = _RESTORED_SECONDS
            except Exception as error:  # noqa: BLE001 - a worker must go on when the trouble is over, whatever it was
                failures += 1
                pause = pause_after_failure(failures)
                log.warning(
                    "settlement_interrupted",
                    provider=self._provider,
                    reason=in_short(error),
                    next_try_seconds=pause,
                )
            else:
                failures = 0
                pause = pause_after(ticked, self._limits)
                self._tell(ticked)
            await rest(stopping, pause)

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
