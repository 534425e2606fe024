"""Keeping the embedded server alive: whoever uses it, having started or joined it, starts it again when it ended.

The server is nobody's child, so that it outlives a kill of the process that started it; and so nobody is told when it
ends. Whoever uses it looks once a second. All of them may see it at once: the first to have the lock starts it, and the
others find it running.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final

import structlog

from tallystick.database.embedded.server import Embedded, EmbeddedFailed

log = structlog.get_logger("tallystick.embedded")

# A look reads three small files.
LOOK_SECONDS: Final = 1.0
# Between two starts, after ones that failed or did not last.
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
# What runs for so long has recovered.
LASTING_SECONDS: Final = 60.0


@asynccontextmanager
async def kept(server: Embedded) -> AsyncIterator[None]:
    """As long as the block runs. A start that is under way at its end is waited for by `close`."""
    keeping = asyncio.create_task(_keep(server), name="embedded server")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _keep(server: Embedded) -> None:
    starts, started_at = 0, 0.0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if server.is_running():
            continue
        if monotonic() - started_at > LASTING_SECONDS:
            starts = 0
        if starts:
            await asyncio.sleep(pause_seconds(starts))
        starts += 1
        log.warning("embedded_server_ended", data=str(server.data), starting="again")
        try:
            await asyncio.to_thread(server.revive)
        except EmbeddedFailed as error:
            log.error("embedded_server_not_started", reason=str(error))
        else:
            log.warning("embedded_server_started", data=str(server.data))
        started_at = monotonic()


def pause_seconds(starts: int) -> float:
    """Before the next start, after so many that did not last."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(starts - 1, 16), LONGEST_PAUSE_SECONDS)
