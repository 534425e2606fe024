"""A paid order is given back, whole or in parts: each part once, all together never more than was paid."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.refund.request.flow import Refunded, RefundRequests
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending, RefundRefused
from tallystick.database.migrate import migrate
from tallystick.keys.derived import refund_key, refund_part
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kinds, Transfer
from tallystick.ledger.outcome import Rejected
from tallystick.ledger.store import PostgresLedger
from tests import servers, simulators
from tests.checkout.payment.test_key import until_waiting
from tests.ledgers import broken
from tests.payments import CHARGING, HURRIED, age
from tests.providers.worlds import Control, World
from tests.sagas import Desk, desk
from tests.settlements import empty, superuser

PRICE = 25_000_000
# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own


@pytest.fixture(scope="module")
def refund_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(refund_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(refund_dsn)
    await empty(refund_dsn)
    return refund_dsn


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


def requests_of(till: Desk) -> RefundRequests:
    shop = till.shop
    return RefundRequests(shop.database, till.refunds, {shop.world.name: shop.provider}, limits=HURRIED)


async def ask(till: Desk, order: OrderView | str, key: str, micros: int | None = None, **more: Any) -> Refunded:
    given: dict[str, Any] = {"reason": "it came broken", "restock": False, **more}
    name = order if isinstance(order, str) else order.id
    return await requests_of(till).refund(till.shop.tenant, name, amount_micros=micros, idempotency_key=key, **given)


async def given(till: Desk, order: OrderView, key: str, micros: int | None = None, **more: Any) -> RefundGiven:
    answer = await ask(till, order, key, micros, **more)
    assert isinstance(answer, RefundGiven), answer
    return answer


def code(answer: Refunded) -> str:
    assert isinstance(answer, Rejected), answer
    return answer.code


async def paid(till: Desk, key: str = "k", **fields: Any) -> tuple[OrderView, str]:
    order, payment = await till.bought(key, **fields)
    await till.tell(payment, f"evt_{key}")
    await till.run()
    assert await till.status(order) == "PAID"
    return order, payment


async def view(till: Desk, order: OrderView) -> OrderView:
    found = await till.shop.payments.order(till.shop.tenant, order.id)
    assert isinstance(found, OrderView), found
    return found


def amounts(till: Desk) -> list[int]:
    """What the provider's own books say was given back, in its minor units."""
    return sorted(one["body"]["amount"] for one in till.given_back())


async def test_all_of_an_order_is_given_back_and_the_books_agree(till: Desk, dsn: str) -> None:
    order, payment = await paid(till)
    answer = await given(till, order, "r")
    assert (answer.refund.amount_micros, answer.refund.payment_intent_id, answer.is_replayed) == (PRICE, payment, False)
    assert amounts(till) == [2_500]
    assert await till.balances() == {"taken": 0, "sales": 0, "owed": 0}
    found = await view(till, order)
    assert found.status == "PAID"
    (listed,) = found.refunds
    assert (listed.status, listed.reason, listed.refund_id) == ("COMPLETED", "it came broken", answer.refund.refund_id)
    assert found.refund == listed
    again = await given(till, order, "r")
    assert (again.refund, again.is_replayed) == (answer.refund, True)
    assert code(await ask(till, order, "another")) == "refund_too_large"
    assert amounts(till) == [2_500]
    assert await broken(dsn) == {}


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_parts_are_given_back_one_by_one_up_to_what_was_paid(dsn: str, control: Control, world: World) -> None:
    async with desk(dsn, control, world) as till:
        order, _ = await paid(till)
        for number, micros in enumerate((5_000_000, 5_000_000, 10_000_000)):
            await given(till, order, f"r{number}", micros)
        assert code(await ask(till, order, "r3", 5_010_000)) == "refund_too_large"
        # The key is still free, and what is left is known.
        last = await given(till, order, "r3")
        assert last.refund.amount_micros == 5_000_000
        assert len(till.given_back()) == 4
        assert len({one["id"] for one in till.given_back()}) == 4
        assert [one.amount_micros for one in (await view(till, order)).refunds] == [
            5_000_000,
            5_000_000,
            10_000_000,
            5_000_000,
        ]
        assert await till.balances() == {"taken": 0, "sales": 0, "owed": 0}
    assert await broken(dsn) == {}


