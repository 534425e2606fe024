"""Before an order is swept its payment is ended at the provider: what was paid there is PAID, the rest never can."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from tallystick.app import SIMULATOR_API_KEY
from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView
from tests import servers
from tests.checkout.watermark.test_flow import changed
from tests.checkouts import authorise
from tests.ledgers import broken, fetchval
from tests.orders import emptied, execute
from tests.payments import CHARGING, HURRIED, age
from tests.providers.worlds import Control, World
from tests.sagas import Desk, desk, expire
from tests.settlements import superuser

# The provider's window of a test's own: an intent that waits for its customer.
WAITING = {"payment_method": None}
AN_HOUR = timedelta(hours=1)
ADYEN = next(world for world in CHARGING if world.name == "adyen")


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


async def time_passes(dsn: str, span: timedelta = AN_HOUR) -> None:
    """For those that are held."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                "UPDATE tally.order_hold SET held_since = held_since - $1::interval, due_at = due_at - $1::interval",
                span,
            )
    finally:
        await connection.close()


async def clicked(one: Desk, key: str = "k") -> tuple[OrderView, str]:
    """An order whose payment waits for its customer at the provider, and its time is over."""
    order = await one.shop.order(key)
    paying = await one.shop.paying(order, **WAITING)
    assert paying.payment.payment_intent_id is not None
    await expire(one.dsn, order)
    return order, paying.payment.payment_intent_id


def intent(one: Desk, payment: str) -> dict[str, Any]:
    (found,) = [made for made in one.shop.control.made("stripe", "payment_intent") if made["id"] == payment]
    return found


async def verdict(dsn: str) -> tuple[str | None, str | None]:
    found = await fetchval(dsn, "SELECT ARRAY[verdict, reason] FROM tally.order_hold")
    return found[0], found[1]


async def test_a_payment_that_waits_for_its_customer_is_cancelled_there_before_the_order_is_swept(
    dsn: str, control: Control
) -> None:
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert intent(one, payment)["body"]["status"] == "canceled"
        assert await one.shop.statuses(order) == ["FAILED"]
        assert (await verdict(dsn))[0] == "cancelled"
    assert await broken(dsn) == {}


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_what_was_paid_and_never_told_is_paid(dsn: str, control: Control, world: World) -> None:
    """Its webhook is lost: the sweeper asks, and the saga hears of it as of any other payment."""
    async with desk(dsn, control, world) as one:
        order, _ = await one.bought()
        await expire(dsn, order)
        assert await one.shop.orders.sweep() == Swept(told=1)
        assert await one.status(order) == "PENDING"
        assert (await one.run()).recorded == 1
        assert await one.status(order) == "PAID"
        await time_passes(dsn)
        assert await one.shop.orders.sweep() == Swept()
        assert (await verdict(dsn))[0] == "ended"
        assert one.given_back() == []
    assert await broken(dsn) == {}


async def test_one_that_its_customer_paid_a_moment_before_is_paid_and_not_cancelled(dsn: str, control: Control) -> None:
    """We know of a payment that waits; at the provider it has succeeded since."""
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        await authorise(control.url, payment)
        assert await one.shop.orders.sweep() == Swept(told=1)
        assert (await one.run()).recorded == 1
        assert (await one.status(order), intent(one, payment)["body"]["status"]) == ("PAID", "succeeded")


@pytest.mark.parametrize("fault", ["drop_before", "execute_then_drop", "gateway_503", "unauthorized", "html_200"])
async def test_no_answer_is_never_taken_for_cancelled(dsn: str, control: Control, fault: str) -> None:
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        control.plan(f"stripe.cancel:{fault}=100%")
        assert await one.shop.orders.sweep() == Swept(held=1)
        assert (await one.status(order), (await verdict(dsn))[0]) == ("PENDING", None)
        control.call("DELETE", "faults")
        await time_passes(dsn, timedelta(minutes=2))
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert intent(one, payment)["body"]["status"] == "canceled"


