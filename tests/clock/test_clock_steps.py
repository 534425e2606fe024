"""The database's clock is hours wrong, and set right: nobody is paid twice, and no lease keeps its row for hours.

A real server whose clock is moved while everything runs; the provider's clock is right all the time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tallystick.checkout.order.rules import Swept
from tallystick.database.pool import Database
from tallystick.leases.flow import Timekeeper
from tallystick.webhooks import store as webhook
from tests.clocks import Movable, Time
from tests.ledgers import broken
from tests.payments import charged, checkout
from tests.providers.worlds import Control
from tests.sagas import LEASE, desk
from tests.settlements import Shop, books, shop

A_WHILE = timedelta(minutes=20)
HOURS = timedelta(hours=10)
# What the provider is doing when the clock steps, and how long it is waited for.
MEANWHILE = [("slow_before(2)", 10.0), ("slow_after(2)", 10.0), ("slow_after(2)", 1.0)]


@asynccontextmanager
async def opened(server: Movable, control: Control) -> AsyncIterator[Shop]:
    async with shop(server.fresh_database(), control) as till:
        yield till


async def kept(database: Database) -> int:
    """The timekeeper looks, as `tally work` has it look every minute."""
    return (await Timekeeper(database, ["simulator"], lease=timedelta(seconds=300)).run_once()).total


@pytest.mark.parametrize("fault", ["drop_before", "execute_then_drop"])
@pytest.mark.parametrize("wrong", [HOURS, -HOURS], ids=["ahead", "behind"])
async def test_a_payout_sent_while_the_clock_was_wrong_is_decided_once_it_is_right(
    server: Movable, control: Control, time: Time, wrong: timedelta, fault: str
) -> None:
    """Within the hour, not when the clock has caught up; and what cannot be proven is for a person."""
    async with opened(server, control) as till:
        time.is_wrong_by(wrong)
        control.plan(f"stripe.transfer:{fault}")
        view = await till.create("a")
        await till.tick()
        assert (await till.read(view.id)).status == "processing"
        time.is_wrong_by(timedelta())
        for _ in range(3):
            await kept(till.database)
            time.passes(A_WHILE)
            await till.tick()
        found = await till.read(view.id)
        # Nobody knows how old a key from the future is: what is not at the provider is not sent again under it.
        is_for_a_person = wrong > timedelta() and fault == "drop_before"
        assert found.status == ("disputed" if is_for_a_person else "transferred"), await till.history(view)
        assert len(books(control)) == (0 if is_for_a_person else 1)
        assert await broken(till.dsn) == {}


@pytest.mark.parametrize("wrong", [HOURS, timedelta(hours=30), -HOURS], ids=["ahead", "a day ahead", "behind"])
async def test_a_clock_that_steps_while_a_payout_is_being_sent_pays_it_once(
    server: Movable, control: Control, time: Time, wrong: timedelta
) -> None:
    """A jump ahead ends every claim at once. The sender's leave runs by the steady clock: he is in the middle of it."""
    async with opened(server, control) as till, shop(till.dsn, control) as other:
        control.plan("stripe.transfer:slow_after(2)")
        view = await till.create("a")
        ticking = asyncio.create_task(till.tick())
        while not await till.attempts(view):
            await asyncio.sleep(0.01)
        time.is_wrong_by(wrong)
        for _ in range(3):
            await kept(other.database)
            await other.tick()
        await ticking
        time.is_wrong_by(timedelta())
        for _ in range(4):
            await kept(other.database)
            time.passes(A_WHILE)
            await other.tick()
        assert len(books(control)) == 1
        assert (await till.read(view.id)).status in ("transferred", "disputed"), await till.history(view)


@pytest.mark.parametrize("fault", ["drop_before", "execute_then_drop"])
@pytest.mark.parametrize("wrong", [HOURS, -HOURS], ids=["ahead", "behind"])
async def test_a_charge_sent_while_the_clock_was_wrong_is_decided_once_it_is_right(
    server: Movable, control: Control, time: Time, wrong: timedelta, fault: str
) -> None:
    async with checkout(server.fresh_database(), control, ttl=timedelta(days=2)) as desk:
        time.is_wrong_by(wrong)
        control.plan(f"stripe.charge:{fault}")
        order = await desk.order()
        await desk.pending(order)
        time.is_wrong_by(timedelta())
        for _ in range(3):
            await kept(desk.database)
            time.passes(A_WHILE)
            await desk.payments.collect()
        view = await desk.view(order)
        assert view is not None
        # As with a payout: how old a key from the future is, nobody knows.
        if wrong > timedelta() and fault == "drop_before":
            assert view.reason is not None, "a person is told"
            assert charged(control) == []
        else:
            assert view.status == "COMPLETED"
            assert len(charged(control)) == 1


@pytest.mark.parametrize("fault", ["drop_before", "execute_then_drop"])
@pytest.mark.parametrize("wrong", [HOURS, -HOURS], ids=["ahead", "behind"])
async def test_a_refund_sent_while_the_clock_was_wrong_is_decided_once_it_is_right(
    server: Movable, control: Control, time: Time, wrong: timedelta, fault: str
) -> None:
    async with desk(server.fresh_database(), control) as one:
        order, payment = await one.ghost()
        time.is_wrong_by(wrong)
        await one.tell(payment)
        control.plan(f"stripe.refund:{fault}")
        await one.run()
        assert await one.refund_statuses(order) == ["PENDING"]
        time.is_wrong_by(timedelta())
        for _ in range(3):
            await kept(one.shop.database)
            time.passes(A_WHILE)
            await one.refunds.sweep()
        # Whatever the clock said, the payment's own refunds are asked for exactly: nothing is left to a person.
        assert await one.refund_statuses(order) == ["COMPLETED"]
        assert len(one.given_back()) == 1


