"""What most would write: a framework's handler that verifies, and one INSERT for each request.

FastAPI where it is installed (it is no dependency of ours), else Starlette, on which it is built and which is faster.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Final

import asyncpg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tallystick import app, queries
from tallystick.bench import ground
from tallystick.providers.words import Forged
from tallystick.secret import Secret

CONNECTIONS: Final = 16
FRAMEWORK: Final = "FastAPI" if find_spec("fastapi") is not None else "Starlette"
_SQL: Final = queries.load(__package__, "webhooks.sql")


@asynccontextmanager
async def baseline(dsn: str) -> AsyncIterator[ASGIApp]:
    """The application, with its table made and its pool open. The signature is checked by the same code as ours."""
    provider = app.simulator("http://127.0.0.1:1", Secret(ground.WEBHOOK_SECRET))
    async with asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        await pool.execute(_SQL["table"])

        async def receive(request: Request) -> Response:
            body = await request.body()
            events = provider.receive(request.headers.items(), body, now=datetime.now(UTC))
            if isinstance(events, Forged):
                return Response(status_code=400)
            for event in events:
                await pool.execute(_SQL["insert"], event.dedup_key, event.type, body.decode())
            return Response(status_code=200)

        yield _routed(receive)


def _routed(receive: Any) -> ASGIApp:  # noqa: ANN401 - a handler, as each framework understands it
    if FRAMEWORK == "FastAPI":
        from fastapi import FastAPI  # noqa: PLC0415 - no dependency of ours

        made: ASGIApp = FastAPI()
        made.post("/webhooks/simulator")(receive)  # type: ignore[attr-defined]
        return made
    return Starlette(routes=[Route("/webhooks/simulator", receive, methods=["POST"])])
