"""HTTP/1.1 as uvicorn speaks it, with bounds: uvicorn itself would buffer an endless header, and wait for ever.

How long each part of a request may take, and how much of all of them may be held, `crowd` knows; where a connection
stands is told here. And an ordinary reply leaves in one piece: uvicorn writes head and body apart, two packets and two
calls of the kernel.
"""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tallystick.http.address import share_of
from tallystick.http.crowd import NEVER, Crowd
from tallystick.http.problem import Problem, refused
from tallystick.http.refusals import STRANGER
from tallystick.ledger.outcome import Rejected

# Bytes of a request besides its body: request line, headers, chunk framing, trailers. Proxies stop at 8 to
# 64 KB of headers.
MOST_BESIDE_THE_BODY: Final = 64 * 1024

# A body may come in so many chunks, and one more for each of so many bytes: each is a call of ours, and chunks of one
# byte cost the sender six. Who writes JSON as it is made sends a chunk for each word of it: 100 operations are 3,000.
MOST_PIECES: Final = 4_096
BYTES_A_PIECE: Final = 128

# Requests that wait on one connection for the answer of the one before: hardly anybody sends one ahead.
MOST_AHEAD: Final = 32

# A request's target: the longest of ours has ids of 255 characters, each of which may be written as three. The server
# decodes what is written so, and looks for it in the table, before anybody asks for a key.
MOST_TARGET_BYTES: Final = 4 * 1024

Header = tuple[bytes, bytes]

# What is left of a request that nobody reads would be taken for the next.
CLOSED: Final[Header] = (b"connection", b"close")

_LATE: Final = refused(
    Rejected("request_late", "The request did not come to its end in time.", "Send it again, all of it at once.")
)
_WHAT_FITS: Final = "Send it as HTTP/1.1, in fewer and shorter parts."
_NO_ROOM: Final = refused(
    Rejected(
        "connections_exhausted",
        "As many are connected as this server has room for.",
        "Connect again after the seconds in Retry-After.",
    )
)
# A reply as large as this goes out beside its head instead of behind it.
_SHARED_FROM: Final = 65_536
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class _TooMany(Exception):
    """More parts of a request than anybody sends who means well."""


