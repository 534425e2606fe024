"""Orders, as they are given to the whole."""

from collections.abc import Iterator

import msgspec

from tallystick.app import Service
from tallystick.checkout.order import store
from tallystick.checkout.order.cli import sweep
from tallystick.checkout.order.metrics import NO_ORDERS, OrderCounts, OrderFigures
from tallystick.checkout.order.routes import order_routes
from tallystick.checkout.order.views import Orders
from tallystick.checkout.order.worker import SweeperWorker
from tallystick.room import Figures, Room


def _figures(service: Service) -> Iterator[Figures[OrderFigures]]:
    async def ask(last: OrderFigures) -> OrderFigures:
        counts, pending, overdue = await store.figures(service.database)
        return msgspec.structs.replace(last, counts=counts, pending=pending, overdue_seconds=overdue, is_current=True)

    def now(figures: OrderFigures) -> OrderFigures:
        # Refusals are written nowhere.
        return msgspec.structs.replace(figures, sold_out=service.orders.sold_out)

    first = msgspec.structs.replace(NO_ORDERS, grace_seconds=service.settings.reservation_grace_seconds)
    yield Figures(OrderCounts(), first, ask, "order_figures_unread", now=now)


ROOM = Room(
    name="orders",
    routes=lambda service, _metrics: order_routes(Orders(service)),
    figures=_figures,
    workers=lambda service: [SweeperWorker(service.orders)],
    commands=(sweep,),
)
