"""A witness of the machine's own halts.

A guest may be halted by its host for tens or hundreds of milliseconds, and not all of it is counted as stolen. Whoever
measures a tail must know: 0.3 s of 30 are its p99. A thread on each processor sleeps for 5 ms, again and again, and
notes when it comes back late. With real-time priority nothing of ours can be the reason; where we may not have that, a
busy machine looks like a halted one, and the witness says that it cannot tell.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NAP_SECONDS: Final = 0.005
# Later than this is no matter of timers.
_LATE_SECONDS: Final = 0.008
_PRIORITY: Final = 50


class Halts:
    """What the witnesses saw. Complete once `watched` has ended."""

    def __init__(self) -> None:
        """Nothing yet."""
        # When each ended, and how long it was.
        self._seen: list[tuple[float, float]] = []
        self._is_certain = True
        self._over = threading.Event()

    def details(self, prefix: str, *, since: float, seconds: float) -> dict[str, float | int | str | list[float]]:
        """Of a stretch on the monotonic clock, for a bench's result. All processors together, and the longest one."""
        if not self._is_certain:
            return {f"{prefix}machine_halted_ms": "unknown: needs real-time priority"}
        halts = [late for ended, late in self._seen if since < ended <= since + seconds]
        return {
            f"{prefix}machine_halted_ms": round(1000 * sum(halts)),
            f"{prefix}machine_halted_longest_ms": round(1000 * max(halts, default=0.0)),
        }

    def end(self) -> None:
        """Send the witnesses home."""
        self._over.set()

    def watch(self, processor: int) -> None:
        """Until `end`, on this processor. Affinity and priority are those of the calling thread alone."""
        try:
            os.sched_setaffinity(0, {processor})
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        except (OSError, AttributeError):
            self._is_certain = False
            return
        before = time.monotonic()
        while not self._over.is_set():
            time.sleep(_NAP_SECONDS)
            now = time.monotonic()
            late, before = now - before - _NAP_SECONDS, now
            if late > _LATE_SECONDS:
                self._seen.append((now, late))


@contextmanager
def watched() -> Iterator[Halts]:
    """Watch every processor we may use."""
    halts = Halts()
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    threads = [threading.Thread(target=halts.watch, args=(one,), daemon=True) for one in processors]
    for thread in threads:
        thread.start()
    try:
        yield halts
    finally:
        halts.end()
        for thread in threads:
            thread.join()