async def test_a_provider_out_of_reach_holds_an_order_for_an_hour_and_what_turns_up_then_is_given_back(
    dsn: str, control: Control
) -> None:
    """The ghost payment: its money came, and nobody could hear of it."""
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        await authorise(control.url, payment)
        for operation in ("cancel", "lookup"):
            control.plan(f"stripe.{operation}:drop_before=100%")
        assert await one.shop.orders.sweep() == Swept(held=1)
        await time_passes(dsn, timedelta(minutes=50))
        assert await one.shop.orders.sweep() == Swept(held=1)
        assert await one.status(order) == "PENDING"
        await time_passes(dsn, timedelta(minutes=10))
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await verdict(dsn))[0] == "given_up"
        control.call("DELETE", "faults")
        await one.tell(payment)
        await one.run()
        assert await one.refund_statuses(order) == ["COMPLETED"]
        assert len(one.given_back()) == 1


def unreachable(one: Desk) -> None:
    for operation in ("cancel", "lookup"):
        one.shop.control.plan(f"stripe.{operation}:drop_before=100%")


async def given_up(one: Desk, order: OrderView) -> None:
    """The provider was out of reach for as long as the order was held for it, and is back now."""
    unreachable(one)
    assert await one.shop.orders.sweep() == Swept(held=1)
    await time_passes(one.dsn)
    assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
    assert (await one.status(order), (await verdict(one.dsn))[0]) == ("CANCELLED_BY_SWEEPER", "given_up")


async def closed_as(dsn: str) -> str | None:
    found: str | None = await fetchval(dsn, "SELECT closed_as FROM tally.order_hold")
    return found


