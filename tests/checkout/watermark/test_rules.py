"""Up to when everything that was received is decided, and what the sweeper may do with that."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.order.rules import may_be_swept
from tallystick.checkout.watermark.rules import Mark, is_stored, passed

T = datetime(2026, 1, 1, tzinfo=UTC)
GRACE = timedelta(seconds=30)
# And nothing of it stands at the provider any more.
CHARGED = {"is_charged": True, "is_live": False, "is_released": False}


def at(seconds: float) -> datetime:
    return T + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("expires", "now", "is_charged", "watermark", "is_swept"),
    [
        (0, 29.9, False, 1000, False),
        (0, 30, False, None, True),
        (0, 30, True, None, False),
        (0, 1000, True, 30, False),
        (0, 1000, True, 29, False),
        (0, 1000, True, 30.001, True),
    ],
)
def test_a_charged_order_waits_for_the_watermark_and_another_for_its_deadline_alone(
    expires: float, now: float, *, is_charged: bool, watermark: float | None, is_swept: bool
) -> None:
    found = may_be_swept(
        at(expires),
        now=at(now),
        grace=GRACE,
        is_charged=is_charged,
        is_live=False,
        is_released=False,
        watermark=None if watermark is None else at(watermark),
    )
    assert found is is_swept


@given(
    received=st.floats(0, 100), expires=st.floats(0, 100), marked=st.floats(0, 200), others=st.lists(st.floats(0, 99))
)
def test_nothing_is_swept_whose_payment_was_received_in_time_and_lies_undecided(
    received: float, expires: float, marked: float, others: list[float]
) -> None:
    mark = Mark(at=at(marked), writing=frozenset())
    watermark = passed(mark, stored_at=mark.at, oldest=min(map(at, [received, *others])), before=None)
    is_swept = may_be_swept(
        at(expires), now=at(1000), grace=GRACE, is_charged=True, is_live=False, is_released=False, watermark=watermark
    )
    assert not (is_swept and at(received) <= at(expires) + GRACE)


def test_a_mark_is_stored_when_whoever_wrote_then_has_ended_and_the_log_was_read_up_to_it() -> None:
    mark = Mark(at=T, writing=frozenset({"3/7", "4/1"}), ends={0: 5, 1: 0})
    assert not is_stored(mark, writing=frozenset({"4/1"}), read={0: 9, 1: 9})
    assert not is_stored(mark, writing=frozenset({"4/2"}), read={0: 4, 1: 9})
    assert not is_stored(mark, writing=frozenset(), read={1: 9})
    assert is_stored(mark, writing=frozenset({"4/2"}), read={0: 5})


def test_with_a_log_the_watermark_stays_while_anything_stored_by_then_is_open() -> None:
    mark = Mark(at=at(10), writing=frozenset(), ends={0: 5})
    assert passed(mark, stored_at=at(50), oldest=at(49), before=at(3)) == at(3)
    assert passed(mark, stored_at=at(50), oldest=at(50), before=None) is None
    assert passed(mark, stored_at=at(50), oldest=at(51), before=at(3)) == at(10)
    assert passed(mark, stored_at=at(50), oldest=None, before=at(3)) == at(10)
