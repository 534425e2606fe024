"""Simulators for the tests: started, or lent by the run of tests that started this one.

Starting one takes a second, more than most tests that use it. Whoever borrows one empties its books before each test;
its time never comes back, so one whose time was taken ahead is not lent again.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.simulator.process import RunningSimulator, start
from tests.providers.worlds import Control

LENT = "TALLY_TEST_SIMULATOR"


def started(folder: Path) -> RunningSimulator:
    """One with empty books in that folder, or the one that is lent."""
    lent = os.environ.get(LENT)
    return Borrowed(lent) if lent is not None else start(folder / "books.sqlite", log=folder / "log")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    """One for a module alone: its time goes ahead there, or must not be ahead by what others did."""
    running = started(tmp_path_factory.mktemp("simulator"))
    yield running
    running.stop()


class Borrowed(RunningSimulator):
    """One that another run of tests started and will end."""

    def __init__(self, url: str) -> None:
        self.url = url

    def stop(self) -> int:
        return 0


class Lender:
    """Lends the same one as long as it is as good as a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._running: RunningSimulator | None = None

    @property
    def lent(self) -> dict[str, str]:
        """For the environment of a run that may use it."""
        if self._running is not None and Control(self._running.url).call("GET", "clock")["offset_seconds"]:
            self.end()
        if self._running is None:
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            self._running = started(folder)
        return {LENT: self._running.url}

    def end(self) -> None:
        if self._running is not None:
            self._running.stop()
        self._running = None
