"""What a provider says of money, and what becomes of orders, refunds and the ledger by it."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tallystick.checkout import (
    backorder_store as backorder,
)
from tallystick.checkout import (
    break_store as payment_break,
)
from tallystick.checkout import (
    policy_store as checkout_policy,
)
from tallystick.checkout.saga.rules import Policy
from tallystick.database.migrate import migrate
from tallystick.keys.derived import hex64, refund_key, square45
from tallystick.providers.words import Refund
from tallystick.webhooks import store as webhook
from tallystick.webhooks.flow import Processed
from tallystick.webhooks.rules import Recorded
from tests import servers
from tests.ledgers import broken, fetchval
from tests.payments import CHARGING, age, charged
from tests.providers.worlds import Control, send
from tests.sagas import LEASE, Desk, desk
from tests.settlements import empty

PRICE = 25_000_000


@pytest.fixture(scope="module")
def saga_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(saga_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(saga_dsn)
    await empty(saga_dsn)
    return saga_dsn


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


@pytest.fixture(params=CHARGING, ids=lambda world: world.name)
async def any_till(request: pytest.FixtureRequest, dsn: str, control: Control) -> AsyncIterator[Desk]:
    """The same at every provider that takes charges."""
    async with desk(dsn, control, request.param) as opened:
        yield opened


async def test_the_money_comes_and_the_order_is_paid(any_till: Desk) -> None:
    order, payment = await any_till.bought()
    await any_till.tell(payment)
    assert await any_till.run() == Processed(claimed=1, recorded=1)
    assert await any_till.status(order) == "PAID"
    assert await any_till.balances() == {"taken": -PRICE, "sales": PRICE}
    assert await any_till.ended() == {"evt_1": "PROCESSED_OK"}
    assert await broken(any_till.dsn) == {}


async def test_a_late_payment_is_given_back_and_its_event_says_so(any_till: Desk) -> None:
    """The ghost payment: charged, swept, then the webhook."""
    order, payment = await any_till.ghost()
    await any_till.tell(payment)
    assert await any_till.run() == Processed(claimed=1, recorded=1)
    assert await any_till.status(order) == "CANCELLED_BY_SWEEPER"
    (refund,) = await any_till.refunds_of(order)
    (made,) = any_till.given_back()
    assert (refund.view.status, refund.view.refund_id, refund.why) == ("COMPLETED", made["id"], "late")
    assert await any_till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
    assert await any_till.balances() == {"taken": 0, "owed": 0}
    assert await broken(any_till.dsn) == {}


@pytest.mark.parametrize("again", ["evt_1", "evt_2"])
async def test_a_payment_told_twice_counts_once(till: Desk, again: str) -> None:
    order, payment = await till.bought()
    await till.tell(payment)
    await till.run()
    await till.tell(payment, again)
    await till.run()
    assert await till.status(order) == "PAID"
    assert till.given_back() == []
    assert await till.balances() == {"taken": -PRICE, "sales": PRICE}
    assert set((await till.ended()).values()) == {"PROCESSED_OK"}


async def test_two_tellings_in_one_batch_are_one_payment(till: Desk) -> None:
    order, payment = await till.ghost()
    await till.tell(payment, "evt_1")
    await till.tell(payment, "evt_2")
    await till.run()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert len(till.given_back()) == 1
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED", "evt_2": "PROCESSED_OK"}


async def test_a_second_payment_of_a_paid_order_goes_back(till: Desk) -> None:
    """The provider made two payments under one key: the second is told with our reference, and is another's id."""
    order, payment = await till.bought()
    other, second = await till.bought("other")
    (charge,) = await till.shop.log(order)
    await till.tell(payment)
    await till.tell(second, "evt_2", reference=charge.key.hex())
    await till.run()
    # By its id it is the other order's: that is what the provider's id says, and our reference cannot say otherwise.
    assert (await till.status(order), await till.status(other)) == ("PAID", "PAID")
    stray = await stray_payment(till)
    await till.tell(stray, "evt_3", reference=charge.key.hex())
    await till.run()
    (refund,) = await till.refunds_of(order)
    assert (refund.view.status, refund.why, refund.view.payment_intent_id) == ("COMPLETED", "second_payment", stray)
    assert await till.status(order) == "PAID"
    assert await broken(till.dsn) == {}


async def stray_payment(till: Desk) -> str:
    """A payment in the provider's books that nothing here knows."""
    answer: Any = await send(till.shop.provider, till.shop.world.charge(9_999, micros=PRICE))
    return str(answer.movement.id)


async def test_a_cancelled_order_is_not_paid(till: Desk) -> None:
    order, payment = await till.bought()
    await till.shop.orders.cancel(till.shop.tenant, order.id)
    await till.tell(payment)
    await till.run()
    (refund,) = await till.refunds_of(order)
    assert (await till.status(order), refund.why, refund.view.status) == ("CANCELLED", "order_cancelled", "COMPLETED")


