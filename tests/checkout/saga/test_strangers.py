"""What somebody takes in an account of his own pays no order, whatever he writes beside it."""

import hmac
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tallystick.checkout.order.store import OrderView
from tallystick.keys.derived import charge_key, hex64
from tallystick.webhooks import inbox
from tests import servers
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.sagas import Desk, Told, desk

NOW = datetime.now(UTC)


@pytest.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Desk]:
    async with desk(embedded18.fresh_database(), control) as opened:
        yield opened
        assert await broken(opened.dsn) == {}


async def hear(till: Desk, thing: dict[str, Any], kind: str, account: str) -> None:
    """Stripe signs it: it happened, in that account."""
    at = int(NOW.timestamp())
    event = {"id": "evt_his", "object": "event", "type": kind, "account": account, "created": at}
    body = msgspec.json.encode(event | {"data": {"object": {"created": at, **thing}}})
    signature = hmac.digest(b"whsec_contract", f"{at}.".encode() + body, "sha256").hex()
    told = till.shop.provider.receive([("stripe-signature", f"t={at},v1={signature}")], body, now=NOW)
    assert isinstance(told, tuple), told
    async with till.shop.database.writing() as connection:
        await inbox.append(connection, [Told("stripe", told)])
    assert (await till.events.run_once()).claimed == 1


async def test_a_payment_in_his_own_account_pays_nobodys_order(till: Desk) -> None:
    """The buyer knows order, token, amount and attempt, so he can make our key; his card pays himself."""
    order = await till.shop.order()
    await till.shop.paying(order, payment_method=None)
    key = charge_key(
        tenant=till.shop.tenant.name,
        currency=order.currency,
        provider="stripe",
        order_id=order.id,
        reservation_token=order.reservation_token,
        attempt=1,
        amount_micros=order.amount_micros,
    )
    cents = order.amount_micros // 10_000
    thing = {"id": "pi_his", "object": "payment_intent", "amount": cents, "amount_received": cents, "currency": "eur"}
    thing |= {"status": "succeeded", "metadata": {"tally_key": hex64(key)}}
    assert await fetchval(
        till.dsn, "SELECT count(*) FROM tally.payment_idempotency_log WHERE idempotency_key = $1", key
    ), "the key is the order's"
    await hear(till, thing, "payment_intent.succeeded", "acct_his")
    found = await till.shop.payments.order(till.shop.tenant, order.id)
    assert isinstance(found, OrderView)
    assert found.status == "PENDING"
    assert await fetchval(till.dsn, "SELECT count(*) FROM tally.payment_receipt") == 0
    assert await till.breaks() == ["missing_here"]
