"""The part of the route table that is about the service itself. Each room has its own."""

from tallystick.http.docs import Documentation
from tallystick.http.health import Health, Vitals
from tallystick.http.parameters import VERBOSE
from tallystick.http.route import Answer, Route


def service_routes(vitals: Vitals, documentation: Documentation) -> tuple[Route, ...]:
    """Those of the service itself."""
    return (
        Route(
            method="GET",
            path="/livez",
            endpoint=vitals.live,
            name="live",
            group="Service",
            summary="Is the process alive?",
            description="Answers as long as the process turns, whatever the database does.",
            answers={200: Answer(description="Alive.", types=(Health,), example={"status": "alive"})},
        ),
        Route(
            method="GET",
            path="/readyz",
            endpoint=vitals.ready,
            name="ready",
            group="Service",
            summary="Can it serve?",
            description="Names the checks that fail: the database, the queue.",
            parameters=(VERBOSE,),
            answers={
                200: Answer(description="Ready.", types=(Health,), example={"status": "ready"}),
                503: Answer(
                    description="Not ready.",
                    types=(Health,),
                    example={"status": "not ready", "failed": ["database"]},
                ),
            },
        ),
        Route(
            method="GET",
            path="/metrics",
            endpoint=vitals.metrics,
            name="metrics",
            group="Service",
            summary="Counts for Prometheus",
            description="Requests, operations by outcome, the engine's queue and batches, providers, settlements.",
            answers={200: Answer(description="Prometheus's text format.", media_type="text/plain")},
        ),
        Route(
            method="GET",
            path="/openapi.json",
            endpoint=documentation.document,
            name="openapi",
            group="Service",
            summary="This document, for programs",
            description="OpenAPI 3.1.",
            answers={200: Answer(description="The document.", types=(dict,))},
        ),
        Route(
            method="GET",
            path="/docs",
            endpoint=documentation.page,
            name="docs",
            group="Service",
            summary="This document, for people",
            description="One page, nothing loaded from elsewhere.",
            answers={200: Answer(description="The page.", media_type="text/html")},
        ),
    )
