"""How Adyen writes amounts, where it is not as ISO 4217 has it. Pure data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.money.currencies import Wire, WireRule

_PAGE: Final = "docs.adyen.com/development-resources/currency-codes"

# Adyen's own table wins over ISO's, and marks these four as different from it.
_RULES: Final[Mapping[str, WireRule]] = MappingProxyType(
    {
        "CLP": WireRule(exponent=2, evidence="DOC", source=_PAGE),
        "ISK": WireRule(exponent=2, evidence="DOC", source=_PAGE),
        "CVE": WireRule(exponent=0, evidence="DOC", source=_PAGE),
        "IDR": WireRule(exponent=0, evidence="DOC", source=_PAGE),
    }
)

WIRE: Final = Wire(name="adyen", rules=_RULES)
