"""Real database servers for the tests: private data directories, the settings that ship, stopped by pid.

Each server offers the same: start(), stop(immediate=...), fresh_database() -> DSN, and keeps its address over
a restart, so that a crash test can pull it down under the engine and bring it back.

Making a database is what most tests wait for. So a PostgreSQL applies the migrations once, to a template that every
fresh database is a copy of; the servers that a whole run shares lie in memory, where there is enough of it; and what
a test made is dropped when the next one asks.
"""

import asyncio
import fcntl
import hashlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

from tallystick.database import migrate as migrating
from tallystick.database.embedded.place import ENVIRONMENT, Account, choose, run_as
from tallystick.database.embedded.server import BOOTSTRAP

# Seconds for a server to start, recover or stop: two on an idle machine, many more beside a busy suite.
PATIENCE_SECONDS = 90
OLDEST_POSTGRES = 15
# The folder of an embedded server that a run of tests lends to those it starts: making one takes longer than a test.
LENT = "TALLY_TEST_EMBEDDED18"
# The port of a MariaDB that is lent in the same way.
LENT_MARIADB = "TALLY_TEST_MARIADB"
DISK = Path("/tmp")  # noqa: S108 - what is made there has a name of its own
MEMORY = Path("/dev/shm")  # noqa: S108 - like DISK
# Several servers of some hundred megabytes each, for every process that shares the tests.
ENOUGH_MEMORY_BYTES = 8 << 30
# A copy of the template says that it is one, as a restored backup would: this one is no copy of anybody's money.
AT_HOME = """\
UPDATE tally.whereabouts SET (system, timeline, database, started_at, intents) =
    (SELECT system, timeline, database, started_at, intents FROM tally.whereabouts_now());
"""
MARIADB_FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")


class Server(Protocol):
    name: str

    def start(self) -> None:
        """Start it, or recover it after an immediate stop, at the address it had before."""

    def stop(self, *, immediate: bool = False) -> None:
        """Stop it. Immediate is a crash: no checkpoint, connections cut. Does nothing when it is down."""

    def fresh_database(self) -> str:
        """The DSN of a new database. It has this code's schema already; migrating it applies nothing."""

    def empty_database(self) -> str:
        """The DSN of one without a schema: for tests of how it gets there."""

    def remove(self) -> None:
        """Stop it and delete its data."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why an engine cannot be tested here."""

    name: str
    reason: str


def cannot_be_tested(reason: str) -> NoReturn:
    """End a test for want of what it needs. Where everything is required that is a failure, and else a skip."""
    if os.environ.get("TALLY_TEST_REQUIRE") == "all":
        pytest.fail(reason)
    pytest.skip(reason)


def embedded18(*, is_shared: bool = False) -> "Postgres":
    """`is_shared`: for a whole run, so it may lie in memory. One that a test pulls down is its own, and on the disk."""
    lent = os.environ.get(LENT)
    if lent is not None:
        place = choose(Path(lent))
        return Borrowed("PostgreSQL 18 (embedded)", Path(lent), place.programs, place.account)
    folder = _folder("embedded18", is_shared=is_shared)
    (folder / "embedded").mkdir()
    place = choose(folder)
    return Postgres("PostgreSQL 18 (embedded)", folder, place.programs, place.account)


def postgres15() -> "Postgres | Missing":
    programs = _postgres_programs()
    if isinstance(programs, Missing):
        return programs
    name = f"PostgreSQL {programs.parent.name}"
    return Postgres(name, _folder("postgres15", is_shared=True), programs, _system_account("postgres"))


def mariadb() -> "MariaDB | Missing":
    path = _mariadb_path()
    if isinstance(path, Missing):
        return path
    lent = os.environ.get(LENT_MARIADB)
    if lent is not None:
        return BorrowedMariaDB(int(lent), path)
    return MariaDB(_folder("mariadb"), path, _system_account("mysql"))


def pgbouncer(server: "Postgres", **settings: str) -> "PgBouncer | Missing":
    program = _pgbouncer_program()
    return program if isinstance(program, Missing) else PgBouncer(server, program, **settings)


def missing() -> list[Missing]:
    """The engines that cannot be tested on this machine."""
    probes = (_postgres_programs(), _mariadb_path(), _pgbouncer_program())
    return [probe for probe in probes if isinstance(probe, Missing)]