class BoundedProtocol(HttpToolsProtocol):
    """Cuts a connection off whose request never comes to its body, or to its end. Nobody has shown a key by then."""

    def __init__(self, config: Any, *more: Any, crowd: Crowd | None = None, **named: Any) -> None:  # noqa: ANN401
        """As the server makes it, but for the `crowd` it is one of."""
        super().__init__(config, *more, **named)
        self._crowd = Crowd() if crowd is None else crowd
        self._beside_the_body = 0
        self._head_fields = 0
        # Of what came last: joined before anybody else sees them.
        self._pieces: list[bytes] = []
        self._pieces_left = 0
        self._complaint = ""
        # As `refusals` sees it: bytes of the request under way, and whether its caller waits to be refused.
        self.came = 0
        self.is_held = False
        # The parser has seen whole requests only, and none that changed what the connection is.
        self._is_between = True
        self._was_upgraded = False
        self._is_in_body = False
        self._has_begun = False
        self._answered_at = 0.0
        self.address = ""
        self.deadline = NEVER
        # NEVER: its caller reads.
        self._unread_until = NEVER

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Something is expected of it from now on."""
        super().connection_made(transport)
        self.address = share_of(self.client, self._crowd.proxies)
        self._answered_at = self.loop.time()
        self.deadline = self._answered_at + self._crowd.limits.head_seconds
        self._crowd.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See the server's."""
        self._crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """What was counted so far decides: how much of this data is body is known only after parsing it."""
        if self._beside_the_body > MOST_BESIDE_THE_BODY:
            self.send_400_response("The head of the request is too large.")
            return
        if self.deadline == NEVER:
            self.deadline = self.loop.time() + self._crowd.limits.head_seconds
        self._has_begun = True
        self._beside_the_body += len(data)
        self.came += len(data)
        self._pieces_left += len(data) // BYTES_A_PIECE
        super().data_received(data)
        self._join()

    def on_message_begin(self) -> None:
        """The parser is within a request."""
        self._is_between = False
        self._head_fields = 0
        # Counted over the whole of it: what a packet holds of it is chance.
        self._pieces_left = MOST_PIECES + self._beside_the_body // BYTES_A_PIECE
        if len(self.pipeline) >= MOST_AHEAD:
            # Without a word: it would be taken for the answer to one that is being made.
            self.transport.abort()
            raise _TooMany(b"requests")
        super().on_message_begin()
        self.came = self._beside_the_body
        self.scope[STRANGER] = self  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """One more field of the head, or of the trailers: what is raised here ends the connection with a 400."""
        self._head_fields += 1
        if self._head_fields > self._crowd.limits.head_fields:
            self._complaint = "The head of the request has too many fields."
            raise _TooMany(name)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body's time begins.

        What asks for another protocol gets none, but the parser may no longer be where it seems to be.
        """
        if len(self.url) > MOST_TARGET_BYTES:
            self._complaint = "The address of the request is too long."
            raise _TooMany(b"bytes of a target")
        self.deadline = min(self.loop.time() + self._crowd.limits.body_seconds, self._unread_until)
        self._is_in_body = True
        self._was_upgraded = self._was_upgraded or self.parser.should_upgrade()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """One more piece. The body has its own limit, where it is read."""
        self._pieces.append(body)
        # The first of a packet costs the sender a packet.
        if len(self._pieces) > self._pieces_left + 1:
            self._complaint = "The body comes in too many small chunks: send larger ones, or its length."
            raise _TooMany(b"chunks")

    def _join(self) -> None:
        """What came of a body at once is handed on at once."""
        pieces = self._pieces
        if not pieces:
            return
        self._pieces = []
        self._pieces_left -= len(pieces) - 1
        body = b"".join(pieces)
        self._beside_the_body -= len(body)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser is between two requests: nothing is awaited, and a new count begins."""
        self._join()
        self._beside_the_body = 0
        self._is_between = not self._was_upgraded
        self._is_in_body = False
        self.deadline = self._unread_until
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Its caller does not read: not for ever."""
        super().pause_writing()
        self._unread_until = self.loop.time() + self._crowd.limits.reply_seconds
        self.deadline = min(self.deadline, self._unread_until)

    def resume_writing(self) -> None:
        """He did."""
        super().resume_writing()
        self._unread_until = NEVER
        if self.is_whole:
            self.deadline = NEVER

    def send_400_response(self, msg: str) -> None:
        """What came is no request, or more than one: counted, because it is not logged one by one."""
        self._crowd.closed["malformed"] += 1
        if self.transport.is_closing():
            return
        self._say_last(refused(Rejected("request_malformed", self._complaint or msg, _WHAT_FITS)), ())
        self.transport.close()

    def shutdown(self) -> None:
        """The server stops: what is whole is answered, and what is still coming has a moment more."""
        super().shutdown()
        if not self.is_whole:
            self.deadline = min(self.deadline, self.loop.time() + self._crowd.limits.linger_seconds)

    # --- as the crowd sees it

    @property
    def is_whole(self) -> bool:
        """No part of a request is on its way."""
        return self._is_between

    @property
    def since(self) -> float:
        """When it was made, or last answered."""
        return self._answered_at

    @property
    def is_owed(self) -> bool:
        """All of a request came, and its answer did not go out: unless it is a refusal that he waits for."""
        cycle: Any = self.cycle
        return cycle is not None and not cycle.response_complete and self.is_whole and not self.is_held

    @property
    def is_closing(self) -> bool:
        """It will be gone when its last bytes are."""
        return self.transport.is_closing()

    @property
    def held_bytes(self) -> int:
        """Of a request that is not whole: its head, and as much of its body as nobody took yet."""
        body = getattr(self.cycle, "body", None)
        return self._beside_the_body + (len(body) if body else 0)

    def overdue(self, now: float) -> str | None:
        """Close it, if it is late indeed; the reason."""
        if self.flow.write_paused:
            self.transport.abort()
            return "unread"
        if self.is_owed or self.is_held or self.flow.read_paused:
            # Nothing is late but we.
            self.deadline = now + self._crowd.limits.head_seconds
            return None
        if self.is_whole and not self._has_begun:
            self.transport.close()
            return "silent"
        self.give_up()
        return "late"

    def give_up(self) -> None:
        """Tell the caller that he took too long, if nothing was told him yet."""
        if not (self._is_in_body and self.cycle.response_started):
            self._say_last(_LATE, ())
        self.transport.close()

    def cut_off(self) -> None:
        """At once."""
        self.transport.abort()

    def turn_away(self) -> None:
        """Before anything was read."""
        after = b"%d" % max(round(self._crowd.limits.retry_after_seconds), 1)
        self._say_last(_NO_ROOM, ((b"retry-after", after),))
        self.transport.close()

    def _say_last(self, problem: Problem, more: tuple[Header, ...]) -> None:
        headers = [*self.server_state.default_headers, (b"content-type", b"application/problem+json"), *more, CLOSED]
        self.transport.write(written(problem.status, headers, msgspec.json.encode(problem)))


def written(status: int, headers: list[Header], body: bytes) -> bytes:
    """A whole reply. The headers are taken as they are: nothing in them may come from a caller."""
    return _head(status, headers, len(body)) + body


def _head(status: int, headers: list[Header], length: int) -> bytes:
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n\r\n" % (status, _PHRASES[status], lines, length)


def sent_whole(cycle: object, status: int, media_type: bytes, body: bytes) -> bool:
    """Send a reply in one write, if `cycle` is uvicorn's and nothing about it is out of the ordinary.

    False: nothing happened, and it takes the ordinary way.
    """
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.response_started
        or cycle.disconnected
        or not cycle.keep_alive
        or cycle.flow.write_paused
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    headers = [*cycle.default_headers, (b"content-type", media_type)]
    if len(body) < _SHARED_FROM:
        cycle.transport.write(written(status, headers, body))
    else:
        # Not a copy for each connection: who never reads it would have us hold one for half a minute.
        cycle.transport.writelines([_head(status, headers, len(body)), body])
    cycle.message_event.set()
    cycle.on_response()
    return True
