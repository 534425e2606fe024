"""A restored backup, and charges and refunds that it shows as unfinished: each is asked about before anything is sent.

In each the first life is lost: what it did after the backup, only the provider's books tell.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment import store as payments
from tallystick.checkout.payment.review.flow import PaymentReviews
from tallystick.checkout.refund import store as refunds
from tallystick.checkout.refund.request.flow import RefundRequests
from tallystick.checkout.refund.request.rules import RefundPending
from tallystick.errors import RestoredDatabase
from tallystick.ledger.decisions import Reviewed
from tallystick.movement import store as intents
from tallystick.movement.steps import Happened
from tallystick.recovery.flow import Recovered
from tests import servers, simulators
from tests.checkout.payment.test_key import until_waiting
from tests.ledgers import broken, fetchval
from tests.orders import execute
from tests.payments import HURRIED, STRIPE, age, charged
from tests.providers.worlds import WORLDS, Control, World
from tests.recoveries import AT_ONCE, recovering
from tests.recovery.test_flow import back_up
from tests.sagas import Desk, desk
from tests.settlements import superuser

ADYEN = next(world for world in WORLDS if world.name == "adyen")
# Orders that can still be paid when everything that was on its way has settled.
TTL = timedelta(hours=2)
FOREVER = "stripe.list:error_500_no_object@*, stripe.lookup:error_500_no_object@*"


# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@asynccontextmanager
async def opened(dsn: str, control: Control, world: World = STRIPE) -> AsyncIterator[Desk]:
    """A shop at whose provider nothing is in flight for long."""
    async with desk(dsn, control, world, ttl=TTL) as till:
        provider = till.shop.provider
        provider.facts = msgspec.structs.replace(provider.facts, longest_in_flight=timedelta(0), list_lag=timedelta(0))
        yield till


async def copied(dsn: str) -> str:
    return await back_up(dsn, dsn.split("@/")[1].split("?", maxsplit=1)[0] + "_backup")


async def recovered(till: Desk, **how: Any) -> Recovered:
    return await recovering(
        till.shop.database,
        {till.shop.world.name: till.shop.provider},
        payments=till.shop.payments,
        refunds=till.refunds,
        **{"limits": AT_ONCE, **how},
    )


async def charging(till: Desk, key: str = "k") -> OrderView:
    """A charge of which this life knows no outcome, and that was lost on its way."""
    order = await till.shop.order(key)
    till.shop.control.plan(f"{till.shop.world.name}.charge:drop_before@1")
    await till.shop.pending(order)
    return order


async def refunding(till: Desk, key: str = "k") -> OrderView:
    """The same of a refund that the saga began."""
    order, payment = await till.ghost(key)
    till.shop.control.plan(f"{till.shop.world.name}.refund:drop_before@1")
    await till.tell(payment, f"evt_{key}")
    await till.run()
    assert await till.refund_statuses(order) == ["PENDING"]
    return order


def requests_of(till: Desk) -> RefundRequests:
    return RefundRequests(till.shop.database, till.refunds, {till.shop.world.name: till.shop.provider}, limits=HURRIED)


async def part_of(till: Desk) -> OrderView:
    """The same of a part that was asked for."""
    order, payment = await till.bought()
    await till.tell(payment)
    await till.run()
    assert await till.status(order) == "PAID"
    till.shop.control.plan(f"{till.shop.world.name}.refund:drop_before@1")
    asked = await requests_of(till).refund(
        till.shop.tenant, order.id, amount_micros=5_000_000, reason="broken", restock=False, idempotency_key="part"
    )
    assert isinstance(asked, RefundPending), asked
    return order


async def without_attempts(dsn: str, purpose: str) -> None:
    """The backup was taken between the row and its first attempt: it was to be asked about before it was sent."""
    await execute(
        superuser(dsn),
        "SET session_replication_role = replica;"
        f"DELETE FROM tally.attempt a USING tally.intent i WHERE i.purpose = '{purpose}'"
        "   AND (a.tenant_id, a.key, a.provider) = (i.tenant_id, i.key, i.provider);"
        f"UPDATE tally.intent SET attempts = 0 WHERE purpose = '{purpose}'",
    )


async def attempts(dsn: str) -> int:
    return int(await fetchval(dsn, "SELECT count(*) FROM tally.attempt"))


def counts(found: Recovered, kind: str) -> tuple[int, ...]:
    """Marked, found, absent, waiting for a person, undecided."""
    of = found.charges if kind == "charges" else found.refunds
    return of.marked, of.found, of.absent, of.waiting_for_person, of.undecided


# --- found


@pytest.mark.parametrize("has_attempt", [True, False], ids=["sent here too", "never sent here"])
async def test_a_charge_that_the_lost_life_made_is_recorded_once_and_pays_its_order(
    dsn: str, control: Control, *, has_attempt: bool
) -> None:
    async with opened(dsn, control) as before:
        order = await charging(before)
    if not has_attempt:
        await without_attempts(dsn, "charge")
    backup = await copied(dsn)
    async with opened(dsn, control) as before:
        await age(dsn)
        await before.shop.payments.collect()
        (made,) = charged(control)
    await age(backup)
    async with opened(backup, control) as after:
        known = await attempts(backup)
        found = await recovered(after)
        assert (counts(found, "charges"), found.is_confirmed) == ((1, 1, 0, 0, 0), True)
        assert found.charges.orphans == 0, "its row explains it"
        (row,) = await after.shop.log(order)
        assert (row.status, row.payment_intent_id) == ("COMPLETED", made["id"])
        assert (await attempts(backup), len(charged(control))) == (known, 1), "nothing was sent"
        assert await fetchval(backup, "SELECT count(*) FROM tally.webhook_events") == (made["state"] == "moved")
        assert set(await broken(backup)) <= ({"intents"} if not has_attempt else set()), "but for what this test took"
        again = await recovered(after)
        assert (counts(again, "charges"), again.is_confirmed) == ((0, 0, 0, 0, 0), True)


async def test_the_saga_hears_of_money_that_the_lost_life_took(dsn: str, control: Control) -> None:
    """Its webhook was acknowledged by the life that was lost: nobody tells again."""
    async with opened(dsn, control) as before:
        order = await before.shop.order()
        control.plan("stripe.charge:drop_before@1")
        await before.shop.pending(order, payment_method="pm_card_visa")
    backup = await copied(dsn)
    async with opened(dsn, control) as before:
        await age(dsn)
        await before.shop.payments.collect()
        (made,) = charged(control)
        assert made["state"] == "moved"
    await age(backup)
    async with opened(backup, control) as after:
        assert (await recovered(after)).charges.found == 1
        await after.run()
        assert await after.status(order) == "PAID"
        await after.tell(made["id"], "evt_late")
        await after.run()
        assert (await after.status(order), await after.breaks(), after.given_back()) == ("PAID", [], [])
        assert await broken(backup) == {}


@pytest.mark.parametrize("has_attempt", [True, False], ids=["sent here too", "never sent here"])
@pytest.mark.parametrize("owe", [refunding, part_of], ids=["the saga's", "a part"])
async def test_a_refund_that_the_lost_life_made_is_recorded_once(
    dsn: str, control: Control, owe: Any, *, has_attempt: bool
) -> None:
    async with opened(dsn, control) as before:
        order = await owe(before)
    if not has_attempt:
        await without_attempts(dsn, "refund")
    backup = await copied(dsn)
    async with opened(dsn, control) as before:
        await age(dsn)
        assert (await before.refunds.sweep()).completed == 1
        (made,) = before.given_back()
    await age(backup)
    async with opened(backup, control) as after:
        known = await attempts(backup)
        found = await recovered(after)
        assert (counts(found, "refunds"), found.is_confirmed) == ((1, 1, 0, 0, 0), True)
        assert found.refunds.orphans == 0, "its row explains it"
        (row,) = await after.refunds_of(order)
        assert (row.view.status, row.view.refund_id) == ("COMPLETED", made["id"])
        assert (await attempts(backup), len(after.given_back())) == (known, 1), "nothing was sent"
        assert (await after.refunds.sweep()).claimed == 0
        assert (await recovered(after)).refunds.marked == 0
        assert set(await broken(backup)) <= ({"intents"} if not has_attempt else set()), "but for what this test took"


# --- absent


async def test_a_charge_that_nobody_made_is_left_to_the_collector_and_made_once(dsn: str, control: Control) -> None:
    async with opened(dsn, control) as before:
        order = await charging(before)
    backup = await copied(dsn)
    await age(backup)
    async with opened(backup, control) as after:
        found = await recovered(after)
        assert (counts(found, "charges"), found.is_confirmed) == ((1, 0, 1, 0, 0), True)
        assert charged(control) == [], "recovery itself sends nothing"
        assert (await after.shop.payments.collect()).sent == 1
        assert (await after.shop.statuses(order), len(charged(control))) == (["COMPLETED"], 1)
        assert await broken(backup) == {}


async def test_a_charge_whose_order_ended_is_closed_and_never_sent(dsn: str, control: Control) -> None:
    async with opened(dsn, control) as before:
        order = await charging(before)
        await before.shop.orders.cancel(before.shop.tenant, order.id)
    await without_attempts(dsn, "charge")
    backup = await copied(dsn)
    async with opened(backup, control) as after:
        found = await recovered(after)
        assert (counts(found, "charges"), found.is_confirmed) == ((1, 0, 1, 0, 0), True)
        (row,) = await after.shop.log(order)
        assert (row.status, row.reason) == ("FAILED", "order_no_longer_pending")
        await age(backup)
        assert (await after.shop.payments.collect()).sent == 0
        assert charged(control) == []


@pytest.mark.parametrize("owe", [refunding, part_of], ids=["the saga's", "a part"])
async def test_a_refund_that_nobody_made_is_left_to_the_sweeper_and_made_once(
    dsn: str, control: Control, owe: Any
) -> None:
    async with opened(dsn, control) as before:
        order = await owe(before)
    backup = await copied(dsn)
    await age(backup)
    async with opened(backup, control) as after:
        found = await recovered(after)
        assert (counts(found, "refunds"), found.is_confirmed) == ((1, 0, 1, 0, 0), True)
        assert after.given_back() == [], "recovery itself sends nothing"
        swept = await after.refunds.sweep()
        assert (swept.sent, swept.completed) == (1, 1)
        assert (await after.refund_statuses(order), len(after.given_back())) == (["COMPLETED"], 1)
        assert await broken(backup) == {}


# --- keys


@pytest.mark.parametrize("kind", ["charges", "refunds"])
@pytest.mark.parametrize("also_intent", [True, False], ids=["the intent's too", "the row's alone"])
async def test_a_key_that_is_not_its_content_s_goes_to_a_person_and_is_never_sent(
    dsn: str, control: Control, kind: str, *, also_intent: bool
) -> None:
    """Asked for under it the books would look empty, and it would be sent a second time."""
    async with opened(dsn, control) as till:
        order = await (charging if kind == "charges" else refunding)(till)
        purpose = kind.removesuffix("s")
        of = f"'{purpose}'"
        forged = (
            "UPDATE tally.payment_idempotency_log SET idempotency_key = sha256('forged')"
            f" WHERE operation_type = upper({of});"
        )
        if also_intent:
            forged += (
                f"UPDATE tally.attempt a SET key = sha256('forged') FROM tally.intent i WHERE i.purpose = {of}"
                "    AND (a.tenant_id, a.key, a.provider) = (i.tenant_id, i.key, i.provider);"
                f"UPDATE tally.intent SET key = sha256('forged') WHERE purpose = {of}"
            )
        await execute(superuser(dsn), f"SET session_replication_role = replica; {forged}")
        await age(dsn)
        known = await attempts(dsn)
        found = await recovered(till)
        differ = (found.charges if kind == "charges" else found.refunds).keys_differ
        assert (counts(found, kind), differ, found.is_confirmed) == ((1, 0, 0, 1, 0), 1, True)
        for _ in range(2):
            await age(dsn, timedelta(hours=2))
            await till.shop.payments.collect()
            await till.refunds.sweep()
        assert await attempts(dsn) == known
        view = await till.shop.payments.order(till.shop.tenant, order.id)
        assert isinstance(view, OrderView)
        seen = view.payment if kind == "charges" else view.refund
        assert seen is not None
        assert (seen.status, seen.reason) == ("PENDING", "key_differs")


# --- nobody answers, or nobody can


@pytest.mark.parametrize("kind", ["charges", "refunds"])
async def test_while_the_provider_does_not_answer_nothing_is_confirmed_and_a_further_run_is_enough(
    dsn: str, control: Control, kind: str
) -> None:
    async with opened(dsn, control) as before:
        order = await (charging if kind == "charges" else refunding)(before)
    backup = await copied(dsn)
    await age(backup)
    async with opened(backup, control) as after:
        control.plan(FOREVER)
        found = await recovered(after)
        assert (counts(found, kind), found.is_confirmed) == ((1, 0, 0, 0, 1), False)
        for work in (after.shop.payments.collect, after.refunds.sweep):
            with pytest.raises(RestoredDatabase):
                await work()
        control.call("DELETE", "faults")
        found = await recovered(after)
        assert (counts(found, kind), found.is_confirmed) == ((0, 0, 1, 0, 0), True)
        await after.shop.payments.collect()
        await after.refunds.sweep()
        done = await after.shop.statuses(order) if kind == "charges" else await after.refund_statuses(order)
        assert done == ["COMPLETED"]


@pytest.mark.parametrize("kind", ["charges", "refunds"])
async def test_where_nobody_can_be_asked_a_person_is_and_the_others_go_on(
    dsn: str, control: Control, kind: str
) -> None:
    """Adyen shows neither payments nor refunds. That it waits for a person does not stop the shop for ever."""
    async with opened(dsn, control, ADYEN) as before:
        order = await (charging if kind == "charges" else refunding)(before)
    backup = await copied(dsn)
    await age(backup)
    async with opened(backup, control, ADYEN) as after:
        known = await attempts(backup)
        found = await recovered(after)
        assert (counts(found, kind), found.is_confirmed) == ((1, 0, 0, 1, 0), True)
        await age(backup, timedelta(hours=2))
        await after.shop.payments.collect()
        await after.refunds.sweep()
        assert await attempts(backup) == known, "nothing is sent before a person has looked"
        view = await after.shop.payments.order(after.shop.tenant, order.id)
        assert isinstance(view, OrderView)
        seen = view.payment if kind == "charges" else view.refund
        assert seen is not None
        assert (seen.status, seen.reason) == ("PENDING", "may_have_been_sent_before_the_restore")
        again = await recovered(after)
        assert (counts(again, kind), again.is_confirmed) == ((0, 0, 0, 1, 0), True)
        assert await broken(backup) == {}


@pytest.mark.parametrize("has_attempt", [True, False], ids=["sent here too", "never sent here"])
async def test_a_charge_that_nobody_can_be_asked_about_is_closed_by_a_person(
    dsn: str, control: Control, *, has_attempt: bool
) -> None:
    async with opened(dsn, control, ADYEN) as till:
        order = await charging(till)
        if not has_attempt:
            await without_attempts(dsn, "charge")
        await age(dsn)
        assert (await recovered(till)).charges.waiting_for_person == 1
        reviews = PaymentReviews(till.shop.database, {"adyen": till.shop.provider})
        closed = await reviews.resolve(
            till.shop.tenant,
            order.id,
            outcome="never_charged",
            evidence="The dashboard has no such payment.",
            payment_intent_id=None,
            by="ann",
            idempotency_key="close",
        )
        assert isinstance(closed, Reviewed), closed
        assert await till.shop.statuses(order) == ["FAILED"]
        assert (await recovered(till)).charges.waiting_for_person == 0


@pytest.mark.parametrize("was_made", [True, False], ids=["the lost life made it", "nobody made it"])
@pytest.mark.parametrize("owe", [refunding, part_of], ids=["the saga's", "a part"])
async def test_a_refund_that_nobody_can_be_asked_about_is_sent_under_its_key_when_a_person_says_so(
    dsn: str, control: Control, owe: Any, *, was_made: bool
) -> None:
    """While the provider knows the key, what the lost life made is its answer, and nothing goes back twice."""
    async with opened(dsn, control, ADYEN) as before:
        order = await owe(before)
    backup = await copied(dsn)
    if was_made:
        async with opened(dsn, control, ADYEN) as before:
            await age(dsn)
            await before.refunds.sweep()
            assert len(before.given_back()) == 1
    await age(backup)
    async with opened(backup, control, ADYEN) as after:
        assert (await recovered(after)).refunds.waiting_for_person == 1
        (row,) = await after.refunds_of(order)
        decided = await after.decided(order, row.view.payment_intent_id, "refund", part=row.asked_under)
        assert decided == "REFUND"
        assert (await after.refunds.sweep()).sent == 1
        assert (await after.refund_statuses(order), len(after.given_back())) == (["COMPLETED"], 1)
        assert await broken(backup) == {}


async def test_one_that_waited_for_a_person_before_the_restore_is_asked_about_again(dsn: str, control: Control) -> None:
    """It must not count as a person's before its provider has been asked in this life."""
    async with desk(dsn, control, ttl=TTL) as before:
        order = await charging(before)
        await fetchval(dsn, "UPDATE tally.payment_idempotency_log SET reason = 'moved_twice' RETURNING 1")
    backup = await copied(dsn)
    async with desk(backup, control, ttl=TTL) as after:
        found = await recovered(after, wait=False)
        assert (counts(found, "charges"), found.is_confirmed) == ((1, 0, 0, 0, 1), False)
        await age(backup)
        found = await recovered(after, wait=False)
        assert (counts(found, "charges"), found.is_confirmed) == ((0, 0, 1, 0, 0), True)
        assert (await after.shop.log(order))[0].reason is None


