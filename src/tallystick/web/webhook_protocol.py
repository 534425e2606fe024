"""HTTP/1.1 as `protocol` has it, with a short way for webhooks.

An ordinary webhook (POST, a declared length, nothing else under way on its connection) goes from the parser straight to
the receiver, and its answer straight to the socket: no ASGI messages, no task, no event. Everything else, and every
oddity, takes the ordinary way through the same receiver's ASGI application.
"""

import traceback
from http import HTTPStatus
from typing import Any, Final

import structlog

from tallystick.web.call import Header, Reply
from tallystick.web.protocol import BoundedProtocol
from tallystick.web.webhook import PREFIX, Arrival, Refusal, WebhookReceiver, failure

log = structlog.get_logger("tallystick.web")

_PATH: Final = PREFIX.encode()
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_CLOSED: Final = (b"connection", b"close")


class _Heard:
    """Stands for the event that the server sets when a connection is lost: nobody waits for it here."""

    def set(self) -> None:
        """See the class."""


class _Shortcut:
    """What the server's protocol knows of a request under way: as much of its own cycle as it looks at."""

    __slots__ = ("arrival", "disconnected", "keep_alive", "parts", "response_complete")

    message_event = _Heard()

    def __init__(self, arrival: Arrival, *, keep_alive: bool) -> None:
        self.arrival = arrival
        self.keep_alive = keep_alive
        self.parts: list[bytes] = []
        self.disconnected = False
        self.response_complete = False


class WebhookProtocol(BoundedProtocol):
    """Of an application that has a `receiver`; any other is served as before."""

    def __init__(self, config: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401 - the server's own arguments
        """As the server makes it."""
        super().__init__(config, *more, **named)
        self._receiver: WebhookReceiver | None = getattr(config.loaded_app, "receiver", None)

    def on_headers_complete(self) -> None:
        """Take the short way, if the request is an ordinary webhook and nothing else is under way."""
        cycle: Any = self.cycle
        is_free = cycle is None or cycle.response_complete
        if self._receiver is not None and is_free and self.url.startswith(_PATH) and not self.expect_100_continue:
            parser = self.parser
            if parser.get_method() == b"POST" and not parser.should_upgrade():
                arrival = self._receiver.expect(self.url[len(_PATH) :], self.headers)
                if arrival is not None:
                    keep_alive = parser.get_http_version() == "1.1" and parser.should_keep_alive()
                    self.cycle = _Shortcut(arrival, keep_alive=keep_alive)  # type: ignore[assignment]
                    return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser holds it to the declared length, for which there is room."""
        cycle: Any = self.cycle
        if type(cycle) is not _Shortcut:
            super().on_body(body)
            return
        self._beside_the_body -= len(body)
        cycle.parts.append(body)

    def on_message_complete(self) -> None:
        """All of it is there: have it stored."""
        cycle: Any = self.cycle
        if type(cycle) is not _Shortcut:
            super().on_message_complete()
            return
        receiver = self._receiver
        parts = cycle.parts
        try:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            storing = receiver.begin(cycle.arrival, body)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - the parser would call the request malformed
            log.error("webhook_failed", provider=cycle.arrival.name, trace=traceback.format_exc())
            storing = failure(error)
        if isinstance(storing, Refusal):
            self._answer(cycle, receiver.end(cycle.arrival, storing))  # type: ignore[union-attr]
            return
        storing.add_done_callback(lambda stored: self._answer(cycle, receiver.end(cycle.arrival, stored)))  # type: ignore[union-attr]

    def connection_lost(self, exc: Exception | None) -> None:
        """A body that broke off gives its room back; one that is being stored does so when it is."""
        cycle: Any = self.cycle
        if type(cycle) is _Shortcut and self._receiver is not None:
            self._receiver.abandon(cycle.arrival)
        super().connection_lost(exc)

    def _answer(self, cycle: _Shortcut, refusal: Reply | None) -> None:
        cycle.response_complete = True
        if self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers]
        status, body = (200, b"") if refusal is None else (refusal.status, refusal.body)
        if refusal is not None:
            headers += [(b"content-type", refusal.media_type), *refusal.headers]
        if not cycle.keep_alive and _CLOSED not in headers:
            headers.append(_CLOSED)
        self.transport.write(_written(status, headers, body))
        if _CLOSED in headers:
            self.transport.close()
        self.on_response_complete()


def _written(status: int, headers: list[Header], body: bytes) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, _PHRASES[status], lines, len(body), body)
