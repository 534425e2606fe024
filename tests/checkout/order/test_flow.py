"""Orders on a real database: reserved once under a key, never oversold, cancelled once, whatever runs beside it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from tallystick import caller
from tallystick.checkout.order import store as orders_store
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.database.pool import Connection, Database
from tallystick.errors import Busy, InFlight
from tallystick.ledger.kinds import Refund, Release, Transfer
from tallystick.ledger.outcome import Committed, Rejected
from tallystick.settings import LIMITS
from tests import servers
from tests.ledgers import broken, fetchval, ledger
from tests.orders import (
    GRACE,
    LONG,
    TTL,
    Store,
    code,
    emptied,
    encoded,
    execute,
    in_flight,
    orders_of,
    store,
    waits,
    wish,
)

# Locks of others are stepped around sooner than a test would notice.
SHORT = replace(LIMITS, lock_wait_seconds=0.05)


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


@pytest_asyncio.fixture
async def shop(dsn: str) -> AsyncIterator[Store]:
    """A shop with ten lamps; at the end everything adds up."""
    async with store(dsn) as opened:
        await opened.put(10)
        yield opened
    assert await broken(dsn) == {}


async def test_a_reservation_holds_its_stock_until_its_time(shop: Store) -> None:
    view = await shop.made("k", wish(quantity=3))
    assert (view.status, view.sku, view.quantity, view.amount_micros, view.currency) == (
        "PENDING",
        "lamp",
        3,
        25_000_000,
        "EUR",
    )
    assert view.expires_at - view.created_at == TTL
    assert view.created_at == view.changed_at
    assert await shop.orders.read(shop.tenant, view.id) == view
    assert await shop.figures() == (3, 0, 7)
    assert await shop.orders.sweep() == Swept()


async def test_the_same_wish_under_the_same_key_is_the_same_order_to_the_byte(shop: Store) -> None:
    first = await shop.reserve("k")
    second = await shop.reserve("k")
    assert (first.is_replayed, second.is_replayed) == (False, True)
    assert encoded(first) == encoded(second)
    # Also when it is no longer what it was.
    await shop.orders.cancel(shop.tenant, first.view.id)
    third = await shop.reserve("k")
    assert third.is_replayed
    assert encoded(third) == encoded(first)
    assert await shop.figures() == (0, 0, 10)
    assert await orders_of(shop.dsn) == 1


async def test_another_wish_under_the_same_key_is_refused_by_the_fields_that_differ(shop: Store) -> None:
    await shop.made("k")
    answer = await shop.reserve("k", wish(quantity=2, amount_micros=1))
    assert code(answer) == "key_reused"
    assert answer.fields == ("amount_micros", "quantity")
    await shop.put(10, "chair")
    assert (await shop.reserve("k", wish("chair"))).fields == ("sku",)
    assert await shop.figures() == (1, 0, 9)


async def test_two_identical_purchases_are_two_orders(shop: Store) -> None:
    first, second = await shop.made("k"), await shop.made("l")
    assert first.id != second.id
    assert first.reservation_token != second.reservation_token


async def test_sold_out_leaves_the_key_unused(shop: Store) -> None:
    held = await shop.made("all", wish(quantity=10))
    assert code(await shop.reserve("k")) == "sold_out"
    assert await fetchval(shop.dsn, "SELECT count(*) FROM tally.operation") == 1
    await shop.orders.cancel(shop.tenant, held.id)
    # Under the same key, and also for something else.
    assert not (await shop.reserve("k", wish(quantity=2))).is_replayed


async def test_a_batch_that_finds_nothing_left_writes_nothing(shop: Store) -> None:
    await shop.made("all", wish(quantity=10))
    row = "SELECT (ctid, xmin, xmax)::text FROM tally.sku"
    before = await fetchval(shop.dsn, row)
    answers = await asyncio.gather(*(shop.reserve(f"k{number}") for number in range(300)))
    assert {code(answer) for answer in answers} == {"sold_out"}
    # Neither written nor as much as locked: a lock would stand in xmax.
    assert await fetchval(shop.dsn, row) == before
    assert await orders_of(shop.dsn) == await fetchval(shop.dsn, "SELECT count(*) FROM tally.operation") == 1
    assert shop.orders.sold_out == 300


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        (wish(quantity=0), "quantity_not_positive"),
        (wish(quantity=-3), "quantity_not_positive"),
        (wish(quantity=11), "quantity_above_stock"),
        (wish("none"), "sku_unknown"),
        (wish(amount_micros=0), "amount_not_positive"),
        (wish(currency="EURO"), "currency_unknown"),
    ],
)
async def test_bad_wishes_are_refused_and_leave_the_key_unused(shop: Store, asked: Any, refusal: str) -> None:
    assert code(await shop.reserve("k", asked)) == refusal
    await shop.made("k")


@pytest.mark.parametrize(
    ("key", "refusal"),
    [("", "idempotency_key_missing"), ("ä", "idempotency_key_invalid"), ("k" * 256, "idempotency_key_too_long")],
)
async def test_a_key_that_is_none_is_refused(shop: Store, key: str, refusal: str) -> None:
    assert code(await shop.reserve(key)) == refusal


async def test_fifty_twins_are_one_order(shop: Store) -> None:
    """One buyer, frantic, over two processes."""
    async with store(shop.dsn) as other:
        answers = await asyncio.gather(
            *(one.reserve("k") for _ in range(25) for one in (shop, other)),
        )
    assert len({encoded(answer) for answer in answers}) == 1
    assert sum(not answer.is_replayed for answer in answers) == 1
    assert await shop.figures() == (1, 0, 9)


async def test_first_come_first_served_within_a_process(dsn: str) -> None:
    """Also when the queue is longer than a batch, and there are two lanes to take from it."""
    limits = replace(LIMITS, batch=20, lanes=3)
    async with store(dsn, limits=limits) as shop:
        await shop.put(137)
        answers = await asyncio.gather(*(shop.reserve(f"k{number}") for number in range(500)))
        assert [code(answer) for answer in answers] == ["Reserved"] * 137 + ["sold_out"] * 363
    assert await broken(dsn) == {}


class Slow(Database):
    """Once armed, whoever comes first is held up until another has overtaken him; or, for a while, nobody has."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.held_up: bool | None = None
        self._overtaken = asyncio.Event()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        is_first, self.held_up = self.held_up is False, None if self.held_up is None else True
        if is_first:
            await asyncio.wait([asyncio.create_task(self._overtaken.wait())], timeout=0.5)
        async with super().writing() as connection:
            yield connection
        self._overtaken.set()


