"""An order is charged once, however often and from wherever it is paid; what is unknown is never charged anew."""

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tallystick.access.store import ensure_tenant
from tallystick.checkout.payment.plan import Click
from tallystick.checkout.payment.rules import Paying, PaymentPending
from tallystick.checkout.payment.store import ChargeResult, ClickWork, RecordWork
from tallystick.commit.port import Lost
from tallystick.database.migrate import migrate
from tallystick.errors import Busy, ShareUsed
from tallystick.providers.words import Answer, Instruction, Sending
from tallystick.settings import LIMITS
from tests import servers, simulators
from tests.ledgers import broken, fetchval
from tests.orders import A_MOMENT, expired, receive
from tests.payments import CHARGING, STRIPE, Checkout, age, charged, checkout
from tests.providers.worlds import API_KEY, Control, World
from tests.settlements import empty

DECLINED = {
    "stripe": "pm_card_chargeDeclined",
    "adyen": '{"type": "scheme", "encryptedCardNumber": "test_refused"}',
    "square": "cnon:card-nonce-declined",
}


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


@pytest.fixture(params=CHARGING, ids=lambda world: world.name)
async def any_shop(request: pytest.FixtureRequest, dsn: str, control: Control) -> AsyncIterator[Checkout]:
    """The same at every provider that takes charges."""
    async with checkout(dsn, control, request.param) as opened:
        yield opened


# Where nobody answers.
NOWHERE = replace(STRIPE, make=lambda _url, hook, key: STRIPE.make("http://127.0.0.1:9", hook, key))


