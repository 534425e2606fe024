"""The embedded PostgreSQL: one server per home, shared by every tally process of one user.

    absent ──> stopped ──> running    start: made if absent, started if stopped, joined if running
                  ^           │
                  └───────────┘       close by the last process, or a crash: start recovers it

The server is a daemon: it outlives a kill of the process that started it, and a Ctrl-C in its terminal.
Processes that use it hold a shared lock on users.lock. The kernel drops the locks of a killed process, so
nobody is counted who is gone. Every start and stop happens under start.lock.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Literal, Self

from tallystick.database.embedded.place import (
    ENVIRONMENT,
    PROBE_SECONDS,
    SOCKET_NAME,
    EmbeddedFailed,
    EmbeddedPlace,
    choose,
    give,
    run_as,
)

__all__ = ["Embedded", "EmbeddedFailed", "exists", "start"]

# Seconds. Recovery may replay max_wal_size (4 GB) from a slow disk; giving up would strand a sound database.
START_SECONDS = 300
# Seconds. A fast stop ends with a checkpoint of at most shared_buffers (256 MB).
STOP_SECONDS = 120
# Seconds. Without a checkpoint; after five PostgreSQL kills what has not gone.
IMMEDIATE_SECONDS = 60
# Seconds. initdb takes 1 to 3 on an idle machine.
MAKE_SECONDS = 180
# Seconds for another process to finish its start or stop, which may be a recovery.
LOCK_SECONDS = START_SECONDS + STOP_SECONDS + IMMEDIATE_SECONDS
# Seconds for processes of a killed server to notice that it is gone: mostly one, more on a busy machine.
ORPHANS_SECONDS = 30
# Seconds between two looks: short beside a start (0.1 or more), long beside the cost of a look.
LOOK_SECONDS = 0.05
# Bytes of the log kept over a start; one more file of that size is kept beside it.
LOG_BYTES = 10_000_000
LOG_LINES_SHOWN = 12
# No process can have this pid, and PostgreSQL may still read it: the largest pid_t.
NOBODYS_PID = 2**31 - 1
# Of postmaster.pid, counted from 0: starting, ready or stopping.
STATUS_LINE = 7
MAJOR_VERSION = "18"

# The engine's role is no superuser, because row-level security does not bind those.
# It may make databases and roles: migrations need a role, tests a database each.
# In single-user mode an empty line ends a statement.
BOOTSTRAP = """\
CREATE ROLE tally LOGIN CREATEDB CREATEROLE;

CREATE DATABASE tally OWNER tally;

