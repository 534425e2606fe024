"""A warm fork server: it imports everything once, and each victim is a fork that works until it is ended.

python -m tests.faults.victims MODULE:FUNCTION

FUNCTION(job, watched) is the coroutine a victim runs, on an event loop of its own: the server has none. What it does
inside `with watched():` has points. The server reads one order per line and writes one report per line; it ends, and
its victims with it, when nobody gives orders any more.
"""

import asyncio
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final, Literal, cast

import msgspec
import uvloop

from tallystick.database.pool import Database
from tests.faults.points import End, Point, Points, intercept
from tests.planted.bugs import BUGS

# How the database knows a victim's connections.
VICTIM: Final = "victim"
# A line this long is written to a pipe in one piece, however many write.
_ATOMIC_BYTES: Final = 4096

# The plain one, and the service's.
Loop = Literal["asyncio", "uvloop"]
LOOPS: Final[tuple[Loop, Loop]] = ("asyncio", "uvloop")

Watched = Callable[[], AbstractContextManager[None]]
Work = Callable[[dict[str, Any], Watched], Awaitable[Any]]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One victim: what it is to do, on which loop, and where it ends. Without an end it tells every point it passes."""

    id: int
    job: dict[str, Any]
    loop: Loop = "asyncio"
    end: End | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened. `id` 0: the server itself is ready. `status` is what waitpid says of a victim that ended.

    `loop` is the one that a victim found itself on.
    """

    id: int
    pid: int = 0
    loop: Loop | None = None
    point: Point | None = None
    is_stopped: bool = False
    result: Any = None
    is_ended: bool = False
    status: int = 0


def main() -> None:
    module, _, function = sys.argv[1].partition(":")
    work: Work = getattr(importlib.import_module(module), function)
    planted = os.environ.get("TALLY_TEST_PLANT")
    if planted is not None:
        BUGS[planted].plant()
    # Whatever logs to standard output must not come between the reports.
    reports = os.dup(1)
    os.dup2(2, 1)
    points = Points()
    intercept(points)
    victims: dict[int, int] = {}

    def tell(report: Report) -> None:
        line = msgspec.json.encode(report) + b"\n"
        if len(line) > _ATOMIC_BYTES:
            raise ValueError("too long to be written in one piece")
        os.write(reports, line)

    def reap(_signal: int, _frame: FrameType | None) -> None:
        for pid in list(victims):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                tell(Report(id=victims.pop(pid), is_ended=True, status=status))

    signal.signal(signal.SIGCHLD, reap)
    # What was imported is shared by every fork, and never looked at again by the collector.
    gc.collect()
    gc.freeze()
    tell(Report(id=0))
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        # Not before its number is known here, or it might end unseen.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            _be_a_victim(order, work, points, tell)
        victims[pid] = order.id
        tell(Report(id=order.id, pid=pid))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


def known_as_victim() -> None:
    """Have the database know this process's connections from those of whoever comes after it."""
    made = Database.__init__

    def named(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **more)
        self._session = {**self._session, "application_name": VICTIM}

    cast("Any", Database).__init__ = named


def _be_a_victim(order: Order, work: Work, points: Points, tell: Callable[[Report], None]) -> None:
    @contextmanager
    def watched() -> Iterator[None]:
        points.arm(order.end, lambda point, stopped: tell(Report(id=order.id, point=point, is_stopped=stopped)))
        yield
        points.disarm()

    async def body() -> None:
        running = type(asyncio.get_running_loop()).__module__
        tell(Report(id=order.id, loop="uvloop" if running.startswith("uvloop") else "asyncio"))
        tell(Report(id=order.id, result=msgspec.to_builtins(await work(order.job, watched))))

    status = 1
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if order.loop == "uvloop" else None) as runner:
            runner.run(body())
        status = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
