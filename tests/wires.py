"""How each provider writes amounts, by its name; None: plain ISO 4217."""

from typing import Final

from tallystick.money.currencies import Wire
from tallystick.providers.known import KNOWN

WIRES: Final[dict[str, Wire]] = {name: declared.facts.wire for name, declared in KNOWN.items()}


def wire_of(name: str | None) -> Wire | None:
    return None if name is None else WIRES[name]
