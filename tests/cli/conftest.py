"""A simulator for the commands, its books emptied before each test."""

from collections.abc import Iterator

import pytest

from tallystick.simulator.process import start
from tests import servers
from tests.cli.payouts import Payouts
from tests.providers.worlds import Control


@pytest.fixture(scope="session")
def payouts_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("payouts")
    running = start(folder / "books.sqlite", log=folder / "log")
    yield running.url
    running.stop()


@pytest.fixture
def books(payouts_simulator: str) -> Control:
    control = Control(payouts_simulator)
    control.call("DELETE", "faults")
    control.call("POST", "reset")
    return control


@pytest.fixture
def payouts(embedded18: servers.Server, books: Control) -> Iterator[Payouts]:
    """A fresh database, and empty books at the provider."""
    with Payouts(embedded18.fresh_database(), books) as made:
        yield made
