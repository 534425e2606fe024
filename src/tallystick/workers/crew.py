"""Every worker of a process, and running them beside something else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tallystick import app, rooms
from tallystick.audit.author import by_worker, sign
from tallystick.workers.worker import Worker


def crew(service: app.Service) -> list[Worker]:
    """Every worker there is, with the service's own database, providers and sender.

    They share its rate limits and breakers with whoever else sends in this process.
    """
    return [worker for room in rooms.ROOMS for worker in room.workers(service)]


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
