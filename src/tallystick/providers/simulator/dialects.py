"""Every dialect the simulator speaks."""

from tallystick.providers.simulator.adyen import Adyen
from tallystick.providers.simulator.dialect import Dialect
from tallystick.providers.simulator.square import Square
from tallystick.providers.simulator.stripe import Stripe
from tallystick.providers.simulator.wise import Wise


def every_dialect() -> tuple[Dialect, ...]:
    return (Stripe(), Adyen(), Square(), Wise())
