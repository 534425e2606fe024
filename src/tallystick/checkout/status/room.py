"""How orders stand, as it is given to the whole."""

from tallystick.checkout.status.metrics import OrderStatusCounts
from tallystick.checkout.status.routes import order_status_routes
from tallystick.checkout.status.views import OrderStatuses
from tallystick.room import Room

ROOM = Room(
    name="order status",
    routes=lambda service, _metrics: order_status_routes(OrderStatuses(service)),
    counts=lambda service: [OrderStatusCounts(service.statuses)],
)
