"""An endpoint for webhooks that believes, stores and only then acknowledges."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from tallystick.core.provider import Forged
from tallystick.errors import TallystickError
from tallystick.providers.port import Provider

_REASONS = {200: "OK", 400: "Bad Request", 503: "Service Unavailable"}


class WebhookEndpoint:
    """Hands every believable movement on, as often as it is told of it. `counts` says what came."""

    def __init__(self, provider: Provider, name: str, reviews: Any) -> None:
        self._provider = provider
        self._name = name
        self._reviews = reviews
        self.counts: Counter[str] = Counter()
        self.disputed: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One delivery."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[1:-2]
            headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in head)]
            body = await reader.readexactly(int(dict(headers)["content-length"]))
            status = await self._taken(headers, body)
            writer.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.counts["broken off"] += 1
        finally:
            writer.close()

    async def _taken(self, headers: list[tuple[str, str]], body: bytes) -> int:
        events = self._provider.receive(headers, body, now=datetime.now(UTC))
        if isinstance(events, Forged):
            self.counts[events.code] += 1
            return 400
        for event in events:
            self.counts[event.type] += 1
            if event.movement is None:
                continue
            try:
                disputed = await self._reviews.observe(self._name, event.movement)
            except TallystickError:
                # Not stored, so not acknowledged: the provider tells it again.
                self.counts["not stored"] += 1
                return 503
            if disputed is not None:
                self.disputed.append(disputed)
        return 200


@asynccontextmanager
async def webhook_endpoint(provider: Provider, name: str, reviews: Any) -> AsyncIterator[WebhookEndpoint]:
    """One on a port of its own."""
    made = WebhookEndpoint(provider, name, reviews)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/webhooks/{name}"
    try:
        yield made
    finally:
        server.close()
