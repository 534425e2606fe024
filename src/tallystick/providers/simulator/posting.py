"""HTTP POSTs, for webhooks: a client just large enough, so that a fault of the adapters' client is not shared.

Connections are kept for the next: opening one costs both ends more than the webhook itself.
"""

import asyncio
import contextlib
import re
from collections import deque
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

_LONGEST_HEAD: Final = 16 * 1024
# An answer longer than this is not read, and its connection not kept: nothing in it is of interest.
_LONGEST_BODY: Final = 64 * 1024
# Idle connections of one receiver.
_MOST_KEPT: Final = 64
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d{1,6})\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9}) *\r\n", re.IGNORECASE)
_CLOSING: Final = re.compile(rb"\r\nconnection: *close *\r\n", re.IGNORECASE)

_Place = tuple[str, str]


class NotDelivered(Exception):
    """No HTTP answer came; the message says why."""


class Answered(msgspec.Struct, frozen=True):
    """What the receiver said. `retry_after_seconds` None: it did not ask for a pause."""

    status: int
    retry_after_seconds: float | None


class Posting:
    """Posts to any number of receivers, one request at a time on each connection."""

    def __init__(self) -> None:
        self._kept: dict[_Place, deque[_Wire]] = {}

    async def post(self, url: str, headers: tuple[tuple[str, str], ...], body: bytes, *, seconds: float) -> Answered:
        """Raises NotDelivered."""
        try:
            async with asyncio.timeout(seconds):
                return await self._post(url, headers, body)
        except TimeoutError:
            raise NotDelivered(f"no answer within {seconds:g} s") from None
        except (OSError, ValueError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close what is kept."""
        for kept in self._kept.values():
            for wire in kept:
                wire.close()
        self._kept.clear()

    async def _post(self, url: str, headers: tuple[tuple[str, str], ...], body: bytes) -> Answered:
        parts = urlsplit(url)
        place = parts.scheme, parts.netloc
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {target} HTTP/1.1", f"host: {parts.netloc}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        request = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        wire = self._taken(place)
        if wire is not None:
            # A receiver may close a kept connection at any moment: it has then not answered, and is told again.
            with contextlib.suppress(ConnectionError):
                return await self._exchanged(place, wire, request)
        return await self._exchanged(place, await _opened(parts), request)

    def _taken(self, place: _Place) -> "_Wire | None":
        kept = self._kept.get(place)
        while kept:
            wire = kept.pop()
            if not wire.is_over:
                return wire
        return None

    async def _exchanged(self, place: _Place, wire: "_Wire", request: bytes) -> Answered:
        is_kept = False
        try:
            answered, is_kept = await wire.ask(request)
            return answered
        finally:
            kept = self._kept.setdefault(place, deque())
            if is_kept and len(kept) < _MOST_KEPT:
                kept.append(wire)
            else:
                wire.close()


class _Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came = b""
        self._answer: asyncio.Future[tuple[Answered, bool]] | None = None
        # Of an answer whose head is read: the head, and what its body still lacks.
        self._head: Answered | None = None
        self._missing = 0
        self.is_over = False

    def ask(self, request: bytes) -> "asyncio.Future[tuple[Answered, bool]]":
        """What the receiver said, and whether the connection can be used again."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._transport is None or self.is_over:
            answer.set_exception(ConnectionResetError("the connection was closed"))
        else:
            self._transport.write(request)
        return answer

    def close(self) -> None:
        self.is_over = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        if self._head is not None:
            # It has answered all the same.
            self._tell(self._head, is_kept=False)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("it was closed without an answer"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            # What nobody asked for would be taken for the next answer.
            self.close()
        elif self._head is not None:
            self._read_body(self._head, len(data))
        else:
            self._came += data
            try:
                self._read_head(self._answer)
            except ValueError as error:
                self._answer.set_exception(error)

    def _read_head(self, answer: "asyncio.Future[tuple[Answered, bool]]") -> None:
        end = self._came.find(b"\r\n\r\n")
        if end < 0:
            if len(self._came) > _LONGEST_HEAD:
                raise ValueError("the answer's head is too long")
            return
        head, rest, self._came = self._came[: end + 4], len(self._came) - end - 4, b""
        version, status, *_ = head.split(maxsplit=2)
        if not version.startswith(b"HTTP/"):
            raise ValueError("the answer is not HTTP")
        asked = _RETRY_AFTER.search(head)
        answered = Answered(int(status), None if asked is None else float(asked.group(1)))
        length = _LENGTH.search(head)
        if version != b"HTTP/1.1" or length is None or int(length[1]) > _LONGEST_BODY or _CLOSING.search(head):
            answer.set_result((answered, False))
            return
        self._head, self._missing = answered, int(length[1])
        self._read_body(answered, rest)

    def _read_body(self, answered: Answered, came: int) -> None:
        """To its end, so that the next answer is what comes next."""
        self._missing -= came
        if self._missing <= 0:
            self._tell(answered, is_kept=self._missing == 0)

    def _tell(self, answered: Answered, *, is_kept: bool) -> None:
        self._head = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((answered, is_kept))


async def _opened(parts: SplitResult) -> _Wire:
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(_Wire, parts.hostname or "", port, ssl=True if secure else None)
    return wire
