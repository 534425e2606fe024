"""Ticks on platforms that lend us a process for one call, and freeze or kill it after."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from tallystick.errors import Misconfigured, RestoredDatabase, SchemaMismatch
from tallystick.serverless import aws_lambda, cloud_run
from tallystick.simulator.process import RunningSimulator, start
from tests import servers
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, Halves, halves, pass_time, shop


class Invocation:
    """What AWS passes: a deadline."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int(1000 * (self._ends - time.monotonic()))


@dataclass
class Request:
    """What functions-framework passes."""

    method: str = "POST"
    args: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    running = start(tmp_path_factory.mktemp("serverless") / "books.sqlite")
    yield running
    running.stop()


@pytest.fixture
def control(simulator: RunningSimulator) -> Control:
    found = Control(simulator.url)
    found.call("DELETE", "faults")
    found.call("POST", "reset")
    return found


@pytest.fixture
def dsn(embedded18: servers.Server, control: Control, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database, and an environment as such a platform gives it."""
    dsn = embedded18.fresh_database()
    for name in [name for name in os.environ if name.startswith("TALLY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TALLY_DATABASE_URL", dsn)
    monkeypatch.setenv("TALLY_SIMULATOR_PORT", str(urlsplit(control.url).port))
    return dsn


# The handlers bring an event loop of their own, so these tests have none.
def create(dsn: str, control: Control, count: int, *, prefix: str = "a") -> None:
    async def made() -> None:
        async with shop(dsn, control) as one:
            await one.create_many(count, prefix=prefix)

    asyncio.run(made())


def compared(dsn: str, control: Control) -> Halves:
    return asyncio.run(halves(dsn, control))


def let_pass(dsn: str, control: Control) -> None:
    asyncio.run(pass_time(dsn, A_WHILE))
    control.advance(seconds=A_WHILE.total_seconds())


def test_a_scheduled_invocation_pays_and_returns_its_counts(dsn: str, control: Control) -> None:
    create(dsn, control, 25)
    told = aws_lambda({"source": "aws.scheduler"}, Invocation(60))
    assert json.loads(json.dumps(told)) == told
    assert (told["ticked"], told["claimed"], told["transferred"], told["is_complete"]) == (True, 25, 25, True)
    both = compared(dsn, control)
    assert both.is_equal
    assert both.statuses == {"transferred": 25}
    assert asyncio.run(broken(dsn)) == {}


def test_nothing_is_left_in_the_process(dsn: str, control: Control) -> None:
    """It is frozen when the handler returns: whatever still ran would wake up in another hour."""
    create(dsn, control, 3)
    aws_lambda({}, Invocation(60))
    threads = set(threading.enumerate())
    statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    for number in range(2):
        create(dsn, control, 1, prefix=f"again-{number}")
        assert aws_lambda({}, Invocation(60))["transferred"] == 1
        gc.collect()
        assert set(threading.enumerate()) == threads
        assert asyncio.run(_settled(dsn, statement)) == 0


async def _settled(dsn: str, statement: str) -> int:
    """The server needs a moment to notice that its clients have left."""
    for _ in range(200):
        found = int(await fetchval(dsn, statement))
        if not found:
            return 0
        await asyncio.sleep(0.02)
    return found


@pytest.mark.parametrize("seconds", [0.5, 4.0])
def test_with_too_little_time_nothing_is_claimed(dsn: str, control: Control, seconds: float) -> None:
    create(dsn, control, 2)
    assert aws_lambda({}, Invocation(seconds)) == {"ticked": False, "reason": "too_little_time"}
    assert compared(dsn, control).statuses == {"pending": 2}


def test_an_invocation_ends_in_time_whatever_the_provider_does(dsn: str, control: Control) -> None:
    """Its answers never come: the handler gives up before it is killed, and the next one finds what happened."""
    control.plan("stripe.transfer:hang=100%")
    create(dsn, control, 10)
    began = time.monotonic()
    told = aws_lambda({}, Invocation(8))
    assert time.monotonic() - began < 8
    assert told == {"ticked": False, "reason": "interrupted"}
    assert compared(dsn, control).statuses == {"processing": 10}
    control.call("DELETE", "faults")
    let_pass(dsn, control)
    again = aws_lambda({}, Invocation(60))
    assert (again["reclaimed"], again["transferred"], again["sent"]) == (10, 10, 0)
    assert compared(dsn, control).is_equal


def test_it_stops_claiming_early_enough_to_finish_what_it_holds(dsn: str, control: Control) -> None:
    """Answers take a second: a chunk that is claimed in the first half of the time is recorded in the second."""
    control.plan("stripe.transfer:slow_after(1)=100%")
    create(dsn, control, 3_000)
    told = aws_lambda({}, Invocation(12))
    assert told["ticked"], told
    assert told["is_complete"] is False
    assert 0 < told["claimed"] == told["transferred"] < 3_000
    both = compared(dsn, control)
    assert both.statuses == {"transferred": told["claimed"], "pending": 3_000 - told["claimed"]}
    assert both.is_equal


HANDLER = """
from tallystick.serverless import aws_lambda
class Invocation:
    def get_remaining_time_in_millis(self):
        return 60_000
aws_lambda({}, Invocation())
"""


def test_a_handler_killed_midway_loses_nothing(dsn: str, control: Control) -> None:
    control.plan("stripe.transfer:hang=100%")
    create(dsn, control, 10)
    process = subprocess.Popen([sys.executable, "-c", HANDLER])
    try:
        ends = time.monotonic() + 60
        while len(control.made("stripe", "transfer")) < 10:
            assert time.monotonic() < ends
            time.sleep(0.02)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    control.call("DELETE", "faults")
    let_pass(dsn, control)
    told = aws_lambda({}, Invocation(60))
    assert (told["reclaimed"], told["transferred"]) == (10, 10)
    both = compared(dsn, control)
    assert both.is_equal
    assert both.statuses == {"transferred": 10}


def test_without_a_database_of_its_own_it_refuses(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded one would be lost with the function's disk."""
    monkeypatch.delenv("TALLY_DATABASE_URL")
    with pytest.raises(Misconfigured, match="TALLY_DATABASE_URL"):
        aws_lambda({}, Invocation(60))


def test_it_does_not_migrate(dsn: str, embedded18: servers.Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_DATABASE_URL", embedded18.empty_database())
    with pytest.raises(SchemaMismatch):
        aws_lambda({}, Invocation(60))


def test_a_restored_database_fails_the_invocation(dsn: str, control: Control) -> None:
    """So that somebody's alarm rings."""
    create(dsn, control, 1)
    asyncio.run(fetchval(dsn, "UPDATE tally.whereabouts SET database = 0"))
    with pytest.raises(RestoredDatabase):
        aws_lambda({}, Invocation(60))
    body, status, _ = cloud_run(Request())
    assert status == 500
    assert "tally recover" in json.loads(body)["error"]
    assert compared(dsn, control).statuses == {"pending": 1}


def test_a_schedulers_post_pays(dsn: str, control: Control) -> None:
    create(dsn, control, 5)
    body, status, headers = cloud_run(Request())
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["transferred"] == 5
    assert compared(dsn, control).is_equal


def test_it_runs_in_any_thread(dsn: str, control: Control) -> None:
    """Cloud Run answers requests in threads, several at once."""
    create(dsn, control, 6)
    answers: list[tuple[str, int, dict[str, str]]] = []
    threads = [threading.Thread(target=lambda: answers.append(cloud_run(Request()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for _, status, _ in answers] == [200, 200]
    assert sum(json.loads(body)["transferred"] for body, _, _ in answers) == 6
    assert compared(dsn, control).is_equal


def test_a_fetched_link_moves_no_money(dsn: str, control: Control) -> None:
    create(dsn, control, 1)
    for method in ("GET", "HEAD", "PUT"):
        _, status, headers = cloud_run(Request(method))
        assert (status, headers["Allow"]) == (405, "POST")
    assert compared(dsn, control).statuses == {"pending": 1}


@pytest.mark.parametrize("budget", ["", "0", "-1", "nan", "inf", "1e9", "ten"])
def test_a_budget_that_is_none_is_refused(dsn: str, budget: str) -> None:
    _, status, _ = cloud_run(Request(args={"budget": budget}))
    assert status == 400


def test_the_budget_is_the_callers_or_the_platforms(
    dsn: str, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(dsn, control, 1)
    body, status, _ = cloud_run(Request(args={"budget": "1"}))
    assert (status, json.loads(body)["reason"]) == (200, "too_little_time")
    monkeypatch.setenv("CLOUD_RUN_TIMEOUT_SECONDS", "2")
    body, _, _ = cloud_run(Request())
    assert json.loads(body)["reason"] == "too_little_time"
    for number, timeout in enumerate(("300", "0", "")):
        monkeypatch.setenv("CLOUD_RUN_TIMEOUT_SECONDS", timeout)
        body, _, _ = cloud_run(Request())
        assert json.loads(body)["transferred"] == (1 if number == 0 else 0)


def test_a_database_out_of_reach_may_be_tried_again(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLY_DATABASE_URL", "postgresql://user:hunter2@127.0.0.1:1/x")
    body, status, _ = cloud_run(Request())
    assert status == 503
    assert "hunter2" not in body
    assert "no money moved" not in body
