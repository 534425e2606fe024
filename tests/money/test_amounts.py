import ast
from decimal import Decimal, getcontext, localcontext
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.keys import derived as keys
from tallystick.money import amounts as money
from tallystick.money import currencies
from tallystick.money.amounts import MAX_MICROS, NotRepresentable
from tallystick.money.currencies import EXPONENTS, Purpose
from tests.wires import WIRES, wire_of

INTEGER_PROVIDERS: list[str | None] = [None, "adyen", "square", "stripe"]

amounts = st.integers(min_value=-MAX_MICROS, max_value=MAX_MICROS)
positive_amounts = st.integers(min_value=0, max_value=MAX_MICROS)
codes = st.sampled_from(sorted(EXPONENTS))
integer_providers = st.sampled_from(INTEGER_PROVIDERS)
providers = st.sampled_from([*INTEGER_PROVIDERS, "wise"])
purposes: st.SearchStrategy[Purpose] = st.sampled_from(get_args(Purpose))


class WholeNumber(int):
    """An int that could bring its own arithmetic."""


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (1, None),
        (5_000_000, None),
        (MAX_MICROS, None),
        (MAX_MICROS + 1, "amount_overflow"),
        (10**400, "amount_overflow"),
        (0, "amount_not_positive"),
        (-1, "amount_not_positive"),
        (-(10**400), "amount_not_positive"),
        (True, "amount_not_integer"),
        (False, "amount_not_integer"),
        (5.0, "amount_not_integer"),
        (float("nan"), "amount_not_integer"),
        ("5000000", "amount_not_integer"),
        (b"5", "amount_not_integer"),
        (Decimal(5), "amount_not_integer"),
        (WholeNumber(5), "amount_not_integer"),
        (None, "amount_not_integer"),
        ([5], "amount_not_integer"),
    ],
)
def test_only_a_positive_int_that_the_database_can_hold_is_an_amount(value: object, fault: str | None) -> None:
    """Anything let through here moves money: True would be one micro, 5.0 a guess."""
    assert money.amount_fault(value) == fault


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("USD", True),
        ("UYW", True),
        ("usd", False),
        ("Usd", False),
        (" USD", False),
        ("", False),
        ("XAU", False),
    ],
)
def test_a_currency_is_an_active_code_in_capitals(code: str, known: bool) -> None:  # noqa: FBT001 - a table's column
    """A second spelling would be a second account for the same money."""
    assert money.is_currency(code) is known


@pytest.mark.parametrize(
    ("provider", "currency", "purpose", "amount_micros", "minor"),
    [
        (None, "USD", "charge", 3_200_000, 320),
        ("stripe", "USD", "charge", 3_200_000, 320),
        ("stripe", "USD", "refund", 10_000, 1),
        ("stripe", "JPY", "charge", 500_000_000, 500),
        ("stripe", "MGA", "charge", 500_000_000, 500),
        ("square", "MGA", "charge", 500_000_000, 50_000),
        ("stripe", "ISK", "charge", 5_000_000, 500),
        ("stripe", "UGX", "charge", 5_000_000, 500),
        ("square", "ISK", "charge", 5_000_000, 5),
        ("square", "UGX", "charge", 5_000_000, 5),
        ("stripe", "HUF", "charge", 10_450_000, 1045),
        ("stripe", "HUF", "transfer", 10_450_000, 1045),
        ("stripe", "HUF", "payout", 10_000_000, 1000),
        ("stripe", "TWD", "payout", 800_000_000, 80_000),
        ("stripe", "KWD", "charge", 5_120_000, 5120),
        ("adyen", "KWD", "charge", 5_124_000, 5124),
        ("adyen", "CLP", "charge", 5_000_000, 500),
        ("stripe", "CLP", "charge", 5_000_000, 5),
        ("adyen", "ISK", "charge", 5_000_000, 500),
        ("adyen", "CVE", "charge", 5_000_000, 5),
        ("square", "CVE", "charge", 5_000_000, 500),
        ("adyen", "IDR", "charge", 5_000_000, 5),
        ("stripe", "IDR", "charge", 5_000_000, 500),
        ("adyen", "UGX", "charge", 5_000_000, 5),
        (None, "CLF", "charge", 1_000_100, 10_001),
        ("square", "USD", "charge", -3_200_000, -320),
        ("square", "USD", "charge", 0, 0),
    ],
)
def test_each_provider_gets_its_own_integer(
    provider: str | None, currency: str, purpose: Purpose, amount_micros: int, minor: int
) -> None:
    """Off by one row is a payment of a hundred times the amount."""
    assert money.to_minor(amount_micros, currency, wire=wire_of(provider), purpose=purpose) == minor
    assert money.from_minor(minor, currency, wire=wire_of(provider)) == amount_micros


