"""Every provider there is. A new one is its folder, and one line here."""

from collections.abc import Mapping
from typing import Final

from tallystick.providers.adyen.declared import ADYEN
from tallystick.providers.declared import Declared
from tallystick.providers.square.declared import SQUARE
from tallystick.providers.stripe.declared import STRIPE
from tallystick.providers.wise.declared import WISE

KNOWN: Final[Mapping[str, Declared]] = {one.name: one for one in (STRIPE, ADYEN, SQUARE, WISE)}
