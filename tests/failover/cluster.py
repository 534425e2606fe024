"""A PostgreSQL with two streaming standbys, each with a data directory and a socket of its own.

The standbys are base backups of the primary, as an operator makes them (pg_basebackup -R). What they do is asked of the
servers themselves; who is stopped, killed or cut off is named by its pid.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from tallystick.database.embedded.place import choose
from tests import servers
from tests.clocks import Clock

NAMES = ("anna", "bert")
PATIENCE_SECONDS = 30.0


class Member(servers.Postgres):
    """A server of the cluster. It makes its own data, or was made from another's."""

    settings = "hot_standby = on\nwal_keep_size = 256MB\nmax_connections = 100\nshared_buffers = 32MB\n"

    def __init__(self, folder: Path) -> None:
        (folder / "embedded").mkdir(parents=True)
        place = choose(folder)
        super().__init__("PostgreSQL 18 (embedded)", folder, place.programs, place.account)

    @property
    def sockets(self) -> Path:
        return self._sockets

    @property
    def data(self) -> Path:
        return self._data

    def follow(self, primary: "Member", name: str) -> None:
        """Become a standby of a running server: a base backup of it that goes on reading its log."""
        for folder in (self._data, self._sockets):
            servers._private(folder, self._account)
        address = f"host={primary.sockets} port=5432 user=postgres application_name={name}"
        self._run("pg_basebackup", "-d", address, "-D", str(self._data), "-R", "-X", "stream", "-c", "fast")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"\nunix_socket_directories = '{self._sockets}'\n")
        self._has_data = True
        self.start()

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", str(self._data), "-w", "-t", str(servers.PATIENCE_SECONDS))

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """SIGKILL of the server and all of its processes, as when its machine is gone. Returns when it is dead."""
        of = self.children()
        os.kill(self.pid, signal.SIGKILL)
        for pid in of:
            _signal(pid, signal.SIGKILL)
        _until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in of))
        (self._data / "postmaster.pid").unlink()

    def children(self) -> list[int]:
        """The processes of the server: everything that has its postmaster as a parent."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                except OSError:
                    continue
                if int(parent) == self.pid:
                    found.append(int(entry.name))
        return found

    @contextmanager
    def halted(self) -> Iterator[None]:
        """The machine stands still: nothing is received, nothing is confirmed, no connection is closed."""
        stopped = [self.pid, *self.children()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                _signal(pid, signal.SIGCONT)

    async def ask(self, statement: str, *arguments: Any, database: str = "postgres") -> Any:
        connection = await asyncpg.connect(self.dsn(database, user="postgres"))
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()


class Cluster:
    """One primary and two standbys. Without `confirmed` the primary waits for nobody. `clock`: moves theirs."""

    def __init__(self, *, confirmed: bool = True, clock: Path | None = None) -> None:
        self.folder = servers._folder("cluster", is_shared=True)
        self.primary = Member(self.folder / "primary")
        self.standbys = {name: Member(self.folder / name) for name in NAMES}
        self._confirmed = confirmed
        self.clock = None if clock is None else Clock(clock, self.folder / "clock")
        for member in (self.primary, *self.standbys.values()):
            if self.clock is not None:
                member.environment = self.clock.environment

    def start(self) -> None:
        self.primary.start()
        for name, standby in self.standbys.items():
            standby.follow(self.primary, name)
        if self._confirmed:
            self.primary._ask(
                "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (anna, bert)'; SELECT pg_reload_conf();",
                user="postgres",
            )

    async def cut(self) -> None:
        """The standbys have all there is now, and get nothing more: whatever is committed from here on, they lack."""
        position = await self.primary.ask("SELECT pg_current_wal_flush_lsn()::text")
        for standby in self.standbys.values():
            await _seen(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
            await standby.ask("ALTER SYSTEM SET primary_conninfo = ''")
            await standby.ask("SELECT pg_reload_conf()")
            await _seen(standby, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def remove(self) -> None:
        for member in (self.primary, *self.standbys.values()):
            member.stop(immediate=True)
        shutil.rmtree(self.folder)

    def addresses(self, dsn: str) -> str:
        """The same database, wherever it is served: what an application is told once and for all."""
        name = dsn.split("@/")[1].split("?", maxsplit=1)[0]
        hosts = ",".join(str(member.sockets) for member in (self.primary, *self.standbys.values()))
        return f"postgresql://tally@/{name}?host={hosts}&port=5432,5432,5432&target_session_attrs=primary"


async def _seen(member: Member, is_true: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await member.ask(is_true):
            await asyncio.sleep(0.02)


def _signal(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return


def _until(is_true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)
