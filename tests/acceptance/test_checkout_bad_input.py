"""Every bad input of checkout, once, from one end to the other: what is answered, and that no money is lost by it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from tallystick.settings import LIMITS
from tests import servers
from tests.acceptance.storefront import HOOK, PRICE, Storefront, storefront
from tests.checkouts import CARD, pass_time
from tests.deliveries import body, headers, payment, stored
from tests.providers.worlds import Control


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Storefront]:
    async with storefront(dsn, control) as opened:
        await opened.stock(5)
        yield opened


async def paid_unheard(shop: Storefront, key: str = "k") -> tuple[dict[str, Any], str, bytes]:
    """An order that the provider charged, and of which it says nothing by itself: the order, payment and webhook."""
    await shop.plan("stripe.webhook:webhook_lost=100%")
    order = await shop.reserve(key)
    id_ = await shop.pay(order)
    await shop.behave()
    return order, id_, await shop.told(id_)


# --- webhooks that are not believed


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"secret": "whsec_somebody_else"}, "webhook_forged"),
        ({"age_seconds": 3_600}, "webhook_stale"),
        ({"age_seconds": -3_600}, "webhook_stale"),
    ],
    ids=["forged", "stale", "from the future"],
)
async def test_a_webhook_that_is_not_the_providers_pays_nothing(
    shop: Storefront, how: dict[str, Any], code: str
) -> None:
    order, id_, told = await paid_unheard(shop)
    answer = await shop.tells(told, **how)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert (await shop.ended(id_), (await shop.order(order))["status"]) == ({}, "PENDING")
    # The same words, signed as they should be.
    assert (await shop.tells(told)).status_code == 200
    await shop.becomes(order, "PAID")
    await shop.books_match()


async def test_an_amount_changed_on_the_way_is_forged(shop: Storefront) -> None:
    _, id_, told = await paid_unheard(shop)
    changed = told.replace(b"100000", b"100001")
    assert changed != told
    answer = await shop.stranger.post(HOOK, content=changed, headers=headers(told))
    assert (answer.status_code, await shop.ended(id_)) == (400, {})


async def test_a_webhook_replayed_a_hundred_times_pays_once(shop: Storefront) -> None:
    order, id_, told = await paid_unheard(shop)
    answers = await asyncio.gather(*(shop.tells(told) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200}
    await shop.becomes(order, "PAID")
    await shop.quiet()
    assert await shop.ended(id_) == {"payment_intent.succeeded": "PROCESSED_OK"}
    found = await shop.books_match()
    assert (found.paid, found.refunds) == (PRICE, 0)


async def test_a_webhook_of_more_than_a_megabyte_is_refused_unread(shop: Storefront) -> None:
    limit = 1024 * 1024
    raw = body(1, padding="x" * limit)
    answer = await shop.tells(raw)
    assert (answer.status_code, answer.json()["code"]) == (413, "webhook_too_large")
    assert await stored(shop.dsn) == {}
    # Exactly as much as there may be.
    fits = body(2, padding="")
    fits = body(2, padding="x" * (limit - len(fits)))
    assert (len(fits), (await shop.tells(fits)).status_code) == (limit, 200)


@pytest.mark.parametrize(
    "raw", [b"", b"not json", b"[]", b'{"id": 1}', b'"evt_1"', b"\xff\xfe"], ids=lambda raw: raw.decode("latin-1")
)
async def test_what_is_no_event_is_refused_though_it_is_signed(shop: Storefront, raw: bytes) -> None:
    answer = await shop.tells(raw)
    assert (answer.status_code, answer.json()["code"]) == (400, "webhook_unreadable")
    assert await stored(shop.dsn) == {}


async def test_an_event_of_an_unknown_type_is_kept_and_is_no_dead_letter(shop: Storefront) -> None:
    thing = {"id": "cus_1", "object": "customer", "created": 1_700_000_000}
    assert (await shop.tells(body(1, type="customer.created", thing=thing))).status_code == 200
    strange = {"object": "something_of_tomorrow", "id": "sot_1", "surprise": {"nested": [1, 2]}}
    assert (await shop.tells(body(2, type="tomorrow.invented", thing=strange))).status_code == 200
    await shop.quiet()
    assert await stored(shop.dsn) == {"evt_1": "PROCESSED_OK", "evt_2": "PROCESSED_OK"}


# --- events of nobody's, and of somebody else's orders


async def test_a_payment_of_no_order_of_ours_is_a_break_and_never_a_refund(shop: Storefront) -> None:
    """Somebody else's money at the same provider: giving it back would be theft from him."""
    assert (await shop.tells(body(77, thing=payment(77)))).status_code == 200
    await shop.quiet()
    assert await stored(shop.dsn) == {"evt_77": "PROCESSED_OK"}
    async with shop.service.database.owning() as connection:
        (row,) = await connection.fetch("SELECT kind, object_id FROM tally.payment_break")
    assert (row["kind"], row["object_id"]) == ("missing_here", "pi_77")
    assert shop.control.made("stripe", "refund") == []


