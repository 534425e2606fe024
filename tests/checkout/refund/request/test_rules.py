"""What may be given back of a paid order: every row of the table, and that parts never exceed what was paid."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.refund.request.rules import Asked, Give, Sold, asked_fault, decide
from tallystick.keys.derived import refund_key, refund_part
from tallystick.ledger.outcome import Rejected

ASKED = Asked(key="k", order_id=UUID(int=7), amount_micros=None, reason="broken", restock=False)
SOLD = Sold(
    name="or_7",
    status="PAID",
    is_backordered=False,
    is_restocked=False,
    provider="stripe",
    payment_intent_id="pi_1",
    amount_micros=25_000_000,
    currency="EUR",
    refunding_micros=0,
    since=datetime(2026, 3, 1, tzinfo=UTC),
)
NAMES: dict[str, Any] = {"tenant": "t", "currency": "EUR", "provider": "stripe", "payment_intent_id": "pi_1"}


@pytest.mark.parametrize(
    ("sold", "asked", "expected"),
    [
        ({}, {}, Give(25_000_000)),
        ({"refunding_micros": 20_000_000}, {}, Give(5_000_000)),
        ({"refunding_micros": 20_000_000}, {"amount_micros": 5_000_000}, Give(5_000_000)),
        ({"refunding_micros": 20_000_000}, {"amount_micros": 5_000_001}, "refund_too_large"),
        ({"refunding_micros": 25_000_000}, {}, "refund_too_large"),
        ({"status": "PENDING"}, {}, "order_not_paid"),
        ({"status": "CANCELLED_BY_SWEEPER", "payment_intent_id": None}, {}, "order_not_paid"),
        ({"is_restocked": True}, {"restock": True}, "already_restocked"),
        ({"is_restocked": True}, {}, Give(25_000_000)),
        ({"is_backordered": True}, {"restock": True}, "order_backordered"),
    ],
)
def test_what_may_be_given_back(sold: dict[str, Any], asked: dict[str, Any], expected: Give | str) -> None:
    found = decide(msgspec.structs.replace(SOLD, **sold), msgspec.structs.replace(ASKED, **asked))
    assert (found.code if isinstance(found, Rejected) else found) == expected


@given(st.integers(1, 10**12), st.lists(st.none() | st.integers(1, 10**12), max_size=8))
def test_parts_never_exceed_what_was_paid(paid: int, wishes: list[int | None]) -> None:
    sold = msgspec.structs.replace(SOLD, amount_micros=paid)
    for wish in wishes:
        step = decide(sold, msgspec.structs.replace(ASKED, amount_micros=wish))
        if isinstance(step, Give):
            assert step.amount_micros > 0
            sold = msgspec.structs.replace(sold, refunding_micros=sold.refunding_micros + step.amount_micros)
        assert sold.refunding_micros <= paid


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, None),
        ({"amount_micros": 0}, "amount_not_positive"),
        ({"reason": " "}, "reason_missing"),
        ({"reason": "a\0b"}, "reason_invalid"),
        ({"reason": "\ud800"}, "reason_invalid"),
    ],
)
def test_what_can_be_asked_for(fields: dict[str, Any], code: str | None) -> None:
    found = asked_fault(msgspec.structs.replace(ASKED, **fields))
    assert (found and found.code) == code


def test_a_part_has_a_key_of_its_own_from_what_the_caller_sent() -> None:
    """The same key is the same refund after a restore; another, or none, is another."""
    whole, one, two = (refund_key(**NAMES, part=part) for part in (None, refund_part("a"), refund_part("b")))
    assert len({whole, one, two}) == 3
    assert one == refund_key(**NAMES, part=refund_part("a"))
    assert whole == refund_key(**NAMES)
