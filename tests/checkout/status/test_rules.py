"""What is told of an order, and when somebody who waits is answered."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallystick.checkout.order.rules import Status
from tallystick.checkout.payment.rules import PaymentView
from tallystick.checkout.refund.rules import RefundView
from tallystick.checkout.status.rules import OrderStatus, is_answer, may_be_kept, order_status, waiting_fault

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def payment(status: Any = "COMPLETED", **other: Any) -> PaymentView:
    return PaymentView(**{"status": status, "payment_intent_id": "pi_1", "attempts": 1, "reason": None, **other})


def told(status: Status = "PENDING", paid: PaymentView | None = None, at: datetime = AT) -> OrderStatus:
    return order_status(id_="or_1", status=status, payment=paid, refund=None, changed_at=at)


def test_a_version_is_another_whenever_anything_else_is() -> None:
    different = [
        told(),
        told("PAID"),
        told(at=AT + timedelta(microseconds=1)),
        told(paid=payment()),
        told(paid=payment("PENDING")),
        told(paid=payment("FAILED", reason="card_declined")),
        told(paid=payment("FAILED", reason="expired_card")),
        told(paid=payment(attempts=2)),
        told(paid=payment(payment_intent_id="pi_2")),
    ]
    assert len({one.version for one in different}) == len(different)
    assert told(paid=payment()).version == told(paid=payment()).version


@pytest.mark.parametrize("status", ["PAID", "CANCELLED", "CANCELLED_BY_SWEEPER"])
def test_a_final_order_is_told_at_once_unless_its_version_is_known(status: Status) -> None:
    found = told(status)
    assert is_answer(found, None)
    assert is_answer(found, told().version)
    assert not is_answer(found, found.version)


def test_a_pending_order_is_told_at_once_to_those_who_have_another_version() -> None:
    assert not is_answer(told(), None)
    assert not is_answer(told(), told().version)
    assert is_answer(told(paid=payment()), told().version)


def test_that_something_failed_is_never_kept() -> None:
    assert may_be_kept(told())
    assert may_be_kept(told("PAID", payment()))
    assert not may_be_kept(told(paid=payment("FAILED", reason="card_declined")))


@pytest.mark.parametrize("seconds", [-1, -0.001, 30.001, 10**30, math.nan, math.inf, -math.inf])
def test_a_wait_that_cannot_be_kept_is_refused(seconds: float) -> None:
    refusal = waiting_fault(seconds, None, longest_seconds=30)
    assert refusal is not None
    assert (refusal.code, refusal.fields) == ("query_invalid", ("wait",))
    assert "0 to 30" in refusal.remedy


@pytest.mark.parametrize("after", ["", "1", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef\n", "é" * 16])
def test_what_is_no_version_is_refused(after: str) -> None:
    refusal = waiting_fault(1, after, longest_seconds=30)
    assert refusal is not None
    assert (refusal.code, refusal.fields) == ("query_invalid", ("after",))


@pytest.mark.parametrize("seconds", [0, 0.0, 1, 29.9, 30])
def test_any_other_is_taken(seconds: float) -> None:
    assert waiting_fault(seconds, None, longest_seconds=30) is None
    assert waiting_fault(seconds, told().version, longest_seconds=30) is None


def test_a_refund_is_another_version_and_one_that_failed_is_not_kept() -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)

    def told(status: Any) -> OrderStatus:
        refund = None
        if status is not None:
            refund = RefundView(
                status=status,
                payment_intent_id="pi_1",
                refund_id=None,
                amount_micros=1,
                currency="EUR",
                reason="late",
                created_at=at,
                completed_at=None,
            )
        return order_status(id_="or_1", status="CANCELLED_BY_SWEEPER", payment=None, refund=refund, changed_at=at)

    stands = {status: told(status) for status in (None, "PENDING", "COMPLETED", "FAILED")}
    assert len({one.version for one in stands.values()}) == len(stands)
    assert [may_be_kept(one) for one in stands.values()] == [True, True, True, False]
