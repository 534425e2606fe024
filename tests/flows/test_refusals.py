"""Refusals under no code that we know: believed where nothing else can be behind them, and never otherwise."""

import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tallystick.core.provider import Answer, Sending, Transfer, Unknown
from tests import servers, simulators
from tests.ledgers import broken
from tests.payments import CHARGING, age, charged, checkout
from tests.providers.worlds import API_KEY, Control, World
from tests.sagas import Desk, desk
from tests.settlements import A_WHILE, Row, Shop, books, ledger_differences, pass_time, rows, shop

# Its time goes ahead here, and never comes back.
payouts_simulator = simulators.own

# In each provider's own words, by dialect; none of them is a code that its table names.
UNLISTED = {
    "stripe": "currency_not_supported",
    "adyen": "29_001",
    "square": "BAD_REQUEST",
}
CAPABILITIES = "insufficient_capabilities_for_transfer"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def payer(dsn: str, control: Control) -> AsyncIterator[Shop]:
    async with shop(dsn, control) as opened:
        yield opened


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


async def only(payer: Shop) -> Row:
    (row,) = await rows(payer.dsn)
    return row


def lose_the_first_answer(payer: Shop) -> list[Answer]:
    """What the provider said to the first send comes here, and nobody else hears it."""
    provider: Any = payer.providers["simulator"]
    original = provider.transfer
    unheard: list[Answer] = []

    async def transfer(instruction: Transfer, sending: Sending) -> Answer:
        answer: Answer = await original(instruction, sending)
        if unheard:
            return answer
        unheard.append(answer)
        return Unknown(code="unanswered", message="")

    provider.transfer = transfer
    return unheard


# --- payouts


async def test_a_payout_that_is_refused_under_no_code_we_know_fails_after_one_send(
    payer: Shop, control: Control
) -> None:
    await payer.create("p")
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 1, 0)
    assert (await only(payer)).reason == CAPABILITIES
    assert books(control) == []
    assert await broken(payer.dsn) == {}
    assert await ledger_differences(payer.dsn) == {}


async def test_a_replayed_refusal_speaks_for_the_send_that_nobody_heard(payer: Shop, control: Control) -> None:
    """The refusal is stored under the key and its answer is lost: the second send is answered from the store."""
    await payer.create("p")
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    unheard = lose_the_first_answer(payer)
    assert (await payer.tick()).waiting == 1
    assert [type(answer) for answer in unheard] == [Unknown]
    await pass_time(payer.dsn, A_WHILE)
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed) == (1, 1)
    assert (await only(payer)).reason == CAPABILITIES
    assert books(control) == []


async def test_a_refusal_after_a_send_that_may_have_run_is_not_believed_by_its_words(
    payer: Shop, control: Control
) -> None:
    """What became of the first nobody knows. The refusal of the second is not from the store: no word on it."""
    await payer.create("p")
    control.plan(f"stripe.transfer:drop_before, stripe.transfer:refused({CAPABILITIES})@2")
    assert (await payer.tick()).waiting == 1
    await pass_time(payer.dsn, A_WHILE)
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed, ticked.waiting) == (1, 0, 1)
    assert (await only(payer)).status == "processing"


async def test_a_payout_older_than_its_keys_memory_is_not_failed_by_words_alone(payer: Shop, control: Control) -> None:
    """A life of the database that was lost may have paid it, under a key that the provider has forgotten."""
    await payer.create("p")
    await pass_time(payer.dsn, timedelta(hours=25))
    control.plan(f"stripe.transfer:refused({CAPABILITIES})")
    ticked = await payer.tick()
    assert (ticked.sent, ticked.failed) == (1, 0)
    assert (await only(payer)).status == "processing"


# --- charges


@pytest.mark.parametrize("world", CHARGING, ids=lambda world: world.name)
async def test_a_charge_that_is_refused_under_no_code_we_know_is_refused_to_the_buyer(
    dsn: str, control: Control, world: World
) -> None:
    control.plan(f"{world.name}.charge:refused({UNLISTED[world.name]})")
    async with checkout(dsn, control, world) as till:
        order = await till.order()
        assert await till.refused(order) == "payment_refused"
        assert await till.statuses(order) == ["FAILED"]
        assert await till.answers() == ["refused"]
        paid = await till.paying(order)
        assert paid.payment.attempts == 2
    assert len(charged(control, world)) == 1


# --- refunds


def refund_outside(control: Control, payment: str, amount: int) -> None:
    """As somebody with the provider's dashboard does it."""
    request = urllib.request.Request(
        f"{control.url}/stripe/v1/refunds",
        urllib.parse.urlencode({"payment_intent": payment, "amount": amount}).encode(),
        {"authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert reply.status == 200


async def test_a_refund_above_what_is_left_is_compared_with_the_books_and_is_a_persons_at_once(till: Desk) -> None:
    order, payment = await till.ghost()
    refund_outside(till.shop.control, payment, 100)
    await till.tell(payment)
    await till.run()
    (row,) = await till.refunds_of(order)
    assert (row.view.status, row.view.reason) == ("FAILED", "invalid_request_error")
    assert len(till.given_back()) == 1
    assert "refund_failed" in await till.breaks()
    await age(till.dsn)
    swept = await till.refunds.sweep()
    assert (swept.claimed, swept.sent) == (0, 0)


async def test_a_refund_that_may_have_run_and_is_refused_is_a_persons_at_once(till: Desk) -> None:
    """It is not failed: the send before may have given it back. It is not sent six times in silence either."""
    order, payment = await till.ghost()
    till.shop.control.plan("stripe.refund:drop_before")
    await till.tell(payment)
    await till.run()
    refund_outside(till.shop.control, payment, 100)
    await age(till.dsn)
    swept = await till.refunds.sweep()
    assert (swept.sent, swept.failed, swept.waiting) == (1, 0, 1)
    (row,) = await till.refunds_of(order)
    assert (row.view.status, row.view.reason) == ("PENDING", "invalid_request_error")
    # Not before an hour has passed.
    await age(till.dsn, timedelta(minutes=30))
    assert (await till.refunds.sweep()).claimed == 0