async def test_a_batch_that_is_held_up_is_not_overtaken(dsn: str) -> None:
    """First come, first served, though the first comers' connection is the slower one."""
    limits = replace(LIMITS, batch=5, lanes=2)
    async with store(dsn) as shop:
        await shop.put(5)
    slow = Slow(dsn, 10, limits)
    try:
        async with Orders(slow, ttl=TTL, grace=GRACE, limits=limits) as orders:
            slow.held_up = False
            answers = await asyncio.gather(*(orders.reserve(shop.tenant, wish(), f"k{number}") for number in range(15)))
        assert slow.held_up
        assert [code(answer) for answer in answers] == ["Reserved"] * 5 + ["sold_out"] * 10
    finally:
        await slow.close()


async def test_a_large_quantity_that_does_not_fit_does_not_stop_a_small_one_that_does(shop: Store) -> None:
    answers = await asyncio.gather(
        shop.reserve("a", wish(quantity=8)), shop.reserve("b", wish(quantity=3)), shop.reserve("c", wish(quantity=2))
    )
    assert [code(answer) for answer in answers] == ["Reserved", "sold_out", "Reserved"]
    assert await shop.figures() == (10, 0, 0)


async def test_many_at_once_and_few_at_once_give_the_same_rows(shop: Store) -> None:
    """Small batches go in by statement, large ones by COPY."""
    await shop.put(1_000)
    one = await shop.made("one", wish(quantity=7))
    many = await asyncio.gather(*(shop.made(f"k{number}", wish(quantity=7)) for number in range(60)))
    for view in (one, *many):
        assert await shop.orders.read(shop.tenant, view.id) == view
        again = await shop.reserve("one" if view is one else f"k{many.index(view)}", wish(quantity=7))
        assert again.view == view
    assert await shop.figures() == (61 * 7, 0, 1_000 - 61 * 7)


