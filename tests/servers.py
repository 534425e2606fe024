"""Real database servers for the tests: private data directories, durable settings, stopped by pid.

Each server offers the same: start(), stop(immediate=...), fresh_database() -> DSN, and keeps its address over
a restart, so that a crash test can pull it down under the engine and bring it back.
"""

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Protocol

from tallystick.store.embedded import BOOTSTRAP
from tallystick.store.embedded_place import ENVIRONMENT, Account, choose, run_as

# Seconds for a server to start, recover or stop: two on an idle machine, many more beside a busy suite.
PATIENCE_SECONDS = 90
OLDEST_POSTGRES = 15
# The folder of an embedded server that a run of tests lends to those it starts: making one takes longer than a test.
LENT = "TALLY_TEST_EMBEDDED18"
MARIADB_FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")


class Server(Protocol):
    name: str

    def start(self) -> None:
        """Start it, or recover it after an immediate stop, at the address it had before."""

    def stop(self, *, immediate: bool = False) -> None:
        """Stop it. Immediate is a crash: no checkpoint, connections cut. Does nothing when it is down."""

    def fresh_database(self) -> str:
        """The DSN of a new, empty database."""

    def remove(self) -> None:
        """Stop it and delete its data."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why an engine cannot be tested here."""

    name: str
    reason: str


def embedded18() -> "Postgres":
    lent = os.environ.get(LENT)
    if lent is not None:
        place = choose(Path(lent))
        return Borrowed("PostgreSQL 18 (embedded)", Path(lent), place.programs, place.account)
    folder = _folder("embedded18")
    (folder / "embedded").mkdir()
    place = choose(folder)
    return Postgres("PostgreSQL 18 (embedded)", folder, place.programs, place.account)


def postgres15() -> Server | Missing:
    programs = _postgres_programs()
    if isinstance(programs, Missing):
        return programs
    name = f"PostgreSQL {programs.parent.name}"
    return Postgres(name, _folder("postgres15"), programs, _system_account("postgres"))


def mariadb() -> Server | Missing:
    path = _mariadb_path()
    if isinstance(path, Missing):
        return path
    return MariaDB(_folder("mariadb"), path, _system_account("mysql"))


def missing() -> list[Missing]:
    """The engines that cannot be tested on this machine."""
    return [probe for probe in (_postgres_programs(), _mariadb_path()) if isinstance(probe, Missing)]


def _postgres_programs() -> Path | Missing:
    found = {int(path.parent.name): path for path in Path("/usr/lib/postgresql").glob("[0-9]*/bin")}
    # The oldest version the engine promises to work with is the one that can break it.
    versions = sorted(version for version in found if version >= OLDEST_POSTGRES)
    if not versions:
        return Missing("PostgreSQL 15", "not in /usr/lib/postgresql; install Debian's postgresql-15")
    return found[versions[0]]


def _mariadb_path() -> str | Missing:
    path = os.pathsep.join(MARIADB_FOLDERS)
    if shutil.which("mariadbd", path=path) is None or shutil.which("mariadb-install-db", path=path) is None:
        return Missing("MariaDB", "no mariadbd; install Debian's mariadb-server")
    return path


class Postgres:
    def __init__(self, name: str, folder: Path, programs: Path, account: Account | None) -> None:
        self.name = name
        self.folder = folder
        self._programs = programs
        self._account = account
        self._data = folder / "data"
        self._sockets = folder / "sockets"
        self._numbers = itertools.count(1)
        self._made = False

    def start(self) -> None:
        if not self._made:
            self._make()
        log = self._data / "server.log"
        self._run("pg_ctl", "start", "-D", str(self._data), "-l", str(log), "-w", "-t", str(PATIENCE_SECONDS))

    def stop(self, *, immediate: bool = False) -> None:
        if not (self._data / "postmaster.pid").exists():
            return
        mode = "immediate" if immediate else "fast"
        self._run("pg_ctl", "stop", "-D", str(self._data), "-m", mode, "-t", str(PATIENCE_SECONDS))

    def fresh_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self._run("psql", "-XqAt", "-c", f"CREATE DATABASE {name}", self.dsn("tally"))
        return self.dsn(name)

    def dsn(self, database: str, *, user: str = "tally") -> str:
        return f"postgresql://{user}@/{database}?host={self._sockets}&port=5432"

    def remove(self) -> None:
        # Without a last checkpoint: what it would write is deleted.
        self.stop(immediate=True)
        shutil.rmtree(self.folder)

    def _make(self) -> None:
        for folder in (self._data, self._sockets):
            _private(folder, self._account)
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "--encoding=UTF8", "--locale=C", "-A", "trust")
        # The settings that ship, so that the tests run what users run.
        template = (resources.files("tallystick.store") / "embedded.conf").read_text(encoding="utf-8")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(template.replace("@SOCKETS@", str(self._sockets)))
            # Hundreds of databases: syncing them file by file takes half a minute after each crash.
            settings.write("\nrecovery_init_sync_method = syncfs\n")
        self._run("postgres", "--single", "-j", "-D", str(self._data), "postgres", statements=BOOTSTRAP)
        self._made = True

    def _run(self, program: str, *arguments: str, statements: str = "") -> None:
        _run([str(self._programs / program), *arguments], self._account, statements=statements)


