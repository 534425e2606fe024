"""Currencies: which codes there are, and how each provider writes their amounts. Pure data.

ISO 4217 List One as published on 2026-09-17: its 165 codes that have a minor unit, funds included. Left out:

    XAU XAG XPD XPT              metals: an ounce has no minor unit, so "exact" has no meaning
    XDR XSU XUA XBA XBB XBC XBD  units of account between institutions, without a minor unit
    XTS XXX                      testing, and no currency at all
    ANG BGN CUC HRK SLL ZWL ...  withdrawn: nobody can be paid in them any more

A wrong exponent is a payment of a hundred times the amount, so each row of a provider names its evidence:
DOC, the provider's page; MIR, a copy of that page elsewhere; U, unverified: nobody of us saw it confirmed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

_CODES_BY_EXPONENT: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: """
        AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE
        CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD
        HKD HNL HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK
        MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD
        RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH
        USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG
    """,
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}

EXPONENTS: Final[Mapping[str, int]] = MappingProxyType(
    {code: exponent for exponent, codes in _CODES_BY_EXPONENT.items() for code in codes.split()}
)

Purpose = Literal["charge", "refund", "transfer", "payout"]
Evidence = Literal["DOC", "MIR", "U"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRule:
    """How one provider writes one currency as an integer.

    `step` and `payout_step`: the integer must be a multiple of it, in general and in a payout.
    """

    exponent: int
    step: int = 1
    payout_step: int = 1
    evidence: Evidence
    source: str

    @property
    def is_verified(self) -> bool:
        """Whether somebody read it in the provider's own words."""
        return self.evidence != "U"


def _each(codes: str, rule: WireRule) -> dict[str, WireRule]:
    return dict.fromkeys(codes.split(), rule)


_STRIPE_PAGE: Final = "docs.stripe.com/currencies"
_ADYEN_PAGE: Final = "docs.adyen.com/development-resources/currency-codes"

# Every currency that ISO does not give two decimals has a row here, also where Stripe agrees with ISO: at
# Stripe two decimals are the rule unless its lists say otherwise, so their silence is no evidence.
_STRIPE: Final[Mapping[str, WireRule]] = MappingProxyType(
    {
        # MGA has two decimals at ISO and none here.
        **_each(
            "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF",
            WireRule(exponent=0, evidence="DOC", source=f"{_STRIPE_PAGE}#zero-decimal"),
        ),
        # Whole units only, yet written with two decimals. The page's list of zero-decimal currencies has UGX
        # too; its special cases say how to write it.
        "ISK": WireRule(exponent=2, step=100, evidence="DOC", source=f"{_STRIPE_PAGE}#special-cases"),
        "UGX": WireRule(exponent=2, step=100, evidence="MIR", source=f"{_STRIPE_PAGE}#special-cases"),
        # Charged with decimals, paid out in whole units: the rest of the balance stays at Stripe.
        "HUF": WireRule(exponent=2, payout_step=100, evidence="DOC", source=f"{_STRIPE_PAGE}#special-cases"),
        "TWD": WireRule(exponent=2, payout_step=100, evidence="MIR", source=f"{_STRIPE_PAGE}#special-cases"),
        # The last digit must be 0, for the sake of Stripe's partners. The list is from a copy of 2022.
        **_each(
            "BHD JOD KWD OMR TND",
            WireRule(exponent=3, step=10, evidence="MIR", source=f"{_STRIPE_PAGE}#three-decimal"),
        ),
        # On no list of Stripe's. ISO's exponent, and the stricter rule of their likes.
        **_each("IQD LYD", WireRule(exponent=3, step=10, evidence="U", source="ISO 4217")),
        "UYI": WireRule(exponent=0, evidence="U", source="ISO 4217"),
        **_each("CLF UYW", WireRule(exponent=4, evidence="U", source="ISO 4217")),
    }
)

# Adyen's own table wins over ISO's, and marks these four as different from it.
_ADYEN: Final[Mapping[str, WireRule]] = MappingProxyType(
    {
        "CLP": WireRule(exponent=2, evidence="DOC", source=_ADYEN_PAGE),
        "ISK": WireRule(exponent=2, evidence="DOC", source=_ADYEN_PAGE),
        "CVE": WireRule(exponent=0, evidence="DOC", source=_ADYEN_PAGE),
        "IDR": WireRule(exponent=0, evidence="DOC", source=_ADYEN_PAGE),
    }
)

# Where a provider has no row for a currency, ISO 4217 holds.
WIRE_RULES: Final[Mapping[str, Mapping[str, WireRule]]] = MappingProxyType(
    {"stripe": _STRIPE, "adyen": _ADYEN, "square": MappingProxyType({}), "wise": MappingProxyType({})}
)

# These take decimals in major units; an integer in minor units would be read as a hundred times the amount.
DECIMAL_PROVIDERS: Final = frozenset({"wise"})
