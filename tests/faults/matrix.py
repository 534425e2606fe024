"""The crash matrix: a flow is killed before and after each of its points, recovered, and both halves are compared.

Victims     orders victims from the fork server (`victims`), and hears what becomes of them
cases       every point and side of a flow, in a seeded order that rotates with the commit
"""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from tests.faults.points import SIDES, End, Point, Side
from tests.faults.victims import Order, Report

IS_FULL: Final = os.environ.get("TALLY_TEST_FULL") == "1"
# A victim works for a fraction of a second; on a busy machine for a few.
_PATIENCE_SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]


class Case(NamedTuple):
    """Where a process is ended."""

    point: Point
    side: Side

    def __str__(self) -> str:
        return f"{self.side} {self.point}"


@cache
def seed() -> str:
    """What a sample depends on: the commit, so that every change tries other cases. Or TALLY_TEST_SEED."""
    given = os.environ.get("TALLY_TEST_SEED")
    if given is not None:
        return given
    # A source distribution has no commit.
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever is on the path
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()[:12] or "7"


def cases(points: Sequence[Point], chance: random.Random, most: int | None) -> list[Case]:
    """Both sides of every point: all of them in order, or a sample."""
    found = [Case(point, side) for point in points for side in SIDES]
    return found if most is None or most >= len(found) else chance.sample(found, most)


class Victim:
    """A process that was ordered, as far as the reports go."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.pid = 0
        self.points: list[Point] = []
        # It was, at least: killed or resumed since or not.
        self.is_stopped = False
        self.result: Any = None
        self.status: int | None = None

    @property
    def is_ended(self) -> bool:
        return self.status is not None

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    def kill(self) -> None:
        """Also one that is stopped."""
        os.kill(self.pid, signal.SIGKILL)

    def skip(self) -> None:
        """Have one that is stopped find, when it goes on, that much time has passed."""
        os.kill(self.pid, signal.SIGUSR1)

    def resume(self) -> None:
        """Let one that is stopped go on."""
        os.kill(self.pid, signal.SIGCONT)


class Victims:
    """The fork server, as its client. Use as a context manager."""

    def __init__(self, work: str, log: Path) -> None:
        """`work` is MODULE:FUNCTION; `log` takes what victims say."""
        self._log = log
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.victims", work],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._orders, self._reports = self._server.stdin, self._server.stdout.fileno()
        self._rest = b""
        self._victims: dict[int, Victim] = {}
        self._is_ready = False

    def __enter__(self) -> Self:
        self.wait(lambda: self._is_ready)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._orders.close()
        self._server.wait(_PATIENCE_SECONDS)
        assert self._server.stdout is not None
        self._server.stdout.close()

    def begin(self, job: dict[str, Any], end: End | None = None) -> Victim:
        """Order a victim, and do not wait for it."""
        victim = Victim(len(self._victims) + 1)
        self._victims[victim.id] = victim
        self._orders.write(msgspec.json.encode(Order(id=victim.id, job=job, end=end)) + b"\n")
        self._orders.flush()
        self.wait(lambda: victim.pid != 0)
        return victim

    def run(self, job: dict[str, Any], end: End | None = None) -> Victim:
        """Order a victim and wait until it has ended."""
        victim = self.begin(job, end)
        self.wait(lambda: victim.is_ended)
        return victim

    def wait(self, until: Callable[[], bool]) -> None:
        """Read reports until that is so."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not until():
            if not self.hear(deadline - time.monotonic()):
                raise AssertionError(f"a victim is silent; {self.said()}")

    def hear(self, seconds: float) -> bool:
        """Read what was reported, waiting so long for it. False: nothing was."""
        ready, _, _ = select.select([self._reports], [], [], max(seconds, 0.0))
        if not ready:
            return False
        data = os.read(self._reports, 65_536)
        assert data, f"the fork server has ended; {self.said()}"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._note(msgspec.json.decode(line, type=Report))
        return True

    def said(self) -> str:
        """The end of what the victims said of themselves."""
        return f"the log ends: {self._log.read_text(errors='replace')[-3000:]}"

    def _note(self, report: Report) -> None:
        if report.id == 0:
            self._is_ready = True
            return
        victim = self._victims[report.id]
        victim.pid = report.pid or victim.pid
        if report.point is not None:
            victim.points.append(report.point)
        victim.is_stopped = victim.is_stopped or report.is_stopped
        if report.result is not None:
            victim.result = report.result
        if report.is_ended:
            victim.status = report.status
