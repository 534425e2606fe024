"""A charge that nobody answers for: it closes by itself when it can no longer come, or by a person with evidence."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment import store
from tallystick.checkout.payment.review.flow import PaymentReviews
from tallystick.checkout.payment.review.store import unanswered
from tallystick.database.migrate import migrate
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tests import servers
from tests.ledgers import broken, fetchval
from tests.orders import execute
from tests.payments import CHARGING, STRIPE, age, charged
from tests.providers.worlds import Control
from tests.sagas import Desk, desk
from tests.settlements import empty, superuser

ADYEN = next(world for world in CHARGING if world.name == "adyen")
# Of the key's memory, an hour of pause, and a listing.
A_DAY = timedelta(hours=25)
AN_HOUR = timedelta(hours=1)
SEEN = "The dashboard shows none with this key."


@pytest.fixture(scope="module")
def review_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(review_dsn: str) -> str:
    await migrate(review_dsn)
    await empty(review_dsn)
    return review_dsn


@pytest.fixture
async def one(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


async def lost(
    one: Desk, fault: str = "drop_before", *, cancelled: bool = True, by: Mapping[str, Any] | None = None
) -> OrderView:
    """An order whose charge got no answer, and that its buyer has given up."""
    order = await one.shop.order("k")
    one.shop.control.plan(f"{one.shop.world.name}.charge:{fault}=100%")
    await one.shop.pending(order, **(by or {}))
    # The buyer is told that it is pending before the call has ended: the charge must have been made.
    async with asyncio.timeout(30):
        while fault.startswith("execute") and not charged(one.shop.control, one.shop.world):
            await asyncio.sleep(0.02)
    one.shop.control.call("DELETE", "faults")
    if cancelled:
        await execute(one.dsn, "UPDATE tally.orders SET status = 'CANCELLED', changed_at = clock_timestamp()")
    await age(one.dsn)
    return order


async def collected(one: Desk) -> tuple[str, str | None]:
    """The collector asks about it; how the charge then stands."""
    await one.shop.payments.collect()
    status, reason = await fetchval(
        one.dsn, "SELECT ARRAY[status, reason] FROM tally.payment_idempotency_log WHERE operation_type = 'CHARGE'"
    )
    return status, reason


async def resolved(one: Desk, order: OrderView, outcome: Any, **more: Any) -> Reviewed | Rejected:
    reviews = PaymentReviews(one.shop.database, {one.shop.world.name: one.shop.provider})
    given = {"evidence": SEEN, "payment_intent_id": None, "by": "kim", "idempotency_key": "decision", **more}
    return await reviews.resolve(one.shop.tenant, order.id, outcome=outcome, **given)


async def test_a_charge_that_two_complete_listings_do_not_show_was_never_there(one: Desk) -> None:
    order = await lost(one)
    assert await collected(one) == ("PENDING", "order_no_longer_pending")
    await age(one.dsn, A_DAY)
    # The first listing after the key's memory: it is noted, and proves nothing alone.
    assert (await collected(one))[0] == "PENDING"
    assert await fetchval(one.dsn, "SELECT absent_at IS NOT NULL FROM tally.payment_idempotency_log")
    assert (await store.figures(one.shop.database))[0] == 1
    await execute(one.dsn, "UPDATE tally.payment_idempotency_log SET due_at = clock_timestamp()")
    assert (await collected(one))[0] == "PENDING"
    await execute(
        one.dsn,
        "UPDATE tally.payment_idempotency_log SET due_at = clock_timestamp(), absent_at = absent_at - interval '1 h'",
    )
    assert await collected(one) == ("FAILED", "never_seen")
    # What the alert looks at, and the list, are empty.
    assert (await store.figures(one.shop.database))[0] == 0
    assert await unanswered(one.shop.database, older_than=timedelta(), most=10) == []
    # No further attempt, and what turns up all the same is given back.
    assert await one.shop.refused(order) == "order_cancelled"
    assert await broken(one.dsn) == {}


@pytest.mark.parametrize("why", ["server error", "order open", "inside the memory", "not listed"])
async def test_it_stays_open_while_anything_of_it_could_come(dsn: str, control: Control, why: str) -> None:
    async with desk(dsn, control, ADYEN if why == "not listed" else STRIPE) as one:
        await lost(
            one, "error_500_no_object" if why == "server error" else "drop_before", cancelled=why != "order open"
        )
        if why != "inside the memory":
            await age(dsn, A_DAY)
        for _ in range(3):
            status, _ = await collected(one)
            assert status == "PENDING"
            await execute(
                dsn,
                "UPDATE tally.payment_idempotency_log SET due_at = clock_timestamp(),"
                " absent_at = absent_at - interval '1 h'",
            )
        assert not await fetchval(dsn, "SELECT bool_or(absent_at IS NOT NULL) FROM tally.payment_idempotency_log")


async def test_what_turns_up_after_it_was_closed_is_given_back(one: Desk) -> None:
    order = await lost(one, "execute_then_drop")
    assert isinstance(await resolved(one, order, "never_charged"), Rejected)
    await execute(
        one.dsn,
        "UPDATE tally.payment_idempotency_log SET status = 'FAILED', reason = 'never_seen',"
        " completed_at = clock_timestamp(), claim_number = claim_number + 1",
    )
    (made,) = charged(one.shop.control)
    await one.tell(made["id"], reference=made["reference"])
    await one.run()
    assert await one.refund_statuses(order) == ["COMPLETED"]
    assert len(one.given_back()) == 1


async def test_a_person_closes_it_with_evidence_once_under_a_key(dsn: str, control: Control) -> None:
    """Adyen cannot be asked: nothing else could close it."""
    async with desk(dsn, control, ADYEN) as one:
        order = await lost(one)
        listed = await unanswered(one.shop.database, older_than=timedelta(), most=10)
        assert [(each.order_id, each.provider) for each in listed] == [(order.id, "adyen")]
        first, again = await resolved(one, order, "never_charged"), await resolved(one, order, "never_charged")
        assert isinstance(first, Reviewed)
        assert isinstance(again, Reviewed)
        assert (first.is_replayed, again.is_replayed, again.body) == (False, True, first.body)
        assert msgspec.json.decode(first.body)["payment"]["reason"] == "never_charged"
        assert await one.shop.statuses(order) == ["FAILED"]
        kept = await fetchval(dsn, "SELECT convert_from(provider_response, 'UTF8') FROM tally.payment_idempotency_log")
        assert ("kim" in kept, SEEN in kept) == (True, True)
        assert await unanswered(one.shop.database, older_than=timedelta(), most=10) == []
        other = await resolved(one, order, "charged", payment_intent_id="PSP1", idempotency_key="another")
        assert isinstance(other, Rejected)
        assert other.code == "payment_decided"
    assert await broken(dsn) == {}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_was_charged_is_looked_up_and_its_order_paid_or_its_money_given_back(
    one: Desk, *, cancelled: bool
) -> None:
    order = await lost(one, "execute_then_drop", cancelled=cancelled)
    (made,) = charged(one.shop.control)
    done = await resolved(one, order, "charged", payment_intent_id=made["id"])
    assert isinstance(done, Reviewed), done
    await one.run()
    assert await one.status(order) == ("CANCELLED" if cancelled else "PAID")
    assert await one.refund_statuses(order) == (["COMPLETED"] if cancelled else [])
    assert await broken(one.dsn) == {}


async def test_a_provider_that_does_not_answer_has_not_shown_that_it_was_never_charged(one: Desk) -> None:
    """It is there: called failed, it could be charged again under the next attempt's key."""
    order = await lost(one, "execute_then_drop", cancelled=False)
    one.shop.control.plan("stripe.list:drop_before=100%")
    done = await resolved(one, order, "never_charged")
    assert isinstance(done, Rejected)
    assert done.code == "payment_not_confirmed"
    assert await one.shop.statuses(order) == ["PENDING"]


