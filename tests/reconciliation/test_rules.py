"""Two halves held against each other: every class of break, and what must never be called one."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.claims import Tenant
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import Movement
from tallystick.reconciliation.rules import (
    BREAKS,
    Finding,
    Here,
    Meant,
    Question,
    before_asking,
    doubled,
    judge,
    not_found,
    told,
    unreadable,
)
from tallystick.settlement.rules import STATUSES

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
QUESTION = Question(account="test", since=NOW - timedelta(days=8), until=NOW, as_of=NOW, facts=FACTS)
STATES = ("waiting", "moving", "moved", "failed", "returned")


def here(number: int = 1, **fields: Any) -> Here:
    return Here(
        **{
            "tenant": Tenant(1, "amber"),
            "number": number,
            "id": UUID(int=number),
            "key": number.to_bytes(32),
            "destination": "acct_1",
            "amount_micros": 5_000_000,
            "currency": "EUR",
            "status": "transferred",
            "transfer_id": f"tr_{number}",
            "reason": None,
            "changed_at": LONG_AGO,
            "account": "test",
            "first_sent_at": LONG_AGO,
            "not_after": LONG_AGO + timedelta(seconds=10),
            **fields,
        }
    )


def movement(state: Any = "moved", **fields: Any) -> Movement:
    return Movement(
        **{
            "provider": "stripe",
            "purpose": "transfer",
            "id": "tr_1",
            "amount_micros": 5_000_000,
            "currency": "EUR",
            "state": state,
            "status": "paid",
            "reference": (1).to_bytes(32).hex(),
            **fields,
        }
    )


def classed(shown: Movement, meant: Meant, question: Question = QUESTION) -> list[tuple[str, str]]:
    return [(finding.kind, finding.reason) for finding in judge(shown, meant, question)]


@pytest.mark.parametrize(
    ("row", "shown", "expected"),
    [
        ({}, {}, []),
        ({}, {"state": "moving"}, []),
        ({}, {"state": "returned"}, [("state_differs", "returned_after_transferred")]),
        ({}, {"state": "failed"}, [("state_differs", "failed_after_transferred")]),
        ({}, {"amount_micros": 5_000_001}, [("amount_differs", "amount_differs")]),
        ({}, {"currency": "USD"}, [("amount_differs", "amount_differs")]),
        ({}, {"id": "tr_9"}, [("duplicated", "moved_twice")]),
        # A twin that came back took nothing from anybody.
        ({}, {"id": "tr_9", "state": "returned"}, []),
        ({}, {"id": "tr_9", "state": "failed"}, []),
        ({"status": "failed", "reason": "refused"}, {}, [("state_differs", "moved_after_failed")]),
        ({"status": "failed", "reason": "refused"}, {"state": "failed"}, []),
        ({"status": "failed", "reason": "written_off"}, {"state": "returned"}, []),
        ({"status": "pending", "transfer_id": None}, {}, [("state_differs", "moved_before_it_was_sent")]),
        ({"status": "processing", "transfer_id": None}, {}, [("undecided", "processing")]),
        ({"status": "processing", "transfer_id": None}, {"state": "failed"}, [("undecided", "processing")]),
        ({"status": "disputed", "reason": "returned"}, {"state": "returned"}, [("undecided", "returned")]),
    ],
)
def test_a_movement_is_held_against_the_row_that_has_its_key(
    row: dict[str, Any], shown: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    owner = here(**row)
    assert classed(movement(**shown), Meant(owner=owner)) == expected
    # Whether the row was found by the key alone, or by its id as well, changes nothing.
    assert classed(movement(**shown), Meant(owner=owner, named=(owner,))) == expected


def test_what_moved_under_an_earlier_generations_key_is_too_much() -> None:
    old = movement(id="tr_0", reference="ab" * 32)
    assert classed(old, Meant(owner=here(), is_live_key=False)) == [("duplicated", "earlier_generation_moved")]
    failed = here(status="failed", reason="refused", transfer_id=None)
    assert classed(old, Meant(owner=failed, is_live_key=False)) == [("state_differs", "earlier_generation_moved")]
    assert classed(movement("failed", id="tr_0"), Meant(owner=here(), is_live_key=False)) == []


def test_an_earlier_generation_that_a_person_confirmed_as_the_payer_matches() -> None:
    confirmed = here(transfer_id="tr_0")
    old = movement(id="tr_0", reference="ab" * 32)
    assert classed(old, Meant(owner=confirmed, is_live_key=False, named=(confirmed,))) == []


@pytest.mark.parametrize(
    ("shown", "meant", "expected"),
    [
        ({}, Meant(), [("missing_here", "key_unknown")]),
        ({"reference": ""}, Meant(), [("missing_here", "no_reference")]),
        # It went out and came back, and no ledger of ours knows.
        ({"state": "returned"}, Meant(), [("missing_here", "key_unknown")]),
        ({"state": "failed"}, Meant(), []),
        ({}, Meant(is_elsewhere=True), []),
    ],
)
def test_a_movement_that_nothing_explains_is_told(
    shown: dict[str, Any], meant: Meant, expected: list[tuple[str, str]]
) -> None:
    assert classed(movement(**shown), meant) == expected


def test_a_row_that_was_confirmed_under_anothers_movement_was_not_paid_by_it() -> None:
    owner, liar = here(1), here(2, transfer_id="tr_1")
    found = judge(movement(), Meant(owner=owner, named=(owner, liar)), QUESTION)
    assert [(one.kind, one.reason, one.here) for one in found] == [("missing_there", "paid_another", liar)]


def test_one_movement_does_not_pay_two() -> None:
    twins = (here(1, transfer_id="po_1"), here(2, transfer_id="po_1"))
    found = judge(movement(id="po_1", reference=""), Meant(named=twins), QUESTION)
    assert [(one.kind, one.reason, one.here) for one in found] == [
        ("missing_there", "named_by_several", twin) for twin in twins
    ]


def test_a_payment_by_hand_that_a_person_confirmed_matches_its_row() -> None:
    by_hand = here(transfer_id="po_hand")
    assert classed(movement(id="po_hand", reference=""), Meant(named=(by_hand,))) == []
    assert classed(movement("returned", id="po_hand", reference=""), Meant(named=(by_hand,))) == [
        ("state_differs", "returned_after_transferred")
    ]


def test_a_row_that_changed_while_the_list_was_read_is_left_to_the_next_run() -> None:
    """Listed as moving, failed at the provider, recorded as failed, then matched: no break."""
    row = here(status="failed", reason="failed_at_the_provider", changed_at=NOW)
    assert classed(movement("moving"), Meant(owner=row)) == [("timing", "changed_meanwhile")]
    assert classed(movement("moving"), Meant(owner=msgspec.structs.replace(row, changed_at=LONG_AGO))) == [
        ("state_differs", "moved_after_failed")
    ]


def test_a_payout_whose_answer_may_be_on_its_way_is_left_to_the_next_run() -> None:
    row = here(status="processing", transfer_id=None, not_after=NOW - FACTS.longest_in_flight + timedelta(seconds=1))
    assert classed(movement(), Meant(owner=row)) == [("timing", "processing")]
    row = msgspec.structs.replace(row, not_after=NOW - FACTS.longest_in_flight)
    assert classed(movement(), Meant(owner=row)) == [("undecided", "processing")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, None),
        ({"changed_at": NOW}, ("timing", "too_fresh")),
        ({"not_after": NOW - FACTS.longest_in_flight + timedelta(seconds=1)}, ("timing", "too_fresh")),
        ({"account": "live acct_9"}, ("undecided", "sent_with_another_account")),
        ({"account": None}, None),
    ],
)
def test_what_was_not_listed_is_asked_for_unless_these_books_cannot_tell(
    row: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    found = before_asking(here(**row), QUESTION)
    assert (found and (found.kind, found.reason)) == expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, ("missing_there", "missing_at_the_provider")),
        ({"first_sent_at": QUESTION.since}, ("missing_there", "missing_at_the_provider")),
        # The movement may lie before the list, or after it, under an id that was never recorded.
        ({"first_sent_at": QUESTION.since - timedelta(seconds=1)}, ("undecided", "sent_outside_the_span")),
        ({"not_after": QUESTION.until}, ("undecided", "sent_outside_the_span")),
        ({"first_sent_at": None, "not_after": None}, ("undecided", "sent_outside_the_span")),
    ],
)
def test_only_a_span_that_holds_every_send_makes_absence_final(row: dict[str, Any], expected: tuple[str, str]) -> None:
    found = not_found(here(**row), QUESTION)
    assert (found.kind, found.reason) == expected


@given(
    status=st.sampled_from(STATUSES),
    state=st.sampled_from(STATES),
    id_=st.sampled_from(["tr_1", "tr_9"]),
    live=st.booleans(),
    amount=st.sampled_from([5_000_000, 1]),
)
def test_a_row_newer_than_the_list_is_never_contradicted_by_it(
    *, status: Any, state: Any, id_: str, live: bool, amount: int
) -> None:
    """A repair would dispute what a worker has just recorded rightly."""
    row = here(status=status, reason="why", changed_at=NOW + timedelta(microseconds=1))
    found = judge(movement(state, id=id_, amount_micros=amount), Meant(owner=row, is_live_key=live), QUESTION)
    assert {one.kind for one in found} <= {"timing", "undecided"}


@given(status=st.sampled_from(STATUSES), state=st.sampled_from(["waiting", "moving", "moved"]), live=st.booleans())
def test_money_that_moved_is_silent_only_for_a_transferred_row(*, status: Any, state: Any, live: bool) -> None:
    row = here(status=status, reason="why", transfer_id="tr_1" if status == "transferred" else None)
    found = judge(movement(state), Meant(owner=row, is_live_key=live), QUESTION)
    assert bool(found) == (status != "transferred")


def test_every_break_is_told_with_the_money_and_the_remedy() -> None:
    row = here()
    found: list[Finding] = [
        *judge(movement("returned"), Meant(owner=row), QUESTION),
        *judge(movement(), Meant(), QUESTION),
        *judge(movement(reference=""), Meant(), QUESTION),
        *judge(movement(amount_micros=1), Meant(owner=row), QUESTION),
        *judge(movement(), Meant(owner=here(status="processing")), QUESTION),
        *judge(movement(), Meant(owner=here(status="disputed", reason="paid_another")), QUESTION),
        *judge(movement(), Meant(owner=row, named=(here(2, transfer_id="tr_1"),)), QUESTION),
        doubled(here(status="disputed", reason="returned"), ["tr_1", "tr_2"]),
        not_found(row, QUESTION),
        not_found(here(first_sent_at=None), QUESTION),
        unreadable(row),
    ]
    assert {one.kind for one in found} == set(BREAKS)
    for one in found:
        said = told(one, "simulator")
        assert said.endswith(".")
        assert "simulator" in said
        assert one.here is None or (one.here.name in said and "amber" in said and "5.00 EUR" in said), said
    assert "tr_1, tr_2" in told(found[7], "simulator")
    # It is disputed already: nobody is told to do it again.
    assert "Dispute" not in told(found[5], "simulator")
