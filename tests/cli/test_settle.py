"""`tally settle` as cron runs it: real processes, a real simulator, real exit codes."""

import json
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests import servers
from tests.cli.commands import tally
from tests.cli.payouts import Payouts, ended, until
from tests.ledgers import broken, fetchval
from tests.providers.worlds import API_KEY, Control
from tests.settlements import A_WHILE, halves, ledger_differences


async def test_a_tick_pays_what_is_pending_and_prints_the_counts(payouts: Payouts) -> None:
    await payouts.create_many(30)
    shown = payouts.run("settle")
    assert shown.returncode == 0, shown.stderr
    counts = {line.split()[0]: int(line.split()[1]) for line in shown.stdout.splitlines()}
    assert counts == {
        "claimed": 30,
        "reclaimed": 0,
        "sent": 30,
        "looked_up": 0,
        "transferred": 30,
        "failed": 0,
        "disputed": 0,
        "waiting": 0,
        "late": 0,
    }
    assert shown.stderr.splitlines() == [f"database: {payouts.dsn}"]
    both = await halves(payouts.dsn, payouts.control)
    assert both.is_equal
    assert both.statuses == {"transferred": 30}
    assert await ledger_differences(payouts.dsn) == {}
    assert await broken(payouts.dsn) == {}


async def test_with_nothing_to_do_it_is_done(payouts: Payouts) -> None:
    await payouts.create()
    payouts.run("settle")
    again = payouts.run("settle", "--json")
    assert again.returncode == 0
    told = json.loads(again.stdout)
    assert told == {**dict.fromkeys(told, 0), "is_complete": True, "reclaims_are_frequent": False}


async def test_a_limit_bounds_what_is_claimed(payouts: Payouts) -> None:
    await payouts.create_many(10)
    told = json.loads(payouts.run("settle", "--limit", "4", "--json").stdout)
    assert (told["claimed"], told["transferred"]) == (4, 4)
    assert await payouts.statuses() == {"pending": 6, "transferred": 4}


async def test_a_budget_stops_claiming_and_finishes_what_is_held(payouts: Payouts) -> None:
    """At 20 a second all of them would take 15 s."""
    payouts.control.plan("stripe.transfer:slow_after(0.1)=100%")
    stripe = {
        "TALLY_PROVIDER": "stripe",
        "TALLY_STRIPE_API_KEY": API_KEY,
        "TALLY_STRIPE_API_BASE": f"{payouts.control.url}/stripe",
        "TALLY_STRIPE_REQUESTS_PER_SECOND": "20",
    }
    await payouts.create_many(300, world="stripe")
    began = time.monotonic()
    shown = payouts.run("settle", "--budget", "2", "--json", **stripe)
    assert time.monotonic() - began < 14
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert 0 < told["claimed"] < 300
    assert told["transferred"] == told["claimed"]
    assert told["is_complete"] is False
    assert "run it again" in shown.stderr
    assert await payouts.count("status = 'processing'") == 0


