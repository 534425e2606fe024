"""A provider of a few lines: it gives the canned answers in their order, and keeps what it was asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import msgspec

from tallystick.providers.steady import steady
from tallystick.providers.words import Sending

FIRST_SENT_AT = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
NOW = FIRST_SENT_AT + timedelta(minutes=30)


class Canned(msgspec.Struct, frozen=True):
    """One answer. `cut`: only so many of its bytes are written, then the connection ends."""

    status: int = 200
    body: object = b""
    headers: Mapping[str, str] = {}
    cut: int | None = None

    def wire(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else msgspec.json.encode(self.body)
        lines = [f"HTTP/1.1 {self.status} Canned", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Asked(msgspec.Struct, frozen=True):
    """One request as it came."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


class Scripted:
    """The server: `base` is its address, `asked` what reached it."""

    def __init__(self) -> None:
        self.base = ""
        self.asked: list[Asked] = []


@asynccontextmanager
async def scripted(*answers: Canned) -> AsyncIterator[Scripted]:
    """A server that gives these answers, one per request, and then hangs up."""
    waiting = iter(answers)
    async with answering(lambda _asked: next(waiting, None)) as server:
        yield server


@asynccontextmanager
async def answering(answer_to: Callable[[Asked], Canned | None]) -> AsyncIterator[Scripted]:
    """A server that answers as it is told to; None: it hangs up."""
    server = Scripted()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                server.asked.append(await _request(reader))
                answer = answer_to(server.asked[-1])
                if answer is None:
                    break
                writer.write(answer.wire()[: answer.cut])
                await writer.drain()
                if answer.cut is not None:
                    break
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.base = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()


def leave() -> Sending:
    """A permit to send that lasts for the test."""
    return Sending(
        first_sent_at=FIRST_SENT_AT,
        not_after=FIRST_SENT_AT + timedelta(minutes=1),
        sendable_until=steady() + 30.0,
    )


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Asked(method, parts.path, parse_qs(parts.query), headers, body)