async def test_two_processes_sell_what_there_is_and_not_one_more(dsn: str) -> None:
    async with store(dsn) as shop:
        await shop.put(150)
        buyers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.checkout.order.buyer", dsn, name, "400"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for name in ("ann", "bob")
        ]
        try:
            for buyer in buyers:
                assert buyer.stdout is not None
                assert await buyer.stdout.readline() == b"ready\n"
            told = await asyncio.gather(*(buyer.communicate(b"go\n") for buyer in buyers))
            given = [set(out.decode().split()) for out, _ in told]
        finally:
            for buyer in buyers:
                if buyer.returncode is None:
                    buyer.kill()
                    await buyer.wait()
        assert [buyer.returncode for buyer in buyers] == [0, 0]
        assert not given[0] & given[1]
        assert len(given[0] | given[1]) == 150
        assert await shop.figures() == (150, 0, 0)
    assert await broken(dsn) == {}


async def test_the_last_piece_goes_to_the_one_whose_transaction_holds_it(dsn: str) -> None:
    """The second process waits for the first, and then hears that it was sold: never that both have it."""
    async with store(dsn, limits=LONG) as first, store(dsn, limits=LONG) as second:
        await first.put(1)
        async with in_flight(first, "a") as held:
            waiting = asyncio.create_task(second.reserve("b"))
            await waits(dsn)
            assert not waiting.done()
        assert code(held[0]) == "Reserved"
        assert code(await waiting) == "sold_out"
        assert await first.figures() == (1, 0, 0)
    assert await broken(dsn) == {}


async def test_a_twin_in_another_process_waits_and_gets_the_same_order(dsn: str) -> None:
    """Also where the first took the last piece: the twin must not hear "sold out" about its own order."""
    async with store(dsn, limits=LONG) as first, store(dsn, limits=LONG) as second:
        await first.put(1)
        async with in_flight(first, "k") as held:
            waiting = asyncio.create_task(second.reserve("k"))
            await waits(dsn)
        answer = await waiting
        assert not isinstance(answer, Rejected), answer
        assert answer.is_replayed
        assert encoded(answer) == encoded(held[0])
    assert await broken(dsn) == {}


async def test_a_key_in_flight_for_another_sku_is_used_once(dsn: str) -> None:
    """They do not meet at the stock; they meet at the key."""
    async with store(dsn, limits=LONG) as first, store(dsn, limits=LONG) as second:
        await first.put(1)
        await first.put(1, "chair")
        async with in_flight(first, "k"):
            waiting = asyncio.create_task(second.reserve("k", wish("chair")))
            await waits(dsn)
        answer = await waiting
        assert (code(answer), answer.fields) == ("key_reused", ("sku",))
        assert await first.figures("chair") == (0, 0, 1)
    assert await broken(dsn) == {}


async def test_a_reservation_that_is_rolled_back_leaves_the_piece_to_the_next(dsn: str) -> None:
    async with store(dsn, limits=LONG) as first, store(dsn, limits=LONG) as second:
        await first.put(1)
        with pytest.raises(ZeroDivisionError):
            async with in_flight(first, "a"):
                waiting = asyncio.create_task(second.reserve("b"))
                await waits(dsn)
                raise ZeroDivisionError
        assert code(await waiting) == "Reserved"
        assert code(await first.reserve("a")) == "sold_out"


async def test_sold_out_is_heard_without_waiting_for_whoever_holds_the_sku(dsn: str) -> None:
    async with store(dsn, limits=LONG) as first, store(dsn, limits=LONG) as second:
        await first.put(1)
        view = await first.made("a")
        async with first.database.writing() as connection:
            await connection.fetch(
                orders_store._SQL["lock_stocks"], *orders_store._columns({(first.tenant.number, "lamp")})
            )
            async with asyncio.timeout(5):
                assert code(await second.reserve("b")) == "sold_out"
                assert (await second.reserve("a")).view == view


