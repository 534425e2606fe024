"""A key of a payment has one answer, whoever races, dies or comes late; an attempt that is live is joined."""

import asyncio
import dataclasses
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.payment.rules import Paid, Paying, PaymentPending, PaymentRefused
from tallystick.database.migrate import migrate
from tallystick.ledger.outcome import Rejected
from tallystick.movement.flow import Sender
from tests import servers, simulators
from tests.checkout.payment.test_flow import cancel, secret
from tests.ledgers import broken, fetchval
from tests.payments import CHARGING, HURRIED, Checkout, age, charged, checkout
from tests.providers.worlds import API_KEY, Control
from tests.settlements import empty, superuser

CHARGING_AT = {world.name: world for world in CHARGING}
DECLINED = "pm_card_chargeDeclined"
PATIENCE_SECONDS = 20
# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own


@pytest.fixture(scope="module")
def payment_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(payment_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(payment_dsn)
    await empty(payment_dsn)
    return payment_dsn


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Checkout]:
    async with checkout(dsn, control) as opened:
        yield opened


async def until_waiting(dsn: str, count: int) -> None:
    """So many sessions of this database wait for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fetchval(dsn, query) < count:
            await asyncio.sleep(0.01)


def told(answer: Paid) -> tuple[str, bool]:
    """What kind of answer, and whether it is a recorded one."""
    match answer:
        case Paying():
            return "paying", answer.is_replayed
        case PaymentRefused():
            return "refused", answer.is_replayed
        case Rejected():
            return answer.code, False
        case PaymentPending():
            return "pending", False


async def test_two_processes_with_one_key_at_once_have_one_attempt_and_one_answer(dsn: str, control: Control) -> None:
    """Both wait for the order; whoever is second finds the key bound, and sends nothing."""
    control.plan("stripe.charge:slow_after(1)")
    async with checkout(dsn, control, answer_seconds=10) as one, checkout(dsn, control, answer_seconds=10) as two:
        order = await one.order()
        holder = await asyncpg.connect(superuser(dsn))
        try:
            async with holder.transaction():
                await holder.execute("SELECT 1 FROM tally.orders FOR UPDATE")
                clicks = [
                    asyncio.create_task(shop.pay(order, key="same", payment_method=DECLINED)) for shop in (one, two)
                ]
                await until_waiting(dsn, 2)
        finally:
            await holder.close()
        answers = await asyncio.gather(*clicks)
        assert sorted(told(answer) for answer in answers) == [("pending", False), ("refused", False)]
        again = [await shop.pay(order, key="same", payment_method=DECLINED) for shop in (one, two)]
        assert [told(answer) for answer in again] == [("refused", True)] * 2
        (first,) = [answer for answer in answers if isinstance(answer, PaymentRefused)]
        assert {(answer.code, answer.detail, answer.remedy) for answer in again if isinstance(answer, Rejected)} == {
            (first.code, first.detail, first.remedy)
        }
        assert len(await one.log(order)) == 1
    assert len(charged(control)) == 1
    assert await broken(dsn) == {}


async def test_one_key_for_two_orders_at_once_pays_one_of_them(dsn: str, control: Control) -> None:
    """Both have seen the key free; the database lets one bind it, and the other is told what it was used for."""
    async with checkout(dsn, control) as one, checkout(dsn, control) as two:
        orders = [await one.order("k1"), await one.order("k2")]
        holder = await asyncpg.connect(superuser(dsn))
        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE tally.payment_key IN EXCLUSIVE MODE")
                clicks = [
                    asyncio.create_task(shop.pay(order, key="same"))
                    for shop, order in zip((one, two), orders, strict=True)
                ]
                await until_waiting(dsn, 2)
        finally:
            await holder.close()
        answers = await asyncio.gather(*clicks)
        assert sorted(told(answer) for answer in answers) == [("key_reused", False), ("paying", False)]
        (refused,) = [answer for answer in answers if isinstance(answer, Rejected)]
        assert refused.fields == ("order_id", "reservation_token")
        assert sorted([len(await one.log(order)) for order in orders]) == [0, 1]
    assert len(charged(control)) == 1
    assert await broken(dsn) == {}


async def test_a_new_key_joins_the_attempt_that_is_live_and_has_its_answer(dsn: str, control: Control) -> None:
    """A double click with two keys: were the second a new attempt, a declined card would be tried twice."""
    control.plan("stripe.charge:slow_after(1)")
    async with checkout(dsn, control, answer_seconds=10) as shop, checkout(dsn, control) as other:
        order = await shop.order()
        first = asyncio.create_task(shop.pay(order, key="one", payment_method=DECLINED))
        while not await shop.answers():
            await asyncio.sleep(0.005)
        assert told(await other.pay(order, key="three")) == ("pending", False)
        answers = await asyncio.gather(first, shop.pay(order, key="two"))
        assert [told(answer) for answer in answers] == [("refused", False), ("refused", True)]
        assert str(answers[0]) == str(answers[1]) == str(await other.pay(order, key="three"))
        assert len(charged(control)) == 1
        # What has joined is used; what is new begins.
        assert told(await shop.pay(order, key="two")) == ("refused", True)
        assert (await shop.paying(order, key="four")).payment.attempts == 2
        assert told(await shop.pay(order, key="one", payment_method=DECLINED)) == ("refused", True)
    assert len(charged(control)) == 2
    assert await broken(dsn) == {}


async def test_fifty_keys_in_one_process_are_one_charge_and_one_answer(shop: Checkout, control: Control) -> None:
    order = await shop.order()
    answers = await asyncio.gather(*(shop.paying(order) for _ in range(50)))
    assert len({(answer.payment.payment_intent_id, secret(answer)) for answer in answers}) == 1
    assert [answer.is_repeat for answer in answers].count(False) == 1
    assert len(charged(control)) == 1
    assert await shop.answers() == ["done"]


async def test_what_a_killed_process_left_is_the_keys_answer_once_it_was_found(dsn: str, control: Control) -> None:
    control.plan("stripe.charge:execute_then_drop")
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        assert told(await shop.pay(order, key="k", payment_method=None)) == ("pending", False)
    await age(dsn)
    async with checkout(dsn, control) as other:
        assert (await other.payments.collect()).completed == 1
        paid = await other.paying(order, key="k", payment_method=None)
        assert (paid.is_replayed, paid.payment.status) == (True, "AWAITING_CUSTOMER")
        assert paid == await other.paying(order, key="k", payment_method=None)
        assert told(await other.pay(order, key="k", payment_method="pm_card_visa")) == ("key_reused", False)
    assert len(charged(control)) == 1
    assert await broken(dsn) == {}


async def test_a_pending_key_is_asked_about_also_when_its_order_has_ended(dsn: str, control: Control) -> None:
    """Its caller is owed what became of his request; nothing is sent for the order any more."""
    control.plan("stripe.charge:drop_before")
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        await shop.pending(order, key="k")
        await shop.orders.cancel(shop.tenant, order.id)
        assert told(await shop.pay(order, key="k")) == ("pending", False)
        assert told(await shop.pay(order, key="other")) == ("order_cancelled", False)
        await age(dsn)
        await shop.pay(order, key="k")
    assert charged(control) == []
    assert await broken(dsn) == {}


async def test_a_recorded_payment_is_told_again_though_the_order_has_ended(shop: Checkout) -> None:
    order = await shop.order()
    first = await shop.paying(order, key="k")
    await shop.orders.cancel(shop.tenant, order.id)
    again = await shop.paying(order, key="k")
    assert (again.payment, secret(again), again.is_replayed) == (first.payment, secret(first), True)


@pytest.mark.parametrize("fault", ["drop_before", "gateway_503", "slow_before(25)"])
async def test_a_recorded_payment_is_told_again_while_the_provider_is_away(
    dsn: str, control: Control, fault: str
) -> None:
    """Another status for the same key would be another answer. What cannot be had is the secret alone."""
    limits = dataclasses.replace(HURRIED, payment_wait_seconds=2.0)
    async with checkout(dsn, control, limits=limits, answer_seconds=20.0) as shop:
        order = await shop.order()
        first = await shop.paying(order, key="k")
        joined = await shop.paying(order, key="late")
        control.plan(f"stripe.lookup:{fault}=100%")
        for key, was in (("k", first), ("late", joined)):
            again = await shop.pay(order, key=key)
            assert isinstance(again, Paying), again
            assert (again.payment, again.client_secret, again.is_replayed) == (was.payment, None, True)
        # A key that has no answer yet is told that it is pending.
        assert isinstance(await shop.pay(order, key="new"), PaymentPending)
        control.call("DELETE", "faults")
        assert secret(await shop.paying(order, key="k")) == secret(first)


async def test_a_recorded_payment_is_told_again_by_a_process_that_lacks_its_provider(
    dsn: str, control: Control
) -> None:
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        first = await shop.paying(order, key="k")
    async with checkout(dsn, control, next(world for world in CHARGING if world.name == "adyen")) as other:
        again = await other.paying(order, key="k", payment_method=shop.world.payment_method)
        assert (again.payment, again.client_secret, again.is_replayed) == (first.payment, None, True)


async def test_a_payment_that_has_failed_since_stays_its_keys_answer_and_a_new_key_begins_anew(
    shop: Checkout, control: Control
) -> None:
    order = await shop.order()
    first = await shop.paying(order, key="k", payment_method=None)
    late = await shop.paying(order, key="late", payment_method=None)
    cancel(control, first.payment.payment_intent_id)
    for key, was in (("k", first), ("late", late)):
        again = await shop.paying(order, key=key, payment_method=None)
        assert (again.payment, again.is_replayed) == (was.payment, True)
    view = await shop.view(order)
    assert view is not None
    assert (view.status, view.reason) == ("FAILED", "failed_at_the_provider")
    assert (await shop.paying(order, key="new", payment_method=None)).payment.attempts == 2
    assert (await shop.paying(order, key="k", payment_method=None)).payment == first.payment
    assert await broken(shop.dsn) == {}


async def test_no_key_is_lost_when_time_passes(shop: Checkout, dsn: str) -> None:
    """A provider forgets after a day; we do not."""
    order = await shop.order()
    first = await shop.pay(order, key="k", payment_method=DECLINED)
    await age(dsn, timedelta(days=40))
    again = await shop.pay(order, key="k", payment_method=DECLINED)
    assert (str(again), told(again)) == (str(first), ("refused", True))


async def test_verify_sees_a_key_without_its_charge(shop: Checkout, dsn: str) -> None:
    order = await shop.order()
    await shop.paying(order, key="k")
    owner = await asyncpg.connect(superuser(dsn))
    try:
        async with owner.transaction():
            await owner.execute("SET LOCAL session_replication_role = replica")
            await owner.execute("UPDATE tally.payment_key SET attempt = 2")
    finally:
        await owner.close()
    assert await broken(dsn) == {"payments": 1}


def confirm(control: Control, payment: str) -> None:
    """As the customer does it on the provider's page."""
    request = urllib.request.Request(
        f"{control.url}/stripe/v1/payment_intents/{payment}/confirm",
        b"payment_method=pm_card_visa",
        {"authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def state_of(control: Control, payment: str) -> str:
    """What the provider's own books say of a payment."""
    return next(str(one["body"]["status"]) for one in charged(control) if one["id"] == payment)


async def test_what_a_decline_left_at_the_provider_is_cancelled_before_the_next_attempt(
    shop: Checkout, control: Control
) -> None:
    """Else the customer could pay it by another card, and the next attempt too."""
    order = await shop.order()
    assert told(await shop.pay(order, key="one", payment_method=DECLINED)) == ("refused", False)
    (left,) = charged(control)
    assert state_of(control, left["id"]) == "requires_payment_method"
    second = await shop.paying(order, key="two", payment_method=None)
    assert second.payment.attempts == 2
    assert state_of(control, left["id"]) == "canceled"
    assert state_of(control, str(second.payment.payment_intent_id)) == "requires_payment_method"
    assert told(await shop.pay(order, key="one", payment_method=DECLINED)) == ("refused", True)
    assert await broken(shop.dsn) == {}


@asynccontextmanager
async def moved_to_adyen(shop: Checkout, *others: str) -> AsyncIterator[Checkout]:
    """The shop whose new payments another provider takes; the `others` are configured beside it."""
    adyen = CHARGING_AT["adyen"].make(shop.control.url, "", "")
    providers = {"adyen": adyen, **dict.fromkeys(others, shop.provider)}
    try:
        async with (
            Sender(shop.database, providers, limits=HURRIED) as sender,
            Payments(shop.database, providers, sender, provider="adyen", limits=HURRIED) as payments,
        ):
            yield dataclasses.replace(shop, payments=payments)
    finally:
        await adyen.close()


async def test_what_a_decline_left_is_ended_though_another_provider_takes_the_next_attempt(
    shop: Checkout, control: Control
) -> None:
    order = await shop.order()
    await shop.pay(order, key="one", payment_method=DECLINED)
    async with moved_to_adyen(shop, "stripe") as moved:
        method = CHARGING_AT["adyen"].payment_method
        second = await moved.paying(order, key="two", payment_method=method)
        assert second.payment.attempts == 2
    assert [made["body"]["status"] for made in control.made("stripe", "payment_intent")] == ["canceled"]
    assert len(control.made("adyen", "charge")) == 1
    assert await broken(shop.dsn) == {}


async def test_nothing_begins_beside_what_a_decline_left_at_a_provider_that_is_gone(
    shop: Checkout, control: Control
) -> None:
    """It could still be paid there, and nobody here can end it. The key stays unused."""
    order = await shop.order()
    await shop.pay(order, key="one", payment_method=DECLINED)
    async with moved_to_adyen(shop) as moved:
        for _ in range(2):
            refused = await moved.pay(order, key="two")
            assert isinstance(refused, Rejected), refused
            assert (refused.code, "at stripe" in refused.detail) == ("provider_not_configured", True)
    assert control.made("adyen", "charge") == []
    assert (await shop.paying(order, key="two")).payment.attempts == 2


@pytest.mark.parametrize("fault", ["drop_before", "execute_then_drop", "gateway_503_after"])
async def test_nothing_begins_beside_what_is_not_known_to_be_cancelled(
    shop: Checkout, control: Control, fault: str
) -> None:
    order = await shop.order()
    await shop.pay(order, key="one", payment_method=DECLINED)
    control.plan(f"stripe.cancel:{fault}=100%")
    for _ in range(2):
        waiting = await shop.pay(order, key="two")
        assert isinstance(waiting, PaymentPending), waiting
        assert waiting.payment.reason == "earlier_attempt_not_ended"
    assert len(charged(control)) == 1
    control.call("DELETE", "faults")
    assert (await shop.paying(order, key="two")).payment.attempts == 2
    assert len(charged(control)) == 2
    assert await broken(shop.dsn) == {}


async def test_what_was_paid_after_its_decline_is_not_charged_again(shop: Checkout, control: Control) -> None:
    """The customer has brought another card on the provider's page, and his webhook is on its way."""
    order = await shop.order()
    await shop.pay(order, key="one", payment_method=DECLINED)
    (left,) = charged(control)
    confirm(control, left["id"])
    assert isinstance(await shop.pay(order, key="two"), PaymentPending)
    assert len(charged(control)) == 1
