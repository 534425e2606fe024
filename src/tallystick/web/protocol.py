"""HTTP/1.1 as uvicorn speaks it, with a bound on the head: uvicorn itself would buffer an endless header.

And an ordinary reply leaves in one piece: uvicorn writes head and body apart, two packets and two calls of the kernel.
"""

from http import HTTPStatus
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Bytes of a request besides its body: request line, headers, chunk framing, trailers. Proxies stop at 8 to
# 64 KB of headers.
MOST_BESIDE_THE_BODY: Final = 256 * 1024

Header = tuple[bytes, bytes]

_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class BoundedProtocol(HttpToolsProtocol):
    """Cuts a connection off whose request never comes to its body. Nobody has shown a key at that point."""

    _beside_the_body = 0

    def data_received(self, data: bytes) -> None:
        """What was counted so far decides: how much of this data is body is known only after parsing it."""
        if self._beside_the_body > MOST_BESIDE_THE_BODY:
            self.send_400_response("The head of the request is too large.")
            return
        self._beside_the_body += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A new request, a new count."""
        self._beside_the_body = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """The body has its own limit, where it is read."""
        self._beside_the_body -= len(body)
        super().on_body(body)


def written(status: int, headers: list[Header], body: bytes) -> bytes:
    """A whole reply. The headers are taken as they are: nothing in them may come from a caller."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, _PHRASES[status], lines, len(body), body)


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
    cycle.transport.write(written(status, [*cycle.default_headers, (b"content-type", media_type)], body))
    cycle.message_event.set()
    cycle.on_response()
    return True