async def test_charges_and_refunds_of_a_provider_that_is_not_configured_keep_sending_stopped(
    dsn: str, control: Control
) -> None:
    async with opened(dsn, control) as before:
        await charging(before, "a")
        await refunding(before, "b")
    backup = await copied(dsn)
    async with opened(backup, control, ADYEN) as after:
        found = await recovered(after)
        assert (found.is_confirmed, dict(found.elsewhere)) == (False, {"stripe": 2})
        assert (found.charges.marked, found.refunds.marked) == (1, 1)
        assert (await recovered(after, without=("stripe",))).is_confirmed, "left out on purpose"
    # How long its movements are on their way, nobody knew.
    await age(backup, timedelta(minutes=20))
    async with opened(backup, control) as after:
        assert await fetchval(backup, "SELECT count(*) FROM tally.payment_idempotency_log WHERE ask_first") == 2
        assert (await after.shop.payments.collect()).sent == 1
        assert (await after.refunds.sweep()).sent == 1
        assert await fetchval(backup, "SELECT count(*) FROM tally.payment_idempotency_log WHERE ask_first") == 0


# --- orphans, fences, and being killed


async def test_charges_and_refunds_whose_rows_are_lost_are_counted_by_kind(dsn: str, control: Control) -> None:
    async with opened(dsn, control) as before:
        await before.ghost("early")
    backup = await copied(dsn)
    async with opened(dsn, control) as before:
        _, payment = await before.ghost("late")
        await before.tell(payment)
        await before.run()
        assert len(before.given_back()) == 1
    async with opened(backup, control) as after:
        found = await recovered(after)
        assert (found.charges.orphans, found.refunds.orphans, found.orphans) == (1, 1, 0)
        assert found.is_confirmed