@pytest.mark.parametrize("outcome", ["never_charged", "charged"])
async def test_the_books_of_another_account_show_nothing(one: Desk, outcome: str) -> None:
    """It was sent with the account of before: the one that is configured now would never show it."""
    order = await lost(one, "execute_then_drop", cancelled=False)
    (made,) = charged(one.shop.control)
    await execute(
        superuser(one.dsn), "SET session_replication_role = replica; UPDATE tally.intent SET account = 'acct_of_before'"
    )
    named = made["id"] if outcome == "charged" else None
    done = await resolved(one, order, outcome, payment_intent_id=named)
    assert isinstance(done, Rejected)
    assert (done.code, "another account" in done.detail) == ("payment_not_confirmed", True)
    assert await one.shop.statuses(order) == ["PENDING"]
    # That account is gone for good, and somebody has looked at what it did.
    seen = {"evidence": "Statement of acct_of_before, 19 November.", "idempotency_key": "looked"}
    done = await resolved(one, order, outcome, payment_intent_id=named, **seen)
    assert isinstance(done, Reviewed), done
    assert await one.shop.statuses(order) == ["FAILED" if named is None else "COMPLETED"]


async def test_what_was_taken_with_another_amount_is_closed_and_given_back(one: Desk) -> None:
    """Somebody changed it there before the customer paid. Its webhook may never come: a person closes it."""
    order = await lost(one, "execute_then_drop", cancelled=False, by={"payment_method": None})
    (made,) = charged(one.shop.control)
    one.at_the_provider(made["id"], "", "amount=1000")
    one.at_the_provider(made["id"], "/confirm", "payment_method=pm_card_visa")
    done = await resolved(one, order, "charged", payment_intent_id=made["id"])
    assert isinstance(done, Reviewed), done
    await one.run()
    assert await one.status(order) == "PENDING"
    assert await fetchval(one.dsn, "SELECT ARRAY[fate, reason] FROM tally.payment_receipt") == [
        "REFUND",
        "amount_differs",
    ]
    await one.refunds.sweep()
    assert [row["body"]["amount"] for row in one.given_back()] == [1_000]
    assert await broken(one.dsn) == {}


