"""One HTTP POST, for webhooks: a client just large enough, so that a fault of the adapters' client is not shared."""

import asyncio
import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

_LONGEST_HEAD: Final = 16 * 1024
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d{1,6})\r\n", re.IGNORECASE)


class NotDelivered(Exception):
    """No HTTP answer came; the message says why."""


class Answered(msgspec.Struct, frozen=True):
    """What the receiver said. `retry_after_seconds` None: it did not ask for a pause."""

    status: int
    retry_after_seconds: float | None


async def post(url: str, headers: tuple[tuple[str, str], ...], body: bytes, *, seconds: float) -> Answered:
    """Raises NotDelivered."""
    try:
        async with asyncio.timeout(seconds):
            return await _post(url, headers, body)
    except TimeoutError:
        raise NotDelivered(f"no answer within {seconds:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise NotDelivered(f"{type(error).__name__}: {error}") from error


async def _post(url: str, headers: tuple[tuple[str, str], ...], body: bytes) -> Answered:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=True if secure else None, limit=_LONGEST_HEAD
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"host: {parts.netloc}",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        lines += [f"{name}: {value}" for name, value in headers]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        head = await reader.readuntil(b"\r\n\r\n")
        version, status, *_ = head.split(maxsplit=2)
        if not version.startswith(b"HTTP/"):
            raise ValueError("the answer is not HTTP")
        asked = _RETRY_AFTER.search(head)
        return Answered(int(status), None if asked is None else float(asked.group(1)))
    finally:
        writer.close()
