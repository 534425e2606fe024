"""That a payment stays, or went back already: two persons say so, and the provider where it can be asked."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from tallystick.audit.author import acting
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout import policy_store as checkout_policy
from tallystick.checkout.saga.rules import Policy
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.sagas import Desk, desk

PRICE = 25_000_000
# What the provider took instead.
LESS = PRICE - 10_000


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


async def _in_review(till: Desk, key: str = "k") -> tuple[Any, str]:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(other_amount="review"), by="test")
    order, payment = await till.bought_for(LESS, key)
    await till.tell(payment, f"evt_{key}", micros=LESS)
    await till.run()
    return order, payment


async def _keep(till: Desk, order: Any, payment: str, by: str = "anna/tsk_1") -> Any:
    with acting(by):
        return await till.refunds.decisions.decide(till.shop.tenant, order.id, payment, "keep")


async def _approve(till: Desk, asked: ApprovalView, by: str, *, is_approved: bool = True, key: str = "") -> Any:
    return await till.refunds.decisions.approve(
        till.shop.tenant,
        asked,
        is_approved=is_approved,
        reason="Looked.",
        by=by,
        idempotency_key=key or f"{by}-{asked.id}".replace(" ", "-"),
    )


async def _fate(till: Desk, payment: str) -> str:
    async with till.shop.database.owning() as connection:
        return str(
            await connection.fetchval("SELECT fate FROM tally.payment_receipt WHERE payment_intent_id = $1", payment)
        )


async def test_one_person_alone_keeps_nothing(till: Desk) -> None:
    order, payment = await _in_review(till)
    asked = await _keep(till, order, payment)
    assert isinstance(asked, ApprovalView)
    assert (asked.action, asked.order, asked.asked_by) == ("refund_keep", order.id, "anna/tsk_1")
    assert "the payment is succeeded" in asked.evidence
    assert await _fate(till, payment) == "REVIEW"
    for nobody in ("anna/tsk_2", "anna/terminal", "unknown/tsk_3", "bootstrap/tsk_4"):
        refused = await _approve(till, asked, nobody)
        assert isinstance(refused, Rejected)
        assert refused.code == "second_person_needed"
    assert await _fate(till, payment) == "REVIEW"
    done = await _approve(till, asked, "bert/tsk_5")
    assert isinstance(done, Reviewed)
    assert await _fate(till, payment) == "KEPT"
    assert (await till.balances())["owed"] == 0
    assert await broken(till.dsn) == {}


async def test_what_a_second_person_rejects_stays_as_it_was(till: Desk) -> None:
    order, payment = await _in_review(till)
    asked = await _keep(till, order, payment)
    assert isinstance(await _approve(till, asked, "bert/tsk_5", is_approved=False), Reviewed)
    assert await _fate(till, payment) == "REVIEW"
    again = await _keep(till, order, payment)
    assert again.id != asked.id
    late = await _approve(till, asked, "carl/tsk_6")
    assert isinstance(late, Rejected)
    assert late.code == "already_decided"


async def test_somebody_without_a_name_asks_for_nothing(till: Desk) -> None:
    order, payment = await _in_review(till)
    refused = await _keep(till, order, payment, by="unknown/tsk_1")
    assert refused.code == "second_person_needed"


async def test_two_payments_of_one_order_are_two_questions(till: Desk) -> None:
    (one, first), (two, second) = await _in_review(till, "one"), await _in_review(till, "two")
    asked = [await _keep(till, one, first), await _keep(till, two, second)]
    assert len({view.id for view in asked}) == 2
    assert isinstance(await _approve(till, asked[0], "bert/tsk_5"), Reviewed)
    assert (await _fate(till, first), await _fate(till, second)) == ("KEPT", "REVIEW")


async def test_what_was_given_back_meanwhile_is_no_longer_kept(till: Desk) -> None:
    """The second person agrees to what was; it is another thing now."""
    order, payment = await _in_review(till)
    asked = await _keep(till, order, payment)
    assert await till.refunds.decisions.decide(till.shop.tenant, order.id, payment, "refund") == "REFUND"
    refused = await _approve(till, asked, "bert/tsk_5")
    assert refused.code == "payment_decided"
    assert await till.refund_statuses(order) == ["COMPLETED"]
    assert await broken(till.dsn) == {}


async def test_the_provider_is_asked_again_before_it_counts(till: Desk) -> None:
    order, payment = await _in_review(till)
    asked = await _keep(till, order, payment)
    till.shop.control.plan("stripe.*:gateway_503=100%")
    refused = await _approve(till, asked, "bert/tsk_5")
    assert refused.code == "refund_not_confirmed"
    assert await _fate(till, payment) == "REVIEW"
    till.shop.control.call("DELETE", "faults")
    assert isinstance(await _approve(till, asked, "bert/tsk_5"), Reviewed)


async def _review_of(till: Desk, order_of: Awaitable[tuple[Any, str]]) -> tuple[Any, str]:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(other_amount="review"), by="test")
    order, payment = await order_of
    await till.tell(payment, micros=LESS)
    await till.run()
    assert await _fate(till, payment) == "REVIEW"
    return order, payment


async def test_what_the_provider_does_not_show_as_taken_is_not_kept(till: Desk) -> None:
    """News said that the money came; the provider's own books say that the customer has not paid yet."""

    async def unpaid() -> tuple[Any, str]:
        order = await till.shop.order("unpaid")
        payment = (await till.shop.paying(order, payment_method=None)).payment.payment_intent_id
        assert payment is not None
        return order, payment

    order, payment = await _review_of(till, unpaid())
    for contradiction in ("requires_payment_method (waiting)", "canceled (failed)"):
        refused = await _keep(till, order, payment)
        assert isinstance(refused, Rejected)
        assert (refused.code, contradiction in refused.detail) == ("refund_not_confirmed", True), refused
        if contradiction.startswith("requires"):
            till.at_the_provider(payment, "/cancel")
    assert (await _fate(till, payment), (await till.balances()).get("sales", 0)) == ("REVIEW", 0)


async def test_another_amount_than_the_provider_took_is_not_kept(till: Desk) -> None:
    order, payment = await _review_of(till, till.bought())
    refused = await _keep(till, order, payment)
    assert isinstance(refused, Rejected)
    assert (refused.code, "it took 25.00 EUR, and 24.99 EUR was told of" in refused.detail) == (
        "refund_not_confirmed",
        True,
    ), refused
    assert await _fate(till, payment) == "REVIEW"
