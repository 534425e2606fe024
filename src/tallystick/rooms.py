"""Every room there is. A new one is its folder, and one line here."""

from typing import Final

from tallystick.access.room import ROOM as ACCESS
from tallystick.authority.room import ROOM as AUTHORITY
from tallystick.checkout.order.room import ROOM as ORDERS
from tallystick.checkout.payment.room import ROOM as PAYMENTS
from tallystick.checkout.refund.room import ROOM as REFUNDS
from tallystick.checkout.status.room import ROOM as ORDER_STATUS
from tallystick.leases.room import ROOM as LEASES
from tallystick.ledger.room import ROOM as LEDGER
from tallystick.movement.room import ROOM as MOVEMENT
from tallystick.reconciliation.room import ROOM as RECONCILIATION
from tallystick.recovery.room import ROOM as RECOVERY
from tallystick.room import Room
from tallystick.settlement.room import ROOM as SETTLEMENT
from tallystick.webhooks.room import ROOM as WEBHOOKS

# In the order in which the documentation tells of them.
ROOMS: Final[tuple[Room, ...]] = (
    LEDGER,
    ORDERS,
    PAYMENTS,
    REFUNDS,
    ORDER_STATUS,
    AUTHORITY,
    SETTLEMENT,
    WEBHOOKS,
    MOVEMENT,
    RECONCILIATION,
    RECOVERY,
    LEASES,
    ACCESS,
)
