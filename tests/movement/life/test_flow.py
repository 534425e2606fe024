"""After a restore, a copy or a promotion sending goes on by itself, as far as nothing can be paid twice by it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from tallystick import app
from tallystick.checkout.payment.rules import PaymentRefused
from tallystick.checkout.refund.request.rules import RefundPending, RefundRefused
from tallystick.movement.life import store as whereabouts
from tallystick.movement.rules import LONGEST_TRUSTED
from tallystick.movement.steps import MOVED_UNDER_ANOTHER_KEY
from tallystick.providers.port import Provider
from tallystick.recovery.reading import Reader
from tallystick.simulator.process import start
from tests import servers
from tests.checkout.refund.request.test_flow import ask, given, paid
from tests.ledgers import broken, fetchval
from tests.movement.test_memory import unnoticed
from tests.payments import age, charged, checkout
from tests.providers.worlds import WORLDS, Control
from tests.recoveries import recovering
from tests.recovery.test_flow import back_up
from tests.sagas import desk
from tests.settlement.review.test_flow import decided, resolve
from tests.settlements import A_WHILE, Shop, books, shop

ADYEN = next(world for world in WORLDS if world.name == "adyen")
SQUARE = next(world for world in WORLDS if world.name == "square")
OPEN = "SELECT count(*) FROM tally.unread('simulator') AS u WHERE u.life IS NOT NULL"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A provider whose clock agrees with the database's: its list is asked for by time."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


@pytest.fixture
async def providers(control: Control) -> AsyncIterator[Mapping[str, Provider]]:
    provider = app.simulator(control.url)
    yield {"simulator": provider}
    await provider.close()


async def copied(dsn: str) -> str:
    """Another database on the same server, which it can see from its own number."""
    return await back_up(dsn, dsn.split("@/")[1].split("?", maxsplit=1)[0] + "_backup")


async def read(till: Shop) -> tuple[int, int]:
    readings = await Reader(till.database, till.providers).run_once()
    return readings.complete, readings.waiting


async def killed_while_slow(till: Shop, control: Control) -> None:
    """A tick whose request is at the provider and has not taken effect yet."""
    control.plan("stripe.transfer:slow_before(3)@*")
    ticking = asyncio.create_task(till.tick())
    while not control.struck():
        await asyncio.sleep(0.02)
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    control.call("DELETE", "faults")


async def arrived(control: Control, movements: int) -> None:
    """Until the provider's books have so many."""
    async with asyncio.timeout(20):
        while len(books(control)) < movements:
            await asyncio.sleep(0.1)