class Borrowed(Postgres):
    """One that another process made and will delete. Whoever stops it starts it again."""

    def start(self) -> None:
        if not (self._data / "postmaster.pid").exists():
            super().start()

    def fresh_database(self) -> str:
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._run("psql", "-XqAt", "-c", f"CREATE DATABASE {name}", self.dsn("tally"))
        return self.dsn(name)

    def remove(self) -> None:
        self.start()

    def _make(self) -> None:
        """It is made."""


class MariaDB:
    name = "MariaDB"

    def __init__(self, folder: Path, path: str, account: Account | None) -> None:
        self._folder = folder
        self._path = path
        self._account = account
        self._data = folder / "data"
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._made = False

    def start(self) -> None:
        if not self._made:
            self._make()
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._program("mariadbd"),
                    *self._where(),
                    f"--port={self._port}",
                    "--bind-address=127.0.0.1",
                    "--skip-name-resolve",
                    "--innodb-flush-log-at-trx-commit=1",
                ],
                cwd="/",
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **run_as(self._account),
            )
        self._wait_until_it_answers()

    def stop(self, *, immediate: bool = False) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL if immediate else signal.SIGTERM)
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def fresh_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self._ask(f"CREATE DATABASE {name}")
        return self.dsn(name)

    def dsn(self, database: str = "") -> str:
        return f"mysql://root@127.0.0.1:{self._port}/{database}"

    def remove(self) -> None:
        # Without a last checkpoint: what it would write is deleted.
        self.stop(immediate=True)
        shutil.rmtree(self._folder)

    def _make(self) -> None:
        _private(self._data, self._account)
        _private(self._folder / "run", self._account)
        install = (self._program("mariadb-install-db"), "--no-defaults", f"--datadir={self._data}")
        _run(
            [*install, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            self._account,
        )
        self._made = True

    def _where(self) -> list[str]:
        socket_path = self._folder / "run" / "mariadb.sock"
        pid_path = self._folder / "run" / "mariadb.pid"
        return [
            "--no-defaults",
            f"--datadir={self._data}",
            f"--socket={socket_path}",
            f"--pid-file={pid_path}",
        ]

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._ask("SELECT 1")
                return
            except RuntimeError as error:
                ended = self._process is None or self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    log = (self._folder / "server.log").read_text(errors="replace")
                    raise RuntimeError(f"mariadbd did not start: {error}\n{log[-2000:]}") from error
                time.sleep(0.05)

    def _ask(self, statement: str) -> None:
        address = ("--host=127.0.0.1", f"--port={self._port}", "--protocol=tcp", "--user=root")
        _run([self._program("mariadb"), "--no-defaults", *address, "-e", statement], None)

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self._path)
        if found is None:
            raise RuntimeError(f"{name} is missing beside mariadbd")
        return found


def _folder(purpose: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"tally-test-{purpose}-", dir="/tmp"))
    if os.geteuid() == 0:
        # The server runs as another user, who must pass; its own folders inside are closed.
        folder.chmod(0o755)
    return folder


def _private(folder: Path, account: Account | None) -> None:
    folder.mkdir(mode=0o700)
    if account is not None:
        os.chown(folder, account.uid, account.gid)


def _system_account(name: str) -> Account | None:
    """Whom to run a server as: root may not, everybody else is himself."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(name)
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _run(command: list[str], account: Account | None, *, statements: str = "") -> None:
    done = subprocess.run(
        command,
        cwd="/",
        env=ENVIRONMENT,
        input=statements,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
        start_new_session=True,
        **run_as(account),
    )
    if done.returncode != 0 or (statements and "ERROR:" in done.stdout):
        raise RuntimeError(f"{command[0]} failed: {done.stdout.strip()}")
