"""The sweeper, and whoever meets it: a reservation ends once, and its stock comes back once."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from tallystick.checkout.order import store as orders_store
from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS
from tests import servers
from tests.ledgers import broken
from tests.orders import (
    A_MOMENT,
    GRACE,
    LONG,
    NONE,
    Store,
    code,
    emptied,
    expired,
    receive,
    store,
    sweeping,
    waits,
    wish,
)
from tests.settlements import superuser


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


async def test_the_sweeper_cancels_what_is_overdue_and_nothing_else(dsn: str) -> None:
    async with (
        store(dsn, ttl=A_MOMENT, grace=NONE) as hasty,
        store(dsn, ttl=A_MOMENT, grace=GRACE) as patient,
        store(dsn, grace=NONE) as slow,
    ):
        await hasty.put(10)
        gone, cancelled = await hasty.made("a", wish(quantity=2)), await hasty.made("b")
        await hasty.orders.cancel(hasty.tenant, cancelled.id)
        await expired(dsn)
        paid = await hasty.made("p")
        assert await hasty.pay(paid.id) == 1
        held = await slow.made("c")
        # Past its time, and not past the grace.
        assert await patient.orders.sweep() == Swept()
        assert await hasty.orders.sweep() == Swept(cancelled=1, released=2)
        assert await hasty.orders.sweep() == Swept()
        statuses = [await hasty.status(view.id) for view in (gone, cancelled, held, paid)]
        assert statuses == ["CANCELLED_BY_SWEEPER", "CANCELLED", "PENDING", "PAID"]
        assert await hasty.figures() == (1, 1, 8)
    assert await broken(dsn) == {}


async def test_a_sweep_goes_in_chunks_and_stops_at_its_bound(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=replace(LIMITS, sweep_chunk=7)) as shop:
        await shop.put(100)
        await asyncio.gather(*(shop.made(f"k{number}") for number in range(40)))
        await expired(dsn)
        assert await shop.orders.sweep(most=10) == Swept(cancelled=10, released=10, is_complete=False)
        assert await shop.orders.sweep() == Swept(cancelled=30, released=30)
        assert await shop.figures() == (0, 0, 100)
    assert await broken(dsn) == {}


async def test_sweepers_side_by_side_give_back_once(dsn: str) -> None:
    limits = replace(LIMITS, sweep_chunk=5)
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=limits) as one, store(dsn, grace=NONE, limits=limits) as two:
        for sku in ("lamp", "chair", "desk"):
            await one.put(40, sku)
        skus = ("lamp", "chair", "desk")
        await asyncio.gather(*(one.made(f"k{number}", wish(skus[number % 3])) for number in range(90)))
        await expired(dsn)
        swept = await asyncio.gather(*(shop.orders.sweep() for shop in (one, two) for _ in range(3)))
        # One that finds every row held by others ends early; what it left is theirs.
        assert sum(each.cancelled for each in swept) == 90
        assert [await one.figures(sku) for sku in skus] == [(0, 0, 40)] * 3
    assert await broken(dsn) == {}


async def test_a_sweeper_passes_over_what_another_holds(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=LONG) as one, store(dsn, grace=NONE, limits=LONG) as two:
        await one.put(10)
        await one.made("a", wish(quantity=3))
        await expired(dsn)
        async with sweeping(one) as held:
            assert held == 1
            async with asyncio.timeout(5):
                assert await two.orders.sweep() == Swept()
        assert await two.orders.sweep() == Swept()
        assert await one.figures() == (0, 0, 10)
    assert await broken(dsn) == {}


async def test_a_late_sweeper_that_had_read_the_row_before_gives_back_nothing_more(dsn: str) -> None:
    """It knows the order as overdue; by the time it writes, somebody else has given it back."""
    async with store(dsn, ttl=A_MOMENT, grace=NONE) as shop:
        await shop.put(10)
        await shop.made("other", wish(quantity=5))
        view = await shop.made("a", wish(quantity=3))
        await expired(dsn)
        async with shop.database.writing() as connection:
            rows = await connection.fetch("SELECT tenant_id, id FROM tally.orders WHERE quantity = 3")
            assert await shop.orders.sweep() == Swept(cancelled=2, released=8)
            names = [row["tenant_id"] for row in rows], [row["id"] for row in rows]
            assert await connection.fetch(orders_store._SQL["finish"], *names, "CANCELLED_BY_SWEEPER") == []
        assert await shop.figures() == (0, 0, 10)
        assert await shop.status(view.id) == "CANCELLED_BY_SWEEPER"
    assert await broken(dsn) == {}


async def test_a_cancellation_that_meets_the_sweeper_waits_and_tells_what_became_of_it(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=LONG) as shop, store(dsn, limits=LONG) as other:
        await shop.put(10)
        view = await shop.made("a", wish(quantity=3))
        await expired(dsn)
        async with sweeping(shop) as held:
            assert held == 1
            cancelling = asyncio.create_task(other.orders.cancel(shop.tenant, view.id))
            await waits(dsn)
        told = await cancelling
        assert isinstance(told, OrderView)
        assert told.status == "CANCELLED_BY_SWEEPER"
        assert await shop.figures() == (0, 0, 10)
    assert await broken(dsn) == {}


async def test_a_sweeper_that_meets_a_cancellation_passes_it_over(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE) as shop, store(dsn, grace=NONE, limits=LONG) as other:
        await shop.put(10)
        view = await shop.made("a", wish(quantity=3))
        await expired(dsn)
        async with shop.database.writing() as connection:
            row = await connection.fetchrow(orders_store._SQL["lock_order"], shop.tenant.number, view.id[3:])
            assert row is not None
            async with asyncio.timeout(5):
                assert await other.orders.sweep() == Swept()
            await connection.fetch(orders_store._SQL["finish"], [shop.tenant.number], [row["id"]], "CANCELLED")
        assert await other.orders.sweep() == Swept()
        assert await shop.status(view.id) == "CANCELLED"
        assert await shop.figures() == (0, 0, 10)
    assert await broken(dsn) == {}


async def test_a_payment_that_meets_the_sweeper_either_has_it_or_moves_nothing(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=LONG) as shop, store(dsn, grace=NONE, limits=LONG) as other:
        await shop.put(10)
        late, early = await shop.made("late"), await shop.made("early", wish(quantity=2))
        await expired(dsn)
        await receive(dsn, "quantity = 2")
        payer = await asyncpg.connect(dsn)
        try:
            async with payer.transaction():
                await payer.execute("UPDATE tally.orders SET status = 'PAID', changed_at = now() WHERE quantity = 2")
                # The sweeper takes the other one, and waits at the SKU that the payment holds.
                sweeping_ = asyncio.create_task(other.orders.sweep())
                await waits(dsn)
        finally:
            await payer.close()
        assert await sweeping_ == Swept(cancelled=1, released=1)
        assert await shop.pay(late.id) == 0
        assert [await shop.status(view.id) for view in (late, early)] == ["CANCELLED_BY_SWEEPER", "PAID"]
        assert await shop.figures() == (0, 2, 8)
    assert await broken(dsn) == {}


async def test_what_is_swept_can_be_reserved_the_moment_it_is_committed(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=LONG) as shop, store(dsn, limits=LONG) as other:
        await shop.put(1)
        await shop.made("a")
        await expired(dsn)
        async with sweeping(shop):
            # Not yet: it may still be taken back.
            assert code(await other.reserve("b")) == "sold_out"
        assert code(await other.reserve("b")) == "Reserved"
        assert await shop.figures() == (1, 0, 0)
    assert await broken(dsn) == {}


async def test_everything_at_once_adds_up(dsn: str) -> None:  # noqa: C901 - five sorts of people
    """Reservations, cancellations, payments, sweeps and changes of stock, over two processes and two SKUs."""
    limits = replace(LIMITS, sweep_chunk=3, batch=10)
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=limits) as one, store(dsn, grace=NONE, limits=limits) as two:
        shops, skus = (one, two), ("lamp", "chair")
        for sku in skus:
            await one.put(20, sku)
        ended: dict[str, int] = {}

        async def buyer(number: int) -> None:
            shop = shops[number % 2]
            answer = await shop.reserve(f"k{number}", wish(skus[number % 4 // 2], quantity=1 + number % 3))
            if isinstance(answer, Rejected):
                assert answer.code == "sold_out"
            elif number % 3 == 0:
                await shops[number % 4 // 2].orders.cancel(shop.tenant, answer.view.id)
            elif number % 3 == 1:
                ended[answer.view.id] = await shop.pay(answer.view.id)

        async def sweeper(shop: Store) -> None:
            for _ in range(15):
                await shop.orders.sweep()

        async def restocker() -> None:
            for step in range(20):
                answer = await two.orders.set_stock(two.tenant, skus[step % 2], 12 + step * 7 % 17)
                assert not isinstance(answer, Rejected) or answer.code == "stock_too_low"

        await asyncio.gather(*(buyer(number) for number in range(200)), sweeper(one), sweeper(two), restocker())
        for name, moved in ended.items():
            assert await one.status(name) == ("PAID" if moved else "CANCELLED_BY_SWEEPER")
    assert await broken(dsn) == {}


async def test_a_damaged_sku_holds_up_no_other(dsn: str) -> None:
    """Its counters say that it promised nothing: nothing can be given back to it, and a person must look."""
    async with store(dsn, ttl=A_MOMENT, grace=NONE, limits=replace(LIMITS, sweep_chunk=4)) as shop:
        for sku in ("lamp", "chair"):
            await shop.put(100, sku)
        for number in range(10):
            await shop.made(f"k{number}", wish("chair" if number % 5 == 2 else "lamp"))
        await expired(dsn)
        connection = await asyncpg.connect(superuser(dsn))
        try:
            await connection.execute("SET session_replication_role = replica")
            await connection.execute("UPDATE tally.sku SET reserved = 0 WHERE sku = 'chair'")
        finally:
            await connection.close()
        assert await shop.orders.sweep() == Swept(cancelled=8, released=8, refused=2)
        assert await shop.figures() == (0, 0, 100)
    assert await broken(dsn) == {"orders": 1}


async def test_a_sweep_ends_though_more_becomes_overdue_while_it_runs(dsn: str) -> None:
    """What it takes was overdue when it began; else a busy shop's sweep would never come back."""
    async with store(dsn, ttl=A_MOMENT, grace=NONE) as shop:
        await shop.put(10)
        for number in range(3):
            await shop.made(f"k{number}")
        await expired(dsn)
        sweep = orders_store.Sweep(shop.database, grace=NONE, watermark=None)
        assert (await sweep.chunk(2)).cancelled == 2
        for number in range(3):
            await shop.made(f"late{number}")
        await expired(dsn)
        assert await sweep.chunk(2) == Swept(cancelled=1, released=1)
        assert await shop.orders.sweep() == Swept(cancelled=3, released=3)
    assert await broken(dsn) == {}
