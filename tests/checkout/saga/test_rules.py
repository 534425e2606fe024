"""What the provider's word means: every row of the table, and that no order of events changes what is paid or owed."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.saga.rules import (
    CANCELLED,
    LATE,
    OTHER_AMOUNT,
    SECOND,
    Break,
    Case,
    Complete,
    Decision,
    FailCharge,
    FailRefund,
    GiveBack,
    Ignore,
    LoggedRefund,
    Ours,
    Pay,
    Policy,
    Receipt,
    Review,
    ToldBefore,
    after,
    decide,
    decide_refund,
)
from tallystick.providers.words import Movement

PRICE = 25_000_000
CASE = Case(status="PENDING", quantity=2, amount_micros=PRICE, currency="EUR")
LIVE = Ours(status="COMPLETED", payment_intent_id="pi_1")
PAID = Receipt(payment_intent_id="pi_1", fate="PAID", event_number=7)
BACKORDER = Policy(late="backorder")
REVIEW = Policy(other_amount="review")


def told(id_: str = "pi_1", state: Any = "moved", **other: Any) -> Movement:
    fields = {"purpose": "charge", "amount_micros": PRICE, "currency": "EUR", **other}
    return Movement(provider="stripe", id=id_, state=state, status=state, **fields)


def case(**fields: Any) -> Case:
    return msgspec.structs.replace(CASE, **fields)


@pytest.mark.parametrize(
    ("movement", "ours", "of", "expected"),
    [
        (told(), None, None, Break("missing_here")),
        (told(state="failed"), None, None, Ignore("failed")),
        (told(state="returned"), None, None, Break("missing_here")),
        (told(state="returned"), LIVE, CASE, Break("disputed")),
        (told(state="returned"), LIVE, case(status="PAID", receipts=(PAID,)), Break("disputed")),
        (told(state="waiting"), LIVE, CASE, Ignore("waiting")),
        (told(state="moving"), LIVE, CASE, Ignore("moving")),
        (told(state="failed"), LIVE, CASE, FailCharge("failed_at_the_provider")),
        (told(state="failed"), Ours(status="FAILED", payment_intent_id="pi_1"), CASE, Ignore("failed")),
        (told(state="failed"), Ours(status="PENDING", payment_intent_id=None), CASE, Ignore("failed")),
        (told("pi_2", "failed"), LIVE, CASE, Ignore("failed")),
        (told(state="failed"), LIVE, case(status="PAID", receipts=(PAID,)), Break("contradicted")),
        (told(), LIVE, CASE, Pay()),
        (told(), Ours(status="FAILED", payment_intent_id="pi_1"), CASE, Pay()),
        (told(), LIVE, case(status="PAID", receipts=(PAID,)), ToldBefore(PAID)),
        (told("pi_2"), LIVE, case(status="PAID", receipts=(PAID,)), GiveBack(SECOND)),
        (told(), LIVE, case(status="CANCELLED"), GiveBack(CANCELLED)),
        (told(), LIVE, case(status="CANCELLED", policy=BACKORDER, available=5), GiveBack(CANCELLED)),
        (told(), LIVE, case(status="CANCELLED_BY_SWEEPER"), GiveBack(LATE)),
        (told(), LIVE, case(status="CANCELLED_BY_SWEEPER", policy=BACKORDER, available=2), Pay()),
        (told(), LIVE, case(status="CANCELLED_BY_SWEEPER", policy=BACKORDER, available=1), Pay(is_backordered=True)),
        (told(), LIVE, case(status="CANCELLED_BY_SWEEPER", policy=BACKORDER), Pay(is_backordered=True)),
        (told(amount_micros=PRICE - 1), LIVE, CASE, GiveBack(OTHER_AMOUNT)),
        (told(amount_micros=PRICE + 1), LIVE, CASE, GiveBack(OTHER_AMOUNT)),
        (told(currency="USD"), LIVE, CASE, GiveBack(OTHER_AMOUNT)),
        (told(currency="USD"), LIVE, case(policy=REVIEW), Review(OTHER_AMOUNT)),
        # Even where the order would have been paid late: what differs is not the price that was agreed.
        (told(amount_micros=1), LIVE, case(status="CANCELLED_BY_SWEEPER", policy=BACKORDER), GiveBack(OTHER_AMOUNT)),
    ],
)
def test_what_a_charges_event_means(movement: Movement, ours: Ours | None, of: Case | None, expected: Decision) -> None:
    assert decide(movement, ours, of) == expected


@pytest.mark.parametrize(
    ("state", "refund", "expected"),
    [
        ("moved", None, Break("refunded_outside")),
        ("failed", None, Ignore("failed")),
        ("moved", ("PENDING", None), Complete()),
        ("moving", ("PENDING", None), Complete()),
        ("failed", ("PENDING", None), FailRefund("failed_at_the_provider")),
        ("returned", ("PENDING", None), FailRefund("returned_at_the_provider")),
        ("moved", ("COMPLETED", "re_1"), Ignore("told before")),
        ("failed", ("COMPLETED", "re_1"), FailRefund("failed_at_the_provider")),
        ("moved", ("COMPLETED", "re_2"), Break("contradicted")),
        ("failed", ("COMPLETED", "re_2"), Ignore("failed")),
        ("failed", ("FAILED", "re_1"), Ignore("told before")),
        ("moved", ("FAILED", "re_1"), Break("contradicted")),
        # News of before it failed, which came after.
        ("moving", ("FAILED", "re_1"), Ignore("told before")),
        ("waiting", ("FAILED", "re_1"), Ignore("told before")),
    ],
)
def test_what_a_refunds_event_means(state: str, refund: tuple[Any, str | None] | None, expected: Any) -> None:
    movement = told("re_1", state, purpose="refund", parent="pi_1")
    logged = None if refund is None else LoggedRefund(status=refund[0], refund_id=refund[1])
    assert decide_refund(movement, logged, is_payment_ours=True) == expected
    if refund is None and state == "moved":
        assert decide_refund(movement, None, is_payment_ours=False) == Break("missing_here")


_PAYER = Receipt(payment_intent_id="pi_0", fate="PAID", event_number=0)
CASES = st.builds(
    Case,
    status=st.sampled_from(["PENDING", "PAID", "CANCELLED", "CANCELLED_BY_SWEEPER"]),
    quantity=st.just(1),
    amount_micros=st.just(PRICE),
    currency=st.just("EUR"),
    policy=st.builds(
        Policy, late=st.sampled_from(["refund", "backorder"]), other_amount=st.sampled_from(["refund", "review"])
    ),
    available=st.integers(0, 2),
).map(lambda made: msgspec.structs.replace(made, receipts=(_PAYER,)) if made.status == "PAID" else made)
# Payments of one order: told any number of times, of the right amount or not; some have failed before.
STORIES = st.lists(
    st.tuples(st.sampled_from(["pi_1", "pi_2"]), st.sampled_from(["moved", "moved", "waiting", "moving"])),
    min_size=1,
    max_size=7,
)


def played(start: Case, movements: Sequence[Movement]) -> Case:
    """One after the other, as a batch or as many batches do."""
    stands = start
    for number, movement in enumerate(movements, start=1):
        decision = decide(movement, LIVE, stands)
        stands = after(stands, movement, decision, event_number=number)
    return stands


def fates(stands: Case) -> dict[str, str]:
    return {one.payment_intent_id: one.fate for one in stands.receipts}


@given(start=CASES, story=STORIES, chance=st.randoms(use_true_random=False), is_odd=st.booleans())
def test_no_order_of_events_changes_what_is_paid_and_owed(
    *, start: Case, story: Any, chance: Any, is_odd: bool
) -> None:
    """Up to which of two equal payments was the first: as many pay, as many go back, whoever is told when."""
    amounts = {"pi_1": PRICE, "pi_2": PRICE - 1 if is_odd else PRICE}
    movements = [told(id_, state, amount_micros=amounts[id_]) for id_, state in story]
    shuffled = list(movements)
    chance.shuffle(shuffled)
    one, other = played(start, movements), played(start, shuffled)
    assert one.status == other.status
    assert sorted(fates(one).values()) == sorted(fates(other).values())
    assert set(fates(one)) == set(fates(other))
    if is_odd:
        assert fates(one) == fates(other)


@given(CASES, STORIES, st.lists(st.integers(0, 6), max_size=6))
def test_telling_again_changes_nothing(start: Case, story: Any, again: list[int]) -> None:
    movements = [told(id_, state) for id_, state in story]
    repeated = [*movements, *(movements[place % len(movements)] for place in again)]
    assert played(start, repeated) == played(start, movements)


@given(CASES, STORIES)
def test_a_payment_counts_once_and_one_pays(start: Case, story: Any) -> None:
    stands = played(start, [told(id_, state) for id_, state in story])
    ids = [one.payment_intent_id for one in stands.receipts]
    assert len(ids) == len(set(ids))
    assert sum(one.fate == "PAID" for one in stands.receipts) == (stands.status == "PAID")
    assert stands.available is not None
    assert stands.available >= 0
    moved = {id_ for id_, state in story if state == "moved"}
    assert moved <= set(ids)


REFUNDED = st.permutations(["moved", "moving", "moved", "failed", "failed"])


@given(states=REFUNDED, is_known=st.booleans())
def test_a_refund_that_failed_is_owed_in_whatever_order_it_is_told(*, states: list[str], is_known: bool) -> None:
    """Its arrival, told after its failure, does not make it good again."""
    logged = LoggedRefund(status="COMPLETED" if is_known else "PENDING", refund_id="re_1" if is_known else None)
    for state in states:
        match decide_refund(told("re_1", state, purpose="refund"), logged, is_payment_ours=True):
            case Complete():
                logged = LoggedRefund(status="COMPLETED", refund_id="re_1")
            case FailRefund():
                logged = LoggedRefund(status="FAILED", refund_id="re_1")
            case _:
                pass
    assert logged.status == "FAILED"
