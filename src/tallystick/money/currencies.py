"""Currencies: which codes there are, and in which words a provider says how it writes them. Pure data.

ISO 4217 List One as published on 2026-09-17: its 165 codes that have a minor unit, funds included. Left out:

    XAU XAG XPD XPT              metals: an ounce has no minor unit, so "exact" has no meaning
    XDR XSU XUA XBA XBB XBC XBD  units of account between institutions, without a minor unit
    XTS XXX                      testing, and no currency at all
    ANG BGN CUC HRK SLL ZWL ...  withdrawn: nobody can be paid in them any more

How a provider writes them, where that is otherwise, its own folder has (`providers/<name>/currencies.py`). A wrong
exponent is a payment of a hundred times the amount, so each row there names its evidence: DOC, the provider's page;
MIR, a copy of that page elsewhere; U, unverified: nobody of us saw it confirmed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wire:
    """How one provider writes amounts. Where it has no rule for a currency, ISO 4217 holds.

    `in_major_units`: it takes decimals, and would read an integer of minor units as a hundred times the amount.
    """

    name: str
    rules: Mapping[str, WireRule] = field(default_factory=lambda: MappingProxyType({}))
    in_major_units: bool = False


def each(codes: str, rule: WireRule) -> dict[str, WireRule]:
    """The same rule for all of these."""
    return dict.fromkeys(codes.split(), rule)
