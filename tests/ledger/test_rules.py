"""The ledger's decisions: tables for the refusals, properties for the dangers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.outcome import Rejected
from tallystick.ledger.rules import Account, Book, Leg, post
from tallystick.ledger.velocity import Limit, VelocityLimit, limits_fault
from tallystick.money.amounts import MAX_MICROS


def book(**balances: int) -> Book:
    return {name: Account(i, name, "USD", 0, balance, 0) for i, (name, balance) in enumerate(balances.items())}


def legs(*sides: tuple[str, int]) -> tuple[Leg, ...]:
    return tuple(Leg(name, amount, "USD") for name, amount in sides)


@pytest.mark.parametrize(
    ("given_legs", "code"),
    [
        ((), "legs_missing"),
        (legs(("a", 5)), "legs_missing"),
        (legs(*((f"x{i}", 1) for i in range(101))), "legs_missing"),
        (legs(("a", 0), ("b", 0)), "leg_invalid"),
        (legs(("a", True), ("b", -1)), "leg_invalid"),
        (legs(("a", 1.0), ("b", -1)), "leg_invalid"),  # type: ignore[arg-type]
        (legs(("a", -(MAX_MICROS + 1)), ("b", MAX_MICROS + 1)), "amount_overflow"),
        (legs(("a", -5), ("a", 5)), "same_account"),
        (legs(("a", -5), ("nobody", 5)), "account_unknown"),
        ((Leg("a", -5, "EUR"), Leg("b", 5, "EUR")), "currency_mismatch"),
        (legs(("a", -5), ("b", 4)), "legs_unbalanced"),
        (legs(("a", -101), ("b", 101)), "insufficient_funds"),
    ],
)
def test_refusals_and_their_codes(given_legs: tuple[Leg, ...], code: str) -> None:
    accounts = book(a=100, b=0)
    before = dict(accounts)
    refused = post(accounts, given_legs)
    assert isinstance(refused, Rejected)
    assert refused.code == code
    assert accounts == before, "a refused posting left a trace"


@pytest.mark.parametrize(
    ("given_legs", "code"),
    [
        # Each is wrong in two ways; the earlier rule of the list is the answer.
        (legs(("a", 0), ("a", 0)), "leg_invalid"),
        (legs(("nobody", -5), ("nobody", 4)), "same_account"),
        (legs(("nobody", -5), ("b", 4)), "account_unknown"),
        (legs(("a", -500), ("b", 400)), "legs_unbalanced"),
    ],
)
def test_the_first_refusal_in_order_wins(given_legs: tuple[Leg, ...], code: str) -> None:
    refused = post(book(a=100, b=0), given_legs)
    assert isinstance(refused, Rejected)
    assert refused.code == code


def test_a_balance_that_would_overflow_is_refused() -> None:
    accounts = {
        "a": Account(1, "a", "USD", None, 0, 0),
        "b": Account(2, "b", "USD", 0, MAX_MICROS, 0),
    }
    refused = post(accounts, legs(("a", -1), ("b", 1)))
    assert isinstance(refused, Rejected)
    assert refused.code == "balance_overflow"


def test_an_account_may_receive_while_it_stands_at_its_floor() -> None:
    accounts = book(a=5, b=0)
    assert not isinstance(post(accounts, legs(("a", -5), ("b", 5))), Rejected)
    assert not isinstance(post(accounts, legs(("b", -5), ("a", 5))), Rejected)


@given(
    balances=st.lists(st.integers(0, 1000), min_size=2, max_size=5),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 600)), max_size=40),
)
def test_no_sequence_of_postings_creates_money_or_breaks_a_floor(
    balances: list[int], moves: list[tuple[int, int, int]]
) -> None:
    """Conservation and solvency, whatever is asked and in whatever order."""
    names = [f"n{i}" for i in range(len(balances))]
    accounts = book(**dict(zip(names, balances, strict=True)))
    for source, target, amount in moves:
        debit, credit = names[source % len(names)], names[target % len(names)]
        before = dict(accounts)
        posted = post(accounts, legs((debit, -amount), (credit, amount)))
        if isinstance(posted, Rejected):
            assert accounts == before
        else:
            for entry in posted:
                assert accounts[entry.account].balance_micros == entry.balance_micros
                assert accounts[entry.account].entries == entry.number == before[entry.account].entries + 1
        assert sum(account.balance_micros for account in accounts.values()) == sum(balances)
        assert all(account.balance_micros >= 0 for account in accounts.values())


@given(
    amounts=st.lists(st.integers(1, 100), max_size=30),
    max_count=st.none() | st.integers(0, 10),
    max_sum=st.none() | st.integers(0, 500),
)
def test_velocity_counts_what_the_same_batch_already_took(
    amounts: list[int], max_count: int | None, max_sum: int | None
) -> None:
    """A limit read once per batch must still hold within it."""
    limit = Limit(60, max_count, max_sum)
    accounts = {
        "a": Account(1, "a", "USD", None, 0, 0, (limit,)),
        "b": Account(2, "b", "USD", None, 0, 0),
    }
    taken: list[int] = []
    for amount in amounts:
        posted = post(accounts, legs(("a", -amount), ("b", amount)))
        fits = (max_count is None or len(taken) < max_count) and (max_sum is None or sum(taken) + amount <= max_sum)
        assert isinstance(posted, Rejected) is not fits
        if fits:
            taken.append(amount)
        else:
            assert isinstance(posted, Rejected)
            assert posted.code == "velocity_exceeded"


@pytest.mark.parametrize(
    "limits",
    [
        (VelocityLimit(0, 1),),
        (VelocityLimit(60),),
        (VelocityLimit(60, -1),),
        (VelocityLimit(60, True),),
        (VelocityLimit(60, 1), VelocityLimit(60, 2)),
        (VelocityLimit(10**9, 1),),
        tuple(VelocityLimit(60 + i, 1) for i in range(6)),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits: tuple[VelocityLimit, ...]) -> None:
    refused = limits_fault(limits)
    assert refused is not None
    assert refused.code == "limits_invalid"
