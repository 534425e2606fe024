"""`tally reconcile`, as an operator runs it."""

import json
import os
import pwd
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tallystick.simulator.process import start
from tests import servers
from tests.cli.commands import tally
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, Shop, books, pass_time, shop


@pytest.fixture(scope="module")
def own_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("reconcile")
    running = start(folder / "books.sqlite", log=folder / "log")
    yield running.url
    running.stop()


@pytest_asyncio.fixture
async def till(embedded18: servers.Server, own_simulator: str) -> AsyncIterator[Shop]:
    """Two payouts, transferred some time ago."""
    control = Control(own_simulator)
    control.call("POST", "reset")
    async with shop(embedded18.fresh_database(), control) as opened:
        for name in ("a", "b"):
            await opened.create(name)
        await opened.tick()
        await pass_time(opened.dsn, A_WHILE)
        yield opened


def settings(till: Shop) -> dict[str, str]:
    return {"TALLY_SIMULATOR_PORT": str(urlsplit(till.control.url).port)}


def reverse(till: Shop) -> str:
    """One of them comes back."""
    moved = books(till.control)[0]
    till.control.call("POST", "act", {"dialect": "stripe", "action": "reverse", "id": moved.id})
    return moved.id


async def test_halves_that_match_are_exit_0(till: Shop) -> None:
    shown = tally("reconcile", dsn=till.dsn, **settings(till))
    assert (shown.returncode, shown.stderr.splitlines()) == (0, [f"database: {till.dsn}"])
    assert re.match(r"simulator: 2 movements and 2 settlements sent from .*; no breaks\n$", shown.stdout)
    shown = tally("reconcile", "--json", "--since", "2d", "--until", "1h", dsn=till.dsn, **settings(till))
    assert shown.returncode == 0
    found = json.loads(shown.stdout)
    assert (found["breaks"], found["is_complete"], found["compared"][0]["expected"]) == ([], True, 0)


async def test_a_break_is_exit_1_and_told_with_its_remedy(till: Shop) -> None:
    id_ = reverse(till)
    shown = tally("reconcile", dsn=till.dsn, **settings(till))
    assert shown.returncode == 1
    line, summary = shown.stdout.splitlines()
    assert line.startswith("state_differs")
    assert f"as {id_}; simulator shows transfer {id_} of 12.34 EUR (returned, reversed). Dispute it" in line
    assert "1 state_differs" in summary
    shown = tally("reconcile", "--json", dsn=till.dsn, **settings(till))
    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    assert [(one["kind"], one["movement"]["id"], one["is_repaired"]) for one in found["breaks"]] == [
        ("state_differs", id_, False)
    ]
    assert found["found"] == 1


async def test_several_breaks_are_one_json_object_and_a_repair_is_signed(till: Shop) -> None:
    till.control.call("POST", "reset")
    shown = tally("reconcile", "--json", "--repair", dsn=till.dsn, USER="ann", LOGNAME="ann", **settings(till))
    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    assert [(one["kind"], one["is_repaired"]) for one in found["breaks"]] == [("missing_there", True)] * 2
    assert found["compared"][0]["repaired"] == 2
    async with till.database.owning() as connection:
        rows = await connection.fetch("SELECT DISTINCT by FROM tally.settlement_event WHERE what = 'disputed'")
    # By whom the kernel knows, whatever the environment says.
    assert [row["by"] for row in rows] == [pwd.getpwuid(os.getuid()).pw_name]
    shown = tally("reconcile", "--repair", dsn=till.dsn, **settings(till))
    assert shown.returncode == 0, "disputed rows that the provider does not show are for people, not for a list"


async def test_a_provider_out_of_reach_is_exit_3_and_not_the_whole(till: Shop) -> None:
    for arguments in ((), ("--json",)):
        shown = tally("reconcile", *arguments, dsn=till.dsn, TALLY_SIMULATOR_PORT="1")
        assert shown.returncode == 3
        assert "simulator: not the whole. provider_unreachable" in shown.stderr
        assert "Traceback" not in shown.stderr
    assert json.loads(shown.stdout)["is_complete"] is False


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--since", "yesterday"), "36h"),
        (("--since", "1h", "--until", "2h"), "not before its end"),
        (("--since", "0001-01-01"), "days back"),
        (("--since", "99999d"), "days back"),
        (("--provider", "paypal"), "paypal"),
    ],
)
async def test_wrong_usage_is_exit_2(till: Shop, arguments: tuple[str, ...], named: str) -> None:
    shown = tally("reconcile", *arguments, dsn=till.dsn, **settings(till))
    assert shown.returncode == 2, shown.stderr
    assert named in shown.stderr
    assert "Traceback" not in shown.stderr
    assert shown.stdout == ""


async def test_a_provider_that_is_not_configured_any_more_is_named(till: Shop) -> None:
    shown = tally(
        "reconcile",
        dsn=till.dsn,
        TALLY_PROVIDER="stripe",
        TALLY_STRIPE_API_KEY="sk_test_simulator",
        TALLY_STRIPE_API_BASE=f"{till.control.url}/stripe",
    )
    assert "simulator: not compared" in shown.stderr
    # At another provider their keys are nobody's.
    assert shown.stdout.count("missing_here ") == 2
    assert shown.returncode == 1


def test_a_database_out_of_reach_is_exit_3_without_the_password() -> None:
    shown = tally("reconcile", "--json", dsn="postgresql://user:hunter2@127.0.0.1:1/x")
    assert shown.returncode == 3
    assert "hunter2" not in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_command_is_listed(embedded18: servers.Server) -> None:
    assert re.search(r"^  reconcile\b", tally("--help", dsn=embedded18.fresh_database()).stdout, re.MULTILINE)
