"""What a hostile reviewer got away with in checkout: each of these lost money, lied, or held up everybody."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
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
from tallystick.checkout.refund import store as refunds
from tallystick.checkout.saga import store
from tallystick.checkout.saga.rules import Policy
from tallystick.database.migrate import migrate
from tallystick.movement.steps import Happened
from tallystick.providers.steady import steady
from tallystick.webhooks import store as webhook
from tallystick.webhooks.flow import Processed
from tests import servers, simulators
from tests.ledgers import broken, fetchval
from tests.orders import execute
from tests.payments import CHARGING, age
from tests.providers.worlds import Control, send
from tests.sagas import LEASE, Desk, desk
from tests.servers import AT_HOME
from tests.settlements import empty, superuser

PRICE = 25_000_000
ADYEN = next(world for world in CHARGING if world.name == "adyen")


# Its time goes ahead here, and never comes back.
payouts_simulator = simulators.own


@pytest.fixture(scope="module")
def attacked_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(attacked_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(attacked_dsn)
    await empty(attacked_dsn)
    return attacked_dsn


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened
        assert await broken(dsn) == {}


async def test_a_refund_that_came_and_failed_in_one_batch_is_still_owed(till: Desk, control: Control) -> None:
    """After an outage both events wait side by side.

    Written as two results of one refund, one of them won: the buyer was told of a refund that had failed.
    """
    control.plan("stripe.refund:execute_then_drop@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    (refund,) = await till.refunds_of(order)
    (made,) = till.given_back()
    told: dict[str, Any] = {"purpose": "refund", "parent": payment, "reference": refund.key.hex()}
    await till.tell(made["id"], "evt_2", **told)
    await till.tell(made["id"], "evt_3", state="failed", **told)
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]
    assert await till.balances() == {"taken": -PRICE, "owed": PRICE}
    assert await till.breaks() == ["refund_failed"]


async def test_one_contradiction_does_not_hold_up_its_neighbours(till: Desk) -> None:
    """The provider says of one payment that it is for two orders, and no database keeps both.

    That is the trouble of these two events, and was taken for somebody else's lock: all of the batch waited for ever.
    """
    one, other = await till.shop.order("one"), await till.shop.order("other")
    keys = []
    for order in (one, other):
        till.shop.control.plan("stripe.charge:execute_then_drop@1")
        await till.shop.pending(order)
        (charge,) = await till.shop.log(order)
        keys.append(charge.key.hex())
    buyer, payment = await till.bought("buyer")
    await till.tell("pi_of_two", "evt_1", reference=keys[0])
    await till.tell("pi_of_two", "evt_2", reference=keys[1])
    await till.tell(payment, "evt_3")
    processed = await till.run()
    assert await till.status(buyer) == "PAID"
    assert processed.postponed == 0
    assert (await till.ended())["evt_1"] == "PROCESSED_OK"


async def test_a_provider_that_is_not_configured_here_is_no_fault_of_its_events(dsn: str, control: Control) -> None:
    """A worker started without the provider's account counted tries on every late payment of it, to the dead letter."""
    async with desk(dsn, control) as till:
        order, payment = await till.ghost()
        await till.tell(payment)
        async with desk(dsn, control, ADYEN, by="without stripe") as other:
            assert await other.run() == Processed(claimed=1, postponed=1)
        assert await fetchval(dsn, "SELECT tries FROM tally.webhook_events") == 0
        await fetchval(dsn, "UPDATE tally.webhook_events SET due_at = clock_timestamp() RETURNING 1")
        await till.run()
        assert await till.refund_statuses(order) == ["COMPLETED"]
    assert await broken(dsn) == {}


async def test_who_is_overtaken_by_the_refunds_own_event_still_ends_his(till: Desk) -> None:
    """The webhook of the refund was quicker than the answer to it; the event that waits is in the sender's hand."""
    order, payment = await till.ghost()
    await till.tell(payment)
    (event,) = await webhook.claim(till.shop.database, most=1, lease=LEASE, by="sender")
    began = steady()
    async with till.shop.database.writing() as connection:
        settled = await store.settle(connection, [event], till.refunds.terms, look_again_seconds=600)
    ((_, begun),) = settled.begun
    made: Any = await send(till.shop.provider, begun.instruction, begun.attempt.mark)
    await till.tell(made.movement.id, "evt_2", purpose="refund", parent=payment, reference=begun.owed.key.hex())
    await till.run()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    (flight,) = till.refunds.launch(settled.begun, began=began)
    assert await flight == Happened(made.movement.id)
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED", "evt_2": "PROCESSED_OK"}


