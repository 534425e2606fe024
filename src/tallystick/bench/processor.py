"""Processor time of this process, of a PostgreSQL server on this machine, and what others took from this machine.

Beside other load a rate tells little; what each process took for one item tells nearly the same as on a quiet machine.
"""

import os
import resource
from pathlib import Path
from typing import Final

import asyncpg

from tallystick import queries

_SQL: Final = queries.load(__package__, "processor.sql")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name (proc(5) counts from 1, the name is the second): utime, stime.
_TIMES: Final = slice(11, 13)
# Of the first line of /proc/stat, counted from its name.
_STEAL: Final = 8


def own_seconds() -> float:
    """Of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stolen_seconds() -> float:
    """What the host gave to other guests while we wanted to run, over all processors, so far. 0 where nobody can tell.

    A tail is only ours when this stands still: a guest that is halted for 0.3 s in 30 has a p99 of that.
    """
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    return int(fields[_STEAL]) / _TICKS_PER_SECOND


class ServerClock:
    """What the server's processes take from now on. A process that ends before it is asked is not counted."""

    def __init__(self, before: dict[int, float]) -> None:
        """Use `started`."""
        self._before = before

    @classmethod
    async def started(cls, dsn: str) -> "ServerClock":
        """From now on."""
        return cls(await _taken(dsn))

    async def seconds(self, dsn: str) -> float | None:
        """So far; None: the server runs on another machine, and nobody here can tell."""
        taken = await _taken(dsn)
        if not taken:
            return None
        return sum(seconds - self._before.get(process, 0.0) for process, seconds in taken.items())


async def _taken(dsn: str) -> dict[int, float]:
    """By process: every backend but our own, the WAL writer, the checkpointer and all others the server knows of."""
    connection = await asyncpg.connect(dsn)
    try:
        processes = [row[0] for row in await connection.fetch(_SQL["processes"])]
    finally:
        await connection.close()
    taken = {}
    for process in processes:
        name, fields = _stat(process)
        if name != "postgres":
            return {}
        taken[process] = sum(int(field) for field in fields[_TIMES]) / _TICKS_PER_SECOND
    return taken


def _stat(process: int) -> tuple[str, list[str]]:
    try:
        line = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return "", []
    start, end = line.index("("), line.rindex(")")
    return line[start + 1 : end], line[end + 2 :].split()
