"""Payments, as they are given to the whole."""

from collections.abc import Iterator

from tallystick.app import Service
from tallystick.checkout.payment import store
from tallystick.checkout.payment.cli import payments
from tallystick.checkout.payment.metrics import NO_PAYMENTS, PaymentCounts, PaymentFigures
from tallystick.checkout.payment.routes import payment_routes
from tallystick.checkout.payment.views import Payments
from tallystick.checkout.payment.worker import CollectorWorker
from tallystick.room import Figures, Room


def _figures(service: Service) -> Iterator[Figures[PaymentFigures]]:
    async def ask(_last: PaymentFigures) -> PaymentFigures:
        return PaymentFigures(*await store.figures(service.database), is_current=True)

    yield Figures(PaymentCounts(), NO_PAYMENTS, ask, "payment_figures_unread")


ROOM = Room(
    name="payments",
    routes=lambda service, _metrics: payment_routes(Payments(service)),
    figures=_figures,
    workers=lambda service: [CollectorWorker(service.payments)],
    commands=(payments,),
)