@pytest.mark.parametrize(
    ("provider", "currency", "purpose", "amount_micros", "step_micros"),
    [
        ("stripe", "USD", "charge", 3_205_000, 10_000),
        ("stripe", "USD", "charge", 1, 10_000),
        ("stripe", "JPY", "charge", 500_500_000, 1_000_000),
        ("stripe", "ISK", "charge", 5_500_000, 1_000_000),
        ("stripe", "UGX", "refund", 5_010_000, 1_000_000),
        ("stripe", "HUF", "payout", 10_450_000, 1_000_000),
        ("stripe", "TWD", "payout", 800_450_000, 1_000_000),
        ("stripe", "KWD", "charge", 5_124_000, 10_000),
        ("stripe", "KWD", "payout", 5_124_000, 10_000),
        ("adyen", "IDR", "charge", 5_500_000, 1_000_000),
        ("adyen", "CVE", "charge", 5_500_000, 1_000_000),
    ],
)
def test_what_a_provider_cannot_write_is_refused(
    provider: str, currency: str, purpose: Purpose, amount_micros: int, step_micros: int
) -> None:
    """Rounded, the two halves would never match again."""
    refusal = money.to_minor(amount_micros, currency, wire=wire_of(provider), purpose=purpose)
    assert isinstance(refusal, NotRepresentable)
    assert refusal.code == "amount_not_representable"
    assert (refusal.currency, refusal.step_micros) == (currency, step_micros)


def test_the_refusal_tells_a_person_which_amounts_would_do() -> None:
    """Without the step they would guess, and send again."""
    refusal = money.to_minor(10_455_000, "HUF", wire=WIRES["stripe"], purpose="charge")
    assert isinstance(refusal, NotRepresentable)
    assert refusal.message == "10.455 HUF cannot be written exactly: only multiples of 0.01 HUF can."
    too_much = money.from_minor(MAX_MICROS, "USD", wire=WIRES["stripe"])
    assert isinstance(too_much, NotRepresentable)
    assert too_much.message == ("92233720368547758.07 USD is more than can be held, which is 9223372036854.775807 USD.")


@given(amounts, codes, integer_providers, purposes)
def test_what_is_sent_is_worth_exactly_the_amount(
    amount_micros: int, currency: str, provider: str | None, purpose: Purpose
) -> None:
    """One micro lost at each payment is a ledger that never reconciles."""
    minor = money.to_minor(amount_micros, currency, wire=wire_of(provider), purpose=purpose)
    step = money.step_micros(currency, wire=wire_of(provider), purpose=purpose)
    if isinstance(minor, NotRepresentable):
        assert amount_micros % step
    else:
        assert type(minor) is int
        assert money.from_minor(minor, currency, wire=wire_of(provider)) == amount_micros


@given(positive_amounts, codes, providers, purposes)
def test_a_settlement_and_its_residue_are_the_whole_amount(
    amount_micros: int, currency: str, provider: str | None, purpose: Purpose
) -> None:
    """A residue that is lost or paid as well is money made or destroyed."""
    payable, residue = money.representable_part(amount_micros, currency, wire=wire_of(provider), purpose=purpose)
    step = money.step_micros(currency, wire=wire_of(provider), purpose=purpose)
    assert payable + residue == amount_micros
    assert 0 <= residue < step
    assert 0 <= payable <= amount_micros
    assert payable % step == 0


@given(positive_amounts, codes, integer_providers, purposes)
def test_the_representable_part_can_be_sent(
    amount_micros: int, currency: str, provider: str | None, purpose: Purpose
) -> None:
    """A settlement fixed at an amount its provider refuses would be stuck for ever."""
    payable, _ = money.representable_part(amount_micros, currency, wire=wire_of(provider), purpose=purpose)
    minor = money.to_minor(payable, currency, wire=wire_of(provider), purpose=purpose)
    assert isinstance(minor, int)