"""


class Embedded:
    """A running server, kept running at least until close()."""

    def __init__(self, place: EmbeddedPlace, locks: Path, users: int) -> None:
        self._place = place
        self._locks = locks
        self._users: int | None = users
        self._process = os.getpid()
        self.data = place.data
        self.notes = place.notes
        self.dsn = f"postgresql://tally@/tally?host={urllib.parse.quote(str(place.sockets))}&port=5432"

    def close(self) -> None:
        """Stop the server if no other process uses it. A second call does nothing, nor does one in a forked child.

        Raises EmbeddedFailed when it did not stop in time; committed data is safe all the same.
        """
        # A child has its parent's very lock, and would find itself alone.
        if self._process != os.getpid():
            return
        users, self._users = self._users, None
        if users is None:
            return
        try:
            with _locked(self._locks / "start.lock"):
                if _alone(users) and _postmaster(self.data):
                    _stop(self._place)
        finally:
            os.close(users)

    def is_running(self) -> bool:
        """Whether there is a server process; not whether it answers. Reads three small files."""
        return _postmaster(self.data) is not None

    def revive(self) -> None:
        """Start it again, if it ended and nobody else did. Blocks like `start`. After close() it does nothing.

        Raises EmbeddedFailed.
        """
        try:
            with _locked(self._locks / "start.lock"):
                if self._users is not None:
                    _ensure_running(self._place)
        except (OSError, subprocess.TimeoutExpired) as error:
            message = f"The embedded PostgreSQL in {self.data} cannot be started again: {error}."
            raise EmbeddedFailed(message) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def exists(home: Path) -> bool:
    """Whether there is a database in this home. Makes nothing, not even a folder."""
    return (home / "embedded" / "data" / "PG_VERSION").exists()


def start(home: Path) -> Embedded:
    """Make, start, recover or join the server of this home. Blocks: a second, or minutes when recovering.

    Raises EmbeddedFailed.
    """
    home = home.absolute()
    locks = home / "embedded"
    try:
        # Root's server runs as another user, who must pass through; data and socket are closed by themselves.
        locks.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        home, locks = home.resolve(), locks.resolve()
        with _locked(locks / "start.lock"):
            place = choose(home)
            users = _opened(locks / "users.lock")
            try:
                fcntl.flock(users, fcntl.LOCK_SH)
                _make(place)
                _ensure_running(place)
            except BaseException:
                os.close(users)
                raise
            return Embedded(place, locks, users)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedFailed(
            f"The embedded PostgreSQL in {home} cannot be started: {error}. Check who owns that folder "
            f"and the room on its disk, choose another with TALLY_HOME, or set TALLY_DATABASE_URL."
        ) from error


def _opened(path: Path) -> int:
    # Readable for nobody else: whoever can open a lock file can hold the lock for ever.
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = _opened(path)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedFailed(
                        f"Another process has held {path} for {LOCK_SECONDS} seconds. "
                        f"Find it with `fuser {path}`, end it, and start again."
                    ) from None
                time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(lock)


def _alone(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(place: EmbeddedPlace) -> None:
    """Create the data directory unless there is one. A kill at any moment leaves none, or all of it."""
    for leftover in place.data.parent.glob("data-making-*"):
        shutil.rmtree(leftover)
    version = place.data / "PG_VERSION"
    if version.exists():
        if (found := version.read_text().strip()) != MAJOR_VERSION:
            raise EmbeddedFailed(
                f"{place.data} was made by PostgreSQL {found} and this is {MAJOR_VERSION}. "
                f"Move it with pg_dump and pg_restore, or go back to the release of tallystick that made it."
            )
        return
    staging = Path(tempfile.mkdtemp(prefix="data-making-", dir=place.data.parent))
    give(staging, place.account)
    options = (
        "--encoding=UTF8",
        "--locale=C",
        "--auth-local=trust",
        "--auth-host=reject",
        "--no-instructions",
    )
    _run(place, "initdb", "-D", str(staging), "-U", "postgres", *options, seconds=MAKE_SECONDS)
    with os.fdopen(_unlinked(staging / "postgresql.conf", os.O_WRONLY | os.O_APPEND), "w") as settings:
        settings.write("\ninclude = '../tallystick.conf'\n")
    _write_settings(place)
    # Without a server, so that the directory has its role and database before anybody can see it.
    options = ("--single", "-j", "-D", str(staging), "postgres")
    _run(place, "postgres", *options, seconds=MAKE_SECONDS, statements=BOOTSTRAP)
    staging.rename(place.data)
    _sync(place.data.parent)


def _write_settings(place: EmbeddedPlace) -> None:
    # Beside the data directory, which may be another user's: root writes nothing by name where he can link.
    template = (resources.files("tallystick.database.embedded") / "embedded.conf").read_text(encoding="utf-8")
    settings = place.data.parent / "tallystick.conf"
    settings.write_text(template.replace("@SOCKETS@", str(place.sockets)), encoding="utf-8")
    settings.chmod(0o644)


def _unlinked(path: Path, flags: int) -> int:
    """Open a file of the server's user, who must not lead root elsewhere by a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stop(place: EmbeddedPlace) -> None:
    # A fast stop that reaches PostgreSQL 18 while it recovers from a crash never ends. At once is as safe there: what
    # recovery has not finished, the next start does again.
    if _answers(place):
        with contextlib.suppress(EmbeddedFailed):
            _stop_by(place, "fast", STOP_SECONDS)
            return
    _stop_by(place, "immediate", IMMEDIATE_SECONDS)


def _stop_by(place: EmbeddedPlace, mode: Literal["fast", "immediate"], seconds: int) -> None:
    options = ("-D", str(place.data), "-m", mode, "-t", str(seconds))
    try:
        _run(place, "pg_ctl", "stop", *options, seconds=seconds + PROBE_SECONDS)
    except EmbeddedFailed:
        # It may have ended just before, by somebody else's hand.
        if _postmaster(place.data):
            raise