async def test_what_lost_nothing_goes_on_at_once_and_without_a_person(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as before:
        await before.create_many(5)
        await before.tick(most=2)
    backup = await copied(dsn)
    async with shop(backup, control, providers=providers) as after:
        ticked = await after.tick()
        # One list answers for all three, and each is a question.
        assert (ticked.sent, ticked.transferred, ticked.looked_up) == (3, 3, 3)
        assert await fetchval(backup, "SELECT why FROM tally.life") == "another database"
        assert (await after.halves()).is_equal
        assert await broken(backup) == {}


async def test_a_payout_that_is_created_after_the_hint_is_asked_for_by_name_and_then_sent(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await copied(dsn)
    async with shop(backup, control, providers=providers) as after:
        await after.create("late")
        ticked = await after.tick()
        assert (ticked.sent, ticked.transferred) == (1, 1)
        assert await fetchval(backup, OPEN) == 1, "its books are not read yet"
        assert (await after.halves()).is_equal


async def test_a_payout_that_is_created_again_under_another_fee_is_not_paid_again(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """The lost life had created and paid it. Here the fee is another one, so its key is too: only its name tells."""
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await copied(dsn)
    async with shop(dsn, control, providers=providers) as before:
        await before.create("late")
        assert (await before.tick()).transferred == 1
    paid = len(books(control))
    async with shop(backup, control, providers=providers) as after:
        await after.set_fee(percent_ppm=100_000)
        again = await after.create("late")
        ticked = await after.tick()
        assert (ticked.sent, ticked.disputed) == (0, 1)
        assert (await after.read(again.id)).reason == "moved_under_another_key"
        assert len(books(control)) == paid == 2


async def test_another_fee_waits_for_what_the_lost_life_had_on_its_way(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """Its request is slow at the provider: no list shows it, and a look-up by its new key finds nothing either."""
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await copied(dsn)
    async with shop(dsn, control, providers=providers) as before:
        await before.create("late")
        await killed_while_slow(before, control)
    async with shop(backup, control, providers=providers) as after:
        await after.set_fee(percent_ppm=100_000)
        again = await after.create("late")
        assert len(books(control)) == 1, "it is on its way"
        assert (await after.tick()).sent == 0
        await arrived(control, 2)
        # Everything that was sent before has come to its end; within the memory of its key.
        await after.pass_time(A_WHILE, also_there=False)
        assert (await after.tick()).sent == 0
        assert (await after.read(again.id)).reason == "moved_under_another_key"
        assert len(books(control)) == 2


async def test_a_generation_waits_for_the_next_one_that_the_lost_life_had_on_its_way(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """The first was refused, and the provider keeps no such answer: sent again it would be paid beside the next."""
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
        view = await before.create("late")
    backup = await copied(dsn)
    async with shop(dsn, control, providers=providers) as before:
        control.plan("stripe.transfer:refused(account_closed)@1")
        assert (await before.tick()).failed == 1
        control.call("DELETE", "faults")
        asked = await decided(await resolve(before, view, "retry", "ask"))
        assert asked.approval is not None
        await before.reviews.decide(
            before.tenant, asked.approval.id, decision="approve", reason="agreed", by="bob", idempotency_key="agree"
        )
        await killed_while_slow(before, control)
    control.plan("stripe.transfer:forget_key@1")
    async with shop(backup, control, providers=providers) as after:
        # Longer ago than what a promotion loses.
        await after.pass_time(LONGEST_TRUSTED * 2, also_there=False)
        assert (await after.tick()).sent == 0
        await arrived(control, 2)
        await after.pass_time(A_WHILE, also_there=False)
        assert (await after.tick()).sent == 0
        assert (await after.read(view.id)).reason == MOVED_UNDER_ANOTHER_KEY
        assert len(books(control)) == 2


async def test_restarts_that_go_on_do_not_keep_the_books_from_being_read(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """Each of them hints at another life, which is read in its turn: those before it do not wait for that."""
    async with shop(dsn, control, providers=providers) as till:
        await till.create("early")
        await till.tick()
        for number in range(1, 4):
            async with till.database.stepping() as connection:
                await whereabouts.begin_life(connection, "test")
            assert await read(till) == (0, 1)
            assert await fetchval(dsn, "SELECT coalesce(max(life), 0) FROM tally.reading") == number - 1
            await till.pass_time(A_WHILE, also_there=False)
        assert await read(till) == (1, 0)
        assert await fetchval(dsn, OPEN) == 0


async def test_the_books_are_read_once_nothing_can_be_on_its_way_and_then_it_is_over(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await copied(dsn)
    async with shop(dsn, control, providers=providers) as before:
        await before.create("lost")
        await before.tick()
    async with shop(backup, control, providers=providers) as after:
        await after.tick()
        assert await read(after) == (0, 1), "what the lost life sent may be on its way"
        assert await fetchval(backup, OPEN) == 1
        await after.pass_time(A_WHILE, also_there=False)
        assert await read(after) == (1, 0)
        assert await fetchval(backup, OPEN) == 0
        assert await fetchval(backup, "SELECT count(*) FROM tally.orphan") == 1, "nothing here has sent it"
        again = await after.create("lost")
        ticked = await after.tick()
        assert (ticked.sent, ticked.transferred) == (0, 1)
        assert (await after.read(again.id)).status == "transferred"
        assert (await after.halves()).is_equal
        assert await read(after) == (0, 0)


async def test_a_provider_that_cannot_be_read_leaves_the_reading_open(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
    backup = await copied(dsn)
    async with shop(backup, control, providers=providers) as after:
        await after.tick()
        await after.pass_time(A_WHILE, also_there=False)
        control.plan("stripe.list:error_500_no_object@*")
        assert await read(after) == (0, 1)
        assert await fetchval(backup, OPEN) == 1
        await after.create("late")
        assert (await after.tick()).sent == 0, "nobody could be asked for it by name"


async def test_while_unread_a_key_is_as_old_as_what_the_database_remembers(dsn: str, control: Control) -> None:
    """The order was lost and is made again: its charge may be older than the provider's memory, and it is not."""
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        await before.paying(await before.order("first"))
    backup = await copied(dsn)
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        paid = (await before.paying(await before.order("second"))).payment.payment_intent_id
    control.advance(days=2)
    await age(backup, timedelta(days=2))
    async with checkout(backup, control, ttl=timedelta(days=9)) as after:
        again = await after.order("second")
        # Found at once: what is there need not be waited for.
        await after.paying(again)
        assert await after.answers() == ["done"], "the first order's: nothing was sent for this one"
        assert (await after.paying(again)).payment.payment_intent_id == paid
    assert len(charged(control)) == 2


async def test_what_was_lost_before_the_last_hint_is_not_forgotten_by_it(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """The server is started once more before the books were read: what was known counts from the first time on."""
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await copied(dsn)
    async with shop(backup, control, providers=providers) as after:
        await after.tick()
        await after.create("late")
        await after.tick()
        known = await fetchval(backup, "SELECT known_until FROM tally.unread('simulator')")
        await fetchval(backup, "UPDATE tally.whereabouts SET started_at = started_at - interval '1 day'")
        await after.tick()
        assert await fetchval(backup, "SELECT count(*) FROM tally.life") == 2
        assert await fetchval(backup, "SELECT known_until FROM tally.unread('simulator')") == known


async def test_a_shop_that_was_idle_for_months_is_read_from_its_last_step_on(dsn: str, control: Control) -> None:
    async with checkout(dsn, control) as before:
        await before.paying(await before.order("first"))
    backup = await copied(dsn)
    await age(backup, timedelta(days=90))
    async with checkout(backup, control) as after:
        await after.payments.collect()
        newest = "(SELECT max(sent_at) FROM tally.attempt)"
        idle = f"SELECT known_until = {newest} AND known_until < clock_timestamp() - interval '80 days' FROM tally.life"
        assert await fetchval(backup, idle)


async def test_an_order_that_is_made_again_after_the_reading_is_not_charged_again(dsn: str, control: Control) -> None:
    """Its row is young and its key is not: what the books showed under it tells how old it is."""
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        await before.paying(await before.order("first"))
    backup = await copied(dsn)
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        paid = (await before.paying(await before.order("second"))).payment.payment_intent_id
    control.advance(days=2)
    await age(backup, timedelta(days=2))
    async with checkout(backup, control, ttl=timedelta(days=9)) as after:
        await after.payments.collect()
        await age(backup)
        assert (await Reader(after.database, {"stripe": after.provider}).run_once()).orphans == 1
        assert await fetchval(backup, OPEN.replace("simulator", "stripe")) == 0, "the books are read"
        # Its books are as old as ours.
        await fetchval(backup, "UPDATE tally.orphan SET made_at = made_at - interval '2 days'")
        again = await after.order("second")
        found = await after.pay(again)
        assert await after.answers() == ["done"], "the first order's: nothing was sent for this one"
        await age(backup)
        await after.payments.collect()
        assert (await after.paying(again)).payment.payment_intent_id == paid, found
    assert len(charged(control)) == 2


async def test_recovery_keeps_the_charges_that_were_lost_with_their_orders(dsn: str, control: Control) -> None:
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        await before.paying(await before.order("first"))
    backup = await copied(dsn)
    async with checkout(dsn, control, ttl=timedelta(days=9)) as before:
        paid = (await before.paying(await before.order("second"))).payment.payment_intent_id
    control.advance(days=2)
    await age(backup, timedelta(days=2))
    async with checkout(backup, control, ttl=timedelta(days=9)) as after:
        providers = {"stripe": after.provider}
        found = await recovering(after.database, providers, payments=after.payments)
        assert (found.is_confirmed, found.charges.orphans) == (True, 1)
        await fetchval(backup, "UPDATE tally.orphan SET made_at = made_at - interval '2 days'")
        again = await after.order("second")
        await after.pay(again)
        await age(backup)
        await after.payments.collect()
        assert (await after.paying(again)).payment.payment_intent_id == paid
    assert len(charged(control)) == 2


async def test_a_part_that_was_given_back_under_another_key_is_not_given_back_again(dsn: str, control: Control) -> None:
    """Refused under the first key it was asked for under a second: whoever asks again begins with the first."""
    async with desk(dsn, control) as before:
        order, payment = await paid(before)
    backup = await copied(dsn)
    async with desk(dsn, control) as before:
        control.plan("stripe.refund:refused(charge_disputed)@1")
        assert isinstance(await ask(before, order, "first", 5_000_000), RefundRefused)
        await given(before, order, "second", 5_000_000)
        assert len(before.given_back()) == 1
    # The provider has forgotten the first key, and that it refused.
    control.advance(days=2)
    await age(backup, timedelta(days=2))
    async with desk(backup, control) as after:
        reader = Reader(after.shop.database, {"stripe": after.shop.provider})
        await ask(after, order, "first", 5_000_000)
        # Asked about before the books are read, and after.
        for reads in (False, True, True):
            await age(backup)
            if reads:
                await reader.run_once()
            await after.refunds.sweep_all()
            assert len(after.given_back()) == 1
        (refund,) = await after.refunds_of(order)
        assert (refund.view.status, refund.view.reason) == ("PENDING", MOVED_UNDER_ANOTHER_KEY)
        assert await after.refund_statuses(order) == ["PENDING"]
        assert await after.breaks() == ["refunded_outside"]
        # Two persons say that this is the one: what was given back is explained, and another part is another.
        (made,) = after.given_back()
        assert await after.decided(order, payment, "confirm", refund_id=made["id"], part="first") == "REFUND"
        assert await after.refund_statuses(order) == ["COMPLETED"]
        assert await after.breaks() == []
        await given(after, order, "third", 5_000_000)
        assert len(after.given_back()) == 2


@pytest.mark.parametrize("is_read", [False, True], ids=["unread", "read"])
async def test_inside_the_memory_too_a_part_is_not_given_back_again(
    dsn: str,
    control: Control,
    is_read: bool,  # noqa: FBT001 - a case of the test
) -> None:
    """The provider keeps no refusals: the first key is as new to it as the day it was refused."""
    async with desk(dsn, control) as before:
        order, _ = await paid(before)
    backup = await copied(dsn)
    async with desk(dsn, control) as before:
        control.plan("stripe.refund:refused(charge_disputed)@1")
        assert isinstance(await ask(before, order, "first", 5_000_000), RefundRefused)
        await given(before, order, "second", 5_000_000)
        control.call("DELETE", "faults")
    control.plan("stripe.refund:forget_key@1")
    # Longer ago than what a promotion loses.
    await age(backup, LONGEST_TRUSTED * 2)
    async with desk(backup, control) as after:
        reader = Reader(after.shop.database, {"stripe": after.shop.provider})
        if is_read:
            await after.refunds.sweep_all()
            await age(backup)
            assert (await reader.run_once()).complete == 1
        assert isinstance(await ask(after, order, "first", 5_000_000), RefundPending)
        for _ in range(2):
            await age(backup)
            await reader.run_once()
            await after.refunds.sweep_all()
        (refund,) = await after.refunds_of(order)
        assert (refund.view.status, refund.view.reason) == ("PENDING", MOVED_UNDER_ANOTHER_KEY)
        assert len(after.given_back()) == 1


async def test_a_refund_that_came_back_since_is_not_told_as_given_back(dsn: str, control: Control) -> None:
    """Its answer from memory is of the day it was made; that it failed later was told to the life that was lost."""
    async with desk(dsn, control, SQUARE) as before:
        order, _ = await paid(before)
    backup = await copied(dsn)
    async with desk(dsn, control, SQUARE) as before:
        control.plan("square.refund:refund_failed_later@1")
        await given(before, order, "first", 5_000_000)
        control.call("DELETE", "faults")
    control.advance(days=2)
    async with desk(backup, control, SQUARE) as after:
        assert isinstance(await ask(after, order, "first", 5_000_000), RefundRefused)
        assert await after.refund_statuses(order) == ["FAILED"]
        assert len(after.given_back()) == 1


async def test_a_payout_that_came_back_since_is_not_told_as_paid(dsn: str, control: Control) -> None:
    """As above; and nothing hints at the restore, so that nobody looks before it is sent."""
    provider = ADYEN.make(control.url, "", "")
    wish = {"provider": "adyen", "destination": ADYEN.destination.replace(" ", ""), "currency": ADYEN.currency}
    try:
        async with shop(dsn, control, providers={"adyen": provider}) as before:
            view = await before.create("a", **wish)
        backup = await unnoticed(dsn)
        async with shop(dsn, control, providers={"adyen": provider}) as before:
            control.plan("adyen.transfer:returned@1")
            assert (await before.tick()).transferred == 1
        control.advance(days=3)
        async with shop(backup, control, providers={"adyen": provider}) as after:
            assert (await after.tick()).disputed == 1
            assert (await after.read(view.id)).reason == "returned"
            assert len(books(control)) == 1
    finally:
        await provider.close()


@pytest.mark.parametrize("how", ["unread", "read", "recovered"])
async def test_inside_the_memory_too_an_order_is_not_charged_beside_its_next_attempt(
    dsn: str, control: Control, how: str
) -> None:
    """The first was refused, and the provider keeps no such answer; he paid by another card, and clicks again."""
    ttl = timedelta(days=9)
    async with checkout(dsn, control, ttl=ttl) as before:
        await before.paying(await before.order("early"))
        order = await before.order("one")
    backup = await copied(dsn)
    async with checkout(dsn, control, ttl=ttl) as before:
        control.plan("stripe.charge:refused(resource_missing)@1")
        assert isinstance(await before.pay(order), PaymentRefused)
        control.call("DELETE", "faults")
        await before.paying(order)
    control.plan("stripe.charge:forget_key@1")
    # Longer ago than what a promotion loses.
    await age(backup, LONGEST_TRUSTED * 2)
    async with checkout(backup, control, ttl=ttl) as after:
        providers = {"stripe": after.provider}
        if how == "recovered":
            assert (await recovering(after.database, providers, payments=after.payments)).is_confirmed
        elif how == "read":
            await after.payments.collect()
            await age(backup)
            assert (await Reader(after.database, providers).run_once()).complete == 1
        await after.pending(order)
        for _ in range(2):
            await age(backup)
            await Reader(after.database, providers).run_once()
            await after.payments.collect()
        view = await after.view(order)
        assert view is not None
        assert (view.status, view.reason) == ("PENDING", MOVED_UNDER_ANOTHER_KEY)
        assert len(charged(control)) == 2


async def test_an_order_that_nothing_was_charged_for_is_asked_about_and_charged_in_one_click(
    dsn: str, control: Control
) -> None:
    async with checkout(dsn, control) as before:
        await before.paying(await before.order("early"))
        order = await before.order("one")
    backup = await copied(dsn)
    await age(backup, LONGEST_TRUSTED * 2)
    async with checkout(backup, control) as after:
        assert (await after.paying(order)).payment.attempts == 1
        assert await fetchval(backup, OPEN.replace("simulator", "stripe")) == 1, "its books are not read yet"
        assert await after.answers() == ["done", "done"]
        assert len(charged(control)) == 2
