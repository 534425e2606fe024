"""HTTP/1.1 as `protocol` has it, with a short way for webhooks.

An ordinary webhook goes from its bytes straight to the receiver, and its answer from the commit straight to the socket:
no parser's callbacks, no ASGI messages, no task, no future. Ordinary is what providers send: a POST whose head came in
one piece, with plain headers, one declared length, and nothing else under way on its connection. Of a head that is
anything else not one byte is judged here: the server's own parser gets all of it, and the request takes the ordinary
way through the same receiver's ASGI application.
"""

import traceback
from functools import partial
from typing import Any, Final, Protocol

import structlog

from tallystick.http.call import Reply
from tallystick.http.http1 import head
from tallystick.http.http1.protocol import CLOSED, BoundedProtocol, Header, written
from tallystick.webhooks.receiver import LATE, PREFIX, Arrival, Refusal, Verifier, WebhookReceiver

log = structlog.get_logger("tallystick.http")

_START: Final = f"POST {PREFIX}".encode()
_LENGTH: Final = head.LENGTH.decode()

# Providers send the same lines again and again, but for the signature, which is long. Bounded: whoever sends others
# costs himself the reading of them.
_MOST_LINES: Final = 1_024
_MOST_LINE_BYTES: Final = 72
_MOST_NAME_BYTES: Final = 64

Field = tuple[str, str]


class Underway(Protocol):
    """What took a short way, and is not answered yet."""

    keep_alive: bool
    response_complete: bool


class _Heard:
    """Stands for the event that the server sets when a connection is lost: nobody waits for it here."""

    def set(self) -> None:
        """See the class."""


class _Shortcut(Arrival):
    """A delivery that is also what the server's protocol knows of a request under way: as much as it looks at.

    And it is told what became of itself (`webhooks.log.port.Answered`).
    """

    __slots__ = ("disconnected", "keep_alive", "missing", "parts", "protocol", "response_complete")

    message_event = _Heard()

    def __init__(self, name: str, provider: Verifier, headers: list[Field], protocol: "WebhookProtocol") -> None:
        self.name = name
        self.provider = provider
        self.headers = headers
        self.bytes = 0
        self.told = 0
        self.is_storing = False
        self.protocol = protocol
        self.parts: list[bytes] | None = None
        self.missing = 0
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False

    def cut(self, refusal: Refusal) -> None:
        """Somebody else needs the room of this body, which is still coming."""
        self.protocol._break_off(self, refusal)  # noqa: SLF001 - its own

    def done(self) -> bool:
        """Told already. One whose connection is gone is stored all the same."""
        return self.response_complete

    def set_result(self, fresh: int, /) -> None:
        """Durable: acknowledge it."""
        self.protocol.stored(self, fresh)

    def set_exception(self, error: Exception, /) -> None:
        """Not durable, as far as anybody knows."""
        self.protocol.failed(self, error)


