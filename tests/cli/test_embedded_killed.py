"""The embedded server, killed under the processes that use it, comes back by itself."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx2
import pytest

from tallystick.database.embedded.keeper import LONGEST_PAUSE_SECONDS, pause_seconds
from tests.cli.commands import TALLY

PATIENCE_SECONDS = 90


class Process:
    """A command of ours, and what it says."""

    def __init__(self, home: Path, *arguments: str, **settings: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        self._running = subprocess.Popen(
            [*TALLY, *arguments],
            env={**environment, "TALLY_HOME": str(home), "TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0", **settings},
            stderr=subprocess.PIPE,
        )
        assert self._running.stderr is not None
        self._pipe: IO[bytes] = self._running.stderr
        os.set_blocking(self._pipe.fileno(), False)
        self.said = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        until = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while time.monotonic() < until:
                if found := re.search(pattern, self.said):
                    return found
                if selector.select(1):
                    self.said += (self._pipe.read() or b"").decode()
                if self._running.poll() is not None and not selector.select(0):
                    break
        pytest.fail(f"{pattern!r} was not said:\n{self.said}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self._running.send_signal(number)
        self._running.communicate(timeout=PATIENCE_SECONDS)
        return self._running.returncode


@contextlib.contextmanager
def started(home: Path, *arguments: str, **settings: str) -> Iterator[Process]:
    process = Process(home, *arguments, **settings)
    try:
        yield process
    finally:
        if process._running.poll() is None:
            process.end(signal.SIGKILL)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(postmaster(tmp_path / "home"), signal.SIGQUIT)


def postmaster(home: Path) -> int:
    """Of this home's server: raises FileNotFoundError when it was stopped."""
    return int((home / "embedded" / "data" / "postmaster.pid").read_text().split()[0])


def wait_for_another(home: Path, before: int) -> int:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError, ValueError):
            found = postmaster(home)
            if found != before and Path(f"/proc/{found}").exists():
                return found
        time.sleep(0.05)
    pytest.fail("no other server was started")


def wait_until_ready(address: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{address}/readyz", timeout=10).status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail("it was never ready again")


def test_a_server_killed_under_tally_up_is_started_again_and_everything_goes_on(home: Path) -> None:
    with started(home, "up") as up:
        address = up.wait_for(r"API +(http://\S+)/v1")[1]
        key = (home / "api_key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}

        def put(name: str) -> int:
            return httpx2.put(
                f"{address}/v1/accounts/{name}", json={"currency": "USD"}, headers=headers, timeout=60
            ).status_code

        assert put("before") == 201
        before = postmaster(home)
        os.kill(before, signal.SIGKILL)
        wait_for_another(home, before)
        up.wait_for("embedded_server_started")
        wait_until_ready(address)
        assert put("after") == 201
        assert httpx2.get(f"{address}/v1/accounts/before", headers=headers, timeout=60).status_code == 200
        # Stopped by us, it stays stopped.
        assert up.end() == 0
    with pytest.raises(FileNotFoundError):
        postmaster(home)


def test_who_joined_the_server_starts_it_again_when_its_starter_is_gone(home: Path) -> None:
    with started(home, "up") as up:
        up.wait_for(r"API +http")
        with started(home, "work") as work, started(home, "serve") as serve:
            work.wait_for("Ctrl-C finishes")
            address = serve.wait_for(r"API +(http://\S+)/v1")[1]
            before = postmaster(home)
            up.end(signal.SIGKILL)
            os.kill(before, signal.SIGKILL)
            after = wait_for_another(home, before)
            wait_until_ready(address)
            assert postmaster(home) == after
            assert serve.end() == 0
            # The other still uses it.
            assert postmaster(home) == after
            assert work.end() == 0
    with pytest.raises(FileNotFoundError):
        postmaster(home)


def test_a_server_that_does_not_last_is_started_ever_less_often() -> None:
    pauses = [pause_seconds(starts) for starts in range(1, 100)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 1.0
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