async def test_another_payment_is_not_believed(one: Desk) -> None:
    _, payment = await one.bought("other")
    order = await lost(one, cancelled=False)
    for named in (payment, "pi_none"):
        done = await resolved(one, order, "charged", payment_intent_id=named)
        assert isinstance(done, Rejected)
        assert done.code == "payment_not_confirmed"
    assert await one.shop.statuses(order) == ["PENDING"]


@pytest.mark.parametrize(
    ("outcome", "more", "code"),
    [
        ("charged", {}, "payment_intent_id_missing"),
        ("never_charged", {"payment_intent_id": "pi_1"}, "payment_intent_id_unwanted"),
        ("never_charged", {"evidence": " "}, "evidence_missing"),
        ("never_charged", {"evidence": "x" * 4_001}, "evidence_invalid"),
        ("never_charged", {"idempotency_key": ""}, "idempotency_key_missing"),
    ],
)
async def test_what_is_not_said_properly_is_refused(one: Desk, outcome: str, more: dict[str, Any], code: str) -> None:
    order = await lost(one)
    done = await resolved(one, order, outcome, **more)
    assert isinstance(done, Rejected)
    assert done.code == code
    assert await one.shop.statuses(order) == ["PENDING"]


async def test_one_that_may_still_be_on_its_way_is_not_closed(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ADYEN) as one:
        order = await one.shop.order("k")
        control.plan("adyen.charge:drop_before=100%")
        await one.shop.pending(order)
        done = await resolved(one, order, "never_charged")
        assert isinstance(done, Rejected)
        assert done.code == "payment_in_flight"
