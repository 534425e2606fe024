"""The HTTP API as one ASGI application, from what the rooms give.

A request goes

    server ──> Directory ──> Resource (method, key, problems, counts) ──> endpoint ──> engine, store
       └─────> WebhookReceiver ──> provider.receive (signature) ──> event log
"""

import time
from collections.abc import Callable

from tallystick import rooms
from tallystick.app import Service
from tallystick.http import openapi
from tallystick.http.access import Doorkeeper
from tallystick.http.body_space import BodySpace
from tallystick.http.crowd import Crowd
from tallystick.http.crowd_metrics import CrowdCounts, RateCounts
from tallystick.http.directory import Directory
from tallystick.http.docs import Documentation
from tallystick.http.health import Vitals
from tallystick.http.metrics import Metrics
from tallystick.http.refusals import Refusals
from tallystick.http.resource import Nowhere, Resource
from tallystick.http.route import Route
from tallystick.http.routes import service_routes
from tallystick.http.tenant_rate import TenantRate
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.metrics import ReceiverCounts
from tallystick.webhooks.receiver import Front, WebhookReceiver


def build(service: Service, *, limits: Limits = LIMITS, clock: Callable[[], float] = time.monotonic) -> Front:
    """The application for a running service. `clock` is a steady one, for how often a tenant may ask."""
    proxies = service.settings.trusted_proxies
    refusals = Refusals(limits=limits, proxies=proxies)
    receiver = WebhookReceiver(service, limits=limits, proxies=proxies, refusals=refusals)
    crowd = Crowd(limits=limits, proxies=proxies)
    rate = TenantRate(service.settings.tenant_requests_per_second, clock=clock, limits=limits)
    metrics = metrics_of(service)
    for counts in (ReceiverCounts(receiver), CrowdCounts(crowd, refusals), RateCounts(rate)):
        metrics.show(counts)
    table = route_table(service, metrics)
    doorkeeper = Doorkeeper(service.database, limits=limits, proxies=proxies, rate=rate)
    by_path: dict[str, dict[str, Route]] = {}
    for route in table:
        by_path.setdefault(route.path, {})[route.method] = route
    space = BodySpace(limits=limits)
    resources = {
        path: Resource(path, methods, doorkeeper, metrics, space, refusals=refusals)
        for path, methods in by_path.items()
    }
    return Front(receiver, Directory(resources, Nowhere(refusals)), crowd)


def metrics_of(service: Service) -> Metrics:
    """What this process counts, with what each room counts in it."""
    return Metrics(counts for room in rooms.ROOMS for counts in room.counts(service))


def vitals_of(service: Service, metrics: Metrics) -> Vitals:
    """Who watches the service, with the figures of every room."""
    return Vitals(service, metrics, [figures for room in rooms.ROOMS for figures in room.figures(service)])


def route_table(service: Service, metrics: Metrics) -> tuple[Route, ...]:
    """Every route, with the documentation made from the same table."""
    documentation = Documentation()
    table = (
        *(route for room in rooms.ROOMS for route in room.routes(service, metrics)),
        *service_routes(vitals_of(service, metrics), documentation),
    )
    documentation.describe(openapi.document(table))
    return table