@pytest.mark.parametrize("other", [{"micros": PRICE - 10_000}, {"currency": "GBP"}], ids=["amount", "currency"])
@pytest.mark.parametrize("wanted", ["refund", "review"])
async def test_another_amount_never_pays(till: Desk, other: dict[str, Any], wanted: Any) -> None:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(other_amount=wanted), by="test")
    order, payment = await till.bought()
    await till.tell(payment, **other)
    await till.run()
    assert await till.status(order) == "PENDING"
    if wanted == "review":
        assert till.given_back() == []
        assert await till.ended() == {"evt_1": "PROCESSED_OK"}
        assert await payment_break.figures(till.shop.database) == (0, 1)
    else:
        (refund,) = await till.refunds_of(order)
        assert refund.why == "amount_differs"
    # The order can still be paid by the right amount... of another payment; nothing was taken from its reservation.
    assert (await till.balances())["taken"] <= 0
    assert await broken(till.dsn) == {}


async def test_nobody_elses_money_is_touched(till: Desk) -> None:
    await till.tell("pi_of_somebody_else", reference="ab" * 32)
    await till.tell("pi_failed", "evt_2", state="failed")
    await till.run()
    assert await till.breaks() == ["missing_here"]
    assert till.given_back() == []
    assert await till.balances() == {}
    assert set((await till.ended()).values()) == {"PROCESSED_OK"}


async def test_a_charge_that_failed_may_be_tried_again(till: Desk) -> None:
    order, payment = await till.bought()
    await till.tell(payment, state="failed")
    await till.run()
    assert await till.shop.statuses(order) == ["FAILED"]
    second = await till.shop.paying(order)
    assert second.payment.payment_intent_id != payment
    await till.tell(str(second.payment.payment_intent_id), "evt_2")
    await till.run()
    assert await till.status(order) == "PAID"


async def test_a_chargeback_is_a_break_and_refunds_nothing(till: Desk) -> None:
    order, payment = await till.bought()
    await till.tell(payment)
    await till.tell(payment, "evt_2", state="returned")
    await till.run()
    assert (await till.status(order), await till.breaks(), till.given_back()) == ("PAID", ["disputed"], [])


def reference(world: str, key: bytes) -> str:
    """Our key, as that provider's payments hold it."""
    return square45(key)[:40] if world == "square" else hex64(key)


async def test_the_webhook_may_come_before_the_answer(any_till: Desk, control: Control) -> None:
    """The answer to the charge is lost; the webhook knows the payment by our reference, in the provider's form."""
    world = any_till.shop.world.name
    control.plan(f"{world}.charge:execute_then_drop@1")
    order = await any_till.shop.order()
    await any_till.shop.pending(order)
    (charge,) = await any_till.shop.log(order)
    (made,) = charged(control, any_till.shop.world)
    await any_till.tell(made["id"], reference=reference(world, charge.key))
    await any_till.run()
    assert await any_till.status(order) == "PAID"
    assert await any_till.shop.statuses(order) == ["COMPLETED"]
    again = await any_till.shop.paying(order)
    assert again.payment.payment_intent_id == made["id"]
    assert await any_till.breaks() == []


STORY = ("success", "success again", "refund")


@pytest.mark.parametrize("order_of_events", list(itertools.permutations(STORY)), ids="-".join)
@pytest.mark.parametrize("is_one_batch", [True, False], ids=["together", "one by one"])
async def test_events_in_any_order_end_the_same(
    till: Desk, order_of_events: tuple[str, ...], is_one_batch: Any
) -> None:
    """A late payment, told twice under two ids, and its refund's own event: all orders end alike."""
    order, payment = await till.ghost()
    key = refund_key(tenant=till.shop.tenant.name, currency="EUR", provider="stripe", payment_intent_id=payment)
    # Made at the provider already, by a life of ours that forgot it: so that its event can come first.
    made: Any = await send(
        till.shop.provider,
        Refund(key=key, payment_id=payment, amount_micros=PRICE, currency="EUR", reason="late"),
        f"{await fetchval(till.dsn, 'SELECT tally.installation_id()')}/order/{order.id}",
    )
    for name in order_of_events:
        if name == "refund":
            await till.tell(made.movement.id, "evt_refund", purpose="refund", reference=key.hex(), parent=payment)
        else:
            await till.tell(payment, f"evt_{name}")
        if not is_one_batch:
            await till.run()
    await till.run()
    assert await till.status(order) == "CANCELLED_BY_SWEEPER"
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert [one["id"] for one in till.given_back()] == [made.movement.id]
    assert await till.breaks() == []
    assert await till.balances() == {"taken": 0, "owed": 0}
    assert sorted((await till.ended()).values()) == ["PROCESSED_COMPENSATED", "PROCESSED_OK", "PROCESSED_OK"]
    assert await broken(till.dsn) == {}


