"""The gate's decisions: never more than there is, first come first served, one grant per key."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.order import rules as order
from tallystick.checkout.order.rules import (
    GRANTED,
    MAX_AMOUNT_MICROS,
    MAX_QUANTITY,
    MAX_STOCK,
    STATUSES,
    STEPS,
    OrderReserved,
    Stock,
    admit,
    claim_of,
    hopeful,
    is_overdue,
    order_id,
    order_name,
    place_of,
    quantity_of,
    recorded,
    restock_fault,
    sku_fault,
    stock_fault,
    wish_fault,
)
from tallystick.ledger.claims import Claim, Known, Tenant
from tallystick.ledger.outcome import Duplicate, Rejected, read_transaction

ONE, TWO = Tenant(1, "one"), Tenant(2, "two")
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def asked(sku: Any = "lamp", quantity: Any = 1, amount_micros: Any = 5, currency: Any = "EUR") -> OrderReserved:
    return OrderReserved(sku=sku, quantity=quantity, amount_micros=amount_micros, currency=currency)


def claim(key: str, sku: str = "lamp", quantity: int = 1, tenant: Tenant = ONE) -> Claim:
    return claim_of(tenant, asked(sku, quantity), key)


def code(answer: object) -> str:
    return answer.code if isinstance(answer, Rejected) else type(answer).__name__


@pytest.mark.parametrize(
    ("wish", "refused"),
    [
        (asked(), None),
        (asked(quantity=MAX_QUANTITY, amount_micros=MAX_AMOUNT_MICROS), None),
        (asked(sku=""), "sku_invalid"),
        (asked(sku="a b"), "sku_invalid"),
        (asked(sku='a"b'), "sku_invalid"),
        (asked(sku="-lamp"), "sku_invalid"),
        (asked(sku="a" * 121), "sku_invalid"),
        (asked(sku="lamp\n"), "sku_invalid"),
        (asked(sku=7), "sku_invalid"),
        (asked(quantity=0), "quantity_not_positive"),
        (asked(quantity=-1), "quantity_not_positive"),
        (asked(quantity=True), "quantity_not_integer"),
        (asked(quantity=1.0), "quantity_not_integer"),
        (asked(quantity="1"), "quantity_not_integer"),
        (asked(quantity=MAX_QUANTITY + 1), "quantity_too_large"),
        (asked(quantity=10**5000), "quantity_too_large"),
        (asked(amount_micros=0), "amount_not_positive"),
        (asked(amount_micros=-5), "amount_not_positive"),
        (asked(amount_micros=5.0), "amount_not_integer"),
        (asked(amount_micros=True), "amount_not_integer"),
        (asked(amount_micros=MAX_AMOUNT_MICROS + 1), "amount_overflow"),
        (asked(amount_micros=10**5000), "amount_overflow"),
        (asked(currency="eur"), "currency_unknown"),
        (asked(currency="XXX"), "currency_unknown"),
        # The first that is wrong is told.
        (asked(sku="", quantity=0, amount_micros=0, currency=""), "sku_invalid"),
        (asked(quantity=0, amount_micros=0, currency=""), "quantity_not_positive"),
        (asked(amount_micros=0, currency=""), "amount_not_positive"),
    ],
)
def test_a_wish_is_refused_for_the_first_thing_that_is_wrong(wish: OrderReserved, refused: str | None) -> None:
    fault = wish_fault(wish)
    assert (fault and fault.code) == refused
    assert fault is None or len(str(fault)) < 600


@pytest.mark.parametrize(
    "stock", [-1, True, 1.5, "3", None, MAX_STOCK + 1, 10**5000], ids=lambda value: type(value).__name__
)
def test_a_stock_is_a_number_of_pieces(stock: Any) -> None:
    fault = stock_fault(stock)
    assert fault is not None
    assert fault.code == "stock_invalid"
    assert stock_fault(0) is stock_fault(MAX_STOCK) is None


def test_a_stock_below_what_is_promised_is_refused_with_the_figures() -> None:
    now = Stock(stock=10, reserved=3, sold=5)
    assert restock_fault("lamp", 8, now) is None
    fault = restock_fault("lamp", 7, now)
    assert fault is not None
    assert fault.code == "stock_too_low"
    assert "3 reserved and 5 sold" in fault.detail
    assert "Send 8 or more" in fault.remedy


def test_more_than_there_ever_was_is_told_apart_from_sold_out() -> None:
    """One is a mistake of the caller's; the other passes when somebody gives his reservation back."""
    stocks = {(1, "lamp"): Stock(stock=3, reserved=2)}
    answers = admit([claim("a", quantity=4), claim("b", quantity=2), claim("c"), claim("d", "none")], stocks, {})
    assert [code(answer) for answer in answers] == ["quantity_above_stock", "sold_out", "Granted", "sku_unknown"]


def test_a_twin_in_the_same_batch_gets_the_first_ones_order_and_no_second() -> None:
    stocks = {(1, "lamp"): Stock(stock=2)}
    answers = admit([claim("k"), claim("k"), claim("k", quantity=2), claim("l"), claim("m")], stocks, {})
    assert [code(answer) for answer in answers] == ["Granted", "Duplicate", "key_reused", "Granted", "sold_out"]
    reused = answers[2]
    assert isinstance(reused, Rejected)
    assert reused.fields == ("quantity",)