async def test_it_waits_until_nothing_can_be_on_its_way(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ttl=TTL) as till:
        await charging(till, "a")
        await refunding(till, "b")
        found = await recovered(till, wait=False)
        settles_in = till.shop.provider.facts.settles_in.total_seconds()
        assert (found.is_confirmed, found.charges.looked_up, found.refunds.looked_up) == (False, 0, 0)
        assert 0 < found.wait_seconds <= settles_in
        await age(dsn)
        found = await recovered(till, wait=False)
        assert (counts(found, "charges"), counts(found, "refunds")) == ((0, 0, 1, 0, 0), (0, 0, 1, 0, 0))
        assert found.is_confirmed


async def test_what_a_click_logs_that_looked_before_recovery_began_is_seen_by_it(dsn: str, control: Control) -> None:
    """It was told that it may send, and is slow: its charge is committed after recovery has begun, and marked."""
    control.plan("stripe.charge:drop_before@1")
    async with opened(dsn, control) as till:
        order = await till.shop.order()
        looked, go_on = asyncio.Event(), asyncio.Event()
        intents_begin = intents.begin

        async def slow(*arguments: Any) -> Any:
            looked.set()
            await go_on.wait()
            return await intents_begin(*arguments)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(intents, "begin", slow)
            paying = asyncio.create_task(till.shop.pending(order))
            await looked.wait()
            recovering_ = asyncio.create_task(recovered(till, wait=False))
            waiting = asyncio.create_task(until_waiting(dsn, 1))
            await asyncio.wait([recovering_, waiting], return_when=asyncio.FIRST_COMPLETED)
            assert (recovering_.done(), await till.shop.statuses(order)) == (False, []), "it waits for the click"
            await waiting
            go_on.set()
            found = await recovering_
            await paying
        # Its bytes were lost: nothing but recovery can have marked it, and nothing took it away before.
        assert (counts(found, "charges"), found.is_confirmed) == ((1, 0, 0, 0, 1), False)
        assert await fetchval(dsn, "SELECT ask_first FROM tally.payment_idempotency_log")
        await age(dsn)
        found = await recovered(till, wait=False)
        assert (counts(found, "charges"), found.is_confirmed) == ((0, 0, 1, 0, 0), True)
        assert (await till.shop.statuses(order), charged(control)) == (["PENDING"], [])