async def test_backorders_deliver_later_what_was_paid_late(till: Desk) -> None:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    order, payment = await till.ghost(quantity=2)
    other, late = await till.ghost("k2", quantity=2)
    await till.shop.orders.set_stock(till.shop.tenant, "lamp", 3)
    await till.tell(payment)
    await till.tell(late, "evt_2")
    await till.run()
    assert (await till.status(order), await till.status(other)) == ("PAID", "PAID")
    sku: Any = await till.shop.orders.sku(till.shop.tenant, "lamp")
    assert (sku.sold, sku.backordered, sku.available) == (2, 2, 1)
    assert await backorder.fill(till.shop.database, 10) == 0
    await till.shop.orders.set_stock(till.shop.tenant, "lamp", 4)
    assert await backorder.fill(till.shop.database, 10) == 1
    sku = await till.shop.orders.sku(till.shop.tenant, "lamp")
    assert (sku.sold, sku.backordered, sku.available) == (4, 0, 0)
    assert till.given_back() == []
    assert await broken(till.dsn) == {}


async def test_an_outage_leaves_the_refund_to_the_sweeper(till: Desk, control: Control) -> None:
    control.plan("stripe.refund:drop_before@1-2")
    order, payment = await till.ghost()
    await till.tell(payment)
    assert (await till.run()).postponed == 1
    assert await till.refund_statuses(order) == ["PENDING"]
    assert await till.ended() == {"evt_1": "UNPROCESSED"}
    assert (await till.balances())["owed"] == PRICE
    for _ in range(3):
        await age(till.dsn)
        await till.refunds.sweep()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert len(till.given_back()) == 1
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
    assert await broken(till.dsn) == {}


async def test_a_lost_answer_is_asked_about_and_not_sent_again(till: Desk, control: Control) -> None:
    control.plan("stripe.refund:execute_then_drop@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    assert await till.refund_statuses(order) == ["PENDING"]
    await age(till.dsn)
    await till.refunds.sweep()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert len(till.given_back()) == 1


async def test_a_refund_that_is_refused_is_a_persons(till: Desk, control: Control) -> None:
    control.plan("stripe.refund:refused(charge_disputed)@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    (refund,) = await till.refunds_of(order)
    assert (refund.view.status, refund.view.reason) == ("FAILED", "charge_disputed")
    assert await till.breaks() == ["refund_failed"]
    assert (await till.balances())["owed"] == PRICE
    assert await broken(till.dsn) == {}
    assert await till.refunds.decisions.decide(till.shop.tenant, order.id, payment, "refund") == "REFUND"
    assert await till.refund_statuses(order) == ["FAILED", "COMPLETED"]
    assert (await till.balances())["owed"] == 0
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
    assert await broken(till.dsn) == {}
    again: Any = await till.refunds.decisions.decide(till.shop.tenant, order.id, payment, "refund")
    assert again.code == "payment_decided"
    assert len(till.given_back()) == 1


@pytest.mark.parametrize("decision", ["refund", "keep"])
async def test_a_person_decides_about_another_amount(till: Desk, decision: Any) -> None:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(other_amount="review"), by="test")
    order, payment = await till.bought_for(PRICE - 10_000)
    await till.tell(payment, micros=PRICE - 10_000)
    await till.run()
    stands = await till.decided(order, payment, decision)
    assert stands == ("REFUND" if decision == "refund" else "KEPT")
    assert await till.refund_statuses(order) == (["COMPLETED"] if decision == "refund" else [])
    balances = await till.balances()
    assert balances["owed"] == 0
    assert balances.get("sales", 0) == (0 if decision == "refund" else PRICE - 10_000)
    assert await broken(till.dsn) == {}


async def test_a_refund_that_comes_back_is_owed_again(till: Desk) -> None:
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    (refund,) = await till.refunds_of(order)
    assert refund.view.refund_id is not None
    await till.tell(
        refund.view.refund_id, "evt_2", purpose="refund", state="failed", parent=payment, reference=refund.key.hex()
    )
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]
    assert (await till.balances()) == {"taken": -PRICE, "owed": PRICE}
    assert await till.breaks() == ["refund_failed"]
    assert await broken(till.dsn) == {}


