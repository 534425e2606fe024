"""Webhooks, as they are given to the whole."""

from collections.abc import Iterator
from typing import Any

from tallystick.app import Service
from tallystick.room import Check, Figures, Room
from tallystick.webhooks import store
from tallystick.webhooks.cli import events
from tallystick.webhooks.flow import Backfill, BodyKeeper
from tallystick.webhooks.intake import store as intake
from tallystick.webhooks.intake.worker import IntakeWorker
from tallystick.webhooks.metrics import NO_EVENTS, NO_LOG, EventCounts, EventFigures, LogCounts, LogFigures
from tallystick.webhooks.worker import EventsWorker, backfill_worker, keeping_worker
from tallystick.workers.worker import Worker


def _figures(service: Service) -> Iterator[Figures[Any]]:
    async def events_now(_last: EventFigures) -> EventFigures:
        return EventFigures(await store.figures(service.database), is_current=True)

    async def log_now(_last: LogFigures) -> LogFigures:
        poison = await intake.count_poison(service.database)
        return LogFigures(backlog=await service.log.backlog(), poison=poison, is_current=True)

    def kafka(figures: LogFigures) -> Check:
        if not figures.is_current or figures.backlog is None:
            detail = "cannot be reached: webhooks are answered with 503, everything else is served"
            return Check("kafka", ok=False, detail=detail, needed=False)
        detail = f"answers; {figures.backlog.behind} records are not in the database yet"
        return Check("kafka", ok=True, detail=detail, needed=False)

    yield Figures(EventCounts(), NO_EVENTS, events_now, "event_figures_unread")
    yield Figures(LogCounts(), NO_LOG, log_now, "log_figures_unread", ready=kafka if service.intake else None)


def _workers(service: Service) -> Iterator[Worker]:
    """Who processes events, who brings them from Kafka, who asks a provider for missed ones, a keeper of their days."""
    yield EventsWorker(service.events)
    if service.intake is not None:
        yield IntakeWorker(service.intake)
    for name, provider in service.providers.items():
        backfill = Backfill(service.database, name, provider)
        if backfill.is_offered:
            yield backfill_worker(backfill)
    yield keeping_worker(BodyKeeper(service.database, detach_after_days=service.settings.webhook_body_days))


ROOM = Room(name="webhooks", figures=_figures, workers=_workers, commands=(events,))