async def test_a_collector_of_before_can_no_longer_write(dsn: str, control: Control) -> None:
    """It was asking when recovery began. What it brings is not believed any more."""
    async with desk(dsn, control, ttl=TTL) as till:
        order = await charging(till)
        await age(dsn)
        async with till.shop.database.writing() as connection:
            (mine,) = await payments.claim_due(connection, providers=["stripe"], most=1, lease=timedelta(minutes=1))
        await recovered(till, wait=False)
        late = payments.ChargeResult(
            tenant=mine.tenant, order_id=mine.order.id, charge=mine.charge, entry=Happened("pi_of_another_life")
        )
        async with till.shop.database.writing() as connection:
            assert await payments.record(connection, [late]) == [False]
        assert await till.shop.statuses(order) == ["PENDING"]


async def test_a_sweeper_of_before_can_no_longer_write(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ttl=TTL) as till:
        order = await refunding(till)
        await age(dsn)
        async with till.shop.database.writing() as connection:
            (mine,) = await refunds.claim_due(connection, providers=["stripe"], most=1, lease=timedelta(minutes=1))
        await recovered(till, wait=False)
        late = refunds.RefundResult(
            tenant=mine.tenant,
            key=mine.owed.key,
            claim_number=mine.owed.claim_number,
            entry=Happened("re_of_another_life"),
        )
        async with till.shop.database.writing() as connection:
            assert await refunds.record(connection, [late]) == [False]
        assert await till.refund_statuses(order) == ["PENDING"]


