"""Servers shared by the whole run, and what is said of them at its end."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from tallystick.simulator.process import RunningSimulator, start
from tests import kafka as brokers
from tests import servers, simulators
from tests.planted.bugs import BUGS
from tests.providers.worlds import Control

# PostgreSQL servers that this process has started for all of its tests.
SHARED: list[servers.Postgres] = []


class Startable(Protocol):
    """What the run starts before its first use, and removes at its end."""

    def start(self) -> None: ...

    def remove(self) -> None: ...


_Kind = TypeVar("_Kind", bound=Startable)
PLANTED = os.environ.get("TALLY_TEST_PLANT")


if PLANTED is not None:
    BUGS[PLANTED].plant()


@pytest.fixture(autouse=True)
def databases_end_with_their_test() -> Iterator[None]:
    """Those of wider fixtures were made before this one, and stay."""
    before = {name for server in SHARED for name in server.made}
    yield
    for server in SHARED:
        server.forget([name for name in server.made if name not in before])


@pytest.fixture(scope="session")
def embedded18() -> Iterator[servers.Postgres]:
    """PostgreSQL 18 from the wheel that ships."""
    yield from _served(servers.embedded18(is_shared=True))


@pytest.fixture(scope="session")
def postgres15() -> Iterator[servers.Postgres]:
    """The oldest PostgreSQL the engine promises to work with."""
    yield from _served(servers.postgres15())


@pytest.fixture(scope="session")
def mariadb() -> Iterator[servers.Server]:
    yield from _served(servers.mariadb())


@pytest.fixture(scope="session")
def kafka() -> Iterator[brokers.Single]:
    """One broker, that of the run which started this one if it lends it."""
    lent = os.environ.get(brokers.LENT)
    yield from _served(brokers.borrowed(lent) if lent is not None else brokers.single())


@pytest.fixture(scope="session")
def embedded18_dsn(embedded18: servers.Postgres) -> str:
    return embedded18.fresh_database(is_kept=True)


@pytest.fixture(scope="session")
def postgres15_dsn(postgres15: servers.Postgres) -> str:
    return postgres15.fresh_database(is_kept=True)


@pytest.fixture(scope="session")
def mariadb_dsn(mariadb: servers.Server) -> str:
    return mariadb.fresh_database()


@pytest.fixture(scope="session")
def payouts_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    running = simulators.started(tmp_path_factory.mktemp("payouts"))
    yield running
    running.stop()


@pytest.fixture
def control(payouts_simulator: RunningSimulator) -> Control:
    """A simulator whose books are empty."""
    made = Control(payouts_simulator.url)
    made.call("POST", "reset")
    return made


@pytest.fixture
def own_control(tmp_path: Path) -> Iterator[Control]:
    """A simulator of its own: for tests whose time goes far ahead. It never comes back, and others would meet it."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


def _served(server: _Kind | servers.Missing) -> Iterator[_Kind]:
    if isinstance(server, servers.Missing):
        servers.cannot_be_tested(f"{server.name}: {server.reason}")
    try:
        server.start()
        if isinstance(server, servers.Postgres):
            SHARED.append(server)
        yield server
    finally:
        server.remove()


# Outermost, so that its lines come after every other summary: they must not be missed.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """What tests counted (`record_property("counted", ...)`), whichever process ran them; and what was not tested."""
    yield
    reports = [report for found in terminalreporter.stats.values() for report in found]
    counted = {
        (report.nodeid, line): line
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, line in report.user_properties
        if name == "counted"
    }
    if counted:
        terminalreporter.section("counted")
    for line in counted.values():
        terminalreporter.write_line(str(line))
    for engine in (*servers.missing(), *brokers.missing()):
        terminalreporter.write_line(f"Not tested on {engine.name}: {engine.reason}", yellow=True)