async def test_late_and_timely_payments_of_one_batch_take_their_stocks_in_order(till: Desk) -> None:
    """Who holds the stock of `b` for a backorder and then wants `a` waits for the one who has `a` and wants `b`."""
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    late, paid_late = await till.ghost("late", sku="b")
    timely, paid = await till.bought("timely", sku="a")
    await till.tell(paid_late, "evt_1")
    await till.tell(paid, "evt_2")
    rival = await asyncpg.connect(till.dsn)
    try:
        async with rival.transaction():
            await rival.execute("SELECT 1 FROM tally.sku WHERE sku = 'a' FOR NO KEY UPDATE")
            batch = asyncio.create_task(till.run())
            while not await rival.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            ):
                await asyncio.sleep(0.005)
            # Free: the batch waits for `a` before it has anything of `b`.
            await rival.execute("SELECT 1 FROM tally.sku WHERE sku = 'b' FOR NO KEY UPDATE NOWAIT")
    finally:
        await rival.close()
    await batch
    assert (await till.status(late), await till.status(timely)) == ("PAID", "PAID")


@pytest.mark.parametrize("micros", [0, -PRICE])
async def test_no_money_is_no_payment(till: Desk, micros: int) -> None:
    """An amount that no receipt can hold made a dead letter of the event, after eight tries, and told nobody why."""
    order, payment = await till.bought()
    await till.tell(payment, micros=micros)
    assert (await till.run()).failed == 0
    assert (await till.status(order), await till.breaks()) == ("PENDING", ["contradicted"])


async def test_what_the_bank_took_back_is_not_given_back_as_well(till: Desk) -> None:
    """The chargeback is told before the payment. The rule says: a refund would be the second."""
    order, payment = await till.ghost()
    await till.tell(payment, "evt_1", state="returned")
    await till.run()
    await till.tell(payment, "evt_2")
    await till.run()
    assert till.given_back() == []
    assert await payment_break.figures(till.shop.database) == (1, 1)
    assert await till.decided(order, payment, "keep") == "KEPT"


async def test_what_is_on_its_way_is_not_woken(till: Desk) -> None:
    """A provider that answers again makes due what waits for it; one that is being sent waits for nothing."""
    _, payment = await till.ghost()
    await till.tell(payment)
    (event,) = await webhook.claim(till.shop.database, most=1, lease=LEASE, by="sender")
    async with till.shop.database.writing() as connection:
        await store.settle(connection, [event], till.refunds.terms, look_again_seconds=600)
    await refunds.wake(till.shop.database, "stripe", 100)
    assert (await till.refunds.sweep()).claimed == 0


@pytest.mark.parametrize("name", ["pi\0", "pi\ud800"])
async def test_a_name_that_no_database_holds_is_of_no_payment(till: Desk, name: str) -> None:
    order, _ = await till.bought()
    answer: Any = await till.refunds.decisions.decide(till.shop.tenant, order.id, name, "refund")
    assert answer.code == "payment_unknown"


@pytest.mark.parametrize("fault", ["gateway_502", "gateway_503", "gateway_504", "error_500_object_later(700)"])
async def test_an_outage_that_says_so_strands_no_refund(till: Desk, control: Control, fault: str) -> None:
    """After a 5xx that made nothing, the refund was asked about for a day, never sent again, then nobody's for ever."""
    control.plan(f"stripe.refund:{fault}@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    assert await till.refund_statuses(order) == ["PENDING"]
    for _ in range(6):
        await age(till.dsn)
        control.advance(minutes=5)
        await till.refunds.sweep()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert len(till.given_back()) == 1
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}


async def test_a_payment_that_is_disputed_twice_is_reported_twice(till: Desk) -> None:
    """Each time for a part of it. The second was taken for the first one told again, and nobody heard of it."""
    _, payment = await till.bought()
    await till.tell(payment)
    await till.tell(payment, "evt_2", state="returned", parent="dp_1", micros=10_000_000)
    await till.tell(payment, "evt_3", state="returned", parent="dp_2", micros=15_000_000)
    await till.tell(payment, "evt_4", state="returned", parent="dp_2", micros=15_000_000)
    await till.run()
    assert await till.breaks() == ["disputed", "disputed"]


async def test_an_amount_beyond_all_orders_fills_no_account(till: Desk) -> None:
    """Held as owed, it left no room for anything else: the ledger refused every later payment of the tenant."""
    _, payment = await till.ghost()
    await till.tell(payment, micros=2**63 - 1)
    buyer, paid = await till.bought("buyer")
    await till.tell(paid, "evt_2")
    await till.run()
    assert await till.status(buyer) == "PAID"
    assert await till.breaks() == ["contradicted"]


