"""`tally recover`: a backup from before the sends is restored, and nothing is paid twice."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tallystick.simulator.process import start
from tests import servers
from tests.cli.payouts import Payouts
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, halves, ledger_differences, pass_time


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Control]:
    """A provider whose clock is right: it is asked what it did since the backup."""
    running = start(tmp_path / "books.sqlite")
    yield Control(running.url)
    running.stop()


async def restore(server: servers.Server, payouts: Payouts) -> Payouts:
    """The database as it is now, in another one: what a restored backup is."""
    copy = server.fresh_database()
    name, original = (urlsplit(dsn).path.removeprefix("/") for dsn in (copy, payouts.dsn))
    connection = await asyncpg.connect(payouts.dsn.replace(f"/{original}?", "/tally?"))
    try:
        await connection.execute(f"DROP DATABASE {name}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {original}")
    finally:
        await connection.close()
    return Payouts(copy, payouts.control)


@pytest.mark.parametrize("sent", ["all", "some"])
async def test_a_backup_from_before_the_sends_pays_nobody_twice(
    embedded18: servers.Server, payouts: Payouts, sent: str
) -> None:
    await payouts.create_many(12)
    backup = await restore(embedded18, payouts)
    # The life that is lost: after the backup, some or all of it was paid.
    done = json.loads(payouts.run("settle", "--json", *(("--limit", "3") if sent == "some" else ())).stdout)
    paid = done["transferred"]
    assert 0 < paid <= 12

    early = backup.run("recover", "--no-wait", "--json")
    assert early.returncode == 1, early.stderr
    told = json.loads(early.stdout)
    assert (told["marked"], told["looked_up"], told["is_confirmed"]) == (12, 0, False)
    assert told["wait_seconds"] > 60
    assert "Run `tally recover` again in" in early.stderr
    refused = backup.run("settle")
    assert refused.returncode == 1, "not yet: whoever runs `tally recover` distrusts this database"
    assert "tally recover" in refused.stderr

    await pass_time(backup.dsn, A_WHILE)
    shown = backup.run("recover", "--json")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    # Each of them, whether by a question of its own or in the one list that was read for all.
    assert (told["looked_up"], told["transferred"], told["cleared"]) == (12, paid, 12 - paid)
    assert (told["is_confirmed"], told["undecided"], told["orphans"]) == (True, 0, 0)
    assert {told[f"{kind}_{name}"] for kind in ("charges", "refunds") for name in ("marked", "found", "orphans")} == {0}

    assert "Sending goes on" in shown.stderr
    last = backup.run("settle", "--json")
    assert last.returncode == 0, last.stderr
    assert json.loads(last.stdout)["transferred"] == 12 - paid
    both = await halves(backup.dsn, backup.control)
    assert both.statuses == {"transferred": 12}
    assert both.is_equal
    assert await ledger_differences(backup.dsn) == {}
    assert await broken(backup.dsn) == {}


async def test_payments_whose_rows_are_lost_are_bad_news_and_not_paid_again(
    embedded18: servers.Server, payouts: Payouts
) -> None:
    await payouts.create("before")
    backup = await restore(embedded18, payouts)
    await payouts.create("after")
    assert json.loads(payouts.run("settle", "--json").stdout)["transferred"] == 2
    backup.run("recover", "--no-wait")
    await pass_time(backup.dsn, A_WHILE)
    shown = backup.run("recover", "--json")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["orphans"] == 1
    assert "their rows are lost" in shown.stderr
    await backup.create("after")
    assert json.loads(backup.run("settle", "--json").stdout)["sent"] == 0
    both = await halves(backup.dsn, backup.control)
    assert both.statuses == {"transferred": 2}
    assert both.is_equal


async def test_a_provider_that_cannot_be_asked_keeps_sending_stopped(payouts: Payouts) -> None:
    await payouts.create()
    await fetchval(payouts.dsn, "UPDATE tally.whereabouts SET database = 0")
    payouts.run("recover", "--no-wait")
    await payouts.pass_time(A_WHILE)
    shown = payouts.run("recover", "--no-wait", TALLY_SIMULATOR_PORT="1")
    assert shown.returncode == 3, shown.stderr
    assert "simulator could not be asked" in shown.stderr
    assert "nothing is sent from this database" in shown.stderr
    assert payouts.run("settle").returncode == 1


async def test_where_nothing_was_restored_it_changes_nothing(payouts: Payouts) -> None:
    await payouts.create_many(3)
    payouts.run("settle")
    payouts.run("recover", "--no-wait")
    await payouts.pass_time(A_WHILE)
    shown = payouts.run("recover")
    assert shown.returncode == 0, shown.stderr
    assert f"{'transferred':<26} {0:>9}" in shown.stdout
    assert payouts.run("settle").returncode == 0


async def test_payouts_of_a_provider_that_is_not_configured_are_not_forgotten(payouts: Payouts) -> None:
    """Asked about by nobody, they may have been sent by the life that was lost."""
    await payouts.create_many(2, world="stripe")
    await fetchval(payouts.dsn, "UPDATE tally.whereabouts SET database = 0")
    shown = payouts.run("recover", "--no-wait")
    assert shown.returncode == 1
    assert "its 2 unfinished payout(s), charge(s) and refund(s)" in shown.stderr
    assert "tally recover --without stripe" in shown.stderr
    mistyped = payouts.run("recover", "--no-wait", "--without", "strpe")
    assert mistyped.returncode == 2, mistyped.stderr
    assert "--without strpe" in mistyped.stderr
    assert "stripe" in mistyped.stderr
    assert await payouts.count("ask_first") == 2, "a worker that has stripe must ask before it sends"


async def test_who_breaks_it_off_is_told_that_nothing_is_sent_and_that_it_goes_on(payouts: Payouts) -> None:
    """It takes minutes, at three in the morning: Ctrl-C said nothing at all, and sending stayed stopped."""
    await payouts.create()
    running = payouts.start("recover")
    said = ""
    assert running.stderr is not None
    while "waiting" not in said:
        line = running.stderr.readline()
        assert line, said
        said += line
    running.send_signal(signal.SIGINT)
    _, after = running.communicate(timeout=30)
    assert running.returncode == 130, after
    assert "Nothing is sent from this database until this has run to its end" in said
    assert "Broken off before it was finished" in after
    refused = payouts.run("settle")
    assert refused.returncode == 1
    assert "has not run to its end" in refused.stderr
