"""A process that may have few files: more callers than that, and everything is served and said."""

import contextlib
import os
import re
import resource
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx2
import pytest

from tests import servers
from tests.deliveries import SECRET, body, headers
from tests.servers import cannot_be_tested

PATIENCE_SECONDS = 60
SILENT = 1_100
SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from tallystick.cli import main
sys.argv = ["tally", "serve"]
main()
"""


class Said:
    """What a process says on stderr, as it says it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self.text = ""
        os.set_blocking(pipe.fileno(), False)

    def wait_for(self, pattern: str) -> re.Match[str]:
        until = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while time.monotonic() < until:
                if found := re.search(pattern, self.text):
                    return found
                if selector.select(1):
                    self.text += (self._pipe.read() or b"").decode()
        pytest.fail(f"{pattern!r} was not said:\n{self.text}")


@contextlib.contextmanager
def serving(dsn: str, home: Path, *, soft: int, hard: int) -> Iterator[tuple[str, Said]]:
    """`tally serve` under these limits on files: where it listens, and what it says."""
    # What signs the simulator's webhooks is a file of the home's.
    (home / "simulator").mkdir()
    (home / "simulator" / "webhook_secret").write_text(SECRET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(soft), str(hard)],
        env={**environment, "TALLY_DATABASE_URL": dsn, "TALLY_PORT": "0", "TALLY_HOME": str(home)},
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        said = Said(process.stderr)
        yield said.wait_for(r"API +(http://\S+)/v1")[1], said
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def silent(address: str, count: int) -> Iterator[None]:
    host, _, port = address.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            # From elsewhere than the honest caller below; and where nobody takes it, it is given up soon.
            with contextlib.suppress(TimeoutError, ConnectionError):
                stack.enter_context(socket.create_connection((host, int(port)), 1, source_address=("127.0.0.2", 0)))
        yield


@pytest.fixture(autouse=True)
def own_files() -> Iterator[None]:
    """The other ends of all those connections are this process's files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * SILENT:
        cannot_be_tested(f"this process may have {hard} files, and needs {2 * SILENT}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * SILENT), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def deliver(address: str, number: int) -> int:
    raw = body(number)
    return httpx2.post(f"{address}/webhooks/simulator", content=raw, headers=headers(raw), timeout=10).status_code


def test_more_silent_callers_than_files_stop_nobody_and_it_is_said(embedded18: servers.Server, tmp_path: Path) -> None:
    with serving(embedded18.fresh_database(), tmp_path, soft=256, hard=256) as (address, said), silent(address, SILENT):
        assert [deliver(address, number) for number in range(5)] == [200] * 5
        # It opens connections to the database.
        assert httpx2.get(f"{address}/readyz", timeout=10).status_code == 200
        told = said.wait_for(r"connections_closed.*")[0]
        assert "most=128" in told
        assert "crowded=" in told
        shown = httpx2.get(f"{address}/metrics", timeout=10).text
        assert float(re.findall(r'tally_connections_closed_total\{reason="crowded"\} (\S+)', shown)[0]) > 0
        assert "tally_connections_most 128.0" in shown


def test_a_process_takes_the_files_it_may_have(embedded18: servers.Server, tmp_path: Path) -> None:
    """Services are started with 1,024, and may have more for the asking."""
    with (
        serving(embedded18.fresh_database(), tmp_path, soft=256, hard=4096) as (address, said),
        silent(address, SILENT),
    ):
        assert deliver(address, 1) == 200
        shown = httpx2.get(f"{address}/metrics", timeout=10).text
        assert "tally_connections_most 3584.0" in shown
        assert 'tally_connections_closed_total{reason="crowded"} 0.0' in shown
        assert float(re.findall(r"(?m)^tally_connections (\S+)", shown)[0]) > 256
        assert "connections_closed" not in said.text
