"""`tally policy`: exact figures in, the same figures out."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from tallystick.authority.cli import policy
from tallystick.database.migrate import migrate
from tallystick.errors import Misconfigured
from tests import servers
from tests.cli.payouts import Payouts
from tests.ledgers import fetchval


@pytest.fixture
async def migrated(payouts: Payouts) -> Payouts:
    await migrate(payouts.dsn)
    return payouts


@pytest.fixture(scope="module")
def shared(embedded18: servers.Server) -> str:
    """One database for the tables below: their rows need no process each."""
    return embedded18.fresh_database()


async def test_a_fee_is_set_shown_journaled_and_taken(migrated: Payouts) -> None:
    done = migrated.run("policy", "set", "--currency", "EUR", "--percent", "2.5", "--fixed", "0.30", "--minimum", "0.5")
    assert done.returncode == 0, done.stderr
    assert "2.5 % of gross + 0.30 EUR, at least 0.50 EUR; of 100.00 EUR that is 2.80 EUR" in done.stdout
    shown = json.loads(migrated.run("policy", "show", "--json").stdout)["policies"]
    (line,) = shown
    assert (line["currency"], line["percent_ppm"], line["fixed_micros"], line["minimum_micros"]) == (
        "EUR",
        25_000,
        300_000,
        500_000,
    )
    assert line["changed_by"]
    assert await fetchval(migrated.dsn, "SELECT count(*) FROM tally.journal WHERE subject = 'settlement.policy'") == 1
    made = await migrated.create(gross_micros=100_000_000)
    assert (made.fee_micros, made.net_micros) == (2_800_000, 97_200_000)


async def test_a_share_alone_may_stand_for_every_currency(migrated: Payouts) -> None:
    assert migrated.run("policy", "set", "--percent", "0.0001").returncode == 0
    assert "every other 0.0001 % of gross" in migrated.run("policy", "show").stdout
    made = await migrated.create(gross_micros=100_000_000)
    assert made.fee_micros == 100


def test_a_second_setting_replaces_the_whole_line(migrated: Payouts) -> None:
    migrated.run("policy", "set", "--currency", "USD", "--percent", "2", "--fixed", "1")
    migrated.run("policy", "set", "--currency", "USD", "--percent", "3")
    (line,) = json.loads(migrated.run("policy", "show", "--json").stdout)["policies"]
    assert (line["percent_ppm"], line["fixed_micros"]) == (30_000, 0)


# With floats 0.57, 1.14 and 0.0029 would each come out one part too small.
@pytest.mark.parametrize(
    ("percent", "ppm"), [("0.57", 5_700), ("1.14", 11_400), ("0.0029", 29), ("100", 1_000_000), ("0", 0)]
)
async def test_percent_is_exact(shared: str, monkeypatch: pytest.MonkeyPatch, percent: str, ppm: int) -> None:
    await migrate(shared)
    monkeypatch.setenv("TALLY_DATABASE_URL", shared)
    done = await asyncio.to_thread(CliRunner().invoke, policy, ["set", "--currency", "USD", "--percent", percent])
    assert done.exit_code == 0, done.output
    found = await fetchval(shared, "SELECT percent_ppm FROM tally.settlement_policy WHERE currency = 'USD'")
    assert found == ppm


@pytest.mark.parametrize(
    "arguments",
    [
        ("--percent", "2.50001"),
        ("--percent", "100.0001"),
        ("--percent", "-1"),
        ("--percent", "1e1"),
        ("--percent", "٢"),
        ("--percent", "nan"),
        ("--currency", "usd", "--percent", "1"),
        ("--currency", "XXX", "--percent", "1"),
        ("--fixed", "0.30"),
        ("--currency", "USD", "--fixed", "0.0000001"),
        ("--currency", "USD", "--fixed", "-0.30"),
        ("--currency", "USD", "--minimum", "99999999999999"),
        ("--currency", "USD", "--minimum", "1_0"),
        ("--tenant", "nobody", "--percent", "1"),
    ],
)
async def test_what_cannot_be_kept_exactly_is_refused_and_changes_nothing(
    shared: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    await migrate(shared)
    monkeypatch.setenv("TALLY_DATABASE_URL", shared)
    before = await fetchval(shared, "SELECT count(*) FROM tally.journal")
    done = await asyncio.to_thread(CliRunner().invoke, policy, ["set", *arguments])
    # Wrong settings get their status from `main`.
    assert done.exit_code == 2 or isinstance(done.exception, Misconfigured), done.output
    assert await fetchval(shared, "SELECT count(*) FROM tally.journal") == before


def test_without_a_fee_it_says_so(migrated: Payouts) -> None:
    shown = migrated.run("policy", "show")
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "net is gross" in shown.stderr
