"""Processor time of processes: on a machine that others use too, what a thing costs is steadier than its speed."""

import os
import resource
from pathlib import Path
from typing import Final

import asyncpg

_TICKS: Final = os.sysconf("SC_CLK_TCK")
# Places in /proc/PID/stat after the name: parent, own user and system time, those of children that have ended.
_PARENT: Final = 1
_OWN: Final = slice(11, 13)
_ENDED: Final = slice(13, 15)


def own_seconds() -> float:
    """Of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def seconds(pid: int) -> float:
    """Of a process on this machine. Raises OSError when there is none."""
    return sum(map(int, _stat(pid)[_OWN])) / _TICKS


async def server_seconds(dsn: str) -> float | None:
    """Of the database's server with everything it has started; None: it is not on this machine."""
    connection = await asyncpg.connect(dsn)
    try:
        pid = connection.get_server_pid()
        if not _is_postgres(pid):
            return None
        parent = int(_stat(pid)[_PARENT])
        return _tree(parent) if _is_postgres(parent) else None
    finally:
        await connection.close()


def _tree(parent: int) -> float:
    found = _stat(parent)
    ticks = sum(map(int, (*found[_OWN], *found[_ENDED])))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            child = _stat(int(entry.name))
        except OSError:
            # It has ended meanwhile: the parent's count has it next time.
            continue
        if int(child[_PARENT]) == parent:
            ticks += sum(map(int, child[_OWN]))
    return ticks / _TICKS


def _is_postgres(pid: int) -> bool:
    try:
        return "postgres" in Path(f"/proc/{pid}/comm").read_text(encoding="ascii")
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    # The name in brackets may itself hold blanks and brackets.
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