@given(positive_amounts, codes, purposes)
def test_the_representable_part_can_be_sent_as_a_decimal(amount_micros: int, currency: str, purpose: Purpose) -> None:
    """The same danger at Wise."""
    payable, _ = money.representable_part(amount_micros, currency, wire=WIRES["wise"], purpose=purpose)
    assert isinstance(money.to_decimal_text(payable, currency), str)


def test_a_negative_amount_has_no_representable_part() -> None:
    """Its remainder is positive: more would be paid than is owed."""
    with pytest.raises(ValueError, match="negative"):
        money.representable_part(-1, "USD", wire=WIRES["stripe"], purpose="payout")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_provider_amount_past_the_database_is_refused(sign: int) -> None:
    """Wrapped around in a BIGINT it would become a debt."""
    largest = MAX_MICROS // 10_000
    assert money.from_minor(sign * largest, "USD", wire=WIRES["stripe"]) == sign * largest * 10_000
    refusal = money.from_minor(sign * (largest + 1), "USD", wire=WIRES["stripe"])
    assert isinstance(refusal, NotRepresentable)
    assert refusal.code == "amount_overflow"


@pytest.mark.parametrize("value", [5e6, True, "5000000", Decimal(5), None])
def test_a_conversion_takes_nothing_but_ints(value: int) -> None:
    """5e6 % 10_000 is 0.0: a float would pass as exact."""
    with pytest.raises(TypeError):
        money.to_minor(value, "USD", wire=WIRES["stripe"], purpose="charge")
    with pytest.raises(TypeError):
        money.from_minor(value, "USD", wire=WIRES["stripe"])
    with pytest.raises(TypeError):
        money.representable_part(value, "USD", wire=WIRES["stripe"], purpose="charge")
    with pytest.raises(TypeError):
        money.to_decimal_text(value, "USD")


def test_wise_never_gets_minor_units() -> None:
    """320 read as major units is a hundred times 3.20."""
    with pytest.raises(ValueError, match="major units"):
        money.to_minor(3_200_000, "USD", wire=WIRES["wise"], purpose="transfer")
    with pytest.raises(ValueError, match="major units"):
        money.from_minor(320, "USD", wire=WIRES["wise"])


@pytest.mark.parametrize(
    ("currency", "provider", "purpose"),
    [
        ("usd", "stripe", "charge"),
        ("XAU", None, "charge"),
        ("USD", "stripe", "gift"),
    ],
)
def test_an_unknown_word_is_never_taken_for_a_default(currency: str, provider: str | None, purpose: Purpose) -> None:
    """A guess at the exponent is a payment of the wrong amount."""
    with pytest.raises(ValueError, match="is not a"):
        money.to_minor(1_000_000, currency, wire=wire_of(provider), purpose=purpose)


@pytest.mark.parametrize("provider", [None, *WIRES])
def test_no_provider_writes_finer_than_a_micro(provider: str | None) -> None:
    """Its amounts could not be held in the ledger."""
    for currency in EXPONENTS:
        assert 0 <= money.exponent(currency, wire_of(provider)) <= money.MICROS_DIGITS


@pytest.mark.parametrize(
    ("amount_micros", "currency", "text"),
    [
        (3_200_000, "USD", "3.20"),
        (5_000_000, "JPY", "5"),
        (0, "USD", "0.00"),
        (-10_000, "USD", "-0.01"),
        (1_234_000, "KWD", "1.234"),
        (1_000_100, "CLF", "1.0001"),
        (MAX_MICROS - 5_807, "USD", "9223372036854.77"),
    ],
)
def test_wise_gets_the_currencys_own_decimals(amount_micros: int, currency: str, text: str) -> None:
    """Another number of decimals is a refused or a wrong transfer."""
    assert money.to_decimal_text(amount_micros, currency) == text
    assert money.from_decimal_text(text, currency) == amount_micros
    assert money.from_decimal_text(Decimal(text), currency) == amount_micros


def test_wise_gets_no_more_decimals_than_the_currency_has() -> None:
    """They would be rounded on the other side, where we cannot see it."""
    assert isinstance(money.to_decimal_text(3_205_000, "USD"), NotRepresentable)
    assert isinstance(money.to_decimal_text(500_000, "JPY"), NotRepresentable)


@given(amounts, codes)
def test_a_decimal_sent_comes_back_as_the_same_amount(amount_micros: int, currency: str) -> None:
    """What cannot be read back cannot be matched with the provider's books."""
    text = money.to_decimal_text(amount_micros, currency)
    if isinstance(text, NotRepresentable):
        assert amount_micros % text.step_micros
    else:
        assert money.from_decimal_text(text, currency) == amount_micros
        assert money.from_decimal_text(Decimal(text), currency) == amount_micros


