"""The ledger, as it is given to the whole."""

from collections.abc import Iterator

from tallystick.app import Service
from tallystick.http.metrics import Metrics
from tallystick.http.route import Route
from tallystick.ledger.account.routes import account_routes
from tallystick.ledger.account.views import Accounts
from tallystick.ledger.metrics import EngineCounts
from tallystick.ledger.routes import operation_routes
from tallystick.ledger.views import Operations
from tallystick.room import Room


def _routes(service: Service, metrics: Metrics) -> Iterator[Route]:
    yield from operation_routes(Operations(service, metrics))
    yield from account_routes(Accounts(service))


ROOM = Room(name="ledger", routes=_routes, counts=lambda service: [EngineCounts(service.engine)])