class WebhookProtocol(BoundedProtocol):
    """Of an application that has a `receiver`; any other is served as before."""

    # Lines of heads that were read before, and names of longer ones, in lower case; for all connections.
    _fields: Final[dict[bytes, Field]] = {}
    _names: Final[dict[bytes, str]] = {}

    def __init__(self, config: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401 - the server's own arguments
        """As the server makes it."""
        super().__init__(config, *more, **named)
        self._receiver: WebhookReceiver | None = getattr(config.loaded_app, "receiver", None)
        # A short way's body that is still coming.
        self._coming: _Shortcut | None = None

    def data_received(self, data: bytes) -> None:
        """Take the short way, if it is an ordinary webhook and nothing else is under way."""
        if self._coming is not None:
            self._more(self._coming, data)
        elif not (self._is_between and self._is_free() and self._taken(data)):
            super().data_received(data)

    def on_response_complete(self) -> None:
        """An idle connection's time begins."""
        self._answered_at = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """The short way sets no timer for each answer: it lets the one there is find out that it came too early."""
        idle_seconds = self.loop.time() - self._answered_at
        if not self._is_free():
            idle_seconds = 0.0
        if idle_seconds >= self.timeout_keep_alive:
            super().timeout_keep_alive_handler()
            return
        self._close_when_idle(self.timeout_keep_alive - idle_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """A body that broke off gives its room back; one that is being stored does so when it is."""
        if self._coming is not None and self._receiver is not None:
            self._receiver.abandon(self._coming)
            self._coming = None
        super().connection_lost(exc)
        # Also where the server's own leaves it running.
        self._unset_keepalive_if_required()

    def _is_free(self) -> bool:
        cycle: Any = self.cycle
        return (cycle is None or cycle.response_complete) and not self.transport.is_closing()

    def _taken(self, data: bytes) -> bool:
        """False: it is not for the short way, and nothing happened."""
        receiver = self._receiver
        if receiver is None or not data.startswith(_START):
            return False
        end = data.find(head.END, 0, head.MOST_BYTES)
        if end < 0:
            return False
        lines = data[:end].split(b"\r\n")
        name = receiver.request_lines.get(lines[0])
        if name is None or len(lines) > self._crowd.limits.head_fields:
            return False
        headers: list[Field] = []
        length = self._length(lines, headers)
        shortcut = _Shortcut(name, receiver.provider(name), headers, self)
        start = end + len(head.END)
        whole = start + length
        if length < 0 or not receiver.expect(shortcut, length, min(length, len(data) - start)):
            return False
        self.cycle = shortcut  # type: ignore[assignment]
        self.deadline = self._unread_until
        if len(data) == whole:
            self._gather(shortcut, data[start:])
        elif len(data) > whole:
            # Sent ahead: it is begun when this one is answered, and the parser keeps it until then.
            self._gather(shortcut, data[start:whole])
            super().data_received(data[whole:])
        else:
            shortcut.parts = [data[start:]]
            shortcut.missing = whole - len(data)
            self._coming = shortcut
            shortcut.address, shortcut.since = self.address, self.loop.time()
            self.deadline = shortcut.since + self._crowd.limits.body_seconds
            receiver.await_rest(shortcut)
        return True

    def _length(self, lines: list[bytes], headers: list[Field]) -> int:
        """The declared length, with all headers read into `headers`; -1: it is no ordinary head."""
        known = self._fields
        length = -1
        for line in lines[1:]:
            field = known.get(line) or self._field(line)
            if field is None:
                return -1
            if field[0] == _LENGTH:
                if length >= 0:
                    return -1
                length = int(field[1])
            headers.append(field)
        return length

    def _field(self, line: bytes) -> Field | None:
        """A line of a head, if it is an ordinary one."""
        spelled, _, given = line.partition(b": ")
        name = self._names.get(spelled)
        if name is not None and given.isascii():
            # What the pattern below asks of a value, without its machinery: printable, and no spaces around it.
            value = given.decode("ascii")
            if value.isprintable() and value.strip(" ") == value != "":
                return name, value
        read = head.read_field(line)
        if read is None:
            return None
        field = read[0].decode("ascii"), read[1].decode("ascii")
        if len(line) <= _MOST_LINE_BYTES:
            if len(self._fields) >= _MOST_LINES:
                self._fields.clear()
            self._fields[line] = field
        elif field[0] != _LENGTH and len(read[0]) <= _MOST_NAME_BYTES:
            if len(self._names) >= _MOST_LINES:
                self._names.clear()
            self._names[line[: len(read[0])]] = field[0]
        return field

    def _more(self, shortcut: _Shortcut, data: bytes) -> None:
        """More of a body, and perhaps what comes after it."""
        parts, missing = shortcut.parts or [], shortcut.missing
        parts.append(data[:missing])
        shortcut.missing = missing - len(parts[-1])
        refusal = self._receiver.grown(shortcut, shortcut.bytes + len(parts[-1]))  # type: ignore[union-attr]
        if refusal is not None:
            self._break_off(shortcut, refusal)
            return
        if shortcut.missing:
            return
        self._coming = None
        self.deadline = self._unread_until
        shortcut.parts = None
        self._gather(shortcut, b"".join(parts))
        if len(data) > missing:
            super().data_received(data[missing:])

    def _break_off(self, shortcut: _Shortcut, refusal: Refusal) -> None:
        """Of a body that is still coming."""
        self._coming = None
        shortcut.parts = None
        self.reply(shortcut, self._receiver.refuse(shortcut, refusal))  # type: ignore[union-attr]

    def give_up(self) -> None:
        """A webhook's body that is late is refused like any other webhook."""
        if self._coming is not None:
            self._break_off(self._coming, LATE)
        else:
            super().give_up()

    @property
    def is_whole(self) -> bool:
        """Neither by the short way nor by the parser's is a part of a request on its way."""
        return self._coming is None and self._is_between

    def _gather(self, shortcut: _Shortcut, body: bytes) -> None:
        """Begin it with all others that this turn of the loop brings: one kind of work at a time is faster done."""
        gathered: list[tuple[_Shortcut, bytes]] = self._receiver.gathered  # type: ignore[union-attr]
        if not gathered:
            self.loop.call_soon(_begin_all, gathered)
        gathered.append((shortcut, body))

    def begin(self, shortcut: _Shortcut, body: bytes) -> None:
        """Verify it and have it stored. Raises nothing, like `stored`."""
        receiver: WebhookReceiver = self._receiver  # type: ignore[assignment]
        try:
            refusal = receiver.begin(shortcut, body, shortcut)
        except Exception as error:  # noqa: BLE001 - the provider is owed an answer that makes it send again
            self.failed(shortcut, error)
            return
        if refusal is not None:
            self._refuse(receiver, shortcut, refusal, len(body))

    def _refuse(self, receiver: WebhookReceiver, shortcut: _Shortcut, refusal: Refusal, came: int) -> None:
        reply = receiver.refuse(shortcut, refusal)
        if not refusal.is_of_stranger:
            self.reply(shortcut, reply)
            return
        scope = {
            "client": self.client,
            "headers": [(name.encode("ascii"), value.encode("ascii")) for name, value in shortcut.headers],
        }
        receiver.refusals.hold(self, scope, came, partial(self.reply, shortcut, reply))

    def stored(self, shortcut: _Shortcut, fresh: int) -> None:
        """Acknowledge it. Raises nothing: others were stored with it, and are owed their answers."""
        try:
            self._receiver.end(shortcut, fresh)  # type: ignore[union-attr]
            shortcut.response_complete = True
            if not self.transport.is_closing():
                self.transport.write(self._acknowledgement(shortcut))
                self._finished(shortcut)
        except Exception:  # noqa: BLE001 - see above; without an answer the provider sends it again
            log.error("webhook_failed", provider=shortcut.name, trace=traceback.format_exc())
            self.transport.abort()

    def failed(self, shortcut: _Shortcut, error: Exception) -> None:
        """Tell the provider to send it again. Raises nothing, like `stored`."""
        try:
            self.reply(shortcut, self._receiver.fail(shortcut, error))  # type: ignore[union-attr]
        except Exception:  # noqa: BLE001 - as above
            log.error("webhook_failed", provider=shortcut.name, trace=traceback.format_exc())
            self.transport.abort()

    def _acknowledgement(self, shortcut: _Shortcut) -> bytes:
        headers = self.server_state.default_headers
        if not shortcut.keep_alive:
            return written(200, [*headers, CLOSED], b"")
        global _acknowledged  # noqa: PLW0603 - the server renews its headers once a second, for all connections
        acknowledged = _acknowledged
        if acknowledged[0] is not headers:
            _acknowledged = acknowledged = headers, written(200, headers, b"")
        return acknowledged[1]

    def reply(self, shortcut: "Underway", reply: Reply) -> None:
        """Answer what took a short way."""
        shortcut.response_complete = True
        if self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers, (b"content-type", reply.media_type), *reply.headers]
        if CLOSED in reply.headers:
            shortcut.keep_alive = False
        elif not shortcut.keep_alive:
            headers.append(CLOSED)
        self.transport.write(written(reply.status, headers, reply.body))
        self._finished(shortcut)

    def _finished(self, shortcut: "Underway") -> None:
        if not shortcut.keep_alive:
            self.transport.close()
        if self.pipeline or not shortcut.keep_alive:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_when_idle(self.timeout_keep_alive)

    def _close_when_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)


_acknowledged: tuple[list[Header], bytes] = [], b""


def _begin_all(gathered: list[tuple[_Shortcut, bytes]]) -> None:
    taken = gathered[:]
    gathered.clear()
    for shortcut, body in taken:
        shortcut.protocol.begin(shortcut, body)