async def test_another_tenants_order_is_not_there(shop: Storefront) -> None:
    order, _, told = await paid_unheard(shop)
    body_ = {"reservation_token": order["reservation_token"]}
    answers = [
        await shop.stranger.get(f"/v1/orders/{order['id']}"),
        await shop.stranger.post(f"/v1/orders/{order['id']}/pay", json=body_, headers={"idempotency-key": "theirs"}),
        await shop.stranger.post(f"/v1/orders/{order['id']}/cancel"),
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(404, "order_unknown")] * 3
    # An event names no tenant: it pays the order of the tenant whose charge it is, and only that.
    assert (await shop.tells(told)).status_code == 200
    await shop.becomes(order, "PAID")
    async with shop.service.database.owning() as connection:
        tenants = await connection.fetch(
            "SELECT DISTINCT t.name FROM tally.payment_receipt r JOIN tally.tenant t USING (tenant_id)"
        )
    assert [row["name"] for row in tenants] == ["default"]
    await shop.books_match()


# --- paying what cannot be paid


async def test_an_expired_order_cannot_be_paid(shop: Storefront) -> None:
    order = await shop.reserve("k")
    await shop.later(order, minutes=10)
    answer = await shop.click(order, payment_method=CARD)
    assert (answer.status_code, answer.json()["code"]) == (409, "order_expired")
    await shop.later(order, seconds=31)
    await shop.becomes(order, "CANCELLED_BY_SWEEPER")
    answer = await shop.click(order, payment_method=CARD)
    assert (answer.status_code, answer.json()["code"]) == (409, "order_expired")
    assert (await shop.books_match()).payments == 0


async def test_another_orders_token_pays_nothing(shop: Storefront) -> None:
    mine, other = await shop.reserve("mine"), await shop.reserve("other")
    answer = await shop.click({**mine, "reservation_token": other["reservation_token"]}, payment_method=CARD)
    assert (answer.status_code, answer.json()["code"]) == (403, "reservation_token_wrong")
    assert "payment" not in await shop.order(mine)
    assert (await shop.books_match()).payments == 0


@pytest.mark.parametrize(
    ("quantity", "status", "code"),
    [
        (0, 400, "quantity_not_positive"),
        (-1, 400, "quantity_not_positive"),
        (6, 409, "quantity_above_stock"),
        (1.0, 400, "quantity_not_integer"),
        ("1", 400, "quantity_not_integer"),
        (True, 400, "quantity_not_integer"),
    ],
)
async def test_a_quantity_that_cannot_be(shop: Storefront, quantity: Any, status: int, code: str) -> None:
    answer = await shop.ask_for("k", quantity=quantity)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    # The key is unused, and nothing is held.
    assert (await shop.reserve("k", quantity=5))["status"] == "PENDING"


# --- somebody is away


async def test_while_the_provider_is_down_a_payment_is_pending_and_can_be_polled(shop: Storefront) -> None:
    await shop.plan("stripe.*:drop_before=100%")
    order = await shop.reserve("k")
    answer = await shop.click(order, payment_method=CARD)
    assert (answer.status_code, answer.json()["status"]) == (202, "PENDING")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await shop.order(order))["payment"]["status"] == "PENDING"
    await shop.behave()
    # He only polls: the collector asks the provider, and finishes it.
    await pass_time(shop.dsn, timedelta(minutes=5))
    await shop.becomes(order, "PAID")
    assert (await shop.books_match()).payments == 1


# A receiver that waits less for a database before it tells the provider.
IMPATIENT = replace(LIMITS, outage_seconds=0.5)


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    """A server that may be stopped the hard way."""
    made = servers.embedded18()
    assert isinstance(made, servers.Postgres)
    made.start()
    yield made
    made.remove()


async def test_while_the_database_is_down_a_webhook_is_refused_and_told_again(
    own_server: servers.Server, control: Control
) -> None:
    """The provider tells it again by itself, and nothing is lost."""
    async with storefront(own_server.fresh_database(), control, limits=IMPATIENT) as shop:
        await shop.stock(5)
        order, id_, told = await paid_unheard(shop)
        await asyncio.to_thread(own_server.stop, immediate=True)
        answer = await shop.tells(told)
        assert (answer.status_code, int(answer.headers["retry-after"])) == (503, 1)
        assert "retry" in answer.text.lower() or "again" in answer.text.lower()
        await _deliver(shop, told)
        await asyncio.to_thread(own_server.start)
        # Its first attempt has failed: five minutes later it makes the second.
        await shop.advance(minutes=6)
        await shop.becomes(order, "PAID")
        await shop.quiet()
        assert (await shop.ended(id_))["payment_intent.succeeded"] == "PROCESSED_OK"
        await shop.books_match()


async def _deliver(shop: Storefront, told: bytes) -> None:
    """The provider's own delivery, by its own client. It returns when the attempt was made, and refused."""
    event = {"dialect": "stripe", "event_id": json.loads(told)["id"]}
    await asyncio.to_thread(shop.control.call, "POST", "deliver", event)
    failed = await asyncio.to_thread(shop.control.call, "GET", "deliveries?dialect=stripe&state=pending")
    assert any(delivery["note"] == "HTTP 503" for delivery in failed), failed


async def test_what_is_no_webhook_address_is_told_so(shop: Storefront) -> None:
    answers: list[httpx2.Response] = [
        await shop.tells(body(1), path="/webhooks/paypal"),
        await shop.stranger.get(HOOK),
    ]
    assert [answer.status_code for answer in answers] == [404, 405]
