"""Past the provider's memory of a key nothing is sent blindly, not even for the first time.

A database that was restored plainly looks like the original: what it shows as unsent may have been paid by the life
that it lost. Here that life is lost without a trace: nothing tells of a restore.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView
from tallystick.keys.derived import settlement_key
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Done, Lookup, Sending, Transfer
from tallystick.simulator.process import start
from tests import servers
from tests.checkout.payment.review.test_flow import resolved
from tests.ledgers import broken, fetchval
from tests.orders import execute
from tests.payments import age, charged, checkout
from tests.providers.worlds import WORLDS, Control, World
from tests.recovery.test_flow import back_up
from tests.sagas import Desk, desk, expire
from tests.settlements import A_WHILE, Shop, books, shop, superuser

PAYING = [world for world in WORLDS if world.name in ("stripe", "adyen", "wise")]
BY_NAME: Mapping[str, World] = {world.name: world for world in WORLDS}
# Longer than any provider remembers a key.
LONG = timedelta(days=8)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A provider whose clock agrees with the database's: its list is asked for by time."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


@pytest.fixture(params=PAYING, ids=lambda world: world.name)
async def providers(request: pytest.FixtureRequest, control: Control) -> AsyncIterator[Mapping[str, Provider]]:
    provider = request.param.make(control.url, "", "")
    yield {request.param.name: provider}
    await provider.close()


@pytest.fixture
async def till(dsn: str, control: Control, providers: Mapping[str, Provider]) -> AsyncIterator[Shop]:
    async with shop(dsn, control, providers=providers) as opened:
        yield opened


def fields(till: Shop) -> dict[str, Any]:
    (name,) = till.providers
    world = BY_NAME[name]
    return {"provider": name, "destination": world.destination, "currency": world.currency}


async def unnoticed(dsn: str) -> str:
    """A copy of the database as it is now, which takes itself for the original. Nobody may be connected to it."""
    copy = await back_up(dsn, dsn.split("@/")[1].split("?", maxsplit=1)[0] + "_backup")
    await execute(superuser(copy), servers.AT_HOME)
    return copy


# --- payouts


async def test_a_payout_that_a_lost_life_paid_is_found_and_not_paid_again(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as before:
        for name in "abc":
            await before.create(name, **fields(before))
    backup = await unnoticed(dsn)
    async with shop(dsn, control, providers=providers) as before:
        assert (await before.tick()).transferred == 3
    async with shop(backup, control, providers=providers) as after:
        await after.pass_time(LONG)
        paid = {movement.id for movement in books(control)}
        assert len(paid) == 3, "the lost life has paid"
        ticked = await after.tick()
        assert (ticked.sent, ticked.transferred) == (0, 3)
        assert {movement.id for movement in books(control)} == paid
        assert (await after.halves()).is_equal
        assert await broken(backup) == {}


async def test_a_payout_that_nobody_paid_is_sent_once_the_books_have_shown_it(till: Shop) -> None:
    """Long after its creation and for the first time: the provider was down, or nobody ran a worker."""
    await till.create("a", **fields(till))
    await till.pass_time(LONG)
    ticked = await till.tick()
    assert (ticked.looked_up > 0, ticked.sent, ticked.transferred) == (True, 1, 1)
    await till.pass_time(A_WHILE)
    assert (await till.halves()).is_equal
    assert await broken(till.dsn) == {}


async def test_a_payout_inside_the_memory_of_its_key_is_sent_without_a_question(till: Shop) -> None:
    await till.create("a", **fields(till))
    ticked = await till.tick()
    assert (ticked.looked_up, ticked.sent, ticked.transferred) == (0, 1, 1)


async def test_a_payout_that_a_lost_life_paid_in_another_generation_is_a_persons(till: Shop) -> None:
    """There it had failed, got another key by two people's word, and was paid."""
    made = await till.create("a", **fields(till))
    ((name, provider),) = till.providers.items()
    key = settlement_key(
        tenant=till.tenant.name,
        currency=made.currency,
        provider=name,
        attribution_id="a",
        squad_id=made.squad_id,
        net_micros=made.net_micros,
        generation=1,
    )
    now = datetime.now(UTC)
    sent = await provider.send(
        Transfer(
            key=key,
            destination=made.destination,
            amount_micros=made.amount_micros,
            currency=made.currency,
            description=made.id,
        ),
        Sending(first_sent_at=now, not_after=now, sendable_until=steady() + 10),
    )
    assert isinstance(sent, Done), sent
    await till.pass_time(LONG)
    ticked = await till.tick()
    assert (ticked.sent, ticked.disputed) == (0, 1)
    assert (await till.read(made.id)).reason == "moved_under_another_key"
    assert len(books(till.control)) == 1


