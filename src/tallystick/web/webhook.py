"""The webhook receiver: `POST /webhooks/{provider}`. Verified on raw bytes, durable, and only then acknowledged.

    200 durable, or durable before     400 forged, stale, unreadable     404 no such provider is configured
    413 more than a megabyte           503 it cannot be stored now: the provider sends it again

A bare ASGI application in front of the API: no key, no routing table, nothing between the server and the log. What it
holds is bounded in bytes from the first one read, so a spike costs callers a 503 and never the memory.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil
from typing import Final

import msgspec
import structlog
from starlette.types import ASGIApp, Message

from tallystick.app import Service
from tallystick.core.outcome import Rejected
from tallystick.core.provider import Forged
from tallystick.errors import Busy, InFlight, OutcomeUnknown, Unreachable
from tallystick.eventlog.port import Delivery
from tallystick.settings import LIMITS, Limits
from tallystick.web.call import Header, Receive, Reply, Scope, Send, problem_reply
from tallystick.web.problem import failed, not_stored, refused

log = structlog.get_logger("tallystick.web")

PREFIX: Final = "/webhooks/"
_CODES: Final = {
    "timestamp_stale": "webhook_stale",
    "timestamp_future": "webhook_stale",
    "unreadable": "webhook_unreadable",
}
_REMEDIES: Final = {
    "webhook_forged": "Check that the endpoint's secret at the provider is among those configured here.",
    "webhook_stale": "Send it anew, signed now; if it was, compare the clocks.",
    "webhook_unreadable": "It is not stored. Report it: the provider has changed what it sends.",
}
# What is left of a body that nobody reads would be taken for the next request.
_CLOSE: Final[Header] = (b"connection", b"close")
_STORED_START: Final = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_STORED_BODY: Final = {"type": "http.response.body", "body": b""}


class _Refusal(msgspec.Struct, frozen=True):
    """Why a delivery is not acknowledged: for the count, and for the sender."""

    reason: str
    reply: Reply


class _Room:
    """What one delivery takes up of the bytes that may be held at once."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


def _wall_clock() -> datetime:
    """Only to tell a signature of today from one that somebody kept: what is stored has the database's time."""
    return datetime.now(UTC)


class WebhookReceiver:
    """An ASGI application. `refused` counts by provider and reason, `stored` and `repeated` by provider."""

    def __init__(self, service: Service, *, limits: Limits = LIMITS, now: Callable[[], datetime] = _wall_clock) -> None:
        """`now` is what signatures are held against."""
        self._providers = service.providers
        self._log = service.log
        self._limits = limits
        self._now = now
        self._bytes = 0
        self.stored: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        name = scope["path"][len(PREFIX) :]
        room = _Room()
        try:
            refusal = await self._take(name, scope, receive, room)
        except Exception as error:  # noqa: BLE001 - the provider is owed an answer that makes it send again
            log.error("webhook_failed", provider=name, trace=traceback.format_exc())
            refusal = _Refusal("internal_error", problem_reply(failed(error)))
        finally:
            self._bytes -= room.bytes
        if refusal is None:
            await send(_STORED_START)
            await send(_STORED_BODY)
            return
        # Anybody may ask for any name: only those we know become labels.
        self.refused[name if name in self._providers else "", refusal.reason] += 1
        await refusal.reply.send(send)

    async def _take(self, name: str, scope: Scope, receive: Receive, room: _Room) -> _Refusal | None:
        """Read, verify and store it; None when it is durable."""
        provider = self._providers.get(name)
        if provider is None:
            return _UNKNOWN
        if scope["method"] != "POST":
            return _NOT_POSTED
        headers: list[Header] = scope["headers"]
        body = await self._body(headers, receive, room)
        if isinstance(body, _Refusal):
            return body
        texts = [(header.decode("latin-1"), value.decode("latin-1")) for header, value in headers]
        events = provider.receive(texts, body, now=self._now())
        if isinstance(events, Forged):
            code = _CODES.get(events.code, "webhook_forged")
            return _refusal(events.code, code, events.message, _REMEDIES[code])
        try:
            fresh = await self._log.append(Delivery(name, events))
        except Busy as busy:
            return _later("busy", busy.retry_after_seconds)
        except (Unreachable, OutcomeUnknown, InFlight):
            return _later("database_unreachable", self._limits.retry_after_seconds)
        self.stored[name] += fresh
        if fresh != len(events):
            self.repeated[name] += len(events) - fresh
        return None

    async def _body(self, headers: list[Header], receive: Receive, room: _Room) -> bytes | _Refusal:
        """The whole body. Refused before a byte of it is read where its length is declared."""
        for header, value in headers:
            if header == b"content-length":
                refusal = self._reserved(int(value), room)
                if refusal is not None:
                    return refusal
        message = await receive()
        whole: bytes = message.get("body", b"")
        if not message.get("more_body", True) and len(whole) <= room.bytes:
            return whole
        return await self._parts(message, receive, room)

    async def _parts(self, message: Message, receive: Receive, room: _Room) -> bytes | _Refusal:
        parts: list[bytes] = []
        size = 0
        while True:
            if message["type"] != "http.request":
                return _BROKEN_OFF
            part: bytes = message.get("body", b"")
            size += len(part)
            # One that came in chunks did not say beforehand how long it is.
            refusal = self._reserved(size, room)
            if refusal is not None:
                return refusal
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()

    def _reserved(self, size: int, room: _Room) -> _Refusal | None:
        """Have room for so many bytes in all, or say why not."""
        wanted = size - room.bytes
        if wanted <= 0:
            return None
        if size > self._limits.webhook_body_bytes:
            return _TOO_LARGE
        if self._bytes + wanted > self._limits.webhook_bytes:
            return _later("busy", self._limits.retry_after_seconds, _CLOSE)
        self._bytes += wanted
        room.bytes = size
        return None


def in_front(receiver: ASGIApp, api: ASGIApp) -> ASGIApp:
    """Webhooks to the receiver, everything else to the API."""

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        answering = receiver if scope["path"].startswith(PREFIX) else api
        await answering(scope, receive, send)

    return choose


def _refusal(reason: str, code: str, detail: str, remedy: str, *headers: Header) -> _Refusal:
    return _Refusal(reason, problem_reply(refused(Rejected(code, detail, remedy)), *headers))


def _later(reason: str, after_seconds: float, *headers: Header) -> _Refusal:
    return _Refusal(reason, problem_reply(not_stored(), (b"retry-after", b"%d" % ceil(after_seconds)), *headers))


_UNKNOWN: Final = _refusal(
    "provider_unknown",
    "webhook_provider_unknown",
    "No provider of that name is configured here.",
    "Use the name it is configured under: stripe, adyen, square, wise or simulator.",
    _CLOSE,
)
_NOT_POSTED: Final = _refusal(
    "method", "method_not_allowed", "This address answers to POST.", "See /docs.", (b"allow", b"POST"), _CLOSE
)
_TOO_LARGE: Final = _refusal(
    "too_large",
    "webhook_too_large",
    f"The body is larger than {LIMITS.webhook_body_bytes:,} bytes.",
    "No provider sends such a webhook; it was not stored.",
    _CLOSE,
)
_BROKEN_OFF: Final = _refusal(
    "broken_off", "body_incomplete", "The connection closed within the body.", "Send it again."
)
