"""The HTTP API as one ASGI application.

A request goes

    server ──> Directory ──> Resource (method, key, problems, counts) ──> endpoint ──> engine, store
       └─────> WebhookReceiver ──> provider.receive (signature) ──> event log
"""

from starlette.types import ASGIApp

from tallystick.app import Service
from tallystick.web import openapi
from tallystick.web.access import Doorkeeper
from tallystick.web.account import Accounts
from tallystick.web.approval import Approvals
from tallystick.web.directory import Directory
from tallystick.web.docs import Documentation
from tallystick.web.health import Vitals
from tallystick.web.metrics import Metrics
from tallystick.web.operation import Operations
from tallystick.web.order import Orders
from tallystick.web.order_routes import order_routes
from tallystick.web.order_status import OrderStatuses
from tallystick.web.order_status_routes import order_status_routes
from tallystick.web.payment import Payments
from tallystick.web.payment_routes import payment_routes
from tallystick.web.refund import Refunds
from tallystick.web.refund_routes import refund_routes
from tallystick.web.resource import Resource, nowhere
from tallystick.web.route import Route
from tallystick.web.routes import routes
from tallystick.web.settlement import Settlements
from tallystick.web.settlement_policy import SettlementPolicies
from tallystick.web.settlement_routes import settlement_routes
from tallystick.web.webhook import Front, WebhookReceiver


def build(service: Service) -> ASGIApp:
    """The application for a running service."""
    receiver = WebhookReceiver(service)
    metrics = Metrics(service.engine, service.sender, receiver, service.statuses)
    table = route_table(service, metrics)
    doorkeeper = Doorkeeper(service.database)
    by_path: dict[str, dict[str, Route]] = {}
    for route in table:
        by_path.setdefault(route.path, {})[route.method] = route
    resources = {path: Resource(path, methods, doorkeeper, metrics) for path, methods in by_path.items()}
    return Front(receiver, Directory(resources, nowhere))


def route_table(service: Service, metrics: Metrics) -> tuple[Route, ...]:
    """Every route, with the documentation made from the same table."""
    documentation = Documentation()
    table = routes(
        Operations(service, metrics),
        Accounts(service),
        (
            *order_routes(Orders(service)),
            *payment_routes(Payments(service)),
            *refund_routes(Refunds(service)),
            *order_status_routes(OrderStatuses(service)),
            *settlement_routes(Settlements(service), Approvals(service), SettlementPolicies(service)),
        ),
        Vitals(service, metrics),
        documentation,
    )
    documentation.describe(openapi.document(table))
    return table
