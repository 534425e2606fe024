"""What of a provider decides whether, and under which terms, an instruction may go there. Pure."""

from collections.abc import Callable

import msgspec

from tallystick.money.currencies import Purpose
from tallystick.providers.words import Facts, Instruction, Lookup, Refused


class ProviderTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Of one provider, by the name it is configured under, for one purpose.

    `account`: whose books it will be in. `refusal`: why it cannot even word an instruction.
    """

    name: str
    purpose: Purpose
    account: str
    facts: Facts
    lookup: Lookup
    refusal: Callable[[Instruction], Refused | None]
