"""A simulator whose clock has not run ahead, an empty database, and a process that settles."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tallystick.database.migrate import migrate
from tallystick.simulator.process import RunningSimulator, start
from tests import servers
from tests.providers.worlds import Control
from tests.settlements import Shop, empty, shop


class Simulators:
    """One after the other: a simulated clock never goes back, and lists are asked for by our own time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: RunningSimulator | None = None
        self._started = 0

    def fresh(self) -> Control:
        """Empty books, on time."""
        if self._running is not None:
            control = Control(self._running.url)
            if control.call("GET", "clock")["offset_seconds"] == 0:
                control.call("POST", "reset")
                return control
            self._running.stop()
        self._started += 1
        self._running = start(self._folder / f"books-{self._started}.sqlite", log=self._folder / "log")
        return Control(self._running.url)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()


@pytest.fixture(scope="session")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    made = Simulators(tmp_path_factory.mktemp("simulators"))
    yield made
    made.stop()


@pytest.fixture
def control(simulators: Simulators) -> Control:
    return simulators.fresh()


@pytest.fixture(scope="session")
def settlement_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(settlement_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(settlement_dsn)
    await empty(settlement_dsn)
    return settlement_dsn


@pytest.fixture
async def one(dsn: str, control: Control) -> AsyncIterator[Shop]:
    async with shop(dsn, control) as made:
        yield made
