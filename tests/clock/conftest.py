"""A database whose clock goes where a test says, and a provider whose clock is right all the time."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tallystick.simulator.process import start
from tests.clocks import Movable, Time, movable
from tests.providers.worlds import Control


@pytest.fixture(scope="module")
def server() -> Iterator[Movable]:
    with movable("clock") as running:
        yield running


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


@pytest.fixture
def time(server: Movable, control: Control) -> Iterator[Time]:
    made = Time(server, control)
    made.is_wrong_by(timedelta())
    yield made
    server.set_clock(timedelta())
