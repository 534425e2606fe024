"""The crash matrix: a flow is killed before and after each of its points, recovered, and both halves are compared.

Victims     orders victims from the fork server (`victims`), and hears what becomes of them
cases       every point and side of a flow, in a seeded order that rotates with the commit
Trying      those that are tried, and what must have happened to them
"""

import asyncio
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import asyncpg
import msgspec

from tallystick.database.pool import Database
from tests.faults.points import SIDES, End, Point, Side
from tests.faults.victims import LOOPS, VICTIM, Loop, Order, Report

IS_FULL: Final = os.environ.get("TALLY_TEST_FULL") == "1"
# A victim works for a fraction of a second; on a busy machine for a few.
_PATIENCE_SECONDS: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
# Between two looks at whether somebody waits.
_A_LOOK_SECONDS: Final = 0.02
_HELD_UP: Final = timedelta(seconds=0.2)
# Of more than so many cases one may be missed, and one more of each forty: more would be points that nobody can reach.
_FEW: Final = 10
# Whether a statement is gathered into another's is a matter of moments: a missed case is tried again so often.
_MORE_TRIES: Final = 3


class Case(NamedTuple):
    """Where a process is ended."""

    point: Point
    side: Side

    @property
    def end(self) -> End:
        return End(at=self.point, side=self.side)

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


async def is_held_up(connection: asyncpg.Connection) -> bool:
    """Whether somebody waits for a lock for longer than those who go on keep one."""
    waiting = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND clock_timestamp() - query_start > $1::interval",
        _HELD_UP,
    )
    return bool(waiting)


async def is_done_beside(work: "asyncio.Task[Any]", database: Database) -> bool:
    """Wait until that is done, or held up by a process that stands still; whether it was done."""
    while not work.done():
        async with database.owning() as connection:
            if await is_held_up(connection):
                return False
        await asyncio.wait([work], timeout=_A_LOOK_SECONDS)
    return True


async def until_gone(database: Database) -> None:
    """Until no victim is connected any more: a killed process's statements end with its connections."""
    async with asyncio.timeout(_PATIENCE_SECONDS), database.owning() as connection:
        while await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1",
            VICTIM,
        ):
            await asyncio.sleep(0.002)


class Cases(NamedTuple):
    """What is to be tried, in order. A sample goes on until `wanted` were reached: one that misses proves nothing."""

    found: list[Case]
    wanted: int
    is_sample: bool = False


def cases(points: Sequence[Point], chance: random.Random, most: int | None) -> Cases:
    """Both sides of every point: all of them in order, or so many by chance, with the others in reserve."""
    found = [Case(point, side) for point in points for side in SIDES]
    if most is None or most >= len(found):
        # Some points are gathered into others now and then.
        return Cases(found, len(found) - len(found) // 40 - (len(found) > _FEW))
    return Cases(chance.sample(found, len(found)), most, is_sample=True)


class Trying:
    """Cases one after the other, until enough of them were reached; iterate, and say of each whether it was.

    Victims run on the service's loop and on the plain one by turns: what a kill leaves half done may differ. A sample
    also goes on until both were used and `overtaken` of those that were paused were overtaken. Where all are tried,
    those that were missed are tried again.
    """

    def __init__(self, of: Cases, victims: "Victims", *, overtaken: int = 0) -> None:
        self._of = of
        self._victims = victims
        self._wanted_overtaken = overtaken
        # Which of the two is first, so that no point keeps its loop for ever.
        self._turn = random.Random(seed()).randint(0, 1)
        self.reached = 0
        self.overtaken = 0
        self.missed: list[str] = []
        self.loops: Counter[Loop] = Counter()

    def __iter__(self) -> Iterator[Case]:
        for case in self._of.found:
            if self._of.is_sample and (not self._lacks() or len(self.missed) > self._of.wanted):
                return
            self._victims.loop = self._next_loop()
            yield case
        for _ in range(_MORE_TRIES):
            for case in [case for case in self._of.found if str(case) in self.missed]:
                self._victims.loop = self._next_loop()
                yield case

    def tried(self, case: Case, victim: "Victim", *, reached: bool) -> None:
        if str(case) in self.missed:
            self.missed.remove(str(case))
        if not reached:
            self.missed.append(str(case))
            return
        self.reached += 1
        self.overtaken += victim.is_overtaken
        assert victim.loop is not None, f"{case}: it ended before it had a loop"
        self.loops[victim.loop] += 1

    def finish(self) -> list[str]:
        """Those that were not reached. Raises when too many were not, or too little happened to those that were."""
        lacks = self._lacks()
        assert not lacks, f"{lacks}; not reached: {self.missed}"
        return self.missed

    def said(self) -> str:
        """For the counts that are printed."""
        overtaken = f", {self.overtaken} overtaken" if self._wanted_overtaken else ""
        return f"{self.loops['uvloop']} on uvloop{overtaken}"

    def _lacks(self) -> str:
        """What is still wanted."""
        if self.reached < self._of.wanted:
            return f"{self.reached} of {self._of.wanted} were reached"
        if self.reached <= len(self.missed):
            return f"{self.reached} were reached and {len(self.missed)} were not"
        if self.overtaken < self._wanted_overtaken:
            return f"{self.overtaken} of {self._wanted_overtaken} were overtaken, of {self.reached} that were paused"
        if len(self.loops) < min(len(LOOPS), self._of.wanted):
            return f"all ran on {', '.join(self.loops)}"
        return ""

    def _next_loop(self) -> Loop:
        one, other = LOOPS
        if self.loops[one] != self.loops[other]:
            return min(LOOPS, key=lambda loop: self.loops[loop])
        # Not always the same after a draw: both sides of a point would keep theirs.
        return LOOPS[(self.reached // 2 + self._turn) % 2]


class Victim:
    """A process that was ordered, as far as the reports go."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        self.pid = 0
        self.points: list[Point] = []
        # It was, at least: killed or resumed since or not.
        self.is_stopped = False
        # Another did its work meanwhile: whoever stops it says so.
        self.is_overtaken = False
        self.loop: Loop | None = None
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
        # The loop of those that are ordered next.
        self.loop: Loop = "asyncio"

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
        self._orders.write(msgspec.json.encode(Order(id=victim.id, job=job, end=end, loop=self._loop(end))) + b"\n")
        self._orders.flush()
        self.wait(lambda: victim.pid != 0)
        return victim

    def _loop(self, end: End | None) -> Loop:
        """Only the plain one hands bytes to the kernel while it is asked to: after a write they have left."""
        has_left = end is not None and end.at is not None and end.at.label.startswith("http write")
        return "asyncio" if has_left and end is not None and end.side == "after" else self.loop

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
        victim.loop = report.loop or victim.loop
        victim.is_stopped = victim.is_stopped or report.is_stopped
        if report.result is not None:
            victim.result = report.result
        if report.is_ended:
            victim.status = report.status
