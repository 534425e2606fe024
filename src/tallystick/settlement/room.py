"""Settlement, as it is given to the whole."""

from collections.abc import Iterator

import msgspec

from tallystick import app
from tallystick.app import Service
from tallystick.authority.approval_views import Approvals
from tallystick.http.metrics import Metrics
from tallystick.http.route import Route
from tallystick.movement.life import store as life
from tallystick.room import Figures, Room
from tallystick.settlement import store
from tallystick.settlement.cli import settlements
from tallystick.settlement.metrics import NO_FIGURES, SettlementCounts, SettlementFigures
from tallystick.settlement.policy_views import SettlementPolicies
from tallystick.settlement.routes import settlement_routes
from tallystick.settlement.tick.cli import settle
from tallystick.settlement.tick.flow import Settler
from tallystick.settlement.tick.worker import SettlementWorker
from tallystick.settlement.views import Settlements
from tallystick.workers.worker import Worker


def _routes(service: Service, _metrics: Metrics) -> tuple[Route, ...]:
    return settlement_routes(Settlements(service), Approvals(service), SettlementPolicies(service))


def _figures(service: Service) -> Iterator[Figures[SettlementFigures]]:
    waits = app.patience(service.settings, service.providers)
    timeouts = {name: waits[name].stuck_after.total_seconds() for name in waits}

    async def ask(last: SettlementFigures) -> SettlementFigures:
        counts, ages, waiting = await store.figures(service.database)
        stopped = frozenset(await life.stopped(service.database))
        return msgspec.structs.replace(
            last, counts=counts, oldest_seconds=ages, waiting=waiting, stopped=stopped, is_current=True
        )

    first = msgspec.structs.replace(NO_FIGURES, timeout_seconds=timeouts)
    yield Figures(SettlementCounts(), first, ask, "settlement_figures_unread")


def _workers(service: Service) -> Iterator[Worker]:
    """One for each provider. Those that push no money can hold no settlements: creating one is refused."""
    for name, provider in service.providers.items():
        if provider.facts.pushes_money:
            settler = Settler(
                service.database,
                {name: provider},
                service.sender,
                patience=app.patience(service.settings, [name]),
                by=app.worker_name(),
            )
            yield SettlementWorker(settler, name, requests_per_second=provider.requests_per_second)


ROOM = Room(name="settlement", routes=_routes, figures=_figures, workers=_workers, commands=(settle, settlements))
