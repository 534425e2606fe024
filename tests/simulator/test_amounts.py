"""The simulator's own table of amounts, against the one our adapters convert with: currency by currency."""

from decimal import Decimal

import pytest

from tallystick.money.amounts import to_decimal_text
from tallystick.money.currencies import EXPONENTS
from tallystick.simulator import amounts
from tests.wires import WIRES


def test_both_tables_have_the_same_currencies() -> None:
    assert set(amounts.CODES) == set(EXPONENTS)


@pytest.mark.parametrize("provider", WIRES)
@pytest.mark.parametrize("currency", EXPONENTS)
def test_both_tables_write_a_currency_alike(provider: str, currency: str) -> None:
    rule = WIRES[provider].rules.get(currency)
    decimals, step, payout_step = (
        (EXPONENTS[currency], 1, 1) if rule is None else (rule.exponent, rule.step, max(rule.step, rule.payout_step))
    )
    assert amounts.decimals(provider, currency) == decimals
    assert amounts.step(provider, currency) == step
    assert amounts.step(provider, currency, payout=True) == payout_step
    assert (provider in amounts.IN_MAJOR_UNITS) is WIRES[provider].in_major_units


@pytest.mark.parametrize("currency", EXPONENTS)
def test_a_decimal_is_written_and_read_back(currency: str) -> None:
    for units in (1, 320, -7, 10**9):
        micros = units * amounts.unit_micros(currency)
        text = amounts.decimal_text(micros, currency)
        assert text == to_decimal_text(micros, currency)
        assert amounts.micros(Decimal(text), currency) == micros


@pytest.mark.parametrize("text", ["0.001", "1e-400", "1e-999999", "1." + "0" * 60 + "1"])
def test_more_decimals_than_the_currency_has_are_no_amount_of_it(text: str) -> None:
    assert amounts.micros(Decimal(text), "EUR") is None


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e12", "1e999999", "9" * 5000])
def test_what_nobody_could_pay_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        amounts.micros(Decimal(text), "EUR")


def test_what_cannot_be_written_is_refused() -> None:
    assert amounts.micros(Decimal("0E-999999"), "EUR") == 0
    with pytest.raises(ValueError, match="no amount of JPY"):
        amounts.decimal_text(1, "JPY")
