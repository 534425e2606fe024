"""Whose a movement is, and when it proves that a life was lost."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tallystick.movement.mark import (
    FROM_MEMORY,
    UNEXPLAINED,
    is_older,
    is_ours,
    mark_of,
    proof,
    proof_by_answer,
)
from tallystick.providers.words import Answer, Busy, Done, Movement, Refused, Unknown

OURS = "6f1c6b0e-0000-4000-8000-000000000001"
THEIRS = "6f1c6b0e-0000-4000-8000-000000000002"
NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
ANSWERED = "Wed, 18 Nov 2026 12:00:00 GMT"


def movement(mark: str = "") -> Movement:
    return Movement(
        provider="stripe",
        purpose="transfer",
        id="tr_1",
        amount_micros=10_000,
        currency="EUR",
        state="moved",
        status="paid",
        mark=mark,
    )


def test_what_stands_in_a_payees_own_account_proves_nothing() -> None:
    """He can write a mark there himself, and would stop us by it."""
    his = msgspec.structs.replace(movement(f"{OURS}/settlement/st_1"), id="acct_1/po_1")
    assert proof(his, installation=OURS, by_our_key=False) is None
    assert proof(his, installation=OURS, by_our_key=True) is None


def test_a_mark_names_the_installation_and_what_is_paid_for() -> None:
    mark = mark_of(OURS, "settlement/stl_1")
    assert mark == f"{OURS}/settlement/stl_1"
    assert is_ours(mark, OURS)
    assert not is_ours(mark, THEIRS)
    assert not is_ours("", OURS)
    assert not is_ours(OURS[:-1], OURS)


@pytest.mark.parametrize(
    ("mark", "by_our_key", "why"),
    [
        (f"{OURS}/order/ord_1", False, UNEXPLAINED),
        (f"{OURS}/order/ord_1", True, UNEXPLAINED),
        (f"{THEIRS}/order/ord_1", False, None),
        # Two installations on one account have made the same key of the same words: it is theirs all the same.
        (f"{THEIRS}/order/ord_1", True, None),
        ("", True, UNEXPLAINED),
        ("", False, None),
        ("nonsense", True, None),
    ],
)
def test_only_what_is_ours_and_unexplained_proves_a_lost_life(mark: str, by_our_key: bool, why: str | None) -> None:  # noqa: FBT001
    assert proof(movement(mark), installation=OURS, by_our_key=by_our_key) == why


@pytest.mark.parametrize(
    ("answer", "attempt", "why"),
    [
        (Done(movement=movement(), replayed=True), 1, FROM_MEMORY),
        # Nothing moved, or it is looked up anyway: nothing would be there to know it by when it comes again.
        (Refused(code="card_declined", message="", replayed=True), 1, None),
        (Unknown(code="error_500", message="", replayed=True), 1, None),
        # A later one may be the answer to the first of our own.
        (Done(movement=movement(), replayed=True), 2, None),
        (Done(movement=movement()), 1, None),
        (Busy(code="lock_timeout", message="", after_seconds=1.0), 1, None),
    ],
)
def test_an_answer_from_memory_to_the_first_attempt_is_of_a_lost_life(
    answer: Answer, attempt: int, why: str | None
) -> None:
    assert proof_by_answer(answer, attempt=attempt) == why


@pytest.mark.parametrize(
    ("made_at", "answered", "is_there_before"),
    [
        (NOW - timedelta(hours=1), ANSWERED, True),
        (NOW - timedelta(minutes=1), ANSWERED, False),
        (NOW + timedelta(hours=1), ANSWERED, False),
        (None, ANSWERED, False),
        (NOW - timedelta(hours=1), "", False),
        (NOW - timedelta(hours=1), "yesterday", False),
        (NOW - timedelta(hours=1), "Wed, 18 Nov 2026 12:00:00 -0000", False),
    ],
)
def test_what_is_older_than_its_answer_by_the_providers_own_clock_was_there_before(
    made_at: datetime | None,
    answered: str,
    is_there_before: bool,  # noqa: FBT001
) -> None:
    assert is_older(made_at, answered) is is_there_before
