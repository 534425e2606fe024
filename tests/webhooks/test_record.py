"""Records of the log: what goes in comes out, and what is not ours is told apart."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.words import Event, Movement
from tallystick.webhooks.record import Batch, Delivered, Gap, Poison, Record, decode, encode, key

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# As providers tell it: whole microseconds, in UTC.
moments = st.integers(0, 4 * 10**15).map(
    lambda micros: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
)
movements = st.builds(
    Movement,
    provider=texts,
    purpose=st.sampled_from(["charge", "refund", "transfer", "payout"]),
    id=texts,
    amount_micros=st.integers(-(2**63), 2**63 - 1),
    currency=texts,
    state=st.sampled_from(["waiting", "moving", "moved", "failed", "returned"]),
    status=texts,
    reference=texts,
    parent=texts,
    about=texts,
    created_at=st.none() | moments,
)
events = st.builds(
    Event,
    provider=texts,
    type=texts,
    dedup_key=texts,
    change_key=texts,
    object_id=texts,
    occurred_at=st.none() | moments,
    movement=st.none() | movements,
    body=st.binary(max_size=200),
)


@given(st.lists(events, max_size=4).map(tuple))
def test_a_delivery_comes_out_as_it_went_in(told: tuple[Event, ...]) -> None:
    assert decode(encode("stripe", told)) == Delivered("stripe", told)


@given(st.binary(max_size=100))
def test_nothing_in_a_topic_can_stop_a_reader(value: bytes) -> None:
    assert isinstance(decode(value), Poison)
    assert isinstance(decode(b"tally/webhook/1\n" + value), Poison | Delivered)


@given(events, st.data())
def test_a_record_cut_anywhere_is_poison(told: Event, data: Any) -> None:
    whole = encode("stripe", (told,))
    assert isinstance(decode(whole[: data.draw(st.integers(0, len(whole) - 1))]), Poison)


@pytest.mark.parametrize("value", [None, b"", b"tally/webhook/2\n\x80", b"tally/webhook/1"])
def test_what_is_not_ours_or_newer_is_told_apart(value: bytes | None) -> None:
    found = decode(value)
    assert isinstance(found, Poison)
    newer = value is not None and value.startswith(b"tally/webhook/")
    assert found.reason == (
        "it is of a version that this code does not know" if newer else "it is no record of Tallystick"
    )


@given(events)
def test_a_key_can_always_be_written(told: Event) -> None:
    assert key("stripe", (told,)).startswith(b"stripe/")


def test_a_batch_knows_where_it_begins_and_ends() -> None:
    records = tuple(
        Record(partition, offset, None, b"", None) for partition, offset in ((0, 7), (1, 3), (0, 8), (1, 4))
    )
    batch = Batch("t", records, (Gap(0, 2, 7),))
    assert batch.begins() == {0: 2, 1: 3}
    assert batch.ends() == {0: 9, 1: 5}
