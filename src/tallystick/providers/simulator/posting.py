"""One HTTP POST, for webhooks: a client just large enough, so that a fault of the adapters' client is not shared."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

_LONGEST_STATUS_LINE: Final = 4096


class NotDelivered(Exception):
    """No HTTP answer came; the message says why."""


async def post(url: str, headers: tuple[tuple[str, str], ...], body: bytes, *, seconds: float) -> int:
    """The status of the answer. Raises NotDelivered."""
    try:
        async with asyncio.timeout(seconds):
            return await _post(url, headers, body)
    except TimeoutError:
        raise NotDelivered(f"no answer within {seconds:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise NotDelivered(f"{type(error).__name__}: {error}") from error


async def _post(url: str, headers: tuple[tuple[str, str], ...], body: bytes) -> int:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, ssl=True if secure else None, limit=_LONGEST_STATUS_LINE
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
        version, status, *_ = (await reader.readuntil(b"\r\n")).split(maxsplit=2)
        if not version.startswith(b"HTTP/"):
            raise ValueError("the answer is not HTTP")
        return int(status)
    finally:
        writer.close()
