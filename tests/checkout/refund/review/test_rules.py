"""What persons say of a refund is held against the provider's books: every row, and what is not believed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tallystick.checkout.refund.review.rules import IN_FLIGHT, books_on_failure, doubt, on_its_way
from tallystick.ledger.outcome import Rejected
from tallystick.movement.steps import History
from tallystick.providers.words import Absent, Found, Lookup, Movement, Undecided

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SENT = History(first_sent_at=NOW - 5 * MINUTE, not_after=NOW - 4 * MINUTE, account="ours", may_have_run=True)
BACK = Movement(
    provider="stripe",
    purpose="refund",
    id="re_1",
    amount_micros=5_000_000,
    currency="EUR",
    state="moved",
    status="succeeded",
    parent="pi_1",
)


def changed(movement: Movement = BACK, **fields: Any) -> Movement:
    return msgspec.structs.replace(movement, **fields)


@pytest.mark.parametrize(
    ("not_after", "done_as", "refused"),
    [
        (NOW - 2 * MINUTE, None, False),
        (NOW - 2 * MINUTE + timedelta(microseconds=1), None, True),
        (NOW + MINUTE, None, True),
        (None, None, False),
        (NOW - timedelta(days=1), "re_1", True),
    ],
)
def test_what_may_still_arrive_is_not_called_failed(
    not_after: datetime | None, done_as: str | None, *, refused: bool
) -> None:
    history = msgspec.structs.replace(SENT, not_after=not_after, done_as=done_as)
    found = on_its_way(history, now=NOW, in_flight=2 * MINUTE)
    assert isinstance(found, Rejected) == refused
    assert (found == IN_FLIGHT) == (refused and done_as is None)


@pytest.mark.parametrize(
    ("looked", "account", "can_be_asked", "believed"),
    [
        (Absent(lookup=Lookup.EXACT), "ours", True, True),
        (Absent(lookup=Lookup.EXACT), "another", True, False),  # whose books were asked are not those it was sent to
        (Absent(lookup=Lookup.EXACT), "another", False, True),  # nobody's books show refunds: a person's word alone
        (Undecided(code="timeout", message=""), "ours", True, False),
        (Found(movements=(changed(state="failed"),)), "ours", True, True),
        (Found(movements=(changed(state="returned"),)), "ours", True, True),
        *((Found(movements=(changed(state=state),)), "ours", True, False) for state in ("waiting", "moving", "moved")),
        (Found(movements=(changed(state="failed"), changed(state="moving", id="re_2"))), "ours", True, False),
    ],
)
def test_a_refund_is_called_failed_only_where_the_books_bear_it_out(
    looked: Any, account: str, *, can_be_asked: bool, believed: bool
) -> None:
    found = books_on_failure(looked, SENT, account=account, can_be_asked=can_be_asked)
    assert isinstance(found, str) == believed, found


@pytest.mark.parametrize(
    ("fields", "is_meant"),
    [
        ({}, True),
        ({"state": "waiting"}, True),
        ({"state": "failed"}, False),
        ({"state": "returned"}, False),
        ({"parent": "pi_2"}, False),
        ({"amount_micros": 4_999_999}, False),
        ({"currency": "USD"}, False),
    ],
)
def test_a_refund_is_confirmed_by_its_own_movement_alone(fields: dict[str, Any], *, is_meant: bool) -> None:
    found = doubt(changed(**fields), payment_intent_id="pi_1", amount_micros=5_000_000, currency="EUR")
    assert (found is None) == is_meant, found
