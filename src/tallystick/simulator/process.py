"""A simulator as a child process: for `tally up`, tests and benches."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0


class NotStarted(RuntimeError):
    """The child ended, or said nothing in time."""


class RunningSimulator:
    """A child that listens at `url`."""

    def __init__(self, child: "subprocess.Popen[bytes]", url: str, books: Path) -> None:
        self._child = child
        self.url = url
        self.books = books

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait(self) -> int:
        """Until it ends, by itself or by somebody else. Returns the exit status."""
        return self._child.wait()

    def stop(self) -> int:
        """SIGTERM, and wait. Returns the exit status."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._child.returncode
        finally:
            self._close()

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is said."""
        self._child.kill()
        self._child.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()


def start(
    books: Path,
    *,
    port: int = 0,
    faults: str = "",
    seed: int = 0,
    webhooks: Sequence[str] = (),
    log: Path | None = None,
) -> RunningSimulator:
    """Start it and wait until it listens. Raises NotStarted. `log` takes what it says of itself."""
    arguments = ["--books", str(books), "--port", str(port), "--seed", str(seed), "--faults", faults]
    for endpoint in webhooks:
        arguments += ["--webhooks", endpoint]
    with open(os.devnull, "wb") if log is None else log.open("ab") as errors:  # noqa: PTH123  a device
        child = subprocess.Popen(
            [sys.executable, "-m", "tallystick.simulator", "--until-stdin-closes", *arguments],
            # Open as long as we live: however we end, the child notices.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A Ctrl-C in the terminal is for us: we finish what is under way before we stop it.
            start_new_session=True,
        )
    url = _announced(child)
    if url is None:
        child.kill()
        child.wait()
        raise NotStarted("the simulator did not start" + ("" if log is None else f"; see {log}"))
    return RunningSimulator(child, url, books)


def _announced(child: "subprocess.Popen[bytes]") -> str | None:
    if child.stdout is None:
        return None
    ready, _, _ = select.select([child.stdout], [], [], _START_SECONDS)
    line = child.stdout.readline() if ready else b""
    return str(json.loads(line)["url"]) if line else None