@given(amounts, st.integers(min_value=1, max_value=30))
def test_the_context_of_decimal_does_not_round_an_amount(amount_micros: int, digits: int) -> None:
    """A library that lowers the precision of the process would change amounts."""
    number = Decimal(amount_micros).scaleb(-6, getcontext().copy())
    with localcontext() as context:
        context.prec = digits
        assert money.from_decimal_text(number, "USD") == amount_micros


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("7", 7_000_000),
        ("0.1", 100_000),
        ("-0.0", 0),
        ("1.2345670000", 1_234_567),
        ("007.50", 7_500_000),
        (Decimal("1E+3"), 1_000_000_000),
        (Decimal("1E-6"), 1),
    ],
)
def test_a_decimal_answer_is_read_to_the_micro(text: str | Decimal, micros: int) -> None:
    """Wise may write the same amount in several ways."""
    assert money.from_decimal_text(text, "USD") == micros


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0.0000001", "amount_not_representable"),
        ("1.0000000000000000001", "amount_not_representable"),
        (Decimal("1E-7"), "amount_not_representable"),
        ("9223372036854.775808", "amount_overflow"),
        ("-9223372036854.775808", "amount_overflow"),
        ("1" + "0" * 39, "amount_overflow"),
    ],
)
def test_a_decimal_answer_that_cannot_be_held_is_refused(text: str | Decimal, code: str) -> None:
    """Cut off or wrapped around, it would be another amount."""
    refusal = money.from_decimal_text(text, "USD")
    assert isinstance(refusal, NotRepresentable)
    assert refusal.code == code


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1\n",
        "1,50",
        "1_000",
        "1e3",
        "+1",
        ".5",
        "5.",
        "NaN",
        "Infinity",
        "--1",
        "\u0661",
        "9" * 41,
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E+999999"),
        Decimal("1E-999999"),
    ],
)
def test_text_that_is_no_plain_number_is_not_read_as_one(text: str | Decimal) -> None:
    """A broken answer must become an unknown outcome, never an amount."""
    with pytest.raises(ValueError, match="is not a decimal amount"):
        money.from_decimal_text(text, "USD")


@pytest.mark.parametrize("value", [3.2, 3, None])
def test_a_decimal_answer_is_never_a_float(value: str) -> None:
    """A JSON parser that made a float of it has already lost the amount."""
    with pytest.raises(TypeError, match="str or Decimal"):
        money.from_decimal_text(value, "USD")


@pytest.mark.parametrize(
    ("amount_micros", "currency", "text"),
    [
        (3_200_000, "USD", "3.20 USD"),
        (5_000_000, "JPY", "5 JPY"),
        (500_000, "JPY", "0.5 JPY"),
        (3_205_000, "USD", "3.205 USD"),
        (1, "USD", "0.000001 USD"),
        (-1, "USD", "-0.000001 USD"),
        (-3_200_000, "USD", "-3.20 USD"),
        (0, "USD", "0.00 USD"),
        (0, "JPY", "0 JPY"),
        (1_500_000, "KWD", "1.500 KWD"),
        (100_000_000, "JPY", "100 JPY"),
        (MAX_MICROS, "USD", "9223372036854.775807 USD"),
        (3_200_000, "BGN", "3.2 BGN"),
        (3_000_000, "nonsense", "3 nonsense"),
    ],
)
def test_a_person_reads_the_exact_amount(amount_micros: int, currency: str, text: str) -> None:
    """A rounded figure in a message hides the micro that is missing."""
    assert money.format_amount(amount_micros, currency) == text


@given(amounts, codes)
def test_what_a_person_reads_is_worth_the_amount(amount_micros: int, currency: str) -> None:
    """Operators copy amounts from messages into payments."""
    number, code = money.format_amount(amount_micros, currency).split(" ")
    assert code == currency
    assert money.from_decimal_text(number, currency) == amount_micros


@pytest.mark.parametrize("module", [currencies, keys, money], ids=lambda module: module.__name__)
def test_there_is_no_float_in_the_code_of_money(module: object) -> None:
    """0.1 + 0.2 is not 0.3: one float literal, division or conversion is enough."""
    path = getattr(module, "__file__", None)
    assert path is not None
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id in {"float", "round"})
        assert not isinstance(node, ast.Div)
