"""The sweeper and what nobody has looked at yet: an order that was charged waits for what was received in time."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import asyncpg
import pytest
import pytest_asyncio

from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.watermark.flow import Watermark
from tallystick.webhooks import inbox
from tests import servers
from tests.checkouts import given_up
from tests.ledgers import fetchval
from tests.orders import emptied
from tests.providers.worlds import Control
from tests.sagas import Desk, desk, told
from tests.settlements import superuser


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


async def an_hour_passes(dsn: str) -> None:
    """Everything that is there becomes an hour older: orders are overdue, and what was received in time still was."""
    await changed(
        dsn,
        "UPDATE tally.orders SET created_at = created_at - interval '1 h', expires_at = expires_at - interval '1 h'",
        "UPDATE tally.webhook_events SET received_at = received_at - interval '1 h', due_at = due_at - interval '1 h'",
    )


async def changed(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                await connection.execute(statement)
    finally:
        await connection.close()


async def statuses(one: Desk, *orders: OrderView) -> list[str]:
    return [await one.status(order) for order in orders]


async def test_an_order_paid_in_time_is_left_alone_until_its_webhook_is_processed(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await one.bought()
        await one.tell(payment)
        await an_hour_passes(dsn)
        assert await one.shop.orders.sweep() == Swept()
        assert (await one.run()).recorded == 1
        assert await one.shop.orders.sweep() == Swept()
        assert await statuses(one, order) == ["PAID"]
        assert one.given_back() == []


async def test_it_holds_every_charged_order_whose_payment_it_could_be_and_no_other(dsn: str, control: Control) -> None:
    """An event may name its charge by our reference alone: whose it is, only the saga finds out."""
    async with desk(dsn, control) as one:
        charged, payment = await one.bought("charged")
        never_charged = await one.shop.order("never-charged")
        silent, _ = await one.bought("silent")
        await one.tell(payment)
        await an_hour_passes(dsn)
        await given_up(dsn, charged.id, silent.id)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        found = await statuses(one, charged, never_charged, silent)
        assert found == ["PENDING", "CANCELLED_BY_SWEEPER", "PENDING"]
        await one.run()
        await one.shop.orders.sweep()
        assert await statuses(one, charged, silent) == ["PAID", "CANCELLED_BY_SWEEPER"]


async def test_what_came_after_the_deadline_holds_nothing(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one:
        order, payment = await one.bought()
        await an_hour_passes(dsn)
        await given_up(dsn, order.id)
        await one.tell(payment)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await one.run()).claimed == 1
        assert await one.refund_statuses(order) == ["COMPLETED"]


@pytest.mark.parametrize("claimed", [False, True], ids=["put off", "under a lease"])
async def test_an_outage_does_not_end_the_waiting(dsn: str, control: Control, *, claimed: bool) -> None:
    """An event that was claimed and put off, or whose worker died, is as undecided as before."""
    async with desk(dsn, control) as one:
        order, payment = await one.bought()
        await one.tell(payment)
        await an_hour_passes(dsn)
        later = "processing_until = now() + interval '5 min', status = 'IN_PROCESSING'" if claimed else "tries = 0"
        put_off = "due_at = now() + interval '5 s', reason = 'the database was away'"
        await changed(dsn, f"UPDATE tally.webhook_events SET claim_number = 1, {put_off}, {later}")
        assert await one.shop.orders.sweep() == Swept()
        assert await statuses(one, order) == ["PENDING"]


async def test_an_event_that_failed_by_itself_holds_nothing(dsn: str, control: Control) -> None:
    """It may fail for days, and would hold all stock for as long: what comes of it later is given back."""
    async with desk(dsn, control) as one:
        order, payment = await one.bought()
        await one.tell(payment)
        await an_hour_passes(dsn)
        await changed(dsn, "UPDATE tally.webhook_events SET claim_number = 1, tries = 1, reason = 'poison'")
        await given_up(dsn, order.id)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert (await one.run()).claimed == 1
        assert await one.refund_statuses(order) == ["COMPLETED"]


async def test_an_event_that_waits_for_its_refund_holds_nothing(dsn: str, control: Control) -> None:
    """The provider is away for a day: the event stays open, and has been decided all the same."""
    async with desk(dsn, control) as one:
        ghost, payment = await one.ghost("ghost")
        other, _ = await one.bought("other")
        await one.tell(payment)
        control.plan("stripe.refund:drop_before=100%")
        assert (await one.run()).postponed == 1
        await an_hour_passes(dsn)
        assert await one.ended() == {"evt_1": "UNPROCESSED"}
        await given_up(dsn, other.id)
        assert await one.shop.orders.sweep() == Swept(cancelled=1, released=1)
        assert await statuses(one, ghost, other) == ["CANCELLED_BY_SWEEPER"] * 2


async def test_an_append_under_way_holds_as_well(dsn: str, control: Control) -> None:
    """Its rows have the time of its beginning, and nobody sees them before it commits."""
    async with desk(dsn, control) as one:
        order, payment = await one.bought()
        await changed(dsn, "UPDATE tally.orders SET expires_at = clock_timestamp() + interval '0.5 s'")
        async with one.shop.database.writing() as connection:
            await inbox.append(connection, [told(one.shop, payment)])
            overdue = "SELECT bool_and(expires_at < clock_timestamp()) FROM tally.orders"
            while not await fetchval(dsn, overdue):
                await asyncio.sleep(0.01)
            assert await one.shop.orders.sweep() == Swept()
        in_time = "SELECT bool_and(received_at < (SELECT min(expires_at) FROM tally.orders)) FROM tally.webhook_events"
        assert await fetchval(dsn, in_time)
        assert await one.shop.orders.sweep() == Swept()
        assert (await one.run()).recorded == 1
        assert await statuses(one, order) == ["PAID"]


class Shelf:
    """A log of one partition: what it holds, and how far of it was stored."""

    def __init__(self) -> None:
        self.end = 0
        self.stored = 0

    async def ends(self) -> Mapping[int, int]:
        return {0: self.end}

    async def read(self) -> Mapping[int, int]:
        return {0: self.stored}


async def test_what_lies_in_the_log_is_waited_for_until_it_is_stored_and_decided(dsn: str, control: Control) -> None:
    """Stored, it has the time of its storing, which says nothing of when it was received."""
    async with desk(dsn, control) as one:
        shelf = Shelf()
        watermark = Watermark(one.shop.database, grace=timedelta(), log=shelf)
        first = await watermark.read()
        assert first is not None
        _, payment = await one.bought()
        shelf.end = 1
        assert await watermark.read() == first
        # Read and stored: one event that nobody has decided.
        shelf.stored = 1
        await one.tell(payment)
        assert await watermark.read() == first
        assert (await one.run()).recorded == 1
        second = await watermark.read()
        assert second is not None
        assert second > first
        # More keeps coming; what was there at the mark is what counts.
        shelf.end = 2
        assert await watermark.read() == second
        shelf.end, shelf.stored = 9, 2
        third = await watermark.read()
        assert third is not None
        assert third > second
