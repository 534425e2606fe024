"""`tally refunds`: real processes, real exit codes."""

import json

import pytest

from tallystick.checkout.refund.request.flow import RefundRequests
from tallystick.checkout.refund.request.rules import RefundPending
from tests import servers
from tests.cli.commands import tally
from tests.ledgers import fetchval
from tests.payments import CHARGING, HURRIED, age
from tests.providers.worlds import Control
from tests.sagas import desk

ADYEN = next(world for world in CHARGING if world.name == "adyen")


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_a_part_that_waits_is_listed_explained_and_decided_by_persons(dsn: str, books: Control) -> None:
    assert tally("refunds", "list", dsn=dsn).returncode == 0
    async with desk(dsn, books, ADYEN) as one:
        order, payment = await one.bought("k")
        await one.tell(payment)
        await one.run()
        books.plan("adyen.refund:unauthorized=100%")
        requests = RefundRequests(one.shop.database, one.refunds, {"adyen": one.shop.provider}, limits=HURRIED)
        asked = await requests.refund(
            one.shop.tenant, order.id, amount_micros=5_000_000, reason="broken", restock=False, idempotency_key="r-1"
        )
        assert isinstance(asked, RefundPending)
    await age(dsn)
    listed = tally("refunds", "list", "--json", dsn=dsn)
    assert listed.returncode == 1, listed.stderr
    (found,) = json.loads(listed.stdout)
    assert (found["order_id"], found["payment_intent_id"], found["part"]) == (order.id, payment, "r-1")
    assert found["reason"] in tally("refunds", "list", dsn=dsn).stdout
    told = tally("explain", order.id, dsn=dsn).stdout
    assert f"the part asked for under 'r-1' waits for a person: {found['reason']}" in told
    decide = ("refunds", "decide", order.id, "--payment", payment, "--part", "r-1", "--decision", "failed")
    account = {"TALLY_ADYEN_API_KEY": "k", "TALLY_ADYEN_MERCHANT_ACCOUNT": "m", "TALLY_ADYEN_BALANCE_ACCOUNT": "b"}
    where = {"TALLY_ADYEN_API_BASE": books.url, "TALLY_ADYEN_TRANSFER_API_BASE": books.url}
    refused = tally(*decide, dsn=dsn, **account, **where)
    assert (refused.returncode, "evidence_missing" in refused.stderr) == (1, True), refused.stderr
    done = tally(*decide, "--evidence", "the Customer Area shows none", dsn=dsn, **account, **where)
    assert (done.returncode, "waits for a second person" in done.stdout) == (0, True), done.stderr
    # Nothing is so before another person has agreed.
    assert tally("refunds", "list", dsn=dsn).returncode == 1
    assert "refund_failed" in tally("approvals", dsn=dsn).stdout
    assert (await fetchval(dsn, "SELECT asked_by FROM tally.approval")).endswith("/terminal")