class Killed(BaseException):
    """As a SIGKILL: nobody handles it."""


@pytest.mark.parametrize("at", ["marked", "claimed", "looked up", "recorded"])
@pytest.mark.parametrize("kind", ["charges", "refunds"])
async def test_killed_anywhere_it_is_simply_run_again(
    dsn: str, control: Control, monkeypatch: pytest.MonkeyPatch, kind: str, at: str
) -> None:
    async with opened(dsn, control) as before:
        order = await (charging if kind == "charges" else refunding)(before)
    backup = await copied(dsn)
    async with opened(dsn, control) as before:
        await age(dsn)
        await before.shop.payments.collect()
        await before.refunds.sweep()
    await age(backup)
    async with opened(backup, control) as after:
        flow: Any = after.shop.payments if kind == "charges" else after.refunds
        doomed = {"marked": "ask", "claimed": "_decided", "looked up": "_record", "recorded": "_record"}[at]
        original = getattr(flow, doomed)

        async def killed(*arguments: Any, **named: Any) -> Any:
            if at == "recorded":
                await original(*arguments, **named)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(flow, doomed, killed)
            with pytest.raises(Killed):
                await recovered(after)
        with pytest.raises(RestoredDatabase):
            await after.refunds.sweep()
        await age(backup)
        found = await recovered(after)
        assert found.is_confirmed
        done = await after.shop.statuses(order) if kind == "charges" else await after.refund_statuses(order)
        assert done == ["COMPLETED"]
        assert (len(charged(control)), len(after.given_back())) == (1, 0 if kind == "charges" else 1)
        assert await broken(backup) == {}
