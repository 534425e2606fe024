"""How Stripe writes amounts, where it is not as ISO 4217 has it. Pure data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.money.currencies import Wire, WireRule, each

_PAGE: Final = "docs.stripe.com/currencies"

# Every currency that ISO does not give two decimals has a row here, also where Stripe agrees with ISO: at
# Stripe two decimals are the rule unless its lists say otherwise, so their silence is no evidence.
_RULES: Final[Mapping[str, WireRule]] = MappingProxyType(
    {
        # MGA has two decimals at ISO and none here.
        **each(
            "BIF CLP DJF GNF JPY KMF KRW MGA PYG RWF VND VUV XAF XOF XPF",
            WireRule(exponent=0, evidence="DOC", source=f"{_PAGE}#zero-decimal"),
        ),
        # Whole units only, yet written with two decimals. The page's list of zero-decimal currencies has UGX
        # too; its special cases say how to write it.
        "ISK": WireRule(exponent=2, step=100, evidence="DOC", source=f"{_PAGE}#special-cases"),
        "UGX": WireRule(exponent=2, step=100, evidence="MIR", source=f"{_PAGE}#special-cases"),
        # Charged with decimals, paid out in whole units: the rest of the balance stays at Stripe.
        "HUF": WireRule(exponent=2, payout_step=100, evidence="DOC", source=f"{_PAGE}#special-cases"),
        "TWD": WireRule(exponent=2, payout_step=100, evidence="MIR", source=f"{_PAGE}#special-cases"),
        # The last digit must be 0, for the sake of Stripe's partners. The list is from a copy of 2022.
        **each(
            "BHD JOD KWD OMR TND",
            WireRule(exponent=3, step=10, evidence="MIR", source=f"{_PAGE}#three-decimal"),
        ),
        # On no list of Stripe's. ISO's exponent, and the stricter rule of their likes.
        **each("IQD LYD", WireRule(exponent=3, step=10, evidence="U", source="ISO 4217")),
        "UYI": WireRule(exponent=0, evidence="U", source="ISO 4217"),
        **each("CLF UYW", WireRule(exponent=4, evidence="U", source="ISO 4217")),
    }
)

WIRE: Final = Wire(name="stripe", rules=_RULES)
