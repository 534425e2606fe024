"""`tally providers` and `tally simulator`, as a newcomer runs them."""

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from tallystick.simulator.process import RunningSimulator, start
from tests import servers
from tests.cli.commands import TALLY, tally
from tests.ledgers import fetchval

KEY = "sk_test_not_to_be_shown"
HOOK = "whsec_not_to_be_shown"
ADYEN = {
    "TALLY_ADYEN_API_KEY": "k" * 20,
    "TALLY_ADYEN_MERCHANT_ACCOUNT": "M",
    "TALLY_ADYEN_BALANCE_ACCOUNT": "BA1",
}


@pytest.fixture(scope="module")
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    running = start(tmp_path_factory.mktemp("simulator") / "books.sqlite")
    yield running
    running.stop()


def stripe_at(simulator: RunningSimulator) -> dict[str, str]:
    """The three variables of a real account, and where it stands here."""
    return {
        "TALLY_PROVIDER": "stripe",
        "TALLY_STRIPE_API_KEY": KEY,
        "TALLY_STRIPE_WEBHOOK_SECRET": HOOK,
        "TALLY_STRIPE_API_BASE": f"{simulator.url}/stripe",
    }


def test_a_configured_provider_is_asked_and_shown(dsn: str, simulator: RunningSimulator) -> None:
    tally("migrate", dsn=dsn)
    shown = tally("providers", dsn=dsn, **stripe_at(simulator))
    assert shown.returncode == 0, shown.stderr
    assert "stripe: configured, answers" in shown.stdout
    assert "chosen for new movements" in shown.stdout
    assert "adyen: not configured" in shown.stdout
    assert "cannot push money to third parties" in shown.stdout
    assert KEY not in shown.stdout + shown.stderr
    assert HOOK not in shown.stdout + shown.stderr


def test_as_json_it_holds_every_fact(dsn: str, simulator: RunningSimulator) -> None:
    shown = tally("providers", "--json", dsn=dsn, **stripe_at(simulator))
    found = {row["name"]: row for row in json.loads(shown.stdout)["providers"]}
    assert set(found) == {"simulator", "stripe", "adyen", "square", "wise"}
    assert (found["stripe"]["configured"], found["stripe"]["reachable"], found["stripe"]["authorised"]) == (True,) * 3
    facts = found["stripe"]["facts"]
    assert facts["key_horizon"] == 86_400
    assert facts["lookup"]["transfer"] == "exact"
    assert "ISK" in facts["minor_unit_exceptions"]
    assert found["square"]["facts"]["pushes_money"] is False


def test_a_provider_that_does_not_answer_is_bad_news(dsn: str) -> None:
    shown = tally("providers", dsn=dsn, TALLY_SIMULATOR_PORT="1")
    assert shown.returncode == 1
    assert "tally simulator" in shown.stdout
    assert "Traceback" not in shown.stderr


