"""The ghost payment, step by step, as the source tells it; and what else it promises of charges and refunds.

Buyer, shop and provider speak HTTP to each other; the provider's webhooks are signed. Minutes pass by the database's
clock and by the provider's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import asyncpg
import pytest

from tests.acceptance.storefront import PRICE, Storefront, storefront
from tests.checkouts import CARD, given_up, pass_time
from tests.orders import execute
from tests.providers.worlds import Control
from tests.settlements import superuser

A_YEAR = timedelta(days=365)


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Storefront]:
    async with storefront(dsn, control) as opened:
        yield opened


async def test_the_ghost_payment_heals_itself(shop: Storefront, record_property: Callable[[str, object], None]) -> None:
    await shop.stock(1)
    await shop.plan("stripe.webhook:webhook_late(120)=100%")

    # 00:00  Ann holds the last phone, for ten minutes. Bob comes too late.
    ann = await shop.reserve("ann")
    assert (ann["status"], (await shop.ask_for("bob")).json()["code"]) == ("PENDING", "sold_out")

    # 09:55  She authorises the payment on the provider's page. It charges her card, and its webhook is held up.
    await shop.later(ann, minutes=9, seconds=50)
    answer = await shop.click(ann)
    payment = answer.json()["payment_intent_id"]
    assert (answer.status_code, answer.json()["status"]) == (201, "AWAITING_CUSTOMER")
    assert answer.json()["client_secret"].startswith(payment)
    await shop.later(ann, seconds=5)
    await shop.authorise(payment)
    assert (await shop.halves()).charged == PRICE

    # 10:00  Her ten minutes are over. Within the grace nobody touches her order.
    await shop.later(ann, seconds=5)
    swept = await shop.service.orders.sweep()
    assert (swept.cancelled, (await shop.order(ann))["status"]) == (0, "PENDING")

    # Phase 1, the missed deadline. 10:30: the sweeper would have the payment cancelled first, and hear that it
    # succeeded; but nobody answers there. After an hour it cancels the order and gives the phone back. Bob buys it.
    for operation in ("cancel", "lookup"):
        await shop.plan(f"stripe.{operation}:drop_before=100%")
    await shop.later(ann, seconds=30)
    await shop.held(ann)
    assert (await shop.order(ann))["status"] == "PENDING"
    await shop.held(ann, hours=1)
    await shop.becomes(ann, "CANCELLED_BY_SWEEPER")
    bob = await shop.reserve("bob-again")
    await shop.behave()
    await shop.pay(bob)
    await shop.becomes(bob, "PAID")
    # The ghost: charged, and neither delivered nor given back. Both books say so.
    ghost = await shop.halves()
    assert (ghost.charged, ghost.paid, ghost.refunded) == (2 * PRICE, PRICE, 0)
    assert (ghost.is_equal, [lost.split()[0] for lost in ghost.lost]) == (False, [payment])

    # Phase 2, the late arrival. 11:55: the webhook comes, signed, and is durable before it is acknowledged.
    await shop.advance(minutes=2)
    arrived = await shop.ended(payment)
    assert "payment_intent.succeeded" in arrived

    # Phases 3 to 5: the collision is found, the refund is begun, sent, and recorded with the event.
    healed = await shop.until(ann, lambda found: found.get("refund", {}).get("status") == "COMPLETED")
    await shop.quiet()
    assert healed["status"] == "CANCELLED_BY_SWEEPER"
    refund = healed["refund"]
    (made,) = shop.control.made("stripe", "refund")
    assert (made["id"], made["parent"], made["amount"] * 10_000) == (refund["refund_id"], payment, PRICE)
    assert (refund["payment_intent_id"], refund["amount_micros"], refund["reason"]) == (payment, PRICE, "late")
    assert (await shop.ended(payment))["payment_intent.succeeded"] == "PROCESSED_COMPENSATED"

    # The halves match again, and Bob keeps his phone.
    matched = await shop.books_match()
    assert (matched.charged, matched.paid, matched.refunded) == (2 * PRICE, PRICE, PRICE)
    assert (await shop.order(bob))["status"] == "PAID"
    sku = (await shop.client.get("/v1/skus/phone")).json()
    assert (sku["sold"], sku["reserved"], sku["available"]) == (1, 0, 0)

    # The time to compensate is known, and far below the hour at which somebody is called.
    async with shop.service.database.owning() as connection:
        took = await connection.fetchval(
            "SELECT extract(epoch FROM l.completed_at - r.received_at)::float8 FROM tally.payment_idempotency_log l"
            " JOIN tally.payment_receipt r USING (payment_intent_id, provider, tenant_id)"
            " WHERE l.operation_type = 'REFUND'"
        )
    assert 0 < took < 60
    assert await shop.metric("tally_time_to_compensate_seconds_count") == 1
    assert await shop.metric("tally_time_to_compensate_seconds_sum") == pytest.approx(took, abs=0.01)
    record_property("counted", f"ghost payment: compensated {took * 1_000:.0f} ms after its webhook arrived")


async def test_fifty_clicks_during_a_partition_are_one_charge(shop: Storefront) -> None:
    """The provider charges, and not one of its answers comes through; then the network is back."""
    await shop.stock(1)
    order = await shop.reserve("frantic")
    for operation, fault in (("charge", "execute_then_drop"), ("list", "drop_before"), ("lookup", "drop_before")):
        await shop.plan(f"stripe.{operation}:{fault}=100%")
    clicks = await asyncio.gather(*(shop.click(order, payment_method=CARD) for _ in range(50)))
    assert {click.status_code for click in clicks} <= {201, 202}
    # What a webhook has told of meanwhile is known, and its secret cannot be had: not one of them is told of a failure.
    told = {click.json()["status"] for click in clicks if click.status_code == 202}
    assert told <= {"PENDING", "AWAITING_CUSTOMER", "COMPLETED"}
    await shop.behave()
    paid = await shop.becomes(order, "PAID")
    # Clicked again: still the same payment.
    await pass_time(shop.dsn, timedelta(minutes=5))
    assert await shop.pay(order) == paid["payment"]["payment_intent_id"]
    await shop.quiet()
    found = await shop.books_match()
    assert (found.payments, found.charged, found.paid) == (1, PRICE, PRICE)


async def test_a_charge_awaits_its_customer_until_its_money_has_come(shop: Storefront) -> None:
    """He has not brought his card yet: nobody may take that for a payment."""
    await shop.stock(1)
    order = await shop.reserve("slow")
    clicked = await shop.click(order)
    assert (clicked.status_code, clicked.json()["status"]) == (201, "AWAITING_CUSTOMER")
    assert (await shop.order(order))["payment"]["status"] == "AWAITING_CUSTOMER"
    payment = str(clicked.json()["payment_intent_id"])
    await shop.authorise(payment)
    paid = await shop.becomes(order, "PAID")
    assert (paid["payment"]["status"], paid["payment"]["payment_intent_id"]) == ("COMPLETED", payment)
    # Under a new key: as it stands now.
    assert (await shop.click(order)).json()["status"] == "COMPLETED"


async def test_two_identical_purchases_are_two_charges(shop: Storefront) -> None:
    """The same buyer, the same thing, the same price, at the same moment: he wants two."""
    await shop.stock(2)
    orders = await asyncio.gather(shop.reserve("first"), shop.reserve("second"))
    payments = await asyncio.gather(*(shop.pay(order) for order in orders))
    assert len(set(payments)) == 2
    for order in orders:
        await shop.becomes(order, "PAID")
    await shop.quiet()
    found = await shop.books_match()
    assert (found.payments, found.paid, found.refunds) == (2, 2 * PRICE, 0)


async def test_replaying_a_refund_a_year_later_refunds_nothing_more(shop: Storefront) -> None:
    """The provider has forgotten our key by then, and would refund again: the log has not."""
    await shop.stock(1)
    order = await shop.reserve("ghost")
    await shop.plan("stripe.webhook:webhook_lost=100%")
    payment = await shop.pay(order)
    await given_up(shop.dsn, order["id"])
    await shop.later(order, minutes=11)
    await shop.becomes(order, "CANCELLED_BY_SWEEPER")
    told = await shop.told(payment)
    assert (await shop.tells(told)).status_code == 200
    await shop.until(order, lambda found: found.get("refund", {}).get("status") == "COMPLETED")
    await shop.quiet()

    await shop.advance(days=365)
    await pass_time(shop.dsn, A_YEAR)
    # The same event; the same news under another event's id; its event put back by hand; the sweeper; and a person.
    assert (await shop.tells(told)).status_code == 200
    assert (await shop.tells(told.replace(b'"evt_', b'"evt_again_', 1))).status_code == 200
    await shop.quiet()
    again = (
        "UPDATE tally.webhook_events SET status = 'UNPROCESSED', processed_at = NULL, due_at = clock_timestamp()"
        " WHERE provider_id = $1"
    )
    with pytest.raises(asyncpg.PostgresError, match="what is processed stays so"):
        await execute(shop.dsn, again, payment)
    await execute(f"{superuser(shop.dsn)}&session_replication_role=replica", again, payment)
    await shop.service.events.run_once()
    swept = await shop.service.refunds.sweep()
    assert swept.claimed == 0
    person = await shop.client.post(
        f"/v1/orders/{order['id']}/refund/decide", json={"payment_intent_id": payment, "decision": "refund"}
    )
    assert (person.status_code, person.json()["code"]) == (409, "payment_decided")
    await shop.quiet()
    assert len(shop.control.made("stripe", "refund")) == 1
    assert (await shop.books_match()).refunded == PRICE
