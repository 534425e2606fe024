"""The webhook receiver: `POST /webhooks/{provider}`. Verified on raw bytes, durable, and only then acknowledged.

    200 durable, or durable before     400 forged, stale, unreadable     404 no such provider is configured
    408 its body came too slowly       413 more than a megabyte
    503 it cannot be stored now: the provider sends it again

A bare ASGI application in front of the API: no key, no routing table, nothing between the server and the log. What it
holds is bounded in bytes, counted as they come, so a spike costs callers a 503 and never the memory; and a body that is
still coming gives way to one that is there.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Any, Final, Protocol

import msgspec
import structlog
from starlette.types import ASGIApp

from tallystick.app import Service
from tallystick.errors import Busy, InFlight, LogUnreachable, OutcomeUnknown, Unreachable
from tallystick.http.address import caller_address
from tallystick.http.call import Receive, Reply, Scope, Send, problem_reply
from tallystick.http.crowd import Crowd
from tallystick.http.http1.protocol import CLOSED as _CLOSE
from tallystick.http.http1.protocol import Header
from tallystick.http.problem import failed, not_stored, refused
from tallystick.http.refusals import Refusals
from tallystick.http.share import shed
from tallystick.ledger.outcome import Rejected
from tallystick.providers.words import Event, Forged
from tallystick.settings import LIMITS, IpNetwork, Limits
from tallystick.webhooks.log.port import Answered, Delivery, Direct, EventLog

log = structlog.get_logger("tallystick.http")

PREFIX: Final = "/webhooks/"
# A receiver that is full makes room for this part of it at once.
_PART: Final = 32
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
# Every code that a delivery may be answered with.
PROBLEMS: Final = (
    *_REMEDIES,
    "body_incomplete",
    "webhook_provider_unknown",
    "request_late",
    "webhook_too_large",
    "internal_error",
    "webhook_not_stored",
)
_STORED_START: Final = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_STORED_BODY: Final = {"type": "http.response.body", "body": b""}


class Refusal(msgspec.Struct, frozen=True):
    """Why a delivery is not acknowledged: for the count, and for the sender."""

    reason: str
    reply: Reply
    # Whoever sent it showed nothing that a provider would have: he waits for it (`refusals`).
    is_of_stranger: bool = False


class Verifier(Protocol):
    """As much of a provider as the receiver needs."""

    def receive(self, headers: Sequence[tuple[str, str]], body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:
        """See the providers' port."""


class Arrival:
    """One delivery on its way: whose it is, and the room it takes up of the bytes that may be held at once."""

    __slots__ = (
        "address",
        "bytes",
        "headers",
        "is_storing",
        "name",
        "patience",
        "provider",
        "refusal",
        "since",
        "told",
    )

    def __init__(self, name: str, provider: Verifier, headers: list[tuple[str, str]], address: str) -> None:
        """Nothing of it is read yet. Names of headers are in lower case."""
        self.name = name
        self.provider = provider
        self.headers = headers
        self.bytes = 0
        self.told = 0
        self.is_storing = False
        # Of one whose body is still coming: it is read within a timeout that nothing but `cut` lets run out.
        self.address = address
        self.since = 0.0
        self.patience: asyncio.Timeout | None = None
        self.refusal: Refusal | None = None

    def cut(self, refusal: Refusal) -> None:
        """Somebody else needs the room of this body, which is still coming."""
        self.refusal = refusal
        if self.patience is not None:
            self.patience.reschedule(0.0)


def _wall_clock() -> datetime:
    """Only to tell a signature of today from one that somebody kept: what is stored has the database's time."""
    return datetime.now(UTC)


