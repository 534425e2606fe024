"""`tally payments`: real processes, real exit codes."""

import json
import re

import pytest

from tests import servers
from tests.cli.commands import tally
from tests.ledgers import fetchval
from tests.payments import CHARGING, age
from tests.providers.worlds import Control
from tests.sagas import desk

ADYEN = next(world for world in CHARGING if world.name == "adyen")


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_a_charge_nobody_answered_for_is_listed_and_closed_by_a_person(dsn: str, books: Control) -> None:
    none = tally("payments", "list", dsn=dsn)
    assert none.returncode == 0, none.stderr
    assert "No charge has waited for an answer for 5 minutes" in none.stderr
    async with desk(dsn, books, ADYEN) as one:
        order = await one.shop.order("k")
        books.plan("adyen.charge:drop_before=100%")
        await one.shop.pending(order)
    await age(dsn)
    listed = tally("payments", "list", "--older-than", "0", "--json", dsn=dsn)
    assert listed.returncode == 1, listed.stderr
    (found,) = json.loads(listed.stdout)
    assert (found["order_id"], found["provider"], found["order_status"]) == (order.id, "adyen", "PENDING")
    assert order.id in tally("payments", "list", "--older-than", "0", dsn=dsn).stdout
    close = ("payments", "resolve", order.id, "--outcome", "never_charged")
    assert tally(*close, dsn=dsn).returncode == 2
    refused = tally(*close, "--evidence", "the Customer Area shows none", dsn=dsn)
    assert (refused.returncode, "payment_not_confirmed" in refused.stderr) == (1, True), refused.stderr
    account = {"TALLY_ADYEN_API_KEY": "k", "TALLY_ADYEN_MERCHANT_ACCOUNT": "m", "TALLY_ADYEN_BALANCE_ACCOUNT": "b"}
    where = {"TALLY_ADYEN_API_BASE": books.url, "TALLY_ADYEN_TRANSFER_API_BASE": books.url}
    other = tally(*close, "--evidence", "the Customer Area shows none", dsn=dsn, **account, **where)
    assert (other.returncode, "sent with another account of adyen" in other.stderr) == (1, True), other.stderr
    (sent_with,) = re.findall(r"name '([^']+)' in your evidence", other.stderr)
    closed = tally(*close, "--evidence", f"{sent_with} is closed and shows none", dsn=dsn, **account, **where)
    assert closed.returncode == 0, closed.stderr
    assert json.loads(closed.stdout)["payment"]["reason"] == "never_charged"
    assert tally("payments", "list", "--older-than", "0", dsn=dsn).returncode == 0
    author = await fetchval(dsn, "SELECT author FROM tally.journal WHERE subject = 'charge.failed'")
    assert author not in (None, "unknown/earlier release"), author
