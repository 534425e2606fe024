"""How Square writes amounts: as ISO 4217 has it. Pure data."""

from typing import Final

from tallystick.money.currencies import Wire

WIRE: Final = Wire(name="square")