async def test_those_who_wait_for_much_do_not_keep_others_waiting(till: Desk) -> None:
    """The oldest of a SKU that has less than they want filled the chunk of every run, for every tenant's SKU."""
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    waiting = [await till.ghost(f"much_{number}", sku="a", quantity=2) for number in range(3)]
    waiting.append(await till.ghost("little", sku="b"))
    for sku in ("a", "b"):
        await till.shop.orders.set_stock(till.shop.tenant, sku, 0)
    for number, (_, payment) in enumerate(waiting):
        await till.tell(payment, f"evt_{number}")
        await till.run()
    for sku in ("a", "b"):
        await till.shop.orders.set_stock(till.shop.tenant, sku, 1)
    assert await backorder.fill(till.shop.database, 3) == 1
    found: Any = await till.shop.orders.sku(till.shop.tenant, "b")
    assert (found.sold, found.backordered) == (1, 0)
    await till.shop.orders.set_stock(till.shop.tenant, "a", 5)
    assert await backorder.fill(till.shop.database, 3) == 2


async def test_after_a_restore_orders_are_paid_and_nothing_is_given_back(till: Desk) -> None:
    """One late payment kept every order of its batch from being PAID until somebody had run `tally recover`."""
    late, paid_late = await till.ghost("late")
    buyer, paid = await till.bought("buyer")
    await till.tell(paid_late, "evt_1")
    await till.tell(paid, "evt_2")
    await execute(superuser(till.dsn), "UPDATE tally.whereabouts SET database = 0")
    try:
        assert (await till.run()).postponed == 1
        assert (await till.status(buyer), till.given_back()) == ("PAID", [])
    finally:
        await execute(superuser(till.dsn), AT_HOME)
    await fetchval(
        till.dsn, "UPDATE tally.webhook_events SET due_at = clock_timestamp() WHERE status = 'UNPROCESSED' RETURNING 1"
    )
    await till.run()
    assert await till.refund_statuses(late) == ["COMPLETED"]


async def test_somebody_elses_failed_refund_is_not_ours(till: Desk, control: Control) -> None:
    """Without a reference of ours, made in the dashboard and failed there, it failed the one that we had on its way."""
    control.plan("stripe.refund:execute_then_drop@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    await till.tell("re_of_the_dashboard", "evt_2", purpose="refund", state="failed", parent=payment)
    await till.run()
    assert await till.refund_statuses(order) == ["PENDING"]
    await age(till.dsn)
    await till.refunds.sweep()
    assert await till.refund_statuses(order) == ["COMPLETED"]


async def test_money_in_a_dead_letter_is_not_in_order(dsn: str, control: Control) -> None:
    """`tally verify` said that every payment was accounted for, with one of them in a dead letter."""
    async with desk(dsn, control) as till:
        _, payment = await till.bought()
        await till.tell(payment)
        await webhook.claim(till.shop.database, most=1, lease=LEASE, by="test")
        await fetchval(
            dsn,
            "UPDATE tally.webhook_events SET status = 'DEAD_LETTER', reason = 'test', processing_until = NULL"
            " RETURNING 1",
        )
        assert set(await broken(dsn)) == {"checkout"}
        await webhook.retry(till.shop.database, None)
        await till.run()
    assert await broken(dsn) == {}


async def test_everybody_at_once_gives_back_once(dsn: str, control: Control) -> None:
    """Three workers, two sweepers, cancellations and repeated clicks over the same payments, each told three times."""
    async with desk(dsn, control) as one, desk(dsn, control, by="two") as two, desk(dsn, control, by="three") as three:
        late = [await one.ghost(f"late_{number}") for number in range(8)]
        open_ = [await one.bought(f"open_{number}") for number in range(8)]
        for told in range(3):
            for number, (_, payment) in enumerate([*late, *open_]):
                await one.tell(payment, f"evt_{number}_{told}")
        await asyncio.gather(
            *(till.events.run_once(most=7) for till in (one, two, three) for _ in range(4)),
            *(till.refunds.sweep() for till in (one, two)),
            *(one.shop.orders.cancel(one.shop.tenant, order.id) for order, _ in open_[:4]),
            *(two.shop.pay(order) for order, _ in open_),
        )
        # Who waited too long for another's lock put its event off.
        waiting = "UPDATE tally.webhook_events SET due_at = clock_timestamp() WHERE status = 'UNPROCESSED' RETURNING 1"
        for _ in range(3):
            await fetchval(dsn, waiting)
            await one.run()
        given_back = [refund["reference"] for refund in one.given_back()]
        assert len(given_back) == len(set(given_back))
        for order, _ in [*late, *open_]:
            is_paid = await one.status(order) == "PAID"
            assert await one.refund_statuses(order) == ([] if is_paid else ["COMPLETED"])
        assert set((await one.ended()).values()) <= {"PROCESSED_OK", "PROCESSED_COMPENSATED"}
        balances = await one.balances()
        assert balances["owed"] == 0
        assert balances["taken"] == -PRICE * (16 - len(given_back))
    assert await broken(dsn) == {}