async def test_a_lost_claim_commits_nothing(till: Desk) -> None:
    """A worker that was paused past its lease: another has the event, and nothing of the first one is written."""
    order, payment = await till.bought()
    await till.tell(payment)
    claimed = await webhook.claim(till.shop.database, most=10, lease=timedelta(), by="paused")
    again = await webhook.claim(till.shop.database, most=10, lease=LEASE, by="awake")
    assert [event.number for event in claimed] == [event.number for event in again]
    assert await till.saga.handle(claimed) == [Recorded()]
    assert await till.status(order) == "PENDING"
    await till.saga.handle(again)
    assert await till.status(order) == "PAID"


@pytest.fixture
async def patient_till(dsn: str, own_control: Control) -> AsyncIterator[Desk]:
    """One whose provider lives on for months."""
    async with desk(dsn, own_control) as opened:
        yield opened


async def test_a_year_later_nothing_more_is_refunded(patient_till: Desk) -> None:
    till = patient_till
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    till.shop.control.advance(days=366)
    await age(till.dsn, timedelta(days=366))
    await till.tell(payment, "evt_a_year_later")
    await till.run()
    await till.refunds.sweep()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert len(till.given_back()) == 1


async def test_what_is_told_of_a_failed_refund_is_not_the_next_ones(till: Desk, control: Control) -> None:
    """The first one failed, by our reference; then more is told of it without one, and that is not about the second."""
    control.plan("stripe.refund:drop_before@1-2")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    (first,) = await till.refunds_of(order)
    await till.tell("re_1", "evt_2", purpose="refund", state="failed", parent=payment, reference=first.key.hex())
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]
    assert await till.refunds.decisions.decide(till.shop.tenant, order.id, payment, "refund") == "REFUND"
    await till.tell("re_1", "evt_3", purpose="refund", parent=payment)
    await till.tell("re_1", "evt_4", purpose="refund", state="failed", parent=payment)
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED", "PENDING"]
    assert (await till.balances())["owed"] == PRICE
    assert await till.ended() == {
        "evt_1": "UNPROCESSED",
        "evt_2": "PROCESSED_OK",
        "evt_3": "PROCESSED_OK",
        "evt_4": "PROCESSED_OK",
    }
    assert await till.breaks() == ["contradicted", "refund_failed"]
    assert await broken(till.dsn) == {}


async def by_hand(till: Desk, payment: str, micros: int = PRICE) -> str:
    """As somebody with the provider's dashboard gives it back."""
    refund = Refund(key=b"\x07" * 32, payment_id=payment, amount_micros=micros, currency="EUR")
    made: Any = await send(till.shop.provider, refund)
    return str(made.movement.id)


async def test_what_somebody_gave_back_by_hand_is_confirmed_by_its_id(till: Desk) -> None:
    order, payment = await till.ghost()
    given = await by_hand(till, payment)
    await till.tell(payment)
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]

    async def confirm(refund_id: str) -> Any:
        return await till.decided(order, payment, "confirm", refund_id=refund_id)

    for wrong in ("re_unheard_of", "", "re_\x00"):
        assert (await confirm(wrong)).code == "refund_not_confirmed"
    assert await confirm(given) == "REFUND"
    assert await till.refund_statuses(order) == ["FAILED", "COMPLETED"]
    assert await till.balances() == {"taken": 0, "owed": 0}
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
    assert len(till.given_back()) == 1
    assert (await confirm(given)).code == "refund_not_confirmed"
    assert await broken(till.dsn) == {}


async def test_one_refund_does_not_give_two_payments_back(till: Desk) -> None:
    (one, first), (two, second) = await till.ghost("one"), await till.ghost("two")
    given = await by_hand(till, first)
    await till.tell(first)
    await till.tell(second, "evt_2")
    await till.run()
    assert await till.refund_statuses(two) == ["COMPLETED"]
    other = await till.decided(two, second, "confirm", refund_id=given)
    assert other.code == "refund_not_confirmed"
    assert await till.decided(one, first, "confirm", refund_id=given) == "REFUND"
    assert len(till.given_back()) == 2
    assert await broken(till.dsn) == {}


async def test_what_nobody_can_tell_is_confirmed_and_never_sent_again(patient_till: Desk) -> None:
    """Past the provider's memory of the key, with books that do not show it under our name."""
    till, control = patient_till, patient_till.shop.control
    control.plan("stripe.refund:error_500_no_object@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    await age(till.dsn, timedelta(days=40))
    control.advance(days=40)
    await till.refunds.sweep()
    (refund,) = await till.refunds_of(order)
    assert (refund.view.status, refund.view.reason) == ("PENDING", "past_the_horizon")
    given = await by_hand(till, payment)
    stands = await till.decided(order, payment, "confirm", refund_id=given)
    assert stands == "REFUND"
    assert await till.refund_statuses(order) == ["COMPLETED"]
    await age(till.dsn)
    await till.refunds.sweep()
    assert len(till.given_back()) == 1
    assert await broken(till.dsn) == {}
