"""Points at which a process may be ended: every statement and every provider call, discovered as they come.

They are intercepted at the database driver (asyncpg's protocol) and at the HTTP socket (`providers.http`), so that a
new statement is a point without anyone remembering. A point is named by what is done there and by how often that was
done before: that name stays the same when two things that run side by side change places.

Before: nothing of it has left this process. After: a statement was answered, a request's bytes are with the kernel, an
answer's bytes were read.
"""

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final, Literal

import asyncpg
import msgspec
from asyncpg.protocol import Protocol

from tallystick.providers import steady
from tallystick.providers.http import _Connection

Side = Literal["before", "after"]
SIDES: Final[tuple[Side, ...]] = ("before", "after")

# What sends a statement. Preparing one is no point: it changes nothing, and is followed by its statement.
_STATEMENTS: Final = ("query", "bind_execute", "bind_execute_many", "bind", "execute", "copy_in", "copy_out")
_LABEL_CHARACTERS: Final = 80
# Ids differ from run to run.
_IDS: Final = re.compile(rb"[0-9a-f-]{20,}|\d+")
# Who begins a transaction, with the number of his process.
_AUTHOR: Final = re.compile(r"(?<=tally\.author = )'[^']*'")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
# The driver asks what the types of a new connection's first statements are: that is no statement of ours.
_is_driver_asking: ContextVar[bool] = ContextVar("is_driver_asking", default=False)


class Point(msgspec.Struct, frozen=True):
    """Where: the so-many-th time that this is done."""

    label: str
    occurrence: int = 1

    def __str__(self) -> str:
        return f"{self.label} #{self.occurrence}"


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process ends: at a point, or at the so-many-th of all, or at the first whose label begins so.

    `stops`: it stops there (SIGSTOP) and says so, for whoever watches it to kill it or to let it go on. Sent SIGUSR1
    meanwhile, it finds that `span_seconds` have passed, by its steady clock.
    """

    side: Side = "before"
    at: Point | None = None
    number: int = 0
    begins: str = ""
    stops: bool = False
    span_seconds: float = 0.0

    def is_at(self, point: Point, number: int, side: Side) -> bool:
        if side != self.side:
            return False
        if self.at is not None:
            return point == self.at
        return number == self.number or (bool(self.begins) and point.label.startswith(self.begins))


# It goes on to its end, and does not tell its points.
NEVER: Final = End()


class Points:
    """Of this process. Nothing is counted before `arm`."""

    def __init__(self) -> None:
        self._is_armed = False
        self._end: End | None = None
        self._tell: Callable[[Point, bool], None] = lambda _point, _stopped: None
        self._seen: Counter[str] = Counter()
        self._number = 0

    def arm(self, end: End | None, tell: Callable[[Point, bool], None]) -> None:
        """Count from here on. `tell` hears of every point without an end, and else of the one it stops at."""
        self._is_armed, self._end, self._tell = True, end, tell

    def disarm(self) -> None:
        """What comes now is no longer of interest."""
        self._is_armed = False

    def before(self, label: str) -> tuple[Point, int] | None:
        """Something is about to be done."""
        if not self._is_armed:
            return None
        self._seen[label] += 1
        self._number += 1
        point = Point(label, self._seen[label])
        if self._end is None:
            self._tell(point, False)
        self._pass((point, self._number), "before")
        return point, self._number

    def after(self, passed: tuple[Point, int] | None) -> None:
        """It is done."""
        if passed is not None:
            self._pass(passed, "after")

    def _pass(self, passed: tuple[Point, int], side: Side) -> None:
        end = self._end
        if end is None or not end.is_at(*passed, side):
            return
        if not end.stops:
            # From inside, in the very place: no other instruction of this process runs.
            os.kill(os.getpid(), signal.SIGKILL)
        self._end = NEVER
        signal.signal(signal.SIGUSR1, lambda _signal, _frame: _skip(end.span_seconds))
        self._tell(passed[0], True)
        os.kill(os.getpid(), signal.SIGSTOP)


def intercept(points: Points) -> None:
    """Have every statement and every provider call of this process pass through these points."""
    names = _names()
    for method in _STATEMENTS:
        setattr(Protocol, method, _statement(getattr(Protocol, method), points, names))
    connection: Any = asyncpg.Connection
    connection._introspect_types = _unnoticed(connection._introspect_types)
    _wires(points)


def _skip(seconds: float) -> None:
    """Have so much more time passed, by the steady clock."""
    module: Any = steady
    clock = module.time.clock_gettime
    module.time = SimpleNamespace(
        clock_gettime=lambda which: clock(which) + seconds, CLOCK_BOOTTIME=time.CLOCK_BOOTTIME
    )


def _unnoticed(original: Any) -> Any:
    async def asks(*arguments: Any) -> Any:
        noticed = _is_driver_asking.set(True)
        try:
            return await original(*arguments)
        finally:
            _is_driver_asking.reset(noticed)

    return asks


def _statement(original: Any, points: Points, names: dict[str, str]) -> Any:
    async def statement(protocol: Any, *arguments: Any, **named: Any) -> Any:
        if _is_driver_asking.get():
            return await original(protocol, *arguments, **named)
        what = next(iter((*arguments, *named.values())))
        text = what if isinstance(what, str) else what.query
        passed = points.before(f"sql {names.get(text) or _shortened(text)}")
        answer = await original(protocol, *arguments, **named)
        points.after(passed)
        return answer

    return statement


def _wires(points: Points) -> None:
    made, received = _Connection.connection_made, _Connection.data_received

    class Wire:
        """A transport whose writes are points."""

        def __init__(self, transport: Any) -> None:
            self._transport = transport
            self.asked = ""

        def write(self, data: bytes) -> None:
            method, path, _ = data.split(b" ", 2)
            self.asked = f"{method.decode()} {_IDS.sub(b'N', path.partition(b'?')[0]).decode()}"
            passed = points.before(f"http write {self.asked}")
            # asyncio's own loop hands the bytes to the kernel in this call; uvloop would do so later.
            self._transport.write(data)
            points.after(passed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def connection_made(self: Any, transport: Any) -> None:
        made(self, Wire(transport))  # type: ignore[arg-type]

    def data_received(self: Any, data: bytes) -> None:
        passed = points.before(f"http read {self._transport.asked}")
        received(self, data)
        points.after(passed)

    _Connection.connection_made = connection_made  # type: ignore[method-assign]
    _Connection.data_received = data_received  # type: ignore[method-assign]


def _names() -> dict[str, str]:
    """The statements that have a name, by their text, as the modules have them."""
    return {
        text: f"{path.removeprefix('tallystick.').removesuffix('.store')}.{name}"
        for path, module in list(sys.modules.items())
        if path.startswith("tallystick.")
        for name, text in getattr(module, "_SQL", {}).items()
    }


def _shortened(text: str) -> str:
    return _AUTHOR.sub("somebody", " ".join(_COMMENT.sub("", text).split()))[:_LABEL_CHARACTERS]
