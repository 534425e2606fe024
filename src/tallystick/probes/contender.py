"""What the attacks on a tick are run against: Tallystick and the naive implementation, by the same words."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

# Where a tick can be held.
#   before_send    after its claim is committed, before the provider's adapter is called
#   before_write   when there is a connection, just before the permit to send is checked
#   mid_write      between that check and the write: the one pause no check can see
#   after_answer   the provider has moved the money and said so; nothing of it is recorded
#   looked_up      a recovery has asked the provider's books, and not yet acted on what they say
Point = Literal["before_send", "before_write", "mid_write", "after_answer", "looked_up"]

_PATIENCE_SECONDS: Final = 60.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a worker is, in seconds: permit to send, takeover, what may be in flight, one answer."""

    send: float = 10.0
    stuck_after: float = 300.0
    in_flight: float = 120.0
    answer: float = 0.5


class Hold(Protocol):
    """Somebody who is told where a tick is, and may keep it there."""

    async def at(self, point: Point) -> None:
        """Returns when the tick may go on."""


class GoOn:
    """Nobody holds it."""

    async def at(self, point: Point) -> None:
        """At once."""


class Paused:
    """Keeps the first that comes to a point, until it is released."""

    def __init__(self, point: Point) -> None:
        """Nobody has come yet."""
        self._point = point
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def at(self, point: Point) -> None:
        """Waits once."""
        if point == self._point and not self._reached.is_set():
            self._reached.set()
            await self._released.wait()

    async def reached(self) -> None:
        """Until somebody is held."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._reached.wait()

    def release(self) -> None:
        """Let it go on."""
        self._released.set()


class Contender(Protocol):
    """A payout service under attack. A payout's name is its attribution; it is paid to `account(name)`."""

    kind: Literal["ours", "naive"]
    dsn: str
    url: str
    pace: Pace

    async def create(self, names: Sequence[str]) -> None:
        """Promise a payout for each name."""

    async def tick(self, hold: Hold | None = None) -> None:
        """One tick of a worker of its own."""

    async def set_back(self, names: Sequence[str]) -> None:
        """Make finished payouts pending again, by hand."""

    async def renew_claims(self) -> None:
        """Give whoever holds a claim another hour."""

    async def pass_time(self, seconds: float) -> None:
        """Move everything that is stored into the past."""


def account(name: str) -> str:
    """Whom the payout of that name goes to. One each, so that the provider's books tell them apart without our keys."""
    return f"acct_{name}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is told."""

    kind: Literal["ours", "naive"]
    dsn: str
    url: str
    pace: Pace
    point: Point


class Stopped:
    """A worker in a process of its own, which stopped itself (SIGSTOP) at a point of its tick."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        """Use `stopped_at`."""
        self._child = child

    async def resume(self) -> dict[str, Any]:
        """SIGCONT, and what its tick did, told by itself."""
        self._child.send_signal(signal.SIGCONT)
        said, _ = await asyncio.to_thread(self._child.communicate, timeout=_PATIENCE_SECONDS)
        if self._child.returncode != 0:
            raise RuntimeError(f"the resumed worker ended with {self._child.returncode}")
        return msgspec.json.decode(said, type=dict[str, Any])

    async def kill(self) -> None:
        """SIGKILL: it never goes on."""
        self._child.kill()
        await asyncio.to_thread(self._child.communicate)


async def stopped_at(point: Point, contender: Contender) -> Stopped:
    """A worker process that has claimed what is pending and stopped at that point, for sure."""
    job = Job(kind=contender.kind, dsn=contender.dsn, url=contender.url, pace=contender.pace, point=point)
    child = subprocess.Popen(  # noqa: ASYNC220 - forking takes no time worth a thread
        [sys.executable, "-m", "tallystick.probes.worker", msgspec.json.encode(job).decode()],
        stdout=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            _, status = await asyncio.to_thread(os.waitpid, child.pid, os.WUNTRACED)
    except BaseException:
        child.kill()
        child.wait()
        raise
    if not os.WIFSTOPPED(status):
        raise RuntimeError(f"the worker ended before it came to {point}")
    return Stopped(child)