async def test_the_breakers_of_running_processes_are_shown(dsn: str, simulator: RunningSimulator) -> None:
    tally("migrate", dsn=dsn)
    await fetchval(
        dsn,
        "INSERT INTO tally.breaker VALUES ('stripe', 'host:1', 'open', 'status 503', $1)",
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    shown = tally("providers", "--no-ping", dsn=dsn, **stripe_at(simulator))
    assert "open in host:1 since 2026-01-01 00:00:00: status 503" in shown.stdout
    await fetchval(dsn, "DELETE FROM tally.breaker")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"TALLY_PROVIDER": "paypal"}, "TALLY_PROVIDER"),
        ({"TALLY_PROVIDER": "stripe"}, "TALLY_STRIPE_API_KEY"),
        ({"TALLY_ADYEN_API_KEY": "k" * 20}, "TALLY_ADYEN_MERCHANT_ACCOUNT"),
        ({"TALLY_WISE_API_KEY": "k" * 20}, "TALLY_WISE_PROFILE_ID"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_API_BASE": "http://api.example"}, "TALLY_STRIPE"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_API_BASE": ""}, "TALLY_STRIPE_API_BASE"),
        ({"TALLY_STRIPE_API_KEY": f"{KEY}\n"}, "TALLY_STRIPE_API_KEY"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_REQUESTS_PER_SECOND": "fast"}, "REQUESTS_PER_SECOND"),
        ({"TALLY_SIMULATOR_PORT": "x"}, "TALLY_SIMULATOR_PORT"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_API_BASE": "http://127.attacker.example"}, "TALLY_STRIPE"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_API_BASE": "https://x:abc"}, "TALLY_STRIPE"),
        ({"TALLY_STRIPE_API_KEY": KEY, "TALLY_STRIPE_ACCOUNT_ID": "my account"}, "TALLY_STRIPE"),
        (ADYEN | {"TALLY_ADYEN_API_BASE": "https://pre-checkout-live.adyenpayments.com/v72"}, "TRANSFER_API_BASE"),
        (ADYEN | {"TALLY_ADYEN_TRANSFER_API_BASE": ""}, "TALLY_ADYEN_TRANSFER_API_BASE"),
    ],
)
def test_a_wrong_setting_of_a_provider_stops_with_its_name(dsn: str, settings: dict[str, str], named: str) -> None:
    shown = tally("providers", dsn=dsn, **settings)
    assert shown.returncode == 2, shown.stderr
    assert named in shown.stderr
    assert KEY not in shown.stderr


def test_a_wrong_plan_is_shown_with_its_place(dsn: str) -> None:
    shown = tally("simulator", "--faults", "stripe.transfer:execute_then_drop, stripe.transfer:fly", dsn=dsn)
    assert shown.returncode == 2
    assert "column 36" in shown.stderr
    assert "execute_then_drop" in shown.stderr


def test_the_simulator_is_not_shown_to_the_network_by_accident(dsn: str) -> None:
    shown = tally("simulator", "--host", "0.0.0.0", dsn=dsn)  # noqa: S104 - it must be refused
    assert shown.returncode == 2
    assert "loopback" in shown.stderr


def test_the_simulator_says_where_it_is_and_stops_when_told(dsn: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TALLY, "simulator", "--port", "0", "--seed", "7", "--faults", "stripe.*:gateway_503=1%"],
        env={**os.environ, "TALLY_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
    process.terminate()
    assert process.wait(20) == 0
    assert (tmp_path / "simulator" / "books.sqlite").exists()


def test_a_simulator_that_dies_under_tally_up_is_started_again(dsn: str, tmp_path: Path) -> None:
    environment = {
        "TALLY_DATABASE_URL": dsn,
        "TALLY_PORT": "0",
        "TALLY_SIMULATOR_PORT": "0",
        "TALLY_HOME": str(tmp_path),
    }
    process = subprocess.Popen([*TALLY, "up"], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    while "Ctrl-C" not in said:
        said += process.stderr.readline()
    url = re.search(r"Simulator +(http://\S+)", said)
    assert url is not None
    child = next(one for one in psutil.Process(process.pid).children() if "tallystick.simulator" in one.cmdline())
    child.kill()
    # A worker whose connection was cut may speak first.
    assert any("starting it again" in line for line in iter(process.stderr.readline, ""))
    for _ in range(1000):
        try:
            assert urllib.request.urlopen(f"{url.group(1)}/_sim/books").status == 200
            break
        except OSError:
            time.sleep(0.02)
    else:
        pytest.fail("it did not come back at its address")
    process.terminate()
    assert process.wait(30) == 0


def test_a_home_that_cannot_be_made_is_said_in_a_sentence(dsn: str) -> None:
    for command in ("simulator", "up"):
        shown = tally(command, dsn=dsn, TALLY_HOME="/dev/null")
        assert shown.returncode == 2
        assert "TALLY_HOME" in shown.stderr
        assert "Traceback" not in shown.stderr


def test_books_that_are_in_use_or_none_are_said_in_a_sentence(
    dsn: str, simulator: RunningSimulator, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("no books at all, but long enough to be looked at " * 100)
    for books, told in ((simulator.books, "another simulator has the books"), (tmp_path / "text", "cannot be used")):
        shown = tally("simulator", "--port", "0", "--books", str(books), dsn=dsn)
        assert shown.returncode == 2
        assert told in shown.stderr
        assert "Traceback" not in shown.stderr
