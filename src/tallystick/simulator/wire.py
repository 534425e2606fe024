"""HTTP/1.1 on the wire, with full control over how an answer breaks. One request at a time per connection.

Between a parsed request and its answer stands an `Exchange`: whoever holds it decides whether the client gets the
answer, half of it, a closed or a reset connection, or nothing for ever.
"""

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, unquote

import httptools

from tallystick.simulator.dialect import Reply, Request

# Bytes. No SDK sends more, and a client that sends without end must not fill the memory.
MOST_HEAD: Final = 64 * 1024
MOST_BODY: Final = 4 * 1024 * 1024
# Requests of one connection that wait for their turn; a client that pipelines more is cut off.
MOST_WAITING: Final = 64
TRICKLE_PIECES: Final = 10
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_ABORT: Final = struct.pack("ii", 1, 0)

_LOG: Final = logging.getLogger(__name__)

Handle = Callable[[Request, "Exchange"], None]
# What the head of an answer says of the time.
Date = Callable[[], str]


class Exchange:
    """One request's way back to its client. Exactly one of its methods is called, once; late calls do nothing."""

    def __init__(self, connection: "Connection", *, keep_alive: bool, has_body: bool = True) -> None:
        self._connection: Connection | None = connection
        self._date = connection.date
        self._keep_alive = keep_alive
        # An answer to HEAD has the head of the answer to GET, and ends there.
        self._has_body = has_body

    def answer(self, reply: Reply) -> None:
        """As it should be."""
        if (connection := self._taken()) is not None:
            connection.finish(self._rendered(reply, keep_alive=self._keep_alive), close=not self._keep_alive)

    def drop(self) -> None:
        """Close without a byte."""
        if (connection := self._taken()) is not None:
            connection.finish(b"", close=True)

    def reset(self) -> None:
        """RST instead of FIN: the client sees a connection reset."""
        if (connection := self._taken()) is not None:
            connection.reset()

    def cut(self, reply: Reply) -> None:
        """Half of the body, then close, though the head promised all of it."""
        whole = self._rendered(reply, keep_alive=True)
        if (connection := self._taken()) is not None:
            connection.finish(whole[: len(whole) - max(1, len(reply.body) // 2)], close=True)

    def trickle(self, reply: Reply, seconds: float) -> None:
        """All of it, piece by piece, spread over the seconds."""
        whole = self._rendered(reply, keep_alive=False)
        size = len(whole) // TRICKLE_PIECES + 1
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        if (connection := self._taken()) is not None:
            connection.trickle(deque(pieces), seconds / len(pieces))

    def _taken(self) -> "Connection | None":
        connection, self._connection = self._connection, None
        return connection

    def _rendered(self, reply: Reply, *, keep_alive: bool) -> bytes:
        return _rendered(reply, date=self._date(), keep_alive=keep_alive, has_body=self._has_body)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, handle: Handle, connections: "set[Connection]", date: Date) -> None:
        self._handle = handle
        self.date = date
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[Request, Exchange]] = deque()
        self._busy = False
        # What is said, after the answers to what came before it, to something that is no request.
        self._refusal = b""
        self._head_size = 0
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_size = 0

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's
        self._transport = None
        self._waiting.clear()
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        # What was counted so far decides: how much of this data is body is known only after parsing it.
        if self._head_size > MOST_HEAD:
            self._refuse(431)
            return
        self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)

    # -- httptools

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_size = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[_header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        # Some clients wait for it before a large body.
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._head_size -= len(body)
        self._body_size += len(body)
        if self._body_size <= MOST_BODY:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._head_size = 0
        if self._body_size > MOST_BODY:
            self._refuse(413)
            return
        if len(self._waiting) >= MOST_WAITING:
            self.reset()
            return
        path, _, query = self._url.partition(b"?")
        method = self._parser.get_method().decode("ascii")
        request = Request(
            method=method,
            path=unquote(path.decode("latin-1")),
            query=parse_qs(query.decode("latin-1"), keep_blank_values=True) if query else {},
            headers=self._headers,
            body=self._body[0] if len(self._body) == 1 else b"".join(self._body),
        )
        keep_alive = self._parser.should_keep_alive()
        self._waiting.append((request, Exchange(self, keep_alive=keep_alive, has_body=method != "HEAD")))
        if not self._busy:
            self._next()

    # -- the way back

    def finish(self, data: bytes, *, close: bool) -> None:
        """Write, then close or take the next request."""
        if self._transport is None:
            return
        if data:
            self._transport.write(data)
        if close:
            self.close()
            return
        self._busy = False
        self._next()

    def trickle(self, pieces: deque[bytes], gap_seconds: float) -> None:
        if self._transport is None:
            return
        self._transport.write(pieces.popleft())
        if pieces:
            self._loop.call_later(gap_seconds, self.trickle, pieces, gap_seconds)
        else:
            self.close()

    def reset(self) -> None:
        """Abort with RST."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        # On a duplicate, because the loop's own socket object may not be touched; options belong to both.
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        transport.abort()

    def close(self) -> None:
        """Close when everything is written."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _next(self) -> None:
        if self._waiting:
            self._busy = True
            request, exchange = self._waiting.popleft()
            try:
                self._handle(request, exchange)
            except Exception:  # noqa: BLE001  it may have moved money: 500 says so, and the parser's 400 would deny it
                _LOG.exception("handling %s %s failed", request.method, request.path)
                exchange.answer(Reply(500, b'{"error":"the simulator itself failed; see its log"}'))
        elif self._refusal:
            self.finish(self._refusal, close=True)

    def _refuse(self, status: int) -> None:
        self._refusal = _rendered(Reply(status, headers=()), date=self.date(), keep_alive=False)
        if not self._busy:
            self._next()


# The same few come with every request.
@lru_cache(maxsize=256)
def _header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _rendered(reply: Reply, *, date: str, keep_alive: bool, has_body: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}", f"date: {date}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    lines += [f"content-length: {len(reply.body)}", f"connection: {'keep-alive' if keep_alive else 'close'}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + (reply.body if has_body else b"")