def _pgbouncer_program() -> str | Missing:
    found = shutil.which("pgbouncer", path=os.pathsep.join(MARIADB_FOLDERS))
    return found or Missing("PgBouncer", "no pgbouncer; install Debian's pgbouncer")


def _postgres_programs() -> Path | Missing:
    # The oldest version the engine promises to work with is the one that can break it: no newer one in its place.
    programs = Path(f"/usr/lib/postgresql/{OLDEST_POSTGRES}/bin")
    if not (programs / "postgres").exists():
        return Missing(f"PostgreSQL {OLDEST_POSTGRES}", f"not in {programs}; install Debian's postgresql-15")
    return programs


def _mariadb_path() -> str | Missing:
    path = os.pathsep.join(MARIADB_FOLDERS)
    if shutil.which("mariadbd", path=path) is None or shutil.which("mariadb-install-db", path=path) is None:
        return Missing("MariaDB", "no mariadbd; install Debian's mariadb-server")
    return path


class Postgres:
    # Beyond what ships: for a test that needs a server of its own to be different.
    settings = ""
    environment: Mapping[str, str] = {}

    def __init__(self, name: str, folder: Path, programs: Path, account: Account | None) -> None:
        self.name = name
        self.folder = folder
        self._programs = programs
        self._account = account
        self._data = folder / "data"
        self._sockets = folder / "sockets"
        self._numbers = itertools.count(1)
        self._has_data = False
        # Copying files is quickest where nothing is synced; on a disk it costs two checkpoints.
        self._strategy = "FILE_COPY" if MEMORY in folder.parents else "WAL_LOG"
        # Databases that some test uses, and those that are dropped when the next one is made.
        self.made: list[str] = []
        self._over: list[str] = []

    def start(self) -> None:
        if not self._has_data:
            self._make()
        log = self._data / "server.log"
        begin = ("pg_ctl", "start", "-D", str(self._data), "-l", str(log), "-w", "-t", str(PATIENCE_SECONDS))
        self._run(*begin, environment=self.environment)

    def stop(self, *, immediate: bool = False) -> None:
        if not (self._data / "postmaster.pid").exists():
            return
        mode = "immediate" if immediate else "fast"
        self._run("pg_ctl", "stop", "-D", str(self._data), "-m", mode, "-t", str(PATIENCE_SECONDS))

    def fresh_database(self, *, is_kept: bool = False) -> str:
        """Like every server's. `is_kept`: for the whole run, whoever asked for it first."""
        template, name = self._template(), self._next_name()
        copied = f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY {self._strategy};\n\\connect {name}\n{AT_HOME}"
        self._drop()
        self._ask(copied)
        if not is_kept:
            self.made.append(name)
        return self.dsn(name)

    def empty_database(self) -> str:
        name = self._next_name()
        self._drop()
        self._ask(f"CREATE DATABASE {name};")
        self.made.append(name)
        return self.dsn(name)

    def forget(self, names: list[str]) -> None:
        """Nobody uses these databases any more."""
        self.made = [name for name in self.made if name not in names]
        self._over += names

    @property
    def sockets(self) -> Path:
        return self._sockets

    @property
    def account(self) -> Account | None:
        return self._account

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
        template = (resources.files("tallystick.database.embedded") / "embedded.conf").read_text(encoding="utf-8")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(template.replace("@SOCKETS@", str(self._sockets)))
            # Hundreds of databases: syncing them file by file takes half a minute after each crash.
            settings.write(f"\nrecovery_init_sync_method = syncfs\n{self.settings}")
        self._run("postgres", "--single", "-j", "-D", str(self._data), "postgres", statements=BOOTSTRAP)
        self._has_data = True

    def _next_name(self) -> str:
        return f"test_{os.getpid()}_{next(self._numbers)}"

    def _drop(self) -> None:
        """Drop what is over. With force, and as the superuser: whose connection a test left open holds nothing up."""
        over, self._over = self._over, []
        if over:
            self._ask("".join(f"DROP DATABASE IF EXISTS {name} WITH (FORCE);\n" for name in over), user="postgres")

    def _template(self) -> str:
        """A database that has this process's migrations; planted bugs change some. Made once, whoever asks first."""
        wanted = hashlib.sha256("".join(one.digest for one in migrating.migrations()).encode()).hexdigest()
        name = f"template_{wanted[:16]}"
        is_made = self.folder / name
        with self._locked():
            if not is_made.exists():
                self._ask(f"DROP DATABASE IF EXISTS {name};\nCREATE DATABASE {name};")
                # In a thread: the caller may be running on a loop of its own.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(lambda: asyncio.run(migrating.migrate(self.dsn(name)))).result()
                is_made.touch()
        return name

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _ask(self, statements: str, *, user: str = "tally") -> None:
        address = self.dsn("tally", user=user)
        self._run("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", "-", address, statements=statements)

    def _run(
        self, program: str, *arguments: str, statements: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        command = [str(self._programs / program), *arguments]
        _run(command, self._account, statements=statements, environment=environment)


class PgBouncer:
    """Debian's, in transaction mode, before one PostgreSQL. Every transaction gets another server connection."""

    def __init__(self, server: Postgres, program: str, **settings: str) -> None:
        self._program = program
        # The server's own: nobody else may use its socket.
        self._account = server.account
        self._folder = _folder("pgbouncer")
        self._port = _free_port()
        self._server = server
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        users, settings = self._folder / "users.txt", self._folder / "pgbouncer.ini"
        users.write_text('"tally" ""\n"postgres" ""\n', encoding="ascii")
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "pool_mode": "transaction",
            "default_pool_size": "6",
            "max_client_conn": "500",
            # The one that was idle the longest: nobody meets what he left in a session.
            "server_round_robin": "1",
            **self._settings,
        }
        text = "".join(f"{name} = {value}\n" for name, value in lines.items())
        settings.write_text(f"[databases]\n* = host={self._server.sockets} port=5432\n[pgbouncer]\n{text}")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(settings)],
                cwd="/",
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **run_as(self._account),
            )
        self._wait_until_it_answers(self._process)

    def address(self, dsn: str) -> str:
        """The way to that database through the pooler."""
        database = dsn.split("@/", 1)[1].split("?", 1)[0]
        return f"postgresql://tally@127.0.0.1:{self._port}/{database}"

    def remove(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
        shutil.rmtree(self._folder)

    def _wait_until_it_answers(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"pgbouncer did not start: {(self._folder / 'log').read_text()}") from error
                time.sleep(0.05)


class Borrowed(Postgres):
    """One that another process made and will delete. Whoever stops it starts it again."""

    def start(self) -> None:
        if not (self._data / "postmaster.pid").exists():
            super().start()

    def remove(self) -> None:
        self.start()
        self.forget(self.made)
        self._drop()

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
        dsn = self.empty_database()
        # Not imported above: the driver is an extra.
        from tallystick.ledger.mysql import migrate as mysql  # noqa: PLC0415

        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(mysql.migrate(dsn))).result()
        return dsn

    def empty_database(self) -> str:
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._ask(f"CREATE DATABASE {name}")
        return self.dsn(name)

    @property
    def lent(self) -> dict[str, str]:
        """For the environment of a run that may use it."""
        return {LENT_MARIADB: str(self._port)}

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


