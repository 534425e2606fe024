"""`tally breaks` and `tally policy checkout`: real processes, real exit codes."""

import json

import pytest

from tallystick.checkout import break_store as payment_break
from tests import servers
from tests.cli.commands import tally
from tests.ledgers import fetchval
from tests.providers.worlds import Control
from tests.sagas import desk


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_a_break_is_listed_explained_and_closed_once(dsn: str, books: Control) -> None:
    none = tally("breaks", "list", dsn=dsn)
    assert (none.returncode, none.stdout) == (0, "")
    assert "No breaks" in none.stderr
    async with desk(dsn, books) as till:
        await till.tell("pi_of_somebody_else", reference="ab" * 32)
        await till.run()
    listed = tally("breaks", "list", dsn=dsn)
    assert listed.returncode == 1
    assert "pi_of_somebody_else" in listed.stdout
    assert "never refunded by us" in listed.stdout
    (one,) = json.loads(tally("breaks", "list", "--json", dsn=dsn).stdout)
    number = str(one["number"])
    assert (one["kind"], one["order_id"], one["resolution"]) == ("missing_here", None, None)
    assert tally("breaks", "resolve", number, "--resolution", "  ", dsn=dsn).returncode == 2
    closed = tally("breaks", "resolve", number, "--resolution", "the web shop's own", dsn=dsn)
    assert (closed.returncode, closed.stdout) == (0, f"Break {number} is closed.\n")
    again = tally("breaks", "resolve", number, "--resolution", "once more", dsn=dsn)
    assert again.returncode == 1
    assert "no open break" in again.stderr
    assert tally("breaks", "list", dsn=dsn).returncode == 0
    kept = tally("breaks", "list", "--all", dsn=dsn)
    assert (kept.returncode, "the web shop's own" in kept.stdout) == (0, True)


async def test_a_refund_that_failed_is_not_said_to_be_owed_where_it_was_a_part(dsn: str, books: Control) -> None:
    """Its amount is in the tenant's sales, and the decision that was named is refused for it."""
    of_it = ("refund_failed", "stripe", "refund", "ab" * 32, "charge_disputed", 5_000_000, "EUR", None, None, None)
    async with desk(dsn, books) as till, till.shop.database.stepping() as connection:
        await connection.execute(payment_break.ADD, *([value] for value in of_it))
    listed = tally("breaks", "list", dsn=dsn).stdout
    assert "is in the tenant's sales again: ask for it under a new key" in listed
    assert "All of a payment that did not fit is still owed" in listed


async def test_a_checkout_policy_is_shown_chosen_and_journaled(dsn: str) -> None:
    shown = tally("policy", "checkout", dsn=dsn)
    assert (shown.returncode, shown.stdout) == (0, "late: refund; other amount: refund (default)\n")
    chosen = tally("policy", "checkout", "--late", "backorder", dsn=dsn)
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout.startswith("late: backorder; other amount: refund, since ")
    one = json.loads(tally("policy", "checkout", "--other-amount", "review", "--json", dsn=dsn).stdout)
    assert (one["late"], one["other_amount"]) == ("backorder", "review")
    assert tally("policy", "checkout", "--late", "never", dsn=dsn).returncode == 2
    assert tally("policy", "checkout", "--tenant", "nobody", dsn=dsn).returncode == 2
    assert await fetchval(dsn, "SELECT count(*) FROM tally.journal WHERE subject = 'checkout.policy'") == 2
