"""A tick in a process of its own, that stops itself at a point: for SIGKILL, and for SIGSTOP past its lease.

python -m tallystick.probes.worker JOB      prints what the tick did
"""

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec

from tallystick.probes.contender import Job, Point
from tallystick.probes.naive import Naive
from tallystick.probes.ours import Ours
from tallystick.providers import http
from tallystick.providers.steady import steady


class _StopHere:
    """Stops the whole process, as a frozen machine would: nothing of it runs until somebody sends SIGCONT."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._is_done = False

    async def at(self, point: Point) -> None:
        self.pass_by(point)

    def pass_by(self, point: Point) -> None:
        if point == self._point and not self._is_done:
            self._is_done = True
            os.kill(os.getpid(), signal.SIGSTOP)


def _watch_the_wire(stop: _StopHere) -> None:
    """Points inside the HTTP client: around its look at the clock, just before it writes."""
    ask = http._Connection.ask  # noqa: SLF001 - a pause is forced from the inside
    is_asking = False

    async def watched_ask(*arguments: Any, **named: Any) -> http.HttpResult:  # noqa: ANN401 - passed on
        nonlocal is_asking
        stop.pass_by("before_write")
        is_asking = True
        try:
            return await ask(*arguments, **named)
        finally:
            is_asking = False

    def watched_steady() -> float:
        now = steady()
        if is_asking:
            stop.pass_by("mid_write")
        return now

    http._Connection.ask = watched_ask  # type: ignore[method-assign]  # noqa: SLF001
    http.steady = watched_steady  # type: ignore[attr-defined]


async def main(job: Job) -> dict[str, Any]:
    """One tick."""
    stop = _StopHere(job.point)
    if job.kind == "naive":
        async with Naive(job.dsn, job.url, pace=job.pace, claims="lease") as naive:
            await naive.tick(stop)
        return {}
    _watch_the_wire(stop)
    async with Ours(job.dsn, job.url, pace=job.pace) as ours:
        return dict(msgspec.to_builtins(await ours.ticked(stop)))


if __name__ == "__main__":
    told = asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Job)))
    sys.stdout.buffer.write(msgspec.json.encode(told))