async def test_what_was_swept_unasked_is_cancelled_at_the_provider_once_it_answers(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        await given_up(one, order)
        await time_passes(dsn, timedelta(minutes=10))
        assert await one.shop.orders.sweep() == Swept()
        assert (await closed_as(dsn), intent(one, payment)["body"]["status"]) == (None, "requires_payment_method")
        control.call("DELETE", "faults")
        await time_passes(dsn, timedelta(minutes=20))
        assert await one.shop.orders.sweep() == Swept()
        assert (await closed_as(dsn), intent(one, payment)["body"]["status"]) == ("cancelled", "canceled")
        assert await one.shop.statuses(order) == ["FAILED"]
    assert await broken(dsn) == {}


async def test_what_was_swept_unasked_and_has_moved_is_given_back_without_a_webhook(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        await authorise(control.url, payment)
        await given_up(one, order)
        control.call("DELETE", "faults")
        await time_passes(dsn, timedelta(minutes=10))
        assert await one.shop.orders.sweep() == Swept(told=1)
        assert await closed_as(dsn) == "told"
        await one.run()
        assert await one.refund_statuses(order) == ["COMPLETED"]
        await time_passes(dsn)
        assert await one.shop.orders.sweep() == Swept(), "it is over"
        assert len(one.given_back()) == 1
    assert await broken(dsn) == {}


async def test_what_the_books_did_not_show_and_turns_up_later_is_given_back_without_a_webhook(
    dsn: str, control: Control
) -> None:
    """A server's error that was rolled forward: the order was swept, because nothing was there."""
    async with desk(dsn, control) as one:
        order = await one.shop.order("k")
        control.plan("stripe.charge:drop_before=100%")
        await one.shop.pending(order)
        control.call("DELETE", "faults")
        await expire(dsn, order)
        await age(dsn)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await verdict(dsn))[0] == "absent"
        (row,) = await one.shop.log(order)
        key = {"authorization": f"Bearer {SIMULATOR_API_KEY}"}
        async with httpx2.AsyncClient(base_url=control.url, timeout=60, headers=key) as client:
            fields = {"amount": 2500, "currency": "usd", "confirm": "true", "payment_method": "pm_card_visa"}
            answer = await client.post(
                "/stripe/v1/payment_intents", data={**fields, "metadata[tally_key]": row.key.hex()}
            )
            assert answer.json()["status"] == "succeeded", answer.text
        await time_passes(dsn, timedelta(minutes=10))
        assert await one.shop.orders.sweep() == Swept(told=1)
        await one.run()
        assert await one.refund_statuses(order) == ["COMPLETED"]


async def test_a_provider_that_never_answers_is_asked_for_a_month_and_no_longer(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await clicked(one)
        await given_up(one, order)
        await time_passes(dsn, timedelta(days=29))
        await one.shop.orders.sweep()
        assert await closed_as(dsn) is None
        await time_passes(dsn, timedelta(days=1))
        await one.shop.orders.sweep()
        assert await closed_as(dsn) == "unanswered"
        control.call("DELETE", "faults")
        await time_passes(dsn, timedelta(days=1))
        await one.shop.orders.sweep()
        assert intent(one, payment)["body"]["status"] == "requires_payment_method"
        # Nobody hears of it by asking any more; what its provider tells is still given back.
        await authorise(control.url, payment)
        await one.tell(payment)
        await one.run()
        assert await one.refund_statuses(order) == ["COMPLETED"]


async def test_where_nobody_can_be_asked_nothing_is_asked_after_the_sweep(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ADYEN) as one:
        order = await one.shop.order("k")
        control.plan("adyen.charge:drop_before=100%")
        await one.shop.pending(order)
        control.call("DELETE", "faults")
        await expire(dsn, order)
        await age(dsn)
        assert await one.shop.orders.sweep() == Swept(held=1)
        await time_passes(dsn)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert ((await verdict(dsn))[0], await closed_as(dsn)) == ("given_up", "unanswered")


async def test_many_that_were_given_up_keep_nobody_from_being_asked(dsn: str, control: Control) -> None:
    """What became overdue now has a chunk of its own, beside those that are asked about for days."""
    async with desk(dsn, control, limits=replace(HURRIED, release_chunk=1)) as one:
        first, _ = await clicked(one, "a")
        await given_up(one, first)
        await time_passes(dsn, timedelta(minutes=30))
        control.call("DELETE", "faults")
        _, payment = await clicked(one, "b")
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert intent(one, payment)["body"]["status"] == "canceled"


# --- a declined payment that its customer could still finish

DECLINED = {"payment_method": "pm_card_chargeDeclined"}


async def declined(one: Desk) -> tuple[OrderView, str]:
    """An order whose card was declined, and whose time is over; the payment is still open at the provider."""
    order = await one.shop.order("k")
    assert await one.shop.refused(order, **DECLINED) == "payment_refused"
    await expire(one.dsn, order)
    (made,) = one.shop.control.made("stripe", "payment_intent")
    assert made["body"]["status"] == "requires_payment_method"
    return order, made["id"]


async def test_a_declined_payment_is_cancelled_there_before_its_order_is_swept(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await declined(one)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert intent(one, payment)["body"]["status"] == "canceled"
        (row,) = await one.shop.log(order)
        assert (row.status, row.reason) == ("FAILED", "card_declined"), "its own reason, not that of the cancellation"
        assert not await fetchval(dsn, "SELECT bool_or(is_confirmable) FROM tally.payment_idempotency_log")
    assert await broken(dsn) == {}


async def test_a_declined_payment_that_its_customer_finished_by_another_card_is_paid(
    dsn: str, control: Control
) -> None:
    """And its webhook is lost: the sweeper asks before it sweeps."""
    async with desk(dsn, control) as one:
        order, payment = await declined(one)
        await authorise(control.url, payment)
        assert await one.shop.orders.sweep() == Swept(told=1)
        await one.run()
        assert await one.status(order) == "PAID"
        await time_passes(dsn)
        assert await one.shop.orders.sweep() == Swept()
        assert one.given_back() == []
    assert await broken(dsn) == {}


async def test_a_declined_payment_that_is_not_known_to_be_cancelled_holds_its_order(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await declined(one)
        unreachable(one)
        assert await one.shop.orders.sweep() == Swept(held=1)
        assert await one.status(order) == "PENDING"
        control.call("DELETE", "faults")
        await time_passes(dsn, timedelta(minutes=2))
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert intent(one, payment)["body"]["status"] == "canceled"


async def test_every_open_payment_of_an_order_is_ended_before_it_is_swept(dsn: str, control: Control) -> None:
    """One that was declined, and a later one that waits: the provider was changed between them."""
    async with desk(dsn, control) as one:
        order = await one.shop.order("k")
        assert await one.shop.refused(order, **DECLINED) == "payment_refused"
        await one.shop.paying(order, **WAITING)
        await execute(
            superuser(dsn), "UPDATE tally.payment_idempotency_log SET is_confirmable = true WHERE attempt = 1"
        )
        await expire(dsn, order)
        assert await one.shop.orders.sweep() == Swept(held=1)
        assert await one.status(order) == "PENDING"
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert [made["body"]["status"] for made in control.made("stripe", "payment_intent")] == ["canceled"] * 2


async def test_every_open_payment_of_a_swept_order_is_ended_also_when_one_had_moved(dsn: str, control: Control) -> None:
    """Swept unasked. The first is paid afterwards, and told; the second must not stay open at the provider for ever."""
    async with desk(dsn, control) as one:
        order = await one.shop.order("k")
        first = (await one.shop.paying(order, **WAITING)).payment.payment_intent_id
        # Refused and taken for closed, as by a provider that was changed; that it was left open is known since.
        failed = "UPDATE tally.payment_idempotency_log SET status = 'FAILED', reason = 'card_declined'"
        await execute(superuser(dsn), f"{failed}, completed_at = clock_timestamp(), claim_number = claim_number + 1")
        second = (await one.shop.paying(order, **WAITING)).payment.payment_intent_id
        await execute(
            superuser(dsn), "UPDATE tally.payment_idempotency_log SET is_confirmable = true WHERE attempt = 1"
        )
        assert first != second
        await expire(dsn, order)
        await given_up(one, order)
        control.call("DELETE", "faults")
        await authorise(control.url, str(first))
        for _ in range(3):
            await time_passes(dsn)
            await one.shop.orders.sweep()
            await one.run()
        assert intent(one, str(second))["body"]["status"] == "canceled"
        assert [made["parent"] for made in one.given_back()] == [first]
        assert await closed_as(dsn) == "cancelled"


async def test_what_was_told_and_fails_by_itself_holds_no_order(dsn: str, control: Control) -> None:
    """It may fail for days, like a webhook that is poison: told again it is the same event, and nobody takes it."""
    async with desk(dsn, control) as one:
        order, _ = await one.bought()
        await expire(dsn, order)
        assert await one.shop.orders.sweep() == Swept(told=1)
        await changed(dsn, "UPDATE tally.webhook_events SET claim_number = 1, tries = 1, reason = 'poison'")
        await time_passes(dsn)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await one.run()).claimed == 1
        assert (await one.status(order), await one.refund_statuses(order)) == ("CANCELLED_BY_SWEEPER", ["COMPLETED"])
        assert len(one.given_back()) == 1
    assert await broken(dsn) == {}


async def test_money_of_another_amount_that_was_given_back_holds_no_order(dsn: str, control: Control) -> None:
    """Told of, received and given back: nothing at the provider is left to end, so the stock is for sale again."""
    async with desk(dsn, control) as one:
        order, payment = await one.bought_for(24_990_000)
        await one.tell(payment, micros=24_990_000)
        await one.run()
        assert (await one.status(order), await one.refund_statuses(order)) == ("PENDING", ["COMPLETED"])
        await expire(dsn, order)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert await one.status(order) == "CANCELLED_BY_SWEEPER"
        assert len(one.given_back()) == 1
    assert await broken(dsn) == {}


async def test_a_charge_nobody_answered_for_is_looked_up_first(dsn: str, control: Control) -> None:
    """The provider charged, and its answer was lost: it is found, and its order PAID."""
    async with desk(dsn, control) as one:
        order = await one.shop.order("k")
        control.plan("stripe.charge:execute_then_drop=100%")
        await one.shop.pending(order)
        # The buyer is told that it is pending before the call has ended: the charge must have been made.
        async with asyncio.timeout(30):
            while not control.made("stripe", "payment_intent"):
                await asyncio.sleep(0.02)
        control.call("DELETE", "faults")
        await expire(dsn, order)
        # It may still be on its way: books that do not show it would prove nothing.
        assert await one.shop.orders.sweep() == Swept(held=1)
        await age(dsn)
        await time_passes(dsn, timedelta(minutes=5))
        assert await one.shop.orders.sweep() == Swept(told=1)
        await one.run()
        assert await one.status(order) == "PAID"


async def test_a_provider_whose_clock_is_ahead_is_asked_without_an_end(dsn: str, own_control: Control) -> None:
    """What it made bears a time that has not come here yet: a list that ends now would not show it."""
    own_control.advance(hours=25)
    async with desk(dsn, own_control) as one:
        order = await one.shop.order("k")
        own_control.plan("stripe.charge:execute_then_drop=100%")
        await one.shop.pending(order)
        async with asyncio.timeout(30):
            while not own_control.made("stripe", "payment_intent"):
                await asyncio.sleep(0.02)
        own_control.call("DELETE", "faults")
        await expire(dsn, order)
        await age(dsn)
        assert await one.shop.orders.sweep() == Swept(told=1)


async def test_a_charge_that_the_books_do_not_show_holds_nothing(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order = await one.shop.order("k")
        control.plan("stripe.charge:drop_before=100%")
        await one.shop.pending(order)
        control.call("DELETE", "faults")
        await expire(dsn, order)
        await age(dsn)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await verdict(dsn))[0] == "absent"
        # Nobody has proven that it never happened: it stays with those that are asked about.
        assert await one.shop.statuses(order) == ["PENDING"]


async def test_two_sweepers_ask_once_and_sweep_once(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one, desk(dsn, control, by="two") as two:
        orders = [await clicked(one, f"k{number}") for number in range(5)]
        swept = await asyncio.gather(one.shop.orders.sweep(), two.shop.orders.sweep())
        again = await asyncio.gather(one.shop.orders.sweep(), two.shop.orders.sweep())
        assert sum(each.cancelled for each in (*swept, *again)) == 5
        assert [await one.status(order) for order, _ in orders] == ["CANCELLED_BY_SWEEPER"] * 5
        told = control.call("GET", "events?dialect=stripe&limit=1000")
        assert sum(event["type"] == "payment_intent.canceled" for event in told) == 5
        assert await fetchval(dsn, "SELECT bool_and(claim_number = 1) FROM tally.order_hold")


async def test_who_lost_its_claim_decides_nothing(dsn: str, control: Control) -> None:
    """Paused after its question for longer than the claim holds: another has asked since, and heard that it is paid."""
    async with desk(dsn, control) as one:
        order, _ = await clicked(one)
        control.plan("stripe.cancel:slow_before(1)=100%")
        sweeping = asyncio.create_task(one.shop.orders.sweep())
        while not await fetchval(dsn, "SELECT count(*) FROM tally.order_hold WHERE claim_number = 1"):
            await asyncio.sleep(0.01)
        connection = await asyncpg.connect(superuser(dsn))
        try:
            await connection.execute("UPDATE tally.order_hold SET claim_number = 2")
        finally:
            await connection.close()
        assert (await sweeping).cancelled == 0
        assert (await one.status(order), (await verdict(dsn))[0]) == ("PENDING", None)
