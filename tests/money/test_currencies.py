import pytest

from tallystick.money.currencies import EXPONENTS
from tests.wires import WIRES

WIRE_RULES = {name: wire.rules for name, wire in WIRES.items()}

ROWS = [
    pytest.param(provider, currency, id=f"{provider}-{currency}")
    for provider, rules in WIRE_RULES.items()
    for currency in rules
]


@pytest.mark.parametrize(
    ("exponent", "codes"),
    [
        (0, "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"),
        (3, "BHD IQD JOD KWD LYD OMR TND"),
        (4, "CLF UYW"),
    ],
)
def test_these_and_no_others_have_another_exponent_than_two(exponent: int, codes: str) -> None:
    """A currency moved between the rows by an edit would be paid a hundred or ten times over."""
    assert {code for code, digits in EXPONENTS.items() if digits == exponent} == set(codes.split())


def test_the_table_holds_every_code_of_list_one_that_has_a_minor_unit() -> None:
    """A code lost in an edit would refuse good money; one counted twice would hide the other."""
    assert len(EXPONENTS) == 165
    assert set(EXPONENTS.values()) == {0, 2, 3, 4}


def test_every_code_is_three_capitals() -> None:
    """A typing error in the table would open accounts in a currency that does not exist."""
    assert all(len(code) == 3 and code.isascii() and code.isalpha() and code.isupper() for code in EXPONENTS)


@pytest.mark.parametrize(
    "code", ["XAU", "XAG", "XPD", "XPT", "XDR", "XSU", "XUA", "XBA", "XBB", "XBC", "XBD", "XTS", "XXX"]
)
def test_codes_without_a_minor_unit_are_left_out(code: str) -> None:
    """An amount of them has no smallest step, so no conversion could be called exact."""
    assert code not in EXPONENTS


@pytest.mark.parametrize("code", ["ANG", "BGN", "CUC", "DEM", "HRK", "LTL", "MRO", "SLL", "STD", "VEF", "ZMK", "ZWL"])
def test_withdrawn_codes_are_left_out(code: str) -> None:
    """Money accepted in them could never be paid out."""
    assert code not in EXPONENTS


@pytest.mark.parametrize("code", ["SLE", "VED", "VES", "XAD", "XCG", "ZWG", "UYW"])
def test_the_codes_of_the_latest_amendments_are_in(code: str) -> None:
    """A table copied from an old list would refuse the money of whole countries."""
    assert code in EXPONENTS


@pytest.mark.parametrize("code", sorted(code for code, digits in EXPONENTS.items() if digits != 2))
def test_stripe_has_a_row_for_every_currency_that_is_not_two_decimal(code: str) -> None:
    """At Stripe two decimals are the rule: a currency nobody looked up is off by a hundred."""
    assert code in WIRE_RULES["stripe"]


@pytest.mark.parametrize(("provider", "currency"), ROWS)
def test_every_row_of_a_provider_names_its_evidence(provider: str, currency: str) -> None:
    """A figure without a source cannot be checked when the first payment comes out wrong."""
    assert WIRE_RULES[provider][currency].source


@pytest.mark.parametrize(("provider", "currency"), ROWS)
def test_every_row_is_about_a_currency_and_fits_into_micros(provider: str, currency: str) -> None:
    """A row for a misspelt code would never apply, and the default would be sent."""
    rule = WIRE_RULES[provider][currency]
    assert currency in EXPONENTS
    assert 0 <= rule.exponent <= 4
    assert {rule.step, rule.payout_step} <= {1, 10, 100}


def test_what_nobody_confirmed_is_marked() -> None:
    """An operator must be able to see which currencies to try with a small amount first."""
    unverified = {
        (provider, currency)
        for provider, rules in WIRE_RULES.items()
        for currency, rule in rules.items()
        if not rule.is_verified
    }
    assert unverified == {("stripe", code) for code in ("IQD", "LYD", "UYI", "CLF", "UYW")}


def test_only_wise_takes_decimals() -> None:
    """An integer in minor units would be read there as major units."""
    assert set(WIRE_RULES) == {"stripe", "adyen", "square", "wise"}
    assert {name for name, wire in WIRES.items() if wire.in_major_units} == {"wise"}


def test_the_tables_cannot_be_changed_by_a_caller() -> None:
    """One module's patch would change every payment of the process."""
    with pytest.raises(TypeError):
        EXPONENTS["USD"] = 0  # type: ignore[index]
    with pytest.raises(TypeError):
        WIRE_RULES["stripe"]["USD"] = WIRE_RULES["stripe"]["JPY"]  # type: ignore[index]