async def test_what_nobody_can_tell_is_bad_news(payouts: Payouts) -> None:
    payouts.control.plan("stripe.transfer:error_500_no_object")
    made = await payouts.create()
    first = payouts.run("settle", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["waiting"] == 1
    await payouts.pass_time(timedelta(days=2))
    shown = payouts.run("settle")
    assert shown.returncode == 1
    assert "disputed             1" in shown.stdout
    assert "tally explain" in shown.stderr
    assert "in transit" in shown.stderr
    explained = payouts.run("explain", made.id)
    assert "disputed (past_the_horizon)" in explained.stdout


async def test_a_refusal_is_an_answer(payouts: Payouts) -> None:
    """Known and final: the money is payable again. No reason to wake anybody."""
    payouts.control.plan("stripe.transfer:refused")
    await payouts.create()
    shown = payouts.run("settle", "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["failed"] == 1


async def test_a_provider_out_of_reach_is_exit_3_and_nothing_is_lost(payouts: Payouts) -> None:
    await payouts.create_many(3)
    shown = payouts.run("settle", "--json", TALLY_SIMULATOR_PORT="1")
    assert shown.returncode == 3
    assert json.loads(shown.stdout)["waiting"] == 3
    assert "simulator:" in shown.stderr
    assert "waits" in shown.stderr
    await payouts.pass_time(A_WHILE)
    later = json.loads(payouts.run("settle", "--json").stdout)
    assert (later["reclaimed"], later["transferred"]) == (3, 3)
    assert (await halves(payouts.dsn, payouts.control)).is_equal


async def test_credentials_that_are_refused_are_bad_news(payouts: Payouts) -> None:
    payouts.control.plan("stripe.*:unauthorized=100%")
    await payouts.create()
    shown = payouts.run("settle")
    assert shown.returncode == 1
    assert "credentials are not accepted" in shown.stderr


async def test_frequent_reclaims_are_warned_of(payouts: Payouts) -> None:
    """The cold path should be cold."""
    await payouts.create_many(12)
    payouts.run("settle", TALLY_SIMULATOR_PORT="1")
    await payouts.pass_time(A_WHILE)
    shown = payouts.run("settle", "--json")
    assert json.loads(shown.stdout)["reclaims_are_frequent"] is True
    assert "12 of 12 were stuck" in shown.stderr


async def test_payouts_of_a_provider_that_is_not_configured_are_told_of(payouts: Payouts) -> None:
    await payouts.create_many(2, world="stripe")
    shown = payouts.run("settle")
    assert shown.returncode == 0
    assert "2 unfinished settlement(s) are for stripe" in shown.stderr
    assert await payouts.statuses() == {"pending": 2}


async def test_a_restored_database_sends_nothing(embedded18: servers.Server, payouts: Payouts) -> None:
    await payouts.create()
    await fetchval(payouts.dsn, "UPDATE tally.whereabouts SET database = 0")
    shown = payouts.run("settle")
    assert shown.returncode == 1
    assert "database_restored" in shown.stderr
    assert "tally recover" in shown.stderr
    assert "Traceback" not in shown.stderr
    assert await payouts.statuses() == {"pending": 1}
    assert payouts.control.made("stripe", "transfer") == []


async def _are_paid(payouts: Payouts, count: int) -> bool:
    return await payouts.count("status = 'transferred'") == count


async def test_up_has_the_workers_inside(payouts: Payouts, tmp_path: Path) -> None:
    """With a simulator of its own, whose books say the same."""
    more = {"TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0", "TALLY_HOME": str(tmp_path)}
    everything = payouts.start("up", **more)
    assert everything.stderr is not None
    said = ""
    while "Ctrl-C" not in said:
        line = everything.stderr.readline()
        assert line, said
        said += line
    assert "Worker     settlement (simulator)" in said
    await payouts.create_many(5)
    await until(lambda: _are_paid(payouts, 5), "they are paid")
    address = re.search(r"Simulator +(http://\S+)", said)
    assert address is not None
    assert (await halves(payouts.dsn, Control(address.group(1)))).is_equal
    everything.send_signal(signal.SIGINT)
    assert ended(everything)[0] == 0


def test_a_database_without_the_schema_is_exit_2(embedded18: servers.Postgres) -> None:
    shown = tally("settle", dsn=embedded18.empty_database())
    assert shown.returncode == 2
    assert "tally migrate" in shown.stderr


def test_a_database_out_of_reach_is_exit_3() -> None:
    shown = tally("settle", dsn="postgresql://user:hunter2@127.0.0.1:1/x")
    assert shown.returncode == 3
    assert "hunter2" not in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize("arguments", [("--budget", "0"), ("--budget", "nan"), ("--limit", "0"), ("--limit", "1.5")])
def test_wrong_usage_is_exit_2(payouts: Payouts, arguments: tuple[str, str]) -> None:
    assert payouts.run("settle", *arguments).returncode == 2