class BorrowedMariaDB(MariaDB):
    """One that another process made and will delete. Nobody who borrows it stops it."""

    def __init__(self, port: int, path: str) -> None:
        self._path = path
        self._port = port
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """It runs."""

    def stop(self, *, immediate: bool = False) -> None:  # noqa: ARG002 - every server's
        raise RuntimeError("a borrowed server is not to be stopped")

    def remove(self) -> None:
        """Whoever made it does."""


def _folder(purpose: str, *, is_shared: bool = False) -> Path:
    where = MEMORY if is_shared and _memory_bytes() >= ENOUGH_MEMORY_BYTES else DISK
    folder = Path(tempfile.mkdtemp(prefix=f"tally-test-{purpose}-", dir=where))
    if os.geteuid() == 0:
        # The server runs as another user, who must pass; its own folders inside are closed.
        folder.chmod(0o755)
    return folder


def _memory_bytes() -> int:
    """How much a folder in memory can take: what its mount leaves, and what the machine has."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return 0
    available = next(
        int(line.split()[1]) << 10
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if line.startswith("MemAvailable:")
    )
    return min(shutil.disk_usage(MEMORY).free, available)


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


def _run(
    command: list[str],
    account: Account | None,
    *,
    statements: str = "",
    environment: Mapping[str, str] | None = None,
) -> None:
    done = subprocess.run(
        command,
        cwd="/",
        # In place only once the account is changed: a library that is loaded first would run as root.
        env={**ENVIRONMENT, **(environment or {})},
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