async def test_a_sku_that_somebody_holds_stops_no_other(dsn: str) -> None:
    """A transaction of somebody's own holds one SKU; the rest goes on, and those who want it are told in time."""
    limits = replace(SHORT, wait_seconds=1.0)
    async with store(dsn, limits=limits) as shop:
        await shop.put(5)
        await shop.put(500, "chair")
        await shop.made("before")
        async with shop.database.writing() as connection:
            await connection.fetch(
                orders_store._SQL["lock_stocks"], *orders_store._columns({(shop.tenant.number, "lamp")})
            )
            held = [asyncio.create_task(shop.reserve(f"l{number}")) for number in range(3)]
            assert (await shop.reserve("before")).is_replayed
            for round_ in range(5):
                chairs = [shop.reserve(f"c{round_}-{number}", wish("chair")) for number in range(40)]
                assert {code(answer) for answer in await asyncio.gather(*chairs)} == {"Reserved"}
            told = await asyncio.gather(*held, return_exceptions=True)
            assert {type(error) for error in told} == {InFlight}
        await shop.made("l0")
        assert await shop.figures() == (2, 0, 3)
    assert await broken(dsn) == {}


async def test_a_key_belongs_to_one_effect_also_beside_the_ledger(shop: Store) -> None:
    """An order and a transfer under one key would be two effects of one request."""
    move = Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
    async with ledger(shop.dsn) as one:
        await one.account("a", 100)
        await one.account("b")
        assert isinstance(await one.submit(move, "moved"), Committed)
        answer = await shop.reserve("moved")
        assert code(answer) == "key_reused"
        assert "sku" in answer.fields
        await shop.made("reserved")
        assert code(await one.submit(move, "reserved")) == "key_reused"
        for number in range(20):
            raced = await asyncio.gather(shop.reserve(f"race-{number}"), one.submit(move, f"race-{number}"))
            assert sum(isinstance(answer, Reserved | Committed) for answer in raced) == 1
            assert sum(code(answer) == "key_reused" for answer in raced) == 1
            await shop.put(100)


async def test_a_key_of_a_persons_decision_is_not_used_for_an_order(shop: Store) -> None:
    await execute(shop.dsn, "INSERT INTO tally.reply (tenant_id, key, request, body) VALUES (1, 'k', '{}', '{}')")
    assert code(await shop.reserve("k")) == "key_reused"
    assert await shop.figures() == (0, 0, 10)


async def test_an_order_cannot_be_refunded_or_released_as_if_it_had_moved_money(shop: Store) -> None:
    view = await shop.made("k")
    name = view.id.replace("or_", "tx_")
    async with ledger(shop.dsn) as one:
        await one.account("a", 100)
        await one.account("b")
        # In one batch: what is read for one of them is there for all.
        move = Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
        moved, refunded, released = await asyncio.gather(
            one.submit(move, "m"), one.submit(Refund(transaction=name), "r"), one.submit(Release(hold=name), "s")
        )
        assert [code(answer) for answer in (moved, refunded, released)] == [
            "Committed",
            "not_refundable",
            "transaction_unknown",
        ]


async def test_a_cancellation_gives_back_once(shop: Store) -> None:
    view = await shop.made("k", wish(quantity=4))
    first = await shop.orders.cancel(shop.tenant, view.id)
    assert isinstance(first, OrderView)
    assert first.status == "CANCELLED"
    assert first.changed_at > view.changed_at
    assert await shop.orders.cancel(shop.tenant, view.id) == first
    assert await shop.figures() == (0, 0, 10)


async def test_fifty_cancellations_give_back_once(shop: Store) -> None:
    view = await shop.made("k", wish(quantity=4))
    async with store(shop.dsn) as other:
        answers = await asyncio.gather(
            *(one.orders.cancel(shop.tenant, view.id) for _ in range(25) for one in (shop, other))
        )
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    assert await shop.figures() == (0, 0, 10)
    assert await fetchval(shop.dsn, "SELECT count(*) FROM tally.journal WHERE subject = 'order.cancelled'") == 1


async def test_a_paid_order_is_not_cancelled(shop: Store) -> None:
    view = await shop.made("k")
    assert await shop.pay(view.id) == 1
    assert code(await shop.orders.cancel(shop.tenant, view.id)) == "order_paid"
    assert await shop.figures() == (0, 1, 9)


@pytest.mark.parametrize("name", ["or_" + "0" * 32, "or_xyz", "", "tx_" + "0" * 32])
async def test_an_order_that_is_not_there_is_unknown(shop: Store, name: str) -> None:
    assert code(await shop.orders.cancel(shop.tenant, name)) == "order_unknown"
    assert code(await shop.orders.read(shop.tenant, name)) == "order_unknown"


