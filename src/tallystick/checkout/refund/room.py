"""Refunds, as they are given to the whole."""

from collections.abc import Iterator

from tallystick.app import Service
from tallystick.checkout import break_store
from tallystick.checkout.order import store as orders
from tallystick.checkout.refund import store
from tallystick.checkout.refund.cli import refunds
from tallystick.checkout.refund.metrics import NO_REFUNDS, SagaCounts, SagaFigures
from tallystick.checkout.refund.routes import refund_routes
from tallystick.checkout.refund.views import Refunds
from tallystick.checkout.refund.worker import RefunderWorker
from tallystick.room import Figures, Room
from tallystick.settings import LIMITS
from tallystick.workers.worker import Periodic, Worker


def _figures(service: Service) -> Iterator[Figures[SagaFigures]]:
    async def ask(_last: SagaFigures) -> SagaFigures:
        counts, _, _ = await orders.figures(service.database)
        return SagaFigures(
            await store.figures(service.database),
            *await break_store.figures(service.database),
            counts,
            is_current=True,
        )

    yield Figures(SagaCounts(), NO_REFUNDS, ask, "refund_figures_unread")


def _workers(service: Service) -> Iterator[Worker]:
    yield RefunderWorker(service.refunds)
    yield Periodic("backorders", service.refunds.fill_backorders, every_seconds=LIMITS.refund_pause_seconds)


ROOM = Room(
    name="refunds",
    routes=lambda service, _metrics: refund_routes(Refunds(service)),
    figures=_figures,
    workers=_workers,
    commands=(refunds,),
)
