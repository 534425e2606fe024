"""`tally policy authority` and `tally approvals`: bounds are chosen and shown, and what waits is listed."""

import json

import pytest

from tests.cli.commands import tally
from tests.cli.payouts import Payouts


def _policy(payouts: Payouts, *arguments: str) -> dict[str, object]:
    done = payouts.run("policy", "authority", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    shown: dict[str, object] = json.loads(done.stdout)
    return shown


def test_bounds_are_chosen_one_by_one_and_shown(payouts: Payouts) -> None:
    assert _policy(payouts)["ceilings"] == []
    _policy(payouts, "--currency", "EUR", "--payout", "5000", "--second-person", "1000.50")
    _policy(payouts, "--currency", "USD", "--day", "70")
    _policy(payouts, "--known-destinations", "--waiting", "60")
    chosen = _policy(payouts, "--currency", "EUR", "--payout", "none")
    assert (chosen["known_destinations"], chosen["waiting_seconds"]) == (True, 60)
    assert str(chosen["changed_by"]).endswith("/terminal")
    assert chosen["ceilings"] == [
        {"currency": "EUR", "payout_micros": None, "day_micros": None, "second_person_micros": 1_000_500_000},
        {"currency": "USD", "payout_micros": None, "day_micros": 70_000_000, "second_person_micros": None},
    ]
    assert "without a second person 1000.50 EUR" in payouts.run("policy", "authority").stdout
    assert [line["currency"] for line in _policy(payouts, "--currency", "USD", "--drop")["ceilings"]] == ["EUR"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "arguments",
    [("--payout", "5"), ("--currency", "XXQ", "--day", "1"), ("--currency", "EUR", "--day", "0"), ("--waiting", "-1")],
    ids=" ".join,
)
def test_a_bound_that_cannot_be_kept_is_wrong_usage(payouts: Payouts, arguments: tuple[str, ...]) -> None:
    assert payouts.run("policy", "authority", *arguments).returncode == 2


async def test_what_waits_for_a_second_person_is_listed(payouts: Payouts) -> None:
    nothing = tally("approvals", dsn=payouts.dsn)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    _policy(payouts, "--currency", "EUR", "--second-person", "1")
    held = await payouts.create()
    shown = payouts.run("approvals").stdout
    assert held.status == "held"
    assert held.id in shown
    assert str(held.approval) in shown
    (one,) = json.loads(payouts.run("approvals", "--json").stdout)["approvals"]
    assert (one["action"], one["settlement"], one["asked_by"]) == ("payout", held.id, "tests/library")