class WebhookReceiver:
    """An ASGI application, and its parts for a protocol that is in a hurry.

    `refused` counts by provider and reason, `stored` and `repeated` by provider.
    """

    def __init__(
        self,
        service: Service,
        *,
        limits: Limits = LIMITS,
        now: Callable[[], datetime] = _wall_clock,
        proxies: tuple[IpNetwork, ...] = (),
        refusals: Refusals | None = None,
    ) -> None:
        """`now` is what signatures are held against; `proxies` are believed whom they speak for."""
        self._proxies = proxies
        self.refusals = Refusals(limits=limits, proxies=proxies) if refusals is None else refusals
        self._providers = service.providers
        # The request line of an ordinary delivery, and whose it is.
        self.request_lines = {f"POST {PREFIX}{name} HTTP/1.1".encode(): name for name in service.providers}
        # Whole deliveries that a protocol is about to begin, and their bodies.
        self.gathered: list[tuple[Any, bytes]] = []
        self._append_for = service.log.append_for if isinstance(service.log, Direct) else _by_future(service.log)
        self._limits = limits
        self._now = now
        self._bytes = 0
        # Those whose bodies are still coming: they give way to others.
        self._coming: set[Arrival] = set()
        # How much of theirs is in `_bytes`: counted along, because each packet of a flood would add them all up.
        self._coming_bytes = 0
        self.stored: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        name = scope["path"][len(PREFIX) :]
        provider = self._providers.get(name)
        if provider is None:
            # Anybody may ask for any name: only those we know become labels.
            refusal: Refusal | None = _UNKNOWN
            reply: Reply | None = self._counted("", _UNKNOWN)
        elif scope["method"] != "POST":
            refusal, reply = _NOT_POSTED, self._counted(name, _NOT_POSTED)
        else:
            headers = [(header.decode("latin-1"), value.decode("latin-1")) for header, value in scope["headers"]]
            address = caller_address(scope, self._proxies)
            arrival = Arrival(name, provider, headers, address)
            reply = await self._take(arrival, receive)
            refusal = arrival.refusal
        if reply is not None:
            if refusal is not None and refusal.is_of_stranger:
                await self.refusals.wait(scope)
            await reply.send(send)
            return
        await send(_STORED_START)
        await send(_STORED_BODY)

    async def _take(self, arrival: Arrival, receive: Receive) -> Reply | None:
        """Read, verify and store it; None when it is durable."""
        try:
            body = await self._body(arrival, receive)
            if isinstance(body, Refusal):
                return self.refuse(arrival, body)
            stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            refusal = self.begin(arrival, body, stored)
            if refusal is not None:
                return self.refuse(arrival, refusal)
            fresh = await stored
        except Exception as error:  # noqa: BLE001 - the provider is owed an answer that makes it send again
            return self.fail(arrival, error)
        except BaseException:
            # Cancelled, and what was to be stored with it.
            self._leave(arrival)
            raise
        self.end(arrival, fresh)
        return None

    def expect(self, arrival: Arrival, length: int, came: int) -> bool:
        """Room for what `came` of a delivery. False: it takes the ordinary way, and is told why."""
        return length <= self._limits.webhook_body_bytes and self._reserved(came, arrival) is None

    def await_rest(self, arrival: Arrival) -> None:
        """More of its body is to come: until then it gives way to others."""
        if arrival not in self._coming:
            self._coming.add(arrival)
            self._coming_bytes += arrival.bytes

    def grown(self, arrival: Arrival, size: int) -> Refusal | None:
        """So much of its body came by now."""
        return self._reserved(size, arrival)

    def provider(self, name: str) -> Verifier:
        """Of a name among the request lines."""
        return self._providers[name]

    def begin(self, arrival: Arrival, body: bytes, answered: Answered) -> Refusal | None:
        """Verify the whole body and have it stored; `answered` is told. Then `end`, `fail` or `refuse` must be called.

        A refusal: nobody will be told anything.
        """
        events = arrival.provider.receive(arrival.headers, body, now=self._now())
        # Asked so: whether something is a struct, a metaclass written in Python answers, for every webhook.
        if not isinstance(events, tuple):
            code = _CODES.get(events.code, "webhook_forged")
            is_of_stranger = code != "webhook_unreadable"
            return _refusal(events.code, code, events.message, _REMEDIES[code], is_of_stranger=is_of_stranger)
        # Hundreds wait at once: what nobody needs any more makes room in the processor's cache for what comes next.
        arrival.headers = []
        arrival.told = len(events)
        try:
            self._append_for(answered, Delivery(arrival.name, events))
        except Busy as busy:
            return _later("busy", busy.retry_after_seconds)
        arrival.is_storing = True
        return None

    def end(self, arrival: Arrival, fresh: int) -> None:
        """It is durable: count it and give its room back. To be acknowledged."""
        self._leave(arrival)
        name = arrival.name
        self.stored[name] += fresh
        if fresh != arrival.told:
            self.repeated[name] += arrival.told - fresh

    def refuse(self, arrival: Arrival, refusal: Refusal) -> Reply:
        """Count it and give its room back. The reply to send."""
        self._leave(arrival)
        arrival.refusal = refusal
        return self._counted(arrival.name, refusal)

    def fail(self, arrival: Arrival, error: BaseException) -> Reply:
        """The same, where something else was in the way."""
        if isinstance(error, Busy):
            return self.refuse(arrival, _later("busy", error.retry_after_seconds))
        if isinstance(error, Unreachable | OutcomeUnknown | InFlight):
            return self.refuse(arrival, _later("database_unreachable", self._limits.retry_after_seconds))
        if isinstance(error, LogUnreachable):
            return self.refuse(arrival, _later("log_unreachable", self._limits.retry_after_seconds))
        log.error("webhook_failed", provider=arrival.name, trace="".join(traceback.format_exception(error)))
        return self.refuse(arrival, failure(error))

    def _leave(self, arrival: Arrival) -> None:
        arrival.is_storing = False
        self._has_come(arrival)
        self._bytes -= arrival.bytes
        arrival.bytes = 0

    def _has_come(self, arrival: Arrival) -> None:
        """It gives way no more: it is whole, or gone."""
        if arrival in self._coming:
            self._coming.remove(arrival)
            self._coming_bytes -= arrival.bytes

    def abandon(self, arrival: Arrival) -> None:
        """Give its room back, unless it is being stored: then `end` does."""
        if not arrival.is_storing:
            self._leave(arrival)

    def _counted(self, name: str, refusal: Refusal) -> Reply:
        self.refused[name, refusal.reason] += 1
        return refusal.reply

    async def _body(self, arrival: Arrival, receive: Receive) -> bytes | Refusal:
        """The whole body. Refused before a byte of it is read where its length is declared, and too large."""
        for header, value in arrival.headers:
            if header == "content-length" and int(value) > self._limits.webhook_body_bytes:
                return _TOO_LARGE
        arrival.since = asyncio.get_running_loop().time()
        self.await_rest(arrival)
        try:
            async with asyncio.timeout(None) as arrival.patience:
                return await self._read(arrival, receive)
        except TimeoutError:
            if arrival.refusal is None:
                raise
            return arrival.refusal
        finally:
            self._has_come(arrival)

    async def _read(self, arrival: Arrival, receive: Receive) -> bytes | Refusal:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return _BROKEN_OFF
            if arrival.refusal is not None:
                return arrival.refusal
            part: bytes = message.get("body", b"")
            size += len(part)
            refusal = self._reserved(size, arrival)
            if refusal is not None:
                return refusal
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _reserved(self, size: int, arrival: Arrival) -> Refusal | None:
        """Have room for so many bytes in all, or say why not."""
        wanted = size - arrival.bytes
        if wanted <= 0:
            return None
        if size > self._limits.webhook_body_bytes:
            return _TOO_LARGE
        if self._bytes + wanted > self._limits.webhook_bytes and not self._made_room(wanted, arrival):
            return _later("busy", self._limits.retry_after_seconds, _CLOSE)
        self._bytes += wanted
        arrival.bytes = size
        if arrival in self._coming:
            self._coming_bytes += wanted
        return None

    def _made_room(self, wanted: int, arrival: Arrival) -> bool:
        """Let bodies that are still coming give way. False: there is no room, or `arrival` itself is who must."""
        most = self._limits.webhook_bytes
        own = arrival.bytes if arrival in self._coming else 0
        if self._bytes - self._coming_bytes + own + wanted > most:
            return False
        # More than is wanted, so that not every packet of a flood has to look at everybody.
        for one in shed(self._coming, max(self._bytes + wanted - most, most // _PART), lambda one: one.bytes):
            if one is arrival:
                return False
            one.cut(_later("busy", self._limits.retry_after_seconds, _CLOSE))
            self._leave(one)
        return True


class Front:
    """Webhooks to the receiver, everything else to the API."""

    def __init__(self, receiver: WebhookReceiver, api: ASGIApp, crowd: Crowd | None = None) -> None:
        """`receiver` is also there for a protocol that knows it (`webhook_protocol`), and `crowd` for the server."""
        self.receiver = receiver
        self.api = api
        self.crowd = Crowd() if crowd is None else crowd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """By the path alone."""
        answering: ASGIApp = self.receiver if scope["path"].startswith(PREFIX) else self.api
        await answering(scope, receive, send)


def _by_future(log: EventLog) -> Callable[[Answered, Delivery], None]:
    """For a log that knows futures only."""

    def append_for(answered: Answered, delivery: Delivery) -> None:
        def tell(stored: "asyncio.Future[int]") -> None:
            if answered.done():
                return
            error = Busy(LIMITS.retry_after_seconds) if stored.cancelled() else stored.exception()
            if error is None:
                answered.set_result(stored.result())
            else:
                answered.set_exception(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))

        log.append(delivery).add_done_callback(tell)

    return append_for


def failure(error: BaseException) -> Refusal:
    """What should not have happened did."""
    return Refusal("internal_error", problem_reply(failed(error if isinstance(error, Exception) else RuntimeError())))


def _refusal(
    reason: str, code: str, detail: str, remedy: str, *headers: Header, is_of_stranger: bool = False
) -> Refusal:
    return Refusal(reason, problem_reply(refused(Rejected(code, detail, remedy)), *headers), is_of_stranger)


def _later(reason: str, after_seconds: float, *headers: Header) -> Refusal:
    return Refusal(reason, problem_reply(not_stored(), (b"retry-after", b"%d" % ceil(after_seconds)), *headers))


_UNKNOWN: Final = _refusal(
    "provider_unknown",
    "webhook_provider_unknown",
    "No provider of that name is configured here.",
    "Use the name it is configured under: stripe, adyen, square, wise or simulator.",
    _CLOSE,
    is_of_stranger=True,
)
_NOT_POSTED: Final = _refusal(
    "method",
    "method_not_allowed",
    "This address answers to POST.",
    "See /docs.",
    (b"allow", b"POST"),
    _CLOSE,
    is_of_stranger=True,
)
_TOO_LARGE: Final = _refusal(
    "too_large",
    "webhook_too_large",
    f"The body is larger than {LIMITS.webhook_body_bytes:,} bytes.",
    "No provider sends such a webhook; it was not stored.",
    _CLOSE,
    is_of_stranger=True,
)
LATE: Final = _refusal(
    "late", "request_late", "The body did not come to its end in time.", "Send it again, all of it at once.", _CLOSE
)
_BROKEN_OFF: Final = _refusal(
    "broken_off", "body_incomplete", "The connection closed within the body.", "Send it again."
)