async def test_the_same_key_with_another_request_is_refused_by_what_differs(till: Desk) -> None:
    (order, _), (other, _) = await paid(till, "k1"), await paid(till, "k2")
    await given(till, order, "r", 5_000_000)
    for answer, fields in (
        (await ask(till, order, "r"), ("amount_micros",)),
        (await ask(till, order, "r", 5_000_000, reason="another"), ("reason",)),
        (await ask(till, order, "r", 5_000_000, restock=True), ("restock",)),
        (await ask(till, other, "r", 5_000_000), ("order_id",)),
    ):
        assert isinstance(answer, Rejected)
        assert (answer.code, answer.fields) == ("key_reused", fields)
    assert amounts(till) == [500]


async def test_what_cannot_be_given_back_is_refused_and_leaves_the_key_unused(till: Desk, dsn: str) -> None:
    order, _ = await paid(till, "k1")
    pending, cancelled = await till.shop.order("k2"), await till.shop.order("k3")
    await till.shop.orders.cancel(till.shop.tenant, cancelled.id)
    for wanted, micros, more, expected in (
        (pending, None, {}, "order_not_paid"),
        (cancelled, None, {}, "order_not_paid"),
        ("or_" + "0" * 32, None, {}, "order_unknown"),
        ("nonsense", None, {}, "order_unknown"),
        (order, PRICE + 10_000, {}, "refund_too_large"),
        (order, 5_000_001, {}, "refund_not_possible"),
        (order, 0, {}, "amount_not_positive"),
        (order, -1, {}, "amount_not_positive"),
        (order, None, {"reason": " "}, "reason_missing"),
        (order, None, {"reason": "\0"}, "reason_invalid"),
        (order, None, {"reason": "x" * 2_001}, "reason_invalid"),
    ):
        assert code(await ask(till, wanted, "r", micros, **more)) == expected
    assert till.given_back() == []
    assert (await given(till, order, "r")).is_replayed is False
    assert await broken(dsn) == {}


async def test_a_paid_order_is_not_cancelled_and_says_where_to_give_it_back(till: Desk) -> None:
    order, _ = await paid(till)
    refused = await till.shop.orders.cancel(till.shop.tenant, order.id)
    assert isinstance(refused, Rejected)
    assert refused.code == "order_paid"
    assert "POST /v1/orders/{id}/refund" in refused.remedy


async def test_two_parts_at_once_from_two_processes_never_exceed_what_was_paid(dsn: str, control: Control) -> None:
    """Both have been sent off; they meet at the payment, and the second sees what the first has asked for."""
    async with desk(dsn, control) as one, desk(dsn, control, by="two") as two:
        order, _ = await paid(one)
        holder = await asyncpg.connect(superuser(dsn))
        try:
            async with holder.transaction():
                await holder.execute("SELECT 1 FROM tally.orders FOR UPDATE")
                asked = [
                    asyncio.create_task(ask(till, order, key, 15_000_000)) for till, key in ((one, "a"), (two, "b"))
                ]
                await until_waiting(dsn, 2)
        finally:
            await holder.close()
        answers = await asyncio.gather(*asked)
        assert sorted(type(answer).__name__ for answer in answers) == ["RefundGiven", "Rejected"]
        (refused,) = [answer for answer in answers if isinstance(answer, Rejected)]
        assert refused.code == "refund_too_large"
        assert amounts(one) == [1_500]
    assert await broken(dsn) == {}


async def test_one_key_at_once_from_two_processes_is_one_refund(dsn: str, control: Control) -> None:
    control.plan("stripe.refund:slow_after(1)")
    async with (
        desk(dsn, control, answer_seconds=10) as one,
        desk(dsn, control, by="two", answer_seconds=10) as two,
    ):
        order, _ = await paid(one)
        holder = await asyncpg.connect(superuser(dsn))
        try:
            async with holder.transaction():
                await holder.execute("SELECT 1 FROM tally.orders FOR UPDATE")
                asked = [asyncio.create_task(ask(till, order, "same", 5_000_000)) for till in (one, two)]
                await until_waiting(dsn, 2)
        finally:
            await holder.close()
        answers = await asyncio.gather(*asked)
        assert sorted(type(answer).__name__ for answer in answers) == ["RefundGiven", "RefundPending"]
        again = [await given(till, order, "same", 5_000_000) for till in (one, two)]
        assert again[0] == again[1]
        assert again[0].is_replayed
        assert amounts(one) == [500]
    assert await broken(dsn) == {}


