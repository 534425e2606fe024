"""Every dialect the simulator speaks."""

from tallystick.simulator.adyen.api import Adyen
from tallystick.simulator.dialect import Dialect
from tallystick.simulator.square.api import Square
from tallystick.simulator.stripe.api import Stripe
from tallystick.simulator.wise.api import Wise


def every_dialect() -> tuple[Dialect, ...]:
    return (Stripe(), Adyen(), Square(), Wise())
