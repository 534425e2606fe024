"""Which amounts each provider takes: the simulator's own table. Pure.

Written from docs/providers.md 2.12, 3 and 6 and from ISO 4217, apart from the table our adapters convert with: a
wrong exponent there must meet a provider that disagrees, not one that makes the same mistake.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Final

_THREE_DECIMALS: Final = "BHD IQD JOD KWD LYD OMR TND"
_CODES_BY_DECIMALS: Final = {
    0: "JPY KRW VND CLP PYG ISK UGX RWF BIF DJF GNF KMF VUV XAF XOF XPF UYI",
    2: """
        USD EUR GBP CHF CAD AUD NZD SEK NOK DKK PLN CZK HUF RON RSD UAH RUB TRY GEL AMD AZN BYN MDL ALL MKD BAM
        CNY HKD TWD SGD MYR THB IDR PHP INR PKR LKR NPR BDT BTN MVR MMK KHR LAK MNT KPW BND MOP AFN IRR
        KZT KGS TJS TMT UZS AED SAR QAR YER SYP LBP ILS EGP MAD DZD SDG SSP ETB ERN SOS KES TZS MGA MUR SCR
        ZAR NAD BWP LSL SZL MWK ZMW ZWG MZN AOA CDF NGN GHS GMD SLE LRD CVE STN MRU SHP GIP FKP
        MXN MXV GTQ HNL NIO CRC PAB SVC BZD CUP DOP HTG JMD TTD BBD BSD KYD BMD XCD XCG XAD AWG
        BRL ARS UYU BOB BOV PEN COP COU VES VED GYD SRD FJD PGK SBD WST TOP CHE CHW USN
    """,
    3: _THREE_DECIMALS,
    4: "CLF UYW",
}
_ISO: Final = {code: number for number, codes in _CODES_BY_DECIMALS.items() for code in codes.split()}
CODES: Final = tuple(sorted(_ISO))
# Where a provider's own decimals differ from ISO's: docs/providers.md 2.12 and 3, Minor units.
_OWN_DECIMALS: Final = {
    "stripe": {"MGA": 0, "ISK": 2, "UGX": 2},
    "adyen": {"CLP": 2, "ISK": 2, "CVE": 0, "IDR": 0},
}
# docs/providers.md 2.12: whole units, written with two decimals; three decimals of which the last is 0.
_STRIPE_STEPS: Final = {"ISK": 100, "UGX": 100, **dict.fromkeys(_THREE_DECIMALS.split(), 10)}
_STRIPE_PAYOUT_STEPS: Final = {**_STRIPE_STEPS, "HUF": 100, "TWD": 100}
# docs/providers.md 5: decimals in major units.
IN_MAJOR_UNITS: Final = frozenset({"wise"})
_MICRO_DIGITS: Final = 6
# More than any real movement, and still exact in every reader of JSON.
_MOST_DIGITS: Final = 12


def is_currency(code: str) -> bool:
    return code in _ISO


def decimals(dialect: str, currency: str) -> int:
    """How many the provider writes. Raises KeyError for no currency."""
    return _OWN_DECIMALS.get(dialect, {}).get(currency, _ISO[currency])


def step(dialect: str, currency: str, *, payout: bool = False) -> int:
    """What an integer amount must be a multiple of."""
    if dialect != "stripe":
        return 1
    return (_STRIPE_PAYOUT_STEPS if payout else _STRIPE_STEPS).get(currency, 1)


def unit_micros(currency: str) -> int:
    """The smallest amount of a provider that writes decimals in major units."""
    return int(10 ** (_MICRO_DIGITS - _ISO[currency]))


def micros(amount: Decimal, currency: str) -> int | None:
    """A decimal in major units; None: it has more decimals than the currency. Raises ValueError for no amount."""
    if not amount.is_finite() or amount.adjusted() >= _MOST_DIGITS:
        raise ValueError("not an amount")
    if not amount:
        return 0
    # Not multiplied out: its fraction could have a million digits.
    if amount.adjusted() < -_MICRO_DIGITS:
        return None
    # Decimal arithmetic would round what is too long for its context.
    exact = Fraction(amount) * 10**_MICRO_DIGITS
    return None if exact % unit_micros(currency) else int(exact)


def decimal_text(amount_micros: int, currency: str) -> str:
    """The decimal in major units, "3.20". Raises ValueError for what it cannot write."""
    if amount_micros % unit_micros(currency):
        raise ValueError(f"{amount_micros} micros are no amount of {currency}")
    return f"{Decimal(amount_micros).scaleb(-_MICRO_DIGITS):.{_ISO[currency]}f}"