@pytest.mark.parametrize(("fault", "answer_seconds"), MEANWHILE, ids=["not made yet", "made", "made, not heard"])
@pytest.mark.parametrize("wrong", [HOURS, timedelta(hours=30), -HOURS], ids=["ahead", "a day ahead", "behind"])
async def test_a_clock_that_steps_while_an_order_is_being_charged_charges_it_once(
    server: Movable, control: Control, time: Time, *, wrong: timedelta, fault: str, answer_seconds: float
) -> None:
    """Its intent is committed, and its bytes are on their way. A jump ahead makes it overdue for every collector."""
    dsn = server.fresh_database()
    ttl = timedelta(days=3)
    async with (
        checkout(dsn, control, ttl=ttl, answer_seconds=answer_seconds) as till,
        checkout(dsn, control, ttl=ttl) as other,
    ):
        control.plan(f"stripe.charge:{fault}@1")
        order = await till.order()
        paying = asyncio.create_task(till.pay(order))
        while not await till.answers():
            await asyncio.sleep(0.01)
        time.is_wrong_by(wrong)
        assert not paying.done(), "the answer came before the clock had stepped"
        for _ in range(3):
            await kept(other.database)
            await other.payments.collect()
        await paying
        time.is_wrong_by(timedelta())
        for _ in range(4):
            await kept(other.database)
            time.passes(A_WHILE)
            await other.payments.collect()
        assert (await till.statuses(order), len(charged(control))) == (["COMPLETED"], 1)
        again = await till.paying(order)
        assert (again.payment.attempts, len(charged(control))) == (1, 1)
        assert await broken(dsn) == {}


@pytest.mark.parametrize(("fault", "answer_seconds"), MEANWHILE, ids=["not made yet", "made", "made, not heard"])
@pytest.mark.parametrize("wrong", [HOURS, timedelta(hours=30), -HOURS], ids=["ahead", "a day ahead", "behind"])
async def test_a_clock_that_steps_while_a_payment_is_being_given_back_refunds_it_once(
    server: Movable, control: Control, time: Time, *, wrong: timedelta, fault: str, answer_seconds: float
) -> None:
    dsn = server.fresh_database()
    async with desk(dsn, control, answer_seconds=answer_seconds) as one, desk(dsn, control, by="other") as other:
        order, payment = await one.ghost()
        sent = len(await one.shop.answers())
        control.plan(f"stripe.refund:{fault}@1")
        await one.tell(payment)
        running = asyncio.create_task(one.run())
        while len(await one.shop.answers()) == sent:
            await asyncio.sleep(0.01)
        time.is_wrong_by(wrong)
        assert not running.done(), "the answer came before the clock had stepped"
        for _ in range(3):
            await kept(other.shop.database)
            await other.refunds.sweep()
            await other.run()
        await running
        time.is_wrong_by(timedelta())
        for _ in range(4):
            await kept(other.shop.database)
            time.passes(A_WHILE)
            await other.refunds.sweep()
            await other.run()
        assert (await one.refund_statuses(order), len(one.given_back())) == (["COMPLETED"], 1)
        assert await broken(dsn) == {}


async def test_an_order_held_while_the_clock_was_ahead_is_swept_once_it_is_right(
    server: Movable, control: Control, time: Time
) -> None:
    """Its provider is out of reach: it is held for an hour, not until the clock has caught up."""
    async with desk(server.fresh_database(), control, ttl=A_WHILE / 2) as one:
        order = await one.shop.order()
        await one.shop.paying(order, payment_method=None)
        control.plan("stripe.cancel:drop_before=100%")
        time.passes(A_WHILE)
        time.is_wrong_by(HOURS)
        assert await one.shop.orders.sweep() == Swept(held=1)
        time.is_wrong_by(timedelta())
        assert await kept(one.shop.database) == 1
        assert await one.shop.orders.sweep() == Swept(held=1)
        for _ in range(3):
            await kept(one.shop.database)
            time.passes(A_WHILE)
            await one.shop.orders.sweep()
        assert await one.status(order) == "CANCELLED_BY_SWEEPER"
        assert await broken(one.dsn) == {}


async def test_an_event_leased_while_the_clock_was_ahead_is_processed_once_it_is_right(
    server: Movable, control: Control, time: Time
) -> None:
    """Its worker died with a lease that ends in ten hours."""
    async with desk(server.fresh_database(), control) as one:
        order, payment = await one.bought()
        await one.tell(payment)
        time.is_wrong_by(HOURS)
        assert await webhook.claim(one.shop.database, by="dead", lease=LEASE, most=10)
        time.is_wrong_by(timedelta())
        assert (await one.run()).claimed == 0
        assert await kept(one.shop.database) == 1
        time.passes(A_WHILE)
        assert (await one.run()).claimed == 1
        assert await one.status(order) == "PAID"
