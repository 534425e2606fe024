"""The HTTP API as one ASGI application.

A request goes

    server ──> Directory ──> Resource (method, key, problems, counts) ──> endpoint ──> engine, store
       └─────> WebhookReceiver ──> provider.receive (signature) ──> event log
"""

import time
from collections.abc import Callable

from tallystick.app import Service
from tallystick.settings import LIMITS, Limits
from tallystick.web import openapi
from tallystick.web.access import Doorkeeper
from tallystick.web.account import Accounts
from tallystick.web.approval import Approvals
from tallystick.web.authority import Authority
from tallystick.web.authority_routes import authority_routes
from tallystick.web.crowd import Crowd
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
from tallystick.web.refusals import Refusals
from tallystick.web.resource import Nowhere, Resource
from tallystick.web.room import Room
from tallystick.web.route import Route
from tallystick.web.routes import routes
from tallystick.web.settlement import Settlements
from tallystick.web.settlement_policy import SettlementPolicies
from tallystick.web.settlement_routes import settlement_routes
from tallystick.web.tenant_rate import TenantRate
from tallystick.web.webhook import Front, WebhookReceiver


def build(service: Service, *, limits: Limits = LIMITS, clock: Callable[[], float] = time.monotonic) -> Front:
    """The application for a running service. `clock` is a steady one, for how often a tenant may ask."""
    proxies = service.settings.trusted_proxies
    refusals = Refusals(limits=limits, proxies=proxies)
    receiver = WebhookReceiver(service, limits=limits, proxies=proxies, refusals=refusals)
    crowd = Crowd(limits=limits, proxies=proxies)
    rate = TenantRate(service.settings.tenant_requests_per_second, clock=clock, limits=limits)
    metrics = Metrics(service.engine, service.sender, receiver, service.statuses, crowd, rate=rate, refusals=refusals)
    table = route_table(service, metrics)
    doorkeeper = Doorkeeper(service.database, limits=limits, proxies=proxies, rate=rate)
    by_path: dict[str, dict[str, Route]] = {}
    for route in table:
        by_path.setdefault(route.path, {})[route.method] = route
    room = Room(limits=limits)
    resources = {
        path: Resource(path, methods, doorkeeper, metrics, room, refusals=refusals) for path, methods in by_path.items()
    }
    return Front(receiver, Directory(resources, Nowhere(refusals)), crowd)


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
            *authority_routes(Authority(service)),
            *settlement_routes(Settlements(service), Approvals(service), SettlementPolicies(service)),
        ),
        Vitals(service, metrics),
        documentation,
    )
    documentation.describe(openapi.document(table))
    return table
