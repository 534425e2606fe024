"""Every dialect the simulator speaks."""

from tallystick.providers.simulator.adyen.api import Adyen
from tallystick.providers.simulator.dialect import Dialect
from tallystick.providers.simulator.square.api import Square
from tallystick.providers.simulator.stripe.api import Stripe
from tallystick.providers.simulator.wise.api import Wise


def every_dialect() -> tuple[Dialect, ...]:
    return (Stripe(), Adyen(), Square(), Wise())
