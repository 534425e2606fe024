"""Money: what is an amount, and whether it can cross to a provider exactly.

Pure. An amount is an int in micros, 10^-6 of the major unit; a float is never one. Nothing here rounds: what
a provider cannot write is refused (charges) or split into a payable part and a residue (settlements).

    micros ── to_minor ────────> integer in minor units   Stripe, Adyen, Square
           ── to_decimal_text ─> decimal in major units   Wise
    and back with from_minor, from_decimal_text
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, get_args

from tallystick.money.currencies import EXPONENTS, Purpose, Wire

MICROS_DIGITS: Final = 6
MICROS_PER_MAJOR: Final = 10**MICROS_DIGITS
# The database's BIGINT.
MAX_MICROS: Final = 2**63 - 1

_PURPOSES: Final = frozenset(get_args(Purpose))
# Far more digits than BIGINT has and far fewer than would cost us anything to read.
_MAX_DECIMAL_DIGITS: Final = 40
# Stricter than Decimal(), which also takes spaces, underscores, "1e9", "NaN" and other alphabets' digits.
_PLAIN_DECIMAL: Final = re.compile(rf"(-?)([0-9]{{1,{_MAX_DECIMAL_DIGITS}}})(?:\.([0-9]{{1,{_MAX_DECIMAL_DIGITS}}}))?")


@dataclass(frozen=True, slots=True)
class NotRepresentable:
    """An amount that cannot cross exactly. `amount` is in major units, to the last digit.

    `step_micros` is what the other side can write: it takes multiples of it only.
    """

    code: Literal["amount_not_representable", "amount_overflow"]
    currency: str
    amount: str
    step_micros: int

    @property
    def message(self) -> str:
        """For a person: what is wrong, and which amounts would do."""
        if self.code == "amount_overflow":
            limit = format_amount(MAX_MICROS, self.currency)
            return f"{self.amount} {self.currency} is more than can be held, which is {limit}."
        step = format_amount(self.step_micros, self.currency)
        return f"{self.amount} {self.currency} cannot be written exactly: only multiples of {step} can."


def amount_fault(value: object) -> str | None:
    """Why `value` cannot be an amount that moves; None if it can. First match wins.

    amount_not_integer, amount_not_positive, amount_overflow
    """
    # bool is an int to isinstance, and True would move one micro.
    if type(value) is int:
        if 0 < value <= MAX_MICROS:
            return None
        return "amount_overflow" if value > 0 else "amount_not_positive"
    return "amount_not_integer"


def is_currency(code: str) -> bool:
    """Whether it is an active ISO 4217 code with a minor unit. "usd" is none: two spellings, two accounts."""
    return code in EXPONENTS


def exponent(currency: str, wire: Wire | None = None) -> int:
    """Decimals of the currency's minor unit: at a provider, or by ISO 4217."""
    iso = EXPONENTS.get(currency)
    if iso is None:
        raise ValueError(f"{currency!r} is not an active ISO 4217 currency")
    rule = None if wire is None else wire.rules.get(currency)
    return iso if rule is None else rule.exponent


def step_micros(currency: str, *, wire: Wire | None, purpose: Purpose) -> int:
    """The smallest amount the provider can write for this purpose; all others are multiples of it."""
    if purpose not in _PURPOSES:
        raise ValueError(f"{purpose!r} is not a purpose")
    unit = _unit_micros(currency, wire)
    rule = None if wire is None else wire.rules.get(currency)
    if rule is None:
        return unit
    return unit * (max(rule.step, rule.payout_step) if purpose == "payout" else rule.step)


def to_minor(amount_micros: int, currency: str, *, wire: Wire | None, purpose: Purpose) -> int | NotRepresentable:
    """The integer to send, worth exactly the amount. `wire` None is plain ISO 4217."""
    _refuse_other_than_int(amount_micros)
    _refuse_major_units(wire)
    step = step_micros(currency, wire=wire, purpose=purpose)
    if amount_micros % step:
        return NotRepresentable("amount_not_representable", currency, _digits(amount_micros, 0), step)
    return amount_micros // _unit_micros(currency, wire)