async def test_one_key_for_two_orders_at_once_gives_one_of_them_back(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as one, desk(dsn, control, by="two") as two:
        orders = [(await paid(one, "k1"))[0], (await paid(one, "k2"))[0]]
        holder = await asyncpg.connect(superuser(dsn))
        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE tally.refund_request IN EXCLUSIVE MODE")
                asked = [
                    asyncio.create_task(ask(till, order, "same"))
                    for till, order in zip((one, two), orders, strict=True)
                ]
                await until_waiting(dsn, 2)
        finally:
            await holder.close()
        answers = await asyncio.gather(*asked)
        (refused,) = [answer for answer in answers if isinstance(answer, Rejected)]
        assert (refused.code, refused.fields) == ("key_reused", ("order_id",))
        assert amounts(one) == [2_500]
    assert await broken(dsn) == {}


@pytest.mark.parametrize("fault", ["execute_then_drop", "drop_before", "hang", "rate_limited", "gateway_503_after"])
async def test_what_is_not_heard_of_is_pending_and_the_sweeper_gives_it_back_once(
    dsn: str, control: Control, fault: str
) -> None:
    async with desk(dsn, control) as till:
        order, _ = await paid(till)
        control.plan(f"stripe.refund:{fault}")
        first = await ask(till, order, "r", 5_000_000)
        assert isinstance(first, RefundPending), first
        assert first.retry_after_seconds >= 1
        assert isinstance(await ask(till, order, "r", 5_000_000), RefundPending)
        # It counts while nobody knows.
        assert code(await ask(till, order, "more", 20_010_000)) == "refund_too_large"
        for _ in range(4):
            await age(dsn)
            await till.refunds.sweep()
        answer = await given(till, order, "r", 5_000_000)
        assert answer.is_replayed
        assert answer == await given(till, order, "r", 5_000_000)
        assert amounts(till) == [500]
        assert await till.balances() == {"taken": -20_000_000, "sales": 20_000_000, "owed": 0}
    assert await broken(dsn) == {}


async def test_a_part_that_the_provider_refuses_is_told_again_and_no_longer_counts(till: Desk, dsn: str) -> None:
    order, _ = await paid(till)
    till.shop.control.plan("stripe.refund:refused(charge_disputed)@1")
    first = await ask(till, order, "r")
    assert isinstance(first, RefundRefused), first
    assert (first.code, first.is_replayed) == ("refund_refused", False)
    assert "charge_disputed" in first.detail
    again = await ask(till, order, "r")
    assert isinstance(again, RefundRefused)
    assert (str(again), again.is_replayed) == (str(first), True)
    assert await till.breaks() == ["refund_failed"]
    assert await till.balances() == {"taken": -PRICE, "sales": PRICE, "owed": 0}
    assert (await given(till, order, "another")).refund.amount_micros == PRICE
    assert [one.status for one in (await view(till, order)).refunds] == ["FAILED", "COMPLETED"]
    assert await broken(dsn) == {}


async def test_a_part_that_comes_back_is_the_tenants_again_and_its_key_keeps_its_answer(till: Desk, dsn: str) -> None:
    order, payment = await paid(till)
    first = await given(till, order, "r")
    refund = first.refund.refund_id
    await till.tell(refund, "evt_back", purpose="refund", state="failed", parent=payment)
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]
    assert await till.balances() == {"taken": -PRICE, "sales": PRICE, "owed": 0}
    again = await given(till, order, "r")
    assert (again.refund, again.is_replayed) == (first.refund, True)
    assert await broken(dsn) == {}


async def test_news_of_a_part_completes_it(till: Desk, dsn: str) -> None:
    """The answer was lost, and the provider's own word comes first."""
    order, payment = await paid(till)
    till.shop.control.plan("stripe.refund:execute_then_drop")
    assert isinstance(await ask(till, order, "r", 5_000_000), RefundPending)
    (made,) = till.given_back()
    (row,) = await till.refunds_of(order)
    await till.tell(made["id"], "evt_told", purpose="refund", micros=5_000_000, parent=payment, reference=row.key.hex())
    await till.run()
    assert (await given(till, order, "r", 5_000_000)).refund.refund_id == made["id"]
    assert amounts(till) == [500]
    assert await broken(dsn) == {}


