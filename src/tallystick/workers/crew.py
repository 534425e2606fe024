"""Every worker of a process, and running them beside something else."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from tallystick import app
from tallystick.core.author import by_worker, sign
from tallystick.flows.events import Backfill, BodyKeeper
from tallystick.flows.reading import Reader
from tallystick.flows.settling import Settler
from tallystick.settings import LIMITS
from tallystick.workers.collector import CollectorWorker
from tallystick.workers.events import EventsWorker, Periodic, backfill_worker, keeping_worker
from tallystick.workers.intake import IntakeWorker
from tallystick.workers.refunder import RefunderWorker
from tallystick.workers.settler import SettlementWorker
from tallystick.workers.sweeper import SweeperWorker


class Worker(Protocol):
    """What every worker can do. `run` returns soon after `stopping` is set, with nothing left half done."""

    name: str

    async def run_once(self) -> object:
        """One bounded piece of work; its counts."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop."""


def crew(service: app.Service) -> list[Worker]:
    """Every worker there is, with the service's own database, providers and sender.

    They share its rate limits and breakers with whoever else sends in this process.
    """
    return [
        *_settlers(service),
        SweeperWorker(service.orders),
        CollectorWorker(service.payments),
        RefunderWorker(service.refunds),
        Periodic(
            "readings", Reader(service.database, service.providers).run_once, every_seconds=LIMITS.reading_pause_seconds
        ),
        Periodic("backorders", service.refunds.fill_backorders, every_seconds=LIMITS.refund_pause_seconds),
        *_listeners(service),
        Periodic("timekeeper", app.timekeeper(service).run_once, every_seconds=LIMITS.timekeeping_seconds),
    ]


def _settlers(service: app.Service) -> Iterator[Worker]:
    """One for each provider."""
    return (
        SettlementWorker(
            Settler(
                service.database,
                {name: provider},
                service.sender,
                patience=app.patience(service.settings, [name]),
                by=app.worker_name(),
            ),
            name,
            requests_per_second=provider.requests_per_second,
        )
        for name, provider in service.providers.items()
        # The others can hold no settlements: creating one is refused.
        if provider.facts.pushes_money
    )


def _listeners(service: app.Service) -> Iterator[Worker]:
    """Webhook events: who processes them, who brings them from Kafka, who asks a provider for missed ones, a keeper."""
    yield EventsWorker(service.events)
    if service.intake is not None:
        yield IntakeWorker(service.intake)
    for name, provider in service.providers.items():
        backfill = Backfill(service.database, name, provider)
        if backfill.is_offered:
            yield backfill_worker(backfill)
    yield keeping_worker(BodyKeeper(service.database, detach_after_days=service.settings.webhook_body_days))


@asynccontextmanager
async def working(workers: Sequence[Worker]) -> AsyncIterator[None]:
    """Run them as long as the block runs; then let each finish what it holds.

    A worker that fails for good (a broken invariant) ends the block, and its exception comes out of it.
    """
    stopping = asyncio.Event()

    async def run(worker: Worker) -> None:
        # Whoever started the process: what a worker does, it does by itself.
        sign(by_worker(app.worker_name()))
        await worker.run(stopping)

    try:
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(run(worker), name=worker.name)
            yield
            stopping.set()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