def from_minor(minor: int, currency: str, *, wire: Wire | None) -> int | NotRepresentable:
    """The micros a provider's integer is worth. Its own figures are not held to the step it asks of ours."""
    _refuse_other_than_int(minor)
    _refuse_major_units(wire)
    unit = _unit_micros(currency, wire)
    return _within_bounds(minor * unit, currency, unit)


def representable_part(amount_micros: int, currency: str, *, wire: Wire | None, purpose: Purpose) -> tuple[int, int]:
    """(payable_micros, residue_micros): the largest amount that can be sent, and what stays on payable."""
    _refuse_other_than_int(amount_micros)
    # The remainder of a negative amount is positive: the part would be larger than the whole.
    if amount_micros < 0:
        raise ValueError(f"a negative amount has no representable part: {amount_micros} micros")
    residue = amount_micros % step_micros(currency, wire=wire, purpose=purpose)
    return amount_micros - residue, residue


def to_decimal_text(amount_micros: int, currency: str) -> str | NotRepresentable:
    """The amount in major units with the currency's own decimals, as Wise wants it: "3.20"."""
    _refuse_other_than_int(amount_micros)
    unit = _unit_micros(currency, None)
    if amount_micros % unit:
        return NotRepresentable("amount_not_representable", currency, _digits(amount_micros, 0), unit)
    return _digits(amount_micros, EXPONENTS[currency])


def from_decimal_text(amount: str | Decimal, currency: str) -> int | NotRepresentable:
    """The micros a decimal in major units is worth. Raises ValueError for text that is no number.

    A JSON answer is read with Decimal, never float: 0.1 + 0.2 would already be lost before it came here.
    """
    _unit_micros(currency, None)
    text = _plain_text(amount)
    match = _PLAIN_DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a decimal amount")
    sign, whole, fraction = match.groups("")
    kept, finer = fraction[:MICROS_DIGITS], fraction[MICROS_DIGITS:]
    if finer.strip("0"):
        return NotRepresentable("amount_not_representable", currency, text, 1)
    micros = int(whole + kept.ljust(MICROS_DIGITS, "0"))
    return _within_bounds(-micros if sign else micros, currency, 1)


def format_amount(amount_micros: int, currency: str) -> str:
    """For persons: "3.20 USD". At least the currency's decimals, more where the amount has them.

    Takes any code: a message about a withdrawn or wrong currency must not fail for it.
    """
    return f"{_digits(amount_micros, EXPONENTS.get(currency, 0))} {currency}"


def _digits(amount_micros: int, least_decimals: int) -> str:
    whole, fraction = divmod(abs(amount_micros), MICROS_PER_MAJOR)
    decimals = f"{fraction:06}".rstrip("0").ljust(least_decimals, "0")
    sign = "-" if amount_micros < 0 else ""
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"


def _plain_text(amount: str | Decimal) -> str:
    if isinstance(amount, str):
        return amount
    if not isinstance(amount, Decimal):
        raise TypeError(f"a decimal amount is str or Decimal, not {type(amount).__name__}")
    # Written out, Decimal("1E+999999999") would fill the memory.
    if not amount.is_finite() or abs(amount.adjusted()) > _MAX_DECIMAL_DIGITS:
        raise ValueError(f"{amount} is not a decimal amount")
    return format(amount, "f")


@lru_cache(maxsize=2048)
def _unit_micros(currency: str, wire: Wire | None) -> int:
    return int(10 ** (MICROS_DIGITS - exponent(currency, wire)))


def _within_bounds(amount_micros: int, currency: str, step: int) -> int | NotRepresentable:
    if -MAX_MICROS <= amount_micros <= MAX_MICROS:
        return amount_micros
    return NotRepresentable("amount_overflow", currency, _digits(amount_micros, 0), step)


def _refuse_other_than_int(value: object) -> None:
    # 5e6 % 10_000 is 0.0: a float would pass every check below and be sent.
    if type(value) is not int:
        raise TypeError(f"an amount is an int, not {type(value).__name__}")


def _refuse_major_units(wire: Wire | None) -> None:
    if wire is not None and wire.in_major_units:
        raise ValueError(f"{wire.name} takes decimals in major units: use to_decimal_text, from_decimal_text")