async def test_of_two_equal_parts_news_without_a_name_completes_neither(till: Desk, dsn: str) -> None:
    """Whose it is nobody can tell; the wrong one would be called given back, and never be."""
    order, payment = await paid(till)
    till.shop.control.plan("stripe.refund:drop_before=100%")
    for key in ("a", "b"):
        assert isinstance(await ask(till, order, key, 5_000_000), RefundPending)
    await till.tell("re_nameless", "evt_told", purpose="refund", micros=5_000_000, parent=payment)
    await till.run()
    assert await till.refund_statuses(order) == ["PENDING", "PENDING"]
    assert await till.breaks() == ["refunded_outside"]


async def test_stock_is_for_sale_again_only_where_it_was_asked_for_and_once(till: Desk, dsn: str) -> None:
    order, _ = await paid(till, quantity=2)

    async def sold() -> tuple[int, int]:
        found = await till.shop.orders.sku(till.shop.tenant, "lamp")
        assert not isinstance(found, Rejected)
        return found.sold, found.available

    assert await sold() == (2, 998)
    await given(till, order, "a", 5_000_000)
    assert await sold() == (2, 998)
    for _ in range(2):
        await given(till, order, "b", 5_000_000, restock=True)
        assert await sold() == (0, 1_000)
    assert code(await ask(till, order, "c", 5_000_000, restock=True)) == "already_restocked"
    await given(till, order, "c", 5_000_000)
    assert await sold() == (0, 1_000)
    assert await broken(dsn) == {}


async def test_what_has_left_the_tenants_sales_cannot_be_given_back_before_it_is_there_again(
    till: Desk, dsn: str
) -> None:
    order, _ = await paid(till)
    async with Engine(PostgresLedger(till.shop.database), Kinds(())) as engine:
        async with till.shop.database.writing() as connection:
            await connection.execute(
                "INSERT INTO tally.account (tenant_id, id, currency, floor_micros) VALUES ($1, 'bank', 'EUR', 0)",
                till.shop.tenant.number,
            )
        moved = Transfer(debit="checkout:sales:EUR", credit="bank", amount_micros=PRICE, currency="EUR")
        assert not isinstance(await engine.submit(till.shop.tenant, moved, "spent"), Rejected)
        assert code(await ask(till, order, "r")) == "insufficient_funds"
        assert (await view(till, order)).refunds == ()
        back = Transfer(debit="bank", credit="checkout:sales:EUR", amount_micros=PRICE, currency="EUR")
        await engine.submit(till.shop.tenant, back, "back")
    assert (await given(till, order, "r")).refund.amount_micros == PRICE
    assert amounts(till) == [2_500]


async def test_the_database_refuses_more_than_was_paid_whoever_asks(till: Desk, dsn: str) -> None:
    """The decision is not what holds it: the payment's own row does."""
    order, _ = await paid(till)
    await given(till, order, "r", 20_000_000)
    owner = await asyncpg.connect(superuser(dsn))
    try:
        with pytest.raises(asyncpg.CheckViolationError, match="refunds_within_payment"):
            async with owner.transaction():
                await owner.execute("SET LOCAL session_replication_role = replica")
                await owner.execute("UPDATE tally.payment_receipt SET refunding_micros = refunding_micros + 5000001")
        with pytest.raises(asyncpg.PostgresError, match="counted by its refunds alone"):
            await owner.execute("UPDATE tally.payment_receipt SET refunding_micros = 0")
    finally:
        await owner.close()


async def test_verify_sees_a_part_that_is_not_counted(till: Desk, dsn: str) -> None:
    order, _ = await paid(till)
    await given(till, order, "r", 5_000_000)
    owner = await asyncpg.connect(superuser(dsn))
    try:
        async with owner.transaction():
            await owner.execute("SET LOCAL session_replication_role = replica")
            await owner.execute("UPDATE tally.payment_receipt SET refunding_micros = 0")
    finally:
        await owner.close()
    assert await broken(dsn) == {"checkout": 1}


async def test_the_key_that_the_provider_sees_is_made_of_what_the_caller_sent(till: Desk) -> None:
    """Whoever repeats the request after a restore, in another life of the database, meets the same key."""
    order, payment = await paid(till)
    await given(till, order, "r", 5_000_000)
    (row,) = await till.refunds_of(order)
    named: dict[str, Any] = {"tenant": "default", "currency": "EUR", "provider": "stripe", "payment_intent_id": payment}
    assert row.key == refund_key(**named, part=refund_part("r"))
    assert row.key.hex() in str(till.given_back())