def test_a_used_key_is_replayed_also_when_nothing_is_left() -> None:
    first = claim("k")
    known = {(1, first.id): Known("k", first.request, b"")}
    stocks = {(1, "lamp"): Stock(stock=1, reserved=1)}
    assert [code(a) for a in admit([claim("k"), claim("l")], stocks, known)] == ["Duplicate", "sold_out"]


def test_the_same_key_of_two_tenants_is_two_keys() -> None:
    stocks = {(1, "lamp"): Stock(stock=1), (2, "lamp"): Stock(stock=1)}
    assert admit([claim("k"), claim("k", tenant=TWO)], stocks, {}) == [GRANTED, GRANTED]


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[Claim], dict[tuple[int, str], Stock]]:
    skus = ["a", "b", "c"]
    stocks = {}
    for tenant in (1, 2):
        for sku in skus[: draw(st.integers(1, 3))]:
            stock = draw(st.integers(0, 12))
            reserved = draw(st.integers(0, stock))
            stocks[tenant, sku] = Stock(stock, reserved, draw(st.integers(0, stock - reserved)))
    wishes = draw(
        st.lists(
            st.tuples(
                st.sampled_from([ONE, TWO]), st.sampled_from(skus), st.integers(1, 5), st.sampled_from("klmnopqrst")
            ),
            max_size=25,
        )
    )
    return [claim(key, sku, quantity, tenant) for tenant, sku, quantity, key in wishes], stocks


@given(crowds())
def test_the_gate_never_grants_more_than_there_is_nor_one_key_twice(
    crowd: tuple[list[Claim], dict[tuple[int, str], Stock]],
) -> None:
    claims, stocks = crowd
    granted = [c for c, answer in zip(claims, admit(claims, stocks, {}), strict=True) if answer is GRANTED]
    for place, stock in stocks.items():
        assert sum(quantity_of(c) for c in granted if place_of(c) == place) <= stock.available
    assert len({(c.tenant.number, c.id) for c in granted}) == len(granted)


@given(crowds())
def test_who_is_refused_could_not_have_been_served_by_what_was_left_at_his_turn(
    crowd: tuple[list[Claim], dict[tuple[int, str], Stock]],
) -> None:
    """First come, first served: what a later one gets was never enough for an earlier one."""
    claims, stocks = crowd
    left = {place: stock.available for place, stock in stocks.items()}
    for one, answer in zip(claims, admit(claims, stocks, {}), strict=True):
        place, quantity = place_of(one), quantity_of(one)
        if answer is GRANTED:
            assert quantity <= left[place]
            left[place] -= quantity
        elif code(answer) == "sold_out":
            assert left[place] < quantity <= stocks[place].stock
        elif code(answer) == "quantity_above_stock":
            assert quantity > stocks[place].stock
        else:
            assert place not in stocks or isinstance(answer, Duplicate) or code(answer) == "key_reused"


@given(crowds())
def test_where_nothing_is_hoped_for_nothing_is_granted(
    crowd: tuple[list[Claim], dict[tuple[int, str], Stock]],
) -> None:
    """Only hopeful SKUs are locked: a grant on another one would be decided on a stale reading."""
    claims, stocks = crowd
    wanted = hopeful(claims, stocks)
    granted = {place_of(c) for c, answer in zip(claims, admit(claims, stocks, {}), strict=True) if answer is GRANTED}
    assert granted <= wanted


def test_every_step_leads_from_pending_and_ends() -> None:
    assert STEPS.keys() == set(STATUSES)
    assert {status for status in STATUSES if STEPS[status]} == {"PENDING"}
    assert STEPS["PENDING"] == set(STATUSES) - {"PENDING"}


def test_a_cancellation_is_a_step_only_of_what_is_pending() -> None:
    found = {status: order.cancel("or_1", status) for status in STATUSES}
    assert found["PENDING"] == "CANCELLED"
    assert found["CANCELLED"] is found["CANCELLED_BY_SWEEPER"] is None
    assert code(found["PAID"]) == "order_paid"


@given(st.integers(-10_000, 10_000), st.integers(0, 5_000))
def test_nobody_is_swept_before_his_time_and_the_grace_after_it(late: int, grace: int) -> None:
    expires_at, span = NOW, timedelta(milliseconds=grace)
    now = expires_at + timedelta(milliseconds=late)
    assert is_overdue(expires_at, now=now, grace=span) == (late >= grace)


@given(st.binary(min_size=16, max_size=16))
def test_an_id_has_one_spelling(raw: bytes) -> None:
    name = order_name(raw)
    found = order_id(name)
    assert found is not None
    assert found.bytes == raw
    for other in (name.upper(), f" {name}", f"{name}\n", name[:-1], name.replace("or_", "tx_"), f"or_{found}"):
        assert order_id(other) is None or other == name


def test_what_stands_under_the_key_is_a_transaction_that_moved_nothing() -> None:
    """Whoever reads operations (refunds, explain) must be able to read this one."""
    one = claim("k")
    transaction = read_transaction(recorded(one, NOW))
    assert (transaction.kind, transaction.entries, transaction.idempotency_key) == ("order.reserved", (), "k")
    assert transaction.at == NOW


@given(st.text(max_size=130))
def test_a_sku_needs_no_quoting_anywhere(text: str) -> None:
    if sku_fault(text) is None:
        assert text.isascii()
        assert not set(text) & set("\"\\/%?# \t\r\n'")
