"""A refund that waits for a person has a way out: two persons say what became of it, and the provider where it can."""

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tallystick.audit.author import acting
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.order.explain import explain_order
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.refund import store
from tallystick.checkout.refund.request.flow import RefundRequests
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending, RefundRefused
from tallystick.checkout.refund.review.rules import Decision
from tallystick.database.migrate import migrate
from tallystick.database.pool import Connection
from tallystick.keys.derived import FORMS
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.movement.life import store as whereabouts
from tallystick.providers.words import Refund
from tests import servers, simulators
from tests.ledgers import broken, fetchval
from tests.payments import CHARGING, HURRIED, STRIPE, age
from tests.providers.worlds import Control, World, send
from tests.sagas import Desk, desk
from tests.settlements import empty, superuser

PRICE = 25_000_000
PART = 5_000_000
ADYEN = next(world for world in CHARGING if world.name == "adyen")
SEEN = "Customer Area, 18 November: the payment has no modification."
# Lists are asked for by our time, and other tests take theirs far ahead.
payouts_simulator = simulators.own
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def review_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(review_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(review_dsn)
    await empty(review_dsn)
    return review_dsn


async def paid(till: Desk, key: str = "k") -> tuple[OrderView, str]:
    order, payment = await till.bought(key)
    await till.tell(payment, f"evt_{key}")
    await till.run()
    assert await till.status(order) == "PAID"
    return order, payment


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


async def ask(till: Desk, order: OrderView, key: str, micros: int | None = PART, **more: Any) -> Any:
    shop = till.shop
    requests = RefundRequests(shop.database, till.refunds, {shop.world.name: shop.provider}, limits=HURRIED)
    given: dict[str, Any] = {"reason": "it came broken", "restock": False, **more}
    return await requests.refund(shop.tenant, order.id, amount_micros=micros, idempotency_key=key, **given)


async def waiting(till: Desk, key: str = "r", order_key: str = "k", **more: Any) -> tuple[OrderView, str]:
    """A part of a paid order that a person must look at: its sender is not let in any more."""
    order, payment = await paid(till, order_key)
    await put_off(till, order, key, **more)
    return order, payment


async def put_off(till: Desk, order: OrderView, key: str, **more: Any) -> None:
    control, name = till.shop.control, till.shop.world.name
    control.plan(f"{name}.refund:unauthorized=100%")
    assert isinstance(await ask(till, order, key, **more), RefundPending)
    control.call("DELETE", "faults")
    await age(till.dsn)


async def decide(
    till: Desk,
    order: OrderView,
    payment: str,
    decision: Decision,
    part: str | None = "r",
    *,
    refund_id: str | None = None,
    evidence: str | None = SEEN,
) -> Any:
    with acting("anna/tsk_anna"):
        return await till.refunds.decisions.decide(
            till.shop.tenant, order.id, payment, decision, refund_id=refund_id, part=part, evidence=evidence
        )


async def approve(till: Desk, asked: Any, by: str = "bert/tsk_bert") -> Any:
    assert isinstance(asked, ApprovalView), asked
    with acting(by):
        return await till.refunds.decisions.approve(
            till.shop.tenant,
            asked,
            is_approved=True,
            reason="Looked.",
            by=by,
            idempotency_key=f"approve-{next(_numbers)}",
        )


async def agreed(till: Desk, *given: Any, **more: Any) -> Any:
    """What two persons have decided, or why that does not count."""
    asked = await decide(till, *given, **more)
    return asked if isinstance(asked, Rejected) else await approve(till, asked)


async def by_hand(till: Desk, payment: str, micros: int = PART, mark: int = 7) -> str:
    """As somebody with the provider's dashboard gives it back."""
    refund = Refund(key=bytes([mark]) * 32, payment_id=payment, amount_micros=micros, currency="EUR")
    made: Any = await send(till.shop.provider, refund)
    return str(made.movement.id)


async def written(dsn: str, statement: str, *arguments: object) -> None:
    owner = await asyncpg.connect(superuser(dsn))
    try:
        async with owner.transaction():
            await owner.execute("SET LOCAL session_replication_role = replica")
            await owner.execute(statement, *arguments)
    finally:
        await owner.close()


async def shown(till: Desk, order: OrderView) -> OrderView:
    found = await till.shop.payments.order(till.shop.tenant, order.id)
    assert isinstance(found, OrderView), found
    return found


def code(answer: Any) -> str:
    assert isinstance(answer, Rejected), answer
    return answer.code


async def test_the_order_tells_which_part_waits_for_a_person_and_why(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, _ = await paid(till)
        assert isinstance(await ask(till, order, "given"), RefundGiven)
        await put_off(till, order, "waits")
        found = await shown(till, order)
        assert [(one.part, one.status, one.waits_for_person) for one in found.refunds] == [
            ("given", "COMPLETED", None),
            ("waits", "PENDING", "status_401"),
        ]
        assert found.refund == found.refunds[-1]
        told = await explain_order(till.shop.database, till.shop.tenant, order.id)
        assert told is not None
        assert "the part asked for under 'waits' waits for a person: status_401" in told.summary


async def test_a_part_that_went_back_is_confirmed_by_its_id(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, payment = await waiting(till)
        given, larger = await by_hand(till, payment), await by_hand(till, payment, 2 * PART, mark=8)
        for wrong in ("re_unheard_of", "", larger):
            assert code(await decide(till, order, payment, "confirm", refund_id=wrong)) == "refund_not_confirmed"
        asked = await decide(till, order, payment, "confirm", refund_id=given)
        assert (await till.refund_statuses(order), asked.action) == (["PENDING"], "refund_confirm")
        assert code(await approve(till, asked, "anna/tsk_2")) == "second_person_needed"
        assert await till.refund_statuses(order) == ["PENDING"]
        assert isinstance(await approve(till, asked), Reviewed)
        assert await till.refund_statuses(order) == ["COMPLETED"]
        assert await till.balances() == {"taken": PART - PRICE, "sales": PRICE - PART, "owed": 0}
        again = await ask(till, order, "r")
        assert isinstance(again, RefundGiven)
        assert (again.refund.refund_id, again.is_replayed) == (given, True)
        author = await fetchval(dsn, "SELECT author FROM tally.journal WHERE subject = 'refund.completed'")
        assert author == "bert/tsk_bert"
        await age(dsn)
        await till.refunds.sweep()
        assert len(till.given_back()) == 2
        assert code(await decide(till, order, payment, "confirm", refund_id=given)) == "refund_not_confirmed"
        assert code(await decide(till, order, payment, "failed")) == "payment_decided"
    assert await broken(dsn) == {}


async def test_a_part_is_not_confirmed_by_the_refund_of_an_equal_one(dsn: str, control: Control) -> None:
    """The other's answer was lost: its refund has no id here yet, and bears its key."""
    async with desk(dsn, control) as till:
        order, payment = await waiting(till)
        control.plan("stripe.refund:execute_then_drop@1")
        assert isinstance(await ask(till, order, "other"), RefundPending)
        control.call("DELETE", "faults")
        (others,) = till.given_back()
        refused = await decide(till, order, payment, "confirm", refund_id=others["id"])
        assert code(refused) == "refund_not_confirmed"
        assert "another refund of ours" in str(refused)
        # It is the other's, also by a person's word.
        await written(dsn, "UPDATE tally.payment_idempotency_log SET reason = 'asked' WHERE part IS NOT NULL")
        assert isinstance(await agreed(till, order, payment, "confirm", "other", refund_id=others["id"]), Reviewed)
        assert [(one.part, one.status) for one in (await shown(till, order)).refunds] == [
            ("r", "PENDING"),
            ("other", "COMPLETED"),
        ]
    assert await broken(dsn) == {}


@pytest.mark.parametrize("form", FORMS)
async def test_a_refund_is_known_by_its_key_in_every_form_a_provider_writes(
    dsn: str, control: Control, form: str
) -> None:
    """At Square it was not: an equal part could be confirmed by the refund of another."""
    async with desk(dsn, control) as till:
        order, _ = await waiting(till)
        number = UUID(order.id.removeprefix("or_")).hex
        of_order = f"FROM tally.payment_idempotency_log WHERE part IS NOT NULL AND order_id = '{number}'"
        key, provider = (
            await fetchval(dsn, f"SELECT idempotency_key {of_order}"),
            await fetchval(dsn, f"SELECT provider {of_order}"),
        )
        async with till.refunds._database.owning() as connection:
            assert await store.under_reference(connection, provider, FORMS[form](key)) == {key}
            assert await store.under_reference(connection, "another", FORMS[form](key)) == set()


@pytest.mark.parametrize("world", [STRIPE, ADYEN], ids=lambda world: world.name)
async def test_a_part_that_never_went_back_is_failed_and_its_amount_is_free(
    dsn: str, control: Control, world: World
) -> None:
    async with desk(dsn, control, world) as till:
        order, payment = await waiting(till, micros=None, restock=True)
        assert code(await ask(till, order, "more", 10_000)) == "refund_too_large"
        assert code(await decide(till, order, payment, "failed", evidence=" ")) == "evidence_missing"
        asked = await decide(till, order, payment, "failed")
        assert (asked.action, SEEN in asked.evidence) == ("refund_failed", True)
        assert (await decide(till, order, payment, "failed")).id == asked.id
        assert await till.refund_statuses(order) == ["PENDING"]
        assert isinstance(await approve(till, asked), Reviewed)
        assert await till.refund_statuses(order) == ["FAILED"]
        assert await till.balances() == {"taken": -PRICE, "sales": PRICE, "owed": 0}
        told = await ask(till, order, "r", None, restock=True)
        assert isinstance(told, RefundRefused)
        assert (told.is_replayed, "did not give" in told.detail) == (True, True)
        assert (
            await fetchval(dsn, "SELECT author FROM tally.journal WHERE subject = 'refund.failed'") == "bert/tsk_bert"
        )
        # They know already: nobody else needs to be called.
        assert await till.breaks() == []
        await age(dsn)
        await till.refunds.sweep()
        assert till.given_back() == []
        # What waits for nobody is decided: it is asked for again under another key.
        for decision in ("refund", "failed"):
            again: Any = await decide(till, order, payment, decision)
            assert code(again) == "payment_decided"
        assert isinstance(await ask(till, order, "another", None), RefundGiven)
        assert len(till.given_back()) == 1
    assert await broken(dsn) == {}


async def test_nobody_fails_what_the_provider_shows(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, payment = await paid(till)
        control.plan("stripe.refund:execute_then_drop@1")
        assert isinstance(await ask(till, order, "r"), RefundPending)
        control.call("DELETE", "faults")
        await age(dsn)
        await written(dsn, "UPDATE tally.payment_idempotency_log SET reason = 'asked' WHERE part IS NOT NULL")
        (made,) = till.given_back()
        refused = await decide(till, order, payment, "failed")
        assert (code(refused), made["id"] in str(refused)) == ("refund_not_confirmed", True)
        assert await till.refund_statuses(order) == ["PENDING"]
        assert isinstance(await agreed(till, order, payment, "confirm", refund_id=made["id"]), Reviewed)
    assert await broken(dsn) == {}


async def test_the_books_are_asked_again_before_the_second_persons_word_counts(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, payment = await waiting(till)
        asked = await decide(till, order, payment, "failed")
        control.plan("stripe.*:gateway_503=100%")
        assert code(await approve(till, asked)) == "refund_not_confirmed"
        assert await till.refund_statuses(order) == ["PENDING"]
        control.call("DELETE", "faults")
        assert isinstance(await approve(till, asked), Reviewed)
        assert await till.refund_statuses(order) == ["FAILED"]


async def test_what_may_be_on_its_way_is_not_failed(dsn: str, control: Control) -> None:
    """Books that are read too early do not show it, and at Adyen there are none: its permit and its way are over."""
    async with desk(dsn, control, ADYEN) as till:
        order, payment = await paid(till)
        control.plan("adyen.refund:unauthorized=100%")
        assert isinstance(await ask(till, order, "r"), RefundPending)
        assert code(await decide(till, order, payment, "failed")) == "refund_in_flight"
        await age(dsn)
        asked = await decide(till, order, payment, "failed")
        # Sent once more, between the two persons.
        await till.refunds.sweep()
        assert code(await approve(till, asked)) == "refund_in_flight"
        assert await till.refund_statuses(order) == ["PENDING"]
        await age(dsn)
        assert isinstance(await approve(till, asked), Reviewed)
    assert await broken(dsn) == {}


async def test_a_sweeper_that_had_it_in_hand_sends_nothing_after_it_was_failed(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ADYEN) as till:
        order, payment = await waiting(till)
        asked = await decide(till, order, payment, "failed")
        terms = till.refunds.terms

        async def claimed(connection: Connection) -> list[store.ClaimedRefund]:
            return await store.claim_due(connection, providers=["adyen"], most=10, lease=terms.lease)

        async with till.shop.database.writing() as connection:
            (one,) = await claimed(connection)
        assert isinstance(await approve(till, asked), Reviewed)
        async with till.shop.database.writing() as connection:
            assert await store.send_again(connection, [(one, None)], terms) == []
        assert await till.refund_statuses(order) == ["FAILED"]
        assert till.given_back() == []


async def test_a_part_that_waits_is_sent_again_at_once_under_the_same_key(dsn: str, control: Control) -> None:
    async with desk(dsn, control) as till:
        order, payment = await paid(till)
        control.plan("stripe.refund:unauthorized=100%")
        assert isinstance(await ask(till, order, "r"), RefundPending)
        control.call("DELETE", "faults")
        assert (await till.refunds.sweep()).claimed == 0
        assert await decide(till, order, payment, "refund") == "REFUND"
        assert (await till.refunds.sweep()).completed == 1
        (row,) = await till.refunds_of(order)
        assert (row.view.status, row.generation) == ("COMPLETED", 0)
        assert row.key.hex() in str(till.given_back())
        assert len(till.given_back()) == 1
    assert await broken(dsn) == {}


async def test_what_is_being_given_back_waits_for_nobody(dsn: str, control: Control) -> None:
    """An outage is the sweeper's alone; and what was never asked for is unknown."""
    async with desk(dsn, control) as till:
        order, payment = await paid(till)
        control.plan("stripe.refund:drop_before=100%")
        assert isinstance(await ask(till, order, "r"), RefundPending)
        control.call("DELETE", "faults")
        await age(dsn)
        for decision in ("failed", "refund", "confirm"):
            answer: Any = await decide(till, order, payment, decision, refund_id="re_1")
            assert code(answer) in ("payment_decided", "refund_not_confirmed")
        assert code(await decide(till, order, payment, "failed", "never asked")) == "refund_part_unknown"
        assert code(await decide(till, order, payment, "keep")) == "payment_decided"
        assert code(await decide(till, order, payment, "failed", None)) == "payment_decided"
        assert await till.refund_statuses(order) == ["PENDING"]


async def test_two_parts_are_two_questions(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ADYEN) as till:
        order, payment = await waiting(till, "one")
        await put_off(till, order, "two")
        asked = [await decide(till, order, payment, "failed", part) for part in ("one", "two")]
        assert len({view.id for view in asked}) == 2
        assert isinstance(await approve(till, asked[1]), Reviewed)
        assert [(one.part, one.status) for one in (await shown(till, order)).refunds] == [
            ("one", "PENDING"),
            ("two", "FAILED"),
        ]
        assert await till.balances() == {"taken": -PRICE, "sales": PRICE - PART, "owed": PART}
    assert await broken(dsn) == {}


async def test_of_two_decisions_about_one_part_the_second_finds_it_decided(dsn: str, control: Control) -> None:
    async with desk(dsn, control, ADYEN) as till:
        order, payment = await waiting(till)
        confirmed = await decide(till, order, payment, "confirm", refund_id="psp_by_hand")
        failed = await decide(till, order, payment, "failed")
        assert isinstance(await approve(till, confirmed), Reviewed)
        assert code(await approve(till, failed)) == "payment_decided"
        assert await till.refund_statuses(order) == ["COMPLETED"]
        assert (await till.balances())["owed"] == 0


async def test_the_sagas_refund_that_never_went_back_is_failed_and_made_again_under_another_key(
    dsn: str, control: Control
) -> None:
    """Past Adyen's memory of the key nothing is sent under it, and nobody can be asked."""
    async with desk(dsn, control, ADYEN) as till:
        order, payment = await till.ghost()
        control.plan("adyen.refund:drop_before=100%")
        await till.tell(payment)
        await till.run()
        control.call("DELETE", "faults")
        await age(dsn, timedelta(days=8))
        await till.refunds.sweep()
        (row,) = await till.refunds_of(order)
        assert (row.view.waits_for_person, row.view.part) == ("past_the_horizon", None)
        assert code(await decide(till, order, payment, "keep", None)) == "payment_decided"
        assert isinstance(await agreed(till, order, payment, "failed", None), Reviewed)
        assert await till.refund_statuses(order) == ["FAILED"]
        (row,) = await till.refunds_of(order)
        assert row.view.waits_for_person == "not_given_back"
        # Still owed to the customer, unlike a part.
        assert await till.balances() == {"taken": -PRICE, "owed": PRICE}
        assert await till.breaks() == ["refund_failed"]
        assert await decide(till, order, payment, "refund", None) == "REFUND"
        assert await till.refund_statuses(order) == ["FAILED", "COMPLETED"]
        assert [one.view.waits_for_person for one in await till.refunds_of(order)] == [None, None]
        assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
        assert (await till.balances())["owed"] == 0
        assert len(till.given_back()) == 1
    assert await broken(dsn) == {}


async def test_what_was_sent_while_the_books_were_asked_is_not_called_failed(
    till: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The approver's process is stopped; meanwhile it is sent, and whoever sent it dies before he has recorded it."""
    order, payment = await waiting(till)
    asked = await decide(till, order, payment, "failed")
    says = type(till.refunds.decisions)._says

    async def paused(self: Any, *about: Any) -> Any:
        said = await says(self, *about)
        await decide(till, order, payment, "refund")

        async def dead(*_result: Any, **_source: Any) -> bool:
            raise ConnectionError

        with monkeypatch.context() as dying:
            dying.setattr(till.refunds._recorder, "submit", dead)
            await till.refunds.sweep()
        await age(till.dsn)
        return said

    with monkeypatch.context() as pausing:
        pausing.setattr(type(till.refunds.decisions), "_says", paused)
        refused = await approve(till, asked)
    assert isinstance(refused, Rejected)
    assert refused.code == "refund_in_flight"
    assert len(till.given_back()) == 1
    assert await till.refund_statuses(order) == ["PENDING"]


async def test_what_a_lost_life_may_be_sending_is_not_called_failed(till: Desk) -> None:
    order, payment = await waiting(till)
    async with till.shop.database.stepping() as connection:
        await whereabouts.begin_life(connection, "another timeline")
    refused = await agreed(till, order, payment, "failed")
    assert isinstance(refused, Rejected)
    assert refused.code == "refund_in_flight"
