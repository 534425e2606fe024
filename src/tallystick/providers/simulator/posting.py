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
_MOST_KEPT: Final = 256
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d{1,6})\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9}) *\r\n", re.IGNORECASE)
_CLOSING: Final = re.compile(rb"\r\nconnection: *close *\r\n", re.IGNORECASE)

_Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
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
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise NotDelivered(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close what is kept."""
        for kept in self._kept.values():
            for _, writer in kept:
                writer.close()
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
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                return await self._exchanged(place, wire, request)
        return await self._exchanged(place, await _opened(parts), request)

    def _taken(self, place: _Place) -> _Wire | None:
        kept = self._kept.get(place)
        while kept:
            reader, writer = kept.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return None

    async def _exchanged(self, place: _Place, wire: _Wire, request: bytes) -> Answered:
        reader, writer = wire
        is_kept = False
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            version, status, *_ = head.split(maxsplit=2)
            if not version.startswith(b"HTTP/"):
                raise ValueError("the answer is not HTTP")
            asked = _RETRY_AFTER.search(head)
            answered = Answered(int(status), None if asked is None else float(asked.group(1)))
            length = _LENGTH.search(head)
            if version == b"HTTP/1.1" and length is not None and _CLOSING.search(head) is None:
                is_kept = await self._emptied(reader, int(length.group(1)))
            return answered
        finally:
            kept = self._kept.setdefault(place, deque())
            if is_kept and len(kept) < _MOST_KEPT:
                kept.append(wire)
            else:
                writer.close()

    async def _emptied(self, reader: asyncio.StreamReader, length: int) -> bool:
        """Whether the answer's body is read to its end, so that the next answer is what comes next."""
        if length > _LONGEST_BODY:
            return False
        try:
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            # It has answered all the same.
            return False
        return True


async def _opened(parts: SplitResult) -> _Wire:
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    return await asyncio.open_connection(parts.hostname, port, ssl=True if secure else None, limit=_LONGEST_HEAD)
