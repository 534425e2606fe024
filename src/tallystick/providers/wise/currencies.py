"""How Wise writes amounts: in major units, with the decimals that ISO 4217 has. Pure data."""

from typing import Final

from tallystick.money.currencies import Wire

WIRE: Final = Wire(name="wise", in_major_units=True)
