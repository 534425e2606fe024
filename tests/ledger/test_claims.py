"""Claim, run, record, replay as pure decisions."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Claim, Facts, Fault, Known, Record, Tenant, decide
from tallystick.ledger.kinds import Hold, Kind, Kinds, Operation, Refund, Release, Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Rejected, read_transaction
from tallystick.ledger.rules import Account, Leg

AT = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = Tenant(1, "default")


class Explosive(Operation, frozen=True, tag_field="kind", tag="explosive"):
    """Raises when it is run."""


def _explode(_operation: Any, _reading: Any) -> list[Leg]:
    message = "boom"
    raise ValueError(message)


KINDS = Kinds([Kind(Explosive, lambda _operation, _transactions: (), _explode)])


def claim(operation: Operation, key: str, tenant: Tenant = TENANT) -> Claim:
    kind = KINDS.of(operation)
    assert kind is not None
    return Claim(tenant, operation_id(tenant.name, key), key, kind, operation, KINDS.request(operation))


def facts(known: list[Record] | None = None, **balances: int) -> Facts:
    book = {n: Account(i, n, "USD", 0, balance, 0) for i, (n, balance) in enumerate(balances.items())}
    records = known or []
    return Facts(
        AT,
        {(r.claim.tenant.number, r.claim.id): Known(r.claim.key, r.claim.request, r.body) for r in records},
        {1: book},
        {1: {read_transaction(r.body).id: read_transaction(r.body) for r in records}},
        {},
    )


def move(amount: int, debit: str = "a", credit: str = "b") -> Transfer:
    return Transfer(debit=debit, credit=credit, amount_micros=amount, currency="USD")


def test_later_operations_of_a_batch_see_the_effect_of_earlier_ones() -> None:
    answers, records = decide(
        [claim(move(100), "k1"), claim(move(60, "b", "a"), "k2"), claim(move(50, "b", "a"), "k3")],
        facts(a=100, b=0),
    )
    assert [type(answer) for answer in answers] == [Committed, Committed, Rejected]
    assert [entry.balance_micros for entry in records[1].entries] == [40, 60]


def test_a_replay_returns_the_recorded_bytes() -> None:
    _, records = decide([claim(move(1), "k")], facts(a=1, b=0))
    answers, again = decide([claim(move(1), "k")], facts(records, a=0, b=1))
    assert answers == [Duplicate(records[0].body)]
    assert again == []


def test_another_payload_under_a_used_key_names_what_differs() -> None:
    _, records = decide([claim(move(1), "k")], facts(a=1, b=0))
    other = Transfer(debit="a", credit="c", amount_micros=2, currency="USD", memo="hi")
    (answer,), _ = decide([claim(other, "k")], facts(records, a=5, b=1))
    assert isinstance(answer, Rejected)
    assert answer.code == "key_reused"
    assert answer.fields == ("amount_micros", "credit", "memo")


def test_a_handler_that_raises_harms_nobody_else() -> None:
    answers, records = decide([claim(move(1), "k1"), claim(Explosive(), "k2"), claim(move(1), "k3")], facts(a=2, b=0))
    assert [type(answer) for answer in answers] == [Committed, Fault, Committed]
    assert len(records) == 2


def test_an_operation_sees_its_own_tenants_accounts_only() -> None:
    """The wall, by construction: another tenant's account of the same id is not in the book."""
    stranger = Tenant(2, "other")
    (answer,), records = decide([claim(move(1), "k", stranger)], facts(a=100, b=0))
    assert isinstance(answer, Rejected)
    assert answer.code == "account_unknown"
    assert records == []


def test_a_hold_is_released_once_within_one_batch() -> None:
    _, (held,) = decide([claim(Hold(account="a", held="h", amount_micros=50, currency="USD"), "k")], facts(a=50, h=0))
    name = read_transaction(held.body).id
    answers, _ = decide(
        [
            claim(Release(hold=name, to="b", amount_micros=20), "r1"),
            claim(Release(hold=name), "r2"),
        ],
        facts([held], a=0, h=50, b=0),
    )
    first, second = answers
    assert isinstance(first, Committed)
    assert {e.account: e.amount_micros for e in first.transaction.entries} == {"h": -50, "b": 20, "a": 30}
    assert isinstance(second, Rejected)
    assert second.code == "already_closed"


def test_a_refund_of_what_nobody_knows_is_refused() -> None:
    (answer,), _ = decide([claim(Refund(transaction="tx_" + "0" * 32), "k")], facts(a=1))
    assert isinstance(answer, Rejected)
    assert answer.code == "transaction_unknown"


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 40), st.booleans()),
        max_size=30,
    )
)
def test_every_key_has_at_most_one_effect(submissions: list[tuple[int, int, bool]]) -> None:
    """Over any sequence of single-claim batches, with repeated and reused keys."""
    known: list[Record] = []
    balances = {"a": 100, "b": 0}
    for key_number, amount, forth in submissions:
        operation = move(amount) if forth else move(amount, "b", "a")
        (answer,), records = decide([claim(operation, f"k{key_number}")], facts(known, **balances))
        used = [r for r in known if r.claim.key == f"k{key_number}"]
        if used:
            assert not records
            same = used[0].claim.request == KINDS.request(operation)
            assert isinstance(answer, Duplicate if same else Rejected)
        else:
            assert bool(records) is isinstance(answer, Committed)
        for record in records:
            known.append(record)
            for entry in record.entries:
                balances[entry.account] = entry.balance_micros
        assert sum(balances.values()) == 100
        assert min(balances.values()) >= 0