async def test_what_cannot_be_asked_about_waits_and_is_not_sent(till: Shop) -> None:
    await till.create("a", **fields(till))
    await till.pass_time(LONG)
    (name,) = till.providers
    till.control.plan(f"{name}.list:error_500_no_object@*, {name}.lookup:error_500_no_object@*")
    ticked = await till.tick()
    assert (ticked.sent, ticked.waiting > 0) == (0, True)
    till.control.call("DELETE", "faults")
    await till.pass_time(A_WHILE)
    assert (await till.tick()).transferred == 1


async def test_where_nobody_can_be_asked_a_person_decides(dsn: str, control: Control) -> None:
    world = BY_NAME["adyen"]
    provider = world.make(control.url, "", "")
    provider.facts = msgspec.structs.replace(provider.facts, lookup={**provider.facts.lookup, "transfer": Lookup.NONE})
    try:
        async with shop(dsn, control, providers={"adyen": provider}) as till:
            made = await till.create("a", **fields(till))
            await till.pass_time(LONG)
            assert (await till.tick()).disputed == 1
            assert (await till.read(made.id)).reason == "may_have_been_sent_before_the_restore"
            assert books(control) == []
    finally:
        await provider.close()


# --- charges and refunds

# Orders whose time to pay is longer than any provider's memory.
PATIENT = LONG * 2


async def pass_long(dsn: str, control: Control) -> None:
    """As long as it takes for every key to be forgotten, here and there."""
    await age(dsn, LONG)
    await execute(
        superuser(dsn),
        "SET session_replication_role = replica;"
        f"UPDATE tally.orders SET created_at = created_at - interval '{LONG.days} days';"
        f"UPDATE tally.webhook_events SET received_at = received_at - interval '{LONG.days} days'",
    )
    control.advance(days=LONG.days)


async def broken_but_for_times(dsn: str) -> set[str]:
    """What `tally verify` finds, without those whose times the journal has as well: they were moved here."""
    return set(await broken(dsn)) - {"orders", "webhooks"}


@pytest.mark.parametrize("name", ["stripe", "square"])
async def test_a_charge_that_a_lost_life_made_is_found_and_not_made_again(
    dsn: str, control: Control, name: str
) -> None:
    world = BY_NAME[name]
    async with checkout(dsn, control, world, ttl=PATIENT) as before:
        order = await before.order()
    backup = await unnoticed(dsn)
    async with checkout(dsn, control, world, ttl=PATIENT) as before:
        paid = (await before.paying(order)).payment.payment_intent_id
    await pass_long(backup, control)
    async with checkout(backup, control, world, ttl=PATIENT) as after:
        assert (await after.paying(order)).payment.payment_intent_id == paid
        assert await after.answers() == [], "it was asked for, and not sent"
    assert len(charged(control, world)) == 1
    assert await broken_but_for_times(backup) == set()


@pytest.mark.parametrize("name", ["stripe", "square"])
async def test_an_order_that_nobody_charged_for_long_is_charged_once_the_books_were_read(
    dsn: str, control: Control, name: str
) -> None:
    world = BY_NAME[name]
    async with checkout(dsn, control, world, ttl=PATIENT) as till:
        order = await till.order()
        await pass_long(dsn, control)
        assert (await till.paying(order)).payment.status == "COMPLETED"
        assert await till.answers() == ["done"]
    assert len(charged(control, world)) == 1
    assert await broken_but_for_times(dsn) == set()


async def test_a_charge_that_nobody_can_ask_about_waits_for_a_person(dsn: str, control: Control) -> None:
    """Adyen shows no payments: past its memory of the key nobody can tell."""
    async with checkout(dsn, control, BY_NAME["adyen"], ttl=PATIENT) as till:
        order = await till.order()
        await pass_long(dsn, control)
        await till.pending(order)
        await age(dsn)
        assert (await till.payments.collect()).waiting == 1
        (row,) = await till.log(order)
        assert (row.status, row.reason) == ("PENDING", "may_have_been_sent_before_the_restore")
        assert await till.answers() == []
    assert charged(control, BY_NAME["adyen"]) == []


