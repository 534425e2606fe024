"""A simulator for the contract suite: a process of its own, its books emptied before each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tallystick.providers.port import Provider
from tests import simulators
from tests.providers.worlds import WORLDS, Control, World


@pytest.fixture(scope="session")
def simulator_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = simulators.started(tmp_path_factory.mktemp("simulator"))
    yield running.url
    running.stop()


@pytest.fixture
def books(simulator_url: str) -> Control:
    control = Control(simulator_url)
    control.call("POST", "reset")
    return control


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request: pytest.FixtureRequest) -> World:
    """Every one in turn, or the ones a test names."""
    wanted: World | str = request.param
    return wanted if isinstance(wanted, World) else next(world for world in WORLDS if world.name == wanted)


@pytest.fixture
async def provider(world: World, books: Control) -> AsyncIterator[Provider]:
    made = world.make(books.url, "", "")
    yield made
    await made.close()