def cancel(control: Control, payment_intent_id: str | None) -> None:
    """As somebody with the provider's dashboard does it."""
    request = urllib.request.Request(
        f"{control.url}/stripe/v1/payment_intents/{payment_intent_id}/cancel",
        b"",
        {"authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


def secret(answer: Paying) -> str | None:
    return None if answer.client_secret is None else answer.client_secret.reveal()


async def test_an_order_is_charged_and_every_repeat_is_the_same(any_shop: Checkout, control: Control) -> None:
    order = await any_shop.order()
    first, second = await any_shop.paying(order), await any_shop.paying(order)
    assert first.payment == second.payment
    assert (first.is_repeat, second.is_repeat) == (False, True)
    (made,) = charged(control, any_shop.world)
    assert made["id"] == first.payment.payment_intent_id
    assert await any_shop.statuses(order) == ["COMPLETED"]
    assert await any_shop.view(order) == first.payment
    assert await broken(any_shop.dsn) == {}


async def test_the_client_secret_is_the_same_again_and_stored_nowhere(shop: Checkout, dsn: str) -> None:
    order = await shop.order()
    first, second = await shop.paying(order, payment_method=None), await shop.paying(order, payment_method=None)
    assert secret(first) is not None
    assert secret(first) == secret(second)
    stored = await fetchval(
        dsn,
        "SELECT string_agg(convert_from(coalesce(evidence, ''), 'UTF8'), '') || (SELECT string_agg(convert_from("
        " coalesce(provider_response, ''), 'UTF8'), '') FROM tally.payment_idempotency_log) FROM tally.attempt",
    )
    assert str(secret(first)) not in stored
    assert "client_secret" not in stored or "(hidden)" in stored


async def test_fifty_clicks_under_one_key_in_one_process_are_one_flight(shop: Checkout, control: Control) -> None:
    order = await shop.order()
    answers = await asyncio.gather(*(shop.pay(order, key="k") for _ in range(50)))
    assert len({msgspec.json.encode(answer.payment) for answer in answers if isinstance(answer, Paying)}) == 1
    assert all(isinstance(answer, Paying) for answer in answers)
    assert len(charged(control)) == 1
    assert await shop.answers() == ["done"]


async def test_clicks_in_other_processes_find_the_log(dsn: str, control: Control) -> None:
    """While the first waits for the provider the others are told that it is pending; nobody sends beside it."""
    control.plan("stripe.charge:slow_after(1)")
    async with checkout(dsn, control, answer_seconds=10) as one, checkout(dsn, control) as two:
        order = await one.order()
        first = asyncio.create_task(one.pay(order))
        while not await one.answers():
            await asyncio.sleep(0.005)
        told = await asyncio.gather(*(two.pay(order) for _ in range(25)))
        assert {type(answer) for answer in told} == {PaymentPending}
        mine = await first
        assert isinstance(mine, Paying)
        again = await two.paying(order)
        assert (again.payment, secret(again)) == (mine.payment, secret(mine))
    assert len(charged(control)) == 1
    assert await broken(dsn) == {}


async def test_two_processes_that_click_at_once_make_one_charge(dsn: str, control: Control) -> None:
    async with checkout(dsn, control) as one, checkout(dsn, control) as two:
        for number in range(10):
            order = await one.order(f"k{number}")
            answers = await asyncio.gather(*(shop.pay(order) for shop in (one, two) for _ in range(5)))
            assert {type(answer) for answer in answers} <= {Paying, PaymentPending}
            assert any(isinstance(answer, Paying) for answer in answers)
            assert (await one.paying(order)).payment == (await two.paying(order)).payment
    assert len(charged(control)) == 10
    assert await broken(dsn) == {}


@pytest.mark.parametrize(
    "fault", ["", "execute_then_drop", "drop_before", "execute_then_reset", "hang", "rate_limited"]
)
async def test_fifty_clicks_over_two_processes_are_one_charge_with_or_without_a_partition(
    dsn: str, control: Control, fault: str
) -> None:
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.checkout.payment.payer",
                    dsn,
                    control.url,
                    order.id,
                    order.reservation_token,
                    "25",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        if fault:
            control.plan(f"stripe.charge:{fault}")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [await asyncio.to_thread(process.communicate) for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        answers = [line for out, _ in said for line in out.splitlines()]
        assert len(answers) == 50
        (answer,) = set(answers)
        (made,) = charged(control)
        assert answer.startswith(f"{made['id']} {made['id']}_secret_")
        assert answer.endswith(" 1")
        assert await shop.statuses(order) == ["COMPLETED"]
    assert await broken(dsn) == {}


async def test_two_identical_purchases_are_two_charges(shop: Checkout, control: Control) -> None:
    one, two = await shop.order("k1"), await shop.order("k2")
    first, second = await shop.paying(one), await shop.paying(two)
    assert first.payment.payment_intent_id != second.payment.payment_intent_id
    assert len(charged(control)) == 2


@pytest.mark.parametrize(
    "fault", ["execute_then_drop", "execute_then_reset", "cut_body", "hang", "html_200", "gateway_503_after"]
)
@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_what_was_done_and_not_heard_is_found_and_not_done_again(
    dsn: str, control: Control, world: World, fault: str
) -> None:
    control.plan(f"{world.name}.charge:{fault}")
    async with checkout(dsn, control, world) as shop:
        order = await shop.order()
        first = await shop.pending(order)
        assert first.payment.status == "PENDING"
        assert first.retry_after_seconds >= 1
        # Before its time nobody is asked, and nothing is sent.
        await shop.pending(order)
        assert await shop.answers() == ["unknown"]
        await age(dsn)
        paid = await shop.paying(order)
        (made,) = charged(control, world)
        assert made["id"] == paid.payment.payment_intent_id
        assert paid.payment.attempts == 1
        # Adyen shows no payments: there the same key is sent again, and answers from what it stored.
        assert await shop.answers() == (["unknown", "done"] if world.name == "adyen" else ["unknown"])
    assert await broken(dsn) == {}


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_a_500_is_never_a_failure_and_never_another_attempt(dsn: str, control: Control, world: World) -> None:
    control.plan(f"{world.name}.charge:execute_then_500")
    async with checkout(dsn, control, world) as shop:
        order = await shop.order()
        await shop.pending(order)
        for _ in range(3):
            await age(dsn)
            await shop.pay(order)
        assert [(row.attempt, row.status == "FAILED") for row in await shop.log(order)] == [(1, False)]
    assert len(charged(control, world)) == 1
    assert await broken(dsn) == {}


async def test_nothing_was_done_and_nobody_heard_it_is_sent_again_under_the_same_key(
    dsn: str, control: Control
) -> None:
    control.plan("stripe.charge:drop_before")
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        await shop.pending(order)
        assert charged(control) == []
        await age(dsn)
        paid = await shop.paying(order)
        assert paid.payment.attempts == 1
        assert await shop.answers() == ["unknown", "done"]
        (row,) = await shop.log(order)
        assert row.key.hex() in str(charged(control)[0])
    assert await broken(dsn) == {}


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_busy_is_pending_and_sent_again_under_the_same_key(dsn: str, control: Control, world: World) -> None:
    control.plan(f"{world.name}.charge:rate_limited")
    async with checkout(dsn, control, world) as shop:
        order = await shop.order()
        first = await shop.pending(order)
        assert first.payment.status == "PENDING"
        assert (await shop.pending(order)).payment == first.payment
        assert await shop.answers() == ["busy"]
    await age(dsn)
    async with checkout(dsn, control, world) as another:
        paid = await another.paying(order)
        assert paid.payment.attempts == 1
        assert await another.answers() == ["busy", "done"]
    assert len(charged(control, world)) == 1


async def test_a_decline_is_final_and_the_next_click_is_a_new_attempt(any_shop: Checkout) -> None:
    order = await any_shop.order()
    assert await any_shop.refused(order, payment_method=DECLINED[any_shop.world.name]) == "payment_refused"
    assert await any_shop.statuses(order) == ["FAILED"]
    view = await any_shop.view(order)
    assert view is not None
    assert view.reason
    paid = await any_shop.paying(order)
    assert paid.payment.attempts == 2
    first, second = await any_shop.log(order)
    assert (first.status, second.status) == ("FAILED", "COMPLETED")
    assert first.key != second.key
    assert await broken(any_shop.dsn) == {}


async def test_attempts_are_bounded(shop: Checkout) -> None:
    order = await shop.order()
    for _ in range(10):
        assert await shop.refused(order, payment_method=DECLINED["stripe"]) == "payment_refused"
    assert await shop.refused(order) == "payment_attempts_exhausted"
    assert len(await shop.log(order)) == 10


async def test_a_payment_that_the_provider_cancelled_is_followed_by_a_new_attempt(
    shop: Checkout, control: Control
) -> None:
    order = await shop.order()
    first = await shop.paying(order, payment_method=None)
    cancel(control, first.payment.payment_intent_id)
    second = await shop.paying(order, payment_method=None)
    assert second.payment.attempts == 2
    assert await shop.statuses(order) == ["FAILED", "COMPLETED"]
    assert await broken(shop.dsn) == {}


async def test_another_orders_token_is_refused_and_nothing_is_sent(shop: Checkout, control: Control) -> None:
    one, two = await shop.order("k1"), await shop.order("k2")
    for token in (two.reservation_token, "", "rt_", "ü", one.reservation_token.upper()):
        assert await shop.refused(one, token=token) == "reservation_token_wrong"
    assert charged(control) == []
    assert await shop.log(one) == []


async def test_an_order_that_cannot_be_paid_is_refused_and_nothing_is_sent(
    shop: Checkout, dsn: str, control: Control
) -> None:
    async with checkout(dsn, control, ttl=A_MOMENT) as hasty:
        late = await hasty.order("k2")
        await expired(dsn)
        assert await hasty.refused(late) == "order_expired"
        await hasty.orders.sweep()
        assert await hasty.refused(late) == "order_expired"
    cancelled = await shop.order("k1")
    await shop.orders.cancel(shop.tenant, cancelled.id)
    assert await shop.refused(cancelled) == "order_cancelled"
    unknown = msgspec.structs.replace(late, id="or_" + "0" * 32)
    assert await shop.refused(unknown) == "order_unknown"
    assert await shop.refused(msgspec.structs.replace(late, id="nonsense")) == "order_unknown"
    assert charged(control) == []
    assert await shop.answers() == []


async def test_a_paid_order_has_its_payment_again(shop: Checkout, dsn: str, control: Control) -> None:
    order = await shop.order()
    first = await shop.paying(order)
    await receive(dsn, pays=True)
    assert (await shop.paying(order)).payment == first.payment
    assert len(charged(control)) == 1


async def test_an_amount_that_the_provider_cannot_write_is_refused_before_anything_is_stored(shop: Checkout) -> None:
    order = await shop.order(amount_micros=25_000_001)
    assert await shop.refused(order) == "payment_not_possible"
    assert await shop.log(order) == []


async def test_nothing_is_sent_before_log_and_intent_are_committed(shop: Checkout, dsn: str) -> None:
    """What another connection sees at the moment of the call is what a crash would leave."""
    order = await shop.order()
    send, seen = shop.provider.send, []

    async def watching(instruction: Instruction, sending: Sending) -> Answer:
        seen.append(
            await fetchval(
                dsn,
                "SELECT l.status || ' ' || i.attempts FROM tally.payment_idempotency_log l JOIN tally.intent i"
                " ON i.tenant_id = l.tenant_id AND i.key = l.idempotency_key WHERE l.idempotency_key = $1",
                instruction.key,
            )
        )
        return await send(instruction, sending)

    shop.provider.send = watching  # type: ignore[method-assign]
    await shop.paying(order)
    assert seen == ["PENDING 1"]


async def test_a_commit_whose_answer_is_lost_is_found_again_and_sent_once(shop: Checkout, control: Control) -> None:
    """Group commit runs the batch again: it must know its own attempt, or nobody would send it."""
    order = await shop.order()
    commit, runs = ClickWork.commit, []

    async def lost(self: ClickWork, items: Sequence[Click], *, patient: bool) -> Any:
        answers = await commit(self, items, patient=patient)
        runs.append(len(items))
        if len(runs) == 1:
            raise Lost("the wire was cut around COMMIT", commit_sent=True)
        return answers

    ClickWork.commit = lost  # type: ignore[method-assign]
    try:
        paid = await shop.paying(order)
    finally:
        ClickWork.commit = commit  # type: ignore[method-assign]
    assert runs == [1, 1]
    (made,) = charged(control)
    assert made["id"] == paid.payment.payment_intent_id
    assert await shop.answers() == ["done"]
    assert await broken(shop.dsn) == {}


async def test_an_answer_that_cannot_be_stored_is_told_and_found_later(
    shop: Checkout, dsn: str, control: Control
) -> None:
    order = await shop.order()
    commit = RecordWork.commit

    async def refuse(self: RecordWork, items: Sequence[ChargeResult], *, patient: bool) -> Any:
        raise RuntimeError("the disk is full")

    RecordWork.commit = refuse  # type: ignore[method-assign]
    try:
        paid = await shop.paying(order)
    finally:
        RecordWork.commit = commit  # type: ignore[method-assign]
    assert await shop.statuses(order) == ["PENDING"]
    await age(dsn)
    assert (await shop.paying(order)).payment == paid.payment
    assert len(charged(control)) == 1


async def test_a_provider_that_is_down_leaves_a_pending_answer(dsn: str, control: Control) -> None:
    async with checkout(dsn, control, NOWHERE) as shop:
        order = await shop.order()
        answer = await shop.pending(order)
        assert answer.payment.status == "PENDING"
        assert (await shop.view(order)) == answer.payment
        assert await shop.statuses(order) == ["PENDING"]
    async with checkout(dsn, control) as back:
        await age(dsn)
        paid = await back.paying(order)
        assert paid.payment.attempts == 1
    assert len(charged(control)) == 1
    assert await broken(dsn) == {}


async def test_a_repeat_while_the_provider_is_down_is_pending_with_its_payment(dsn: str, control: Control) -> None:
    """The secret cannot be had; that the payment exists is not denied."""
    async with checkout(dsn, control) as shop:
        order = await shop.order()
        first = await shop.paying(order)
    async with checkout(dsn, control, NOWHERE) as shop:
        assert (await shop.pending(order)).payment == first.payment


async def test_nobody_waits_longer_than_he_should_and_the_flight_goes_on(dsn: str, control: Control) -> None:
    control.plan("stripe.charge:slow_after(1)")
    async with checkout(dsn, control, limits=replace(LIMITS, payment_wait_seconds=0.2), answer_seconds=10) as shop:
        order = await shop.order()
        answer = await shop.pending(order)
        assert answer.payment.attempts == 1
    # Leaving waits for the flight.
    async with checkout(dsn, control) as shop:
        assert await shop.statuses(order) == ["COMPLETED"]
    assert len(charged(control)) == 1


async def test_more_flights_than_can_be_held_are_told_to_come_back(dsn: str, control: Control) -> None:
    control.plan("stripe.charge:slow_after(1)")
    async with checkout(dsn, control, limits=replace(LIMITS, payment_flights=1), answer_seconds=10) as shop:
        one, two = await shop.order("k1"), await shop.order("k2")
        first = asyncio.create_task(shop.pay(one, key="k"))
        while not await shop.answers():
            await asyncio.sleep(0.005)
        with pytest.raises(Busy):
            await shop.pay(two)
        # A click under the key that is in flight needs no flight of its own.
        assert isinstance(await shop.pay(one, key="k"), Paying)
        assert isinstance(await first, Paying)
        assert isinstance(await shop.pay(two), Paying)


async def test_one_tenant_cannot_take_all_the_flights_there_are(dsn: str, control: Control) -> None:
    control.plan("stripe.charge:slow_after(1)")
    limits = replace(LIMITS, payment_flights=10, payment_flights_per_tenant=1)
    async with checkout(dsn, control, limits=limits, answer_seconds=10) as shop:
        one, two = await shop.order("k1"), await shop.order("k2")
        first = asyncio.create_task(shop.pay(one))
        while not await shop.answers():
            await asyncio.sleep(0.005)
        with pytest.raises(ShareUsed):
            await shop.pay(two)
        other = replace(shop, tenant=await ensure_tenant(shop.database, "other"))
        assert isinstance(await other.pay(await other.order("k1")), Paying)
        assert isinstance(await first, Paying)
        # Its flight is over: there is room for the next.
        assert isinstance(await shop.pay(two), Paying)


async def test_a_charge_is_left_to_its_sender_until_no_answer_can_come(dsn: str, control: Control) -> None:
    """Longer than a permit and the longest wait for an answer together: nobody asks beside one who still listens."""
    async with checkout(dsn, control) as shop:
        assert LIMITS.payment_lease_seconds >= LIMITS.send_seconds + shop.provider.facts.answer_seconds
        control.plan("stripe.charge:slow_after(1)")
        order = await shop.order()
        flight = asyncio.create_task(shop.pay(order))
        while not await shop.answers():
            await asyncio.sleep(0.005)
        (row,) = await shop.log(order)
        assert (row.due_at - row.created_at).total_seconds() == LIMITS.payment_lease_seconds
        await flight


async def test_a_caller_who_hangs_up_takes_nothing_with_him(dsn: str, control: Control) -> None:
    control.plan("stripe.charge:slow_after(0.5)")
    async with checkout(dsn, control, answer_seconds=10) as shop:
        order = await shop.order()
        one = asyncio.create_task(shop.pay(order))
        two = asyncio.create_task(shop.pay(order))
        while not await shop.answers():
            await asyncio.sleep(0.005)
        one.cancel()
        assert isinstance(await two, Paying)
        assert await shop.statuses(order) == ["COMPLETED"]
