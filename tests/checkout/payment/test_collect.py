"""Charges that a process left behind are finished by whoever comes next; none is sent for an order that has ended."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment.flow import Collected
from tallystick.database.migrate import migrate
from tallystick.errors import RestoredDatabase
from tests import servers, simulators
from tests.ledgers import broken, fetchval
from tests.orders import execute
from tests.payments import CHARGING, Checkout, age, charged, checkout
from tests.providers.worlds import Control, World
from tests.settlements import empty, superuser

# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own


@pytest.fixture(scope="module")
def payment_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(payment_dsn: str) -> str:
    await migrate(payment_dsn)
    await empty(payment_dsn)
    return payment_dsn


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Checkout]:
    async with checkout(dsn, control) as opened:
        yield opened


async def left_behind(shop: Checkout, fault: str, key: str = "k") -> OrderView:
    """A charge whose answer nobody heard, long enough ago."""
    shop.control.plan(f"{shop.world.name}.charge:{fault}")
    order = await shop.order(key)
    await shop.pending(order)
    await age(shop.dsn)
    return order


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_what_was_done_is_recorded(dsn: str, control: Control, world: World) -> None:
    async with checkout(dsn, control, world) as shop:
        order = await left_behind(shop, "execute_then_drop")
        assert (await shop.payments.collect()).completed == 1
        (made,) = charged(control, world)
        (row,) = await shop.log(order)
        assert (row.status, row.payment_intent_id) == ("COMPLETED", made["id"])
        assert (await shop.paying(order)).payment.payment_intent_id == made["id"]
        assert await shop.payments.collect() == Collected()
    assert len(charged(control, world)) == 1
    assert await broken(dsn) == {}


async def test_what_was_not_done_is_sent_under_its_own_key_while_the_order_holds(
    shop: Checkout, control: Control
) -> None:
    order = await left_behind(shop, "drop_before")
    collected = await shop.payments.collect()
    assert (collected.sent, collected.completed) == (1, 1)
    assert await shop.statuses(order) == ["COMPLETED"]
    assert len(charged(control)) == 1
    assert await broken(shop.dsn) == {}


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
@pytest.mark.parametrize("ended", ["CANCELLED", "CANCELLED_BY_SWEEPER", "expired"])
async def test_nothing_is_sent_for_an_order_that_has_ended(
    dsn: str, control: Control, world: World, ended: str
) -> None:
    async with checkout(dsn, control, world) as shop:
        order = await left_behind(shop, "drop_before")
        await end(dsn, ended)
        collected = await shop.payments.collect()
        assert (collected.claimed, collected.sent, collected.waiting) == (1, 0, 1)
        (row,) = await shop.log(order)
        # Unknown stays unknown: the provider's list is late, or it has none.
        assert (row.status, row.reason) == ("PENDING", "order_no_longer_pending")
    assert charged(control, world) == []


async def test_what_is_known_not_to_have_run_has_failed_when_its_order_has_ended(
    shop: Checkout, dsn: str, control: Control
) -> None:
    order = await left_behind(shop, "rate_limited")
    await execute(dsn, "UPDATE tally.orders SET status = 'CANCELLED', changed_at = clock_timestamp()")
    assert (await shop.payments.collect()).failed == 1
    (row,) = await shop.log(order)
    assert (row.status, row.reason) == ("FAILED", "order_no_longer_pending")
    assert charged(control) == []
    assert await broken(dsn) == {}


async def test_an_order_that_ends_between_the_question_and_the_send_is_not_charged(
    shop: Checkout, dsn: str, control: Control
) -> None:
    """The worker has asked and may send; the sweeper comes first."""
    await left_behind(shop, "drop_before")
    look_up = shop.provider.look_up

    async def slowly(*arguments: object, **more: object) -> object:
        found = await look_up(*arguments, **more)  # type: ignore[arg-type]
        await end(dsn, "CANCELLED_BY_SWEEPER")
        return found

    shop.provider.look_up = slowly  # type: ignore[method-assign, assignment]
    collected = await shop.payments.collect()
    assert (collected.sent, collected.waiting) == (0, 1)
    assert charged(control) == []
    assert await shop.answers() == ["unknown"]


async def test_two_collectors_never_share_a_charge(dsn: str, control: Control) -> None:
    async with checkout(dsn, control) as one, checkout(dsn, control) as two:
        # Fewer than open the breaker.
        for number in range(4):
            control.plan("stripe.charge:execute_then_drop")
            await one.pending(await one.order(f"k{number}"))
        await age(dsn)
        done = await asyncio.gather(*(shop.payments.collect(most=2) for shop in (one, two)))
        assert [collected.claimed for collected in done] == [2, 2]
        assert [collected.completed for collected in done] == [2, 2]
    assert len(charged(control)) == 4
    assert await broken(dsn) == {}


async def test_what_is_not_due_is_left_alone(shop: Checkout, control: Control) -> None:
    control.plan("stripe.charge:execute_then_drop")
    await shop.pending(await shop.order())
    assert await shop.payments.collect() == Collected()


async def test_the_one_who_lost_his_claim_changes_nothing(shop: Checkout, dsn: str) -> None:
    """His answer is kept on its attempt; the next one believes it without asking."""
    order = await shop.order()
    look_up = shop.provider.look_up
    shop.control.plan("stripe.charge:execute_then_drop")
    await shop.pending(order)
    await age(dsn)

    async def slowly(*arguments: object, **more: object) -> object:
        found = await look_up(*arguments, **more)  # type: ignore[arg-type]
        # Somebody else takes it over meanwhile.
        await execute(dsn, "UPDATE tally.payment_idempotency_log SET claim_number = claim_number + 1")
        return found

    shop.provider.look_up = slowly  # type: ignore[method-assign, assignment]
    collected = await shop.payments.collect()
    assert (collected.completed, collected.waiting) == (0, 1)
    assert await shop.statuses(order) == ["PENDING"]


async def test_an_unanswerable_question_is_asked_again_later_and_never_answered_by_us(
    shop: Checkout, control: Control
) -> None:
    order = await left_behind(shop, "execute_then_drop")
    control.plan("stripe.list:gateway_503@*, stripe.lookup:gateway_503@*")
    assert (await shop.payments.collect()).waiting == 1
    assert await shop.statuses(order) == ["PENDING"]
    assert len(charged(control)) == 1


async def test_past_the_horizon_a_person_is_called_and_nothing_is_sent(shop: Checkout, dsn: str) -> None:
    order = await left_behind(shop, "drop_before")
    await age(dsn, timedelta(days=2))
    with capture_logs() as said:
        assert (await shop.payments.collect()).sent == 0
    (row,) = await shop.log(order)
    assert (row.status, row.reason) == ("PENDING", "past_the_horizon")
    called = {"event": "payment_needs_a_person", "log_level": "warning", "order": order.id, "reason": row.reason}
    assert called in said
    # Nor by a click.
    await age(dsn, timedelta(hours=2))
    assert (await shop.pending(order)).payment.reason == "past_the_horizon"
    assert await shop.answers() == ["unknown"]


async def test_a_restored_database_sends_nothing(shop: Checkout, dsn: str, control: Control) -> None:
    order = await shop.order()
    await execute(superuser(dsn), "UPDATE tally.whereabouts SET database = 0")
    try:
        assert await shop.refused(order) == "database_restored"
        with pytest.raises(RestoredDatabase):
            await shop.payments.collect()
    finally:
        await execute(superuser(dsn), "UPDATE tally.whereabouts SET database = (SELECT database FROM tally.here())")
    assert charged(control) == []
    assert await fetchval(dsn, "SELECT count(*) FROM tally.payment_idempotency_log") == 0


async def end(dsn: str, how: str) -> None:
    """End every order, or let its time run out."""
    statement = (
        "UPDATE tally.orders SET expires_at = clock_timestamp(), created_at = created_at - interval '30 minutes'"
        if how == "expired"
        else f"UPDATE tally.orders SET status = '{how}', changed_at = clock_timestamp()"
    )
    # Without the triggers that keep the sweeper from coming early, and deadlines as they are.
    await execute(superuser(dsn), f"SET session_replication_role = replica; {statement}")
