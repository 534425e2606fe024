"""A worker: one bounded piece of work after the other, until told to stop.

    something was done ──────> the next as soon as `after` says
    the database is away ────> a growing pause     nothing is lost by waiting: what is due stays due
    it was restored ─────────> a long pause        until somebody has run `tally recover`
    an invariant is broken ──> the end             of the process: a person must look

One loop and one way to rest for all of them. A room's worker says what a piece of work is (`run_once`), and how long to
rest afterwards (`after`). Each may be killed anywhere, and any number may run side by side.
"""

import asyncio
import random
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import structlog

from tallystick.errors import InvariantBroken, RestoredDatabase, TallystickError
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.worker")
Done = TypeVar("Done")


class Worker(Protocol):
    """What every worker can do. `run` returns soon after `stopping` is set, with nothing left half done."""

    name: str

    async def run_once(self) -> object:
        """One bounded piece of work; its counts."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop. Raises InvariantBroken, and nothing else."""


class Loop(ABC, Generic[Done]):
    """What the workers of all rooms have in common."""

    name: str
    # What the log says when it cannot go on for a while, and when it may not: the database is distrusted.
    interrupted: ClassVar[str]
    stopped: ClassVar[str] = "worker_stopped"

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        """Nothing runs before `run`."""
        self._limits = limits
        # Said beside each line of the log.
        self._about: Mapping[str, str] = {}

    @abstractmethod
    async def run_once(self) -> Done:
        """One bounded piece of work; its counts."""

    @abstractmethod
    def after(self, done: Done) -> float:
        """Tell what was done, and for how many seconds to rest."""

    async def turn(self, stopping: asyncio.Event) -> Done:
        """What is done between two rests: one piece of work, where a worker does not say otherwise."""
        del stopping
        return await self.run_once()

    def woken_by(self) -> Sequence[asyncio.Event]:
        """What ends a rest early, unless it is for the database's sake."""
        return ()

    async def close(self) -> None:
        """When the loop has ended, however it did."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop. Raises InvariantBroken, and nothing else."""
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    done = await self.turn(stopping)
                except InvariantBroken:
                    raise
                except RestoredDatabase as restored:
                    log.error(self.stopped, **self._about, reason=str(restored))
                    await rest(self.after_restored(), stopping)
                except Exception as error:  # noqa: BLE001 - it must go on when the trouble is over, whatever it was
                    failures += 1
                    pause = self.after_failure(failures)
                    log.warning(self.interrupted, **self._about, reason=in_short(error), next_try_seconds=pause)
                    await rest(pause, stopping)
                else:
                    failures = 0
                    await rest(self.after(done), stopping, *self.woken_by())
        finally:
            await self.close()

    def after_restored(self) -> float:
        """For how long to rest while a person has to act first."""
        return self._limits.worker_restored_seconds

    def after_failure(self, failures: int) -> float:
        """For how long to rest after so many failures in a row."""
        return pause_after_failure(failures, self._limits)


class Periodic(Loop[object]):
    """Runs something every so many seconds; sooner after a failure, and later again while it goes on failing."""

    interrupted = "worker_interrupted"

    def __init__(
        self, name: str, once: Callable[[], Awaitable[object]], *, every_seconds: float, limits: Limits = LIMITS
    ) -> None:
        """`once` is safe to be killed and to run again."""
        super().__init__(limits=limits)
        self.name = name
        self._about = {"worker": name}
        self._once = once
        self._every = every_seconds

    async def run_once(self) -> object:
        """Once."""
        return await self._once()

    def after(self, done: object) -> float:
        """As often as was asked for."""
        del done
        return self._every

    def after_failure(self, failures: int) -> float:
        """Never later than it would have run anyway."""
        return min(super().after_failure(failures), self._every)

    def after_restored(self) -> float:
        """The same."""
        return min(super().after_restored(), self._every)


def pause_after_failure(failures: int, limits: Limits = LIMITS) -> float:
    """Seconds until the next try, after so many failures in a row: doubled, up to the longest."""
    return min(limits.worker_first_pause_seconds * (1 << min(failures - 1, 16)), limits.worker_longest_pause_seconds)


async def rest(seconds: float, *enough: asyncio.Event) -> None:
    """About so long, or until one of the events is set."""
    if not seconds or any(event.is_set() for event in enough):
        return
    # Spread out: workers that were started together, or lost the database together, must not come back together.
    jitter = random.uniform(0.6, 1.4)  # noqa: S311 - no secret
    waiting = [asyncio.create_task(event.wait()) for event in enough]
    try:
        await asyncio.wait(waiting, timeout=seconds * jitter, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def in_short(error: Exception) -> str:
    """What broke. Not what a caller would be told about the money: a worker may have acted before it broke off."""
    if isinstance(error, TallystickError):
        return str(error).split(". ", 1)[0]
    # As text: a log that shows local values would show credentials.
    return "".join(traceback.format_exception(error))