@pytest.mark.parametrize("outcome", ["never_charged", "charged"])
async def test_a_person_closes_a_charge_that_nothing_was_sent_for(dsn: str, control: Control, outcome: str) -> None:
    """Nobody can be asked about it, and nothing of ours is on its way: what he has seen there is all there is."""
    async with desk(dsn, control, BY_NAME["adyen"], ttl=PATIENT) as one:
        order = await one.shop.order()
        await pass_long(dsn, control)
        await one.shop.pending(order)
        payment = "PSP1" if outcome == "charged" else None
        done = await resolved(one, order, outcome, payment_intent_id=payment)
        assert isinstance(done, Reviewed), done
        await one.run()
        assert await one.status(order) == ("PAID" if outcome == "charged" else "PENDING")
        assert await one.shop.statuses(order) == ["COMPLETED" if outcome == "charged" else "FAILED"]


@asynccontextmanager
async def forgetting(dsn: str, control: Control, *cards: str) -> AsyncIterator[tuple[Desk, OrderView, str]]:
    """A life that was lost has paid an order, by the last of these cards; here nobody knows, and nobody could ask."""
    async with checkout(dsn, control, ttl=PATIENT) as before:
        order = await before.order()
    backup = await unnoticed(dsn)
    async with checkout(dsn, control, ttl=PATIENT) as before:
        for card in cards:
            await before.pay(order, payment_method=card)
        (paid,) = [made["id"] for made in charged(control) if made["body"]["status"] == "succeeded"]
    await pass_long(backup, control)
    async with desk(backup, control, ttl=PATIENT) as after:
        for operation in ("lookup", "list"):
            control.plan(f"stripe.{operation}:error_500_no_object@*")
        await after.shop.pending(order)
        control.call("DELETE", "faults")
        assert await after.shop.answers() == [], "nothing was sent"
        yield after, order, paid


CARDS = {"its own key": ("pm_card_visa",), "a later attempt's": ("pm_card_chargeDeclined", "pm_card_visa")}


@pytest.mark.parametrize("under", CARDS)
async def test_what_a_lost_life_charged_is_not_closed_as_never_charged(dsn: str, control: Control, under: str) -> None:
    """Its charge is older than the row here, and may bear the key of an attempt that nobody here has made."""
    async with forgetting(dsn, control, *CARDS[under]) as (after, order, paid):
        done = await resolved(after, order, "never_charged")
        assert isinstance(done, Rejected)
        assert (done.code, paid in done.detail) == ("payment_not_confirmed", True)
        right = await resolved(after, order, "charged", payment_intent_id=paid, idempotency_key="another")
        assert isinstance(right, Reviewed), right
        await after.run()
        assert (await after.status(order), await after.shop.statuses(order)) == ("PAID", ["COMPLETED"])


async def test_an_order_that_a_lost_life_was_paid_for_in_another_attempt_is_a_persons(
    dsn: str, control: Control
) -> None:
    async with forgetting(dsn, control, *CARDS["a later attempt's"]) as (after, order, _):
        await expire(after.dsn, order)
        assert await after.shop.orders.sweep() == Swept(held=1)
        assert await fetchval(after.dsn, "SELECT reason FROM tally.order_hold") == "moved_under_another_key"


async def test_a_refund_that_a_lost_life_made_is_found_and_not_sent_again(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as before:
        order, payment = await before.ghost()
        await before.tell(payment)
    backup = await unnoticed(dsn)
    async with desk(dsn, control) as before:
        await before.run()
        (made,) = before.given_back()
    await pass_long(backup, control)
    async with desk(backup, control) as after:
        await after.run()
        assert await after.refund_statuses(order) == ["PENDING"]
        assert (await after.refunds.sweep()).completed == 1
        (refund,) = await after.refunds_of(order)
        assert refund.view.refund_id == made["id"]
        assert await after.shop.answers() == ["done"], "the charge's: the refund was asked for, and not sent"
        assert len(after.given_back()) == 1
        assert await after.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
        assert await broken_but_for_times(backup) == set()


async def test_a_refund_that_nobody_made_for_long_is_made_once_the_books_were_asked(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, payment = await till.ghost()
        await till.tell(payment)
        await pass_long(dsn, control)
        await till.run()
        assert (await till.refunds.sweep()).completed == 1
        assert (await till.refund_statuses(order), len(till.given_back())) == (["COMPLETED"], 1)
        assert await broken_but_for_times(dsn) == set()