def _ensure_running(place: EmbeddedPlace) -> None:
    began = time.monotonic()
    deadline = began + START_SECONDS
    # It may be starting or stopping on behalf of a process that was killed: that ends by itself.
    while pid := _postmaster(place.data):
        if _answers(place):
            return
        if time.monotonic() > began + STOP_SECONDS and _is_stopping(place.data):
            # Within a recovery it would never end (see _stop).
            _stop_by(place, "immediate", IMMEDIATE_SECONDS)
            continue
        if time.monotonic() > deadline:
            raise EmbeddedFailed(
                f"PostgreSQL runs as process {pid} but has not answered in {place.sockets} for "
                f"{START_SECONDS} seconds. Stop it with `kill -INT {pid}` and start again.\n{_log_end(place)}"
            )
        time.sleep(LOOK_SECONDS)
    _disown(place)
    _write_settings(place)
    _start(place, deadline=min(deadline, time.monotonic() + ORPHANS_SECONDS))


def _start(place: EmbeddedPlace, *, deadline: float) -> None:
    log = _log(place)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    options = ("-D", str(place.data), "-l", str(log), "-w", "-t", str(START_SECONDS))
    while True:
        before = log.stat().st_size if log.exists() else 0
        try:
            _run(place, "pg_ctl", "start", *options, seconds=START_SECONDS + PROBE_SECONDS)
            return
        except EmbeddedFailed as error:
            # Processes of a killed server may still be on their way out: PostgreSQL rightly waits for them.
            said = log.read_bytes()[before:] if log.exists() else b""
            if b"shared memory block" in said and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
                continue
            raise EmbeddedFailed(f"{error}\n{_log_end(place)}") from error


def _postmaster(data: Path) -> int | None:
    """The pid of this directory's server; None when none runs, whatever postmaster.pid says."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None
    process = Path(f"/proc/{pid}")
    try:
        if not Path("/proc/self").exists():
            os.kill(pid, 0)
            return pid
        name = (process / "comm").read_text().strip()
        arguments = (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After a crash or a reboot the pid may belong to anything, also to another home's server or to a zombie.
    return pid if name == "postgres" and (os.fsencode(data) in arguments or _works_in(process, data)) else None


def _is_stopping(data: Path) -> bool:
    try:
        return (data / "postmaster.pid").read_text().split("\n")[STATUS_LINE].strip() == "stopping"
    except (FileNotFoundError, IndexError):
        return False


def _works_in(process: Path, data: Path) -> bool:
    # Unreadable for root in a container without ptrace rights, hence only the second question.
    try:
        return (process / "cwd").samefile(data)
    except OSError:
        return False


def _disown(place: EmbeddedPlace) -> None:
    """Make PostgreSQL take postmaster.pid for stale even when a foreign process now has its pid.

    The file stays: by its shared memory line PostgreSQL sees processes of a killed server that still write.
    """
    # The socket's own lock names the pid as well, and guards nothing more than the socket.
    (place.sockets / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)
    held = place.data / "postmaster.pid"
    if not held.exists():
        return
    with os.fdopen(_unlinked(held, os.O_RDONLY)) as file:
        _, separator, rest = file.read().partition("\n")
    if not separator:
        # Torn by a power cut: no process of before is alive, and PostgreSQL refuses an empty file.
        held.unlink()
        return
    descriptor, renewed = tempfile.mkstemp(prefix="postmaster.pid-", dir=place.data)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{NOBODYS_PID}\n{rest}")
    give(Path(renewed), place.account)
    Path(renewed).replace(held)


def _answers(place: EmbeddedPlace) -> bool:
    command = [str(place.programs / "pg_isready"), "-q", "-h", str(place.sockets), "-p", "5432"]
    return subprocess.run(command, env=ENVIRONMENT, timeout=PROBE_SECONDS, check=False).returncode == 0


def _run(place: EmbeddedPlace, program: str, *arguments: str, seconds: float, statements: str | None = None) -> None:
    """Run one of PostgreSQL's programs as the server's user, out of reach of the terminal's Ctrl-C."""
    done = subprocess.run(
        [str(place.programs / program), *arguments],
        cwd="/",
        env=ENVIRONMENT,
        input=statements or "",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
        start_new_session=True,
        **run_as(place.account),
    )
    # In single-user mode a failed statement does not end the program, let alone with an error.
    if done.returncode != 0 or (statements and "ERROR:" in done.stdout):
        raise EmbeddedFailed(
            f"{program} failed for the embedded PostgreSQL in {place.data}. "
            f"Correct what it says below and start again.\n{done.stdout.strip()}"
        )


def _log(place: EmbeddedPlace) -> Path:
    return place.data / "server.log"


def _log_end(place: EmbeddedPlace) -> str:
    log = _log(place)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"The end of {log}:", *lines[-LOG_LINES_SHOWN:]])
