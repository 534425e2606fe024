"""One simulator process per test module, its books emptied before each test."""

from collections.abc import Iterator

import pytest

from tallystick.simulator.process import RunningSimulator, start
from tests.simulator.station import SECRET, Receiver, Station


@pytest.fixture(scope="module")
def simulator_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    folder = tmp_path_factory.mktemp("simulator")
    running = start(folder / "books.sqlite", log=folder / "log")
    yield running
    running.stop()


@pytest.fixture
def simulator(simulator_process: RunningSimulator) -> Station:
    station = Station(simulator_process)
    station.call("POST", "reset")
    return station


@pytest.fixture
def receiver(simulator: Station) -> Iterator[Receiver]:
    """Where Stripe's webhooks go."""
    made = Receiver()
    simulator.call("PUT", "endpoints/stripe", {"url": made.url, "secrets": [SECRET]})
    yield made
    simulator.call("DELETE", "endpoints/stripe")
    made.close()