async def test_a_stock_below_what_is_promised_is_refused_and_stays(shop: Store) -> None:
    first, _ = await shop.made("a", wish(quantity=3)), await shop.made("b", wish(quantity=2))
    await shop.pay(first.id)
    refused = await shop.orders.set_stock(shop.tenant, "lamp", 4)
    assert isinstance(refused, Rejected)
    assert refused.code == "stock_too_low"
    assert "2 reserved and 3 sold" in refused.detail
    assert await shop.figures() == (2, 3, 5)
    assert (await shop.put(5)).available == 0
    assert code(await shop.reserve("c")) == "sold_out"
    assert (await shop.put(6)).available == 1
    await shop.made("c")


async def test_a_stock_that_shrinks_while_somebody_reserves_waits_for_him(dsn: str) -> None:
    async with store(dsn, limits=LONG) as one, store(dsn, limits=LONG) as two:
        await one.put(5)
        async with in_flight(one, "a", asked=wish(quantity=4)):
            shrinking = asyncio.create_task(two.orders.set_stock(two.tenant, "lamp", 3))
            await waits(dsn)
        assert code(await shrinking) == "stock_too_low"
        assert await one.figures() == (4, 0, 1)


async def test_a_sku_made_by_two_at_once_is_one(dsn: str) -> None:
    async with store(dsn) as one, store(dsn) as two:
        made = await asyncio.gather(*(shop.orders.set_stock(shop.tenant, "lamp", 7) for shop in (one, two) * 5))
        assert {msgspec.json.encode(view) for view in made} == {msgspec.json.encode(made[0])}
        assert await fetchval(dsn, "SELECT count(*) FROM tally.journal WHERE subject = 'sku.stock'") == 1


@pytest.mark.parametrize(("sku", "stock"), [("a b", 1), ("", 1), ("lamp", -1), ("lamp", True), ("lamp", 10**10)])
async def test_a_wrong_stock_is_refused(shop: Store, sku: str, stock: Any) -> None:
    assert code(await shop.orders.set_stock(shop.tenant, sku, stock)) in {"sku_invalid", "stock_invalid"}


async def test_a_full_queue_says_so_and_holds_nothing(dsn: str) -> None:
    async with store(dsn, limits=replace(LONG, queue=5, queue_per_source=5)) as shop:
        await shop.put(100)
        async with shop.database.writing() as connection:
            await connection.fetch(
                orders_store._SQL["lock_stocks"], *orders_store._columns({(shop.tenant.number, "lamp")})
            )
            tasks = [asyncio.create_task(shop.reserve(f"k{number}")) for number in range(30)]
            await waits(dsn)
            refused = [task for task in tasks if task.done()]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(task.exception()) for task in refused} == {Busy}
        assert sum(isinstance(answer, Reserved) for answer in answers) == 30 - len(refused)
        assert await orders_of(dsn) == 30 - len(refused)
    assert await broken(dsn) == {}


async def test_a_key_that_a_callers_own_transaction_holds_stops_nobody_else(dsn: str) -> None:
    """He may roll back: until he ends, nobody can say whose the key is."""
    async with store(dsn, limits=replace(SHORT, wait_seconds=1.0)) as shop, ledger(dsn) as one:
        await shop.put(100)
        await one.account("a", 100)
        await one.account("b")
        move = one.engine.claim(one.tenant, Transfer(debit="a", credit="b", amount_micros=1, currency="USD"), "k")
        assert not isinstance(move, Rejected)
        connection = await asyncpg.connect(dsn)
        try:
            transaction = connection.transaction()
            await transaction.start()
            assert isinstance(await caller.submit(connection, move), Committed)
            waiting = asyncio.create_task(shop.reserve("k"))
            for round_ in range(3):
                others = [shop.reserve(f"o{round_}-{number}") for number in range(10)]
                assert {code(answer) for answer in await asyncio.gather(*others)} == {"Reserved"}
            with pytest.raises(InFlight):
                await waiting
            await transaction.rollback()
        finally:
            await connection.close()
        await shop.made("k")
    assert await broken(dsn) == {}
