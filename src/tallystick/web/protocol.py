"""HTTP/1.1 as uvicorn speaks it, with a bound on the head: uvicorn itself would buffer an endless header."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a request besides its body: request line, headers, chunk framing, trailers. Proxies stop at 8 to
# 64 KB of headers.
MOST_BESIDE_THE_BODY: Final = 256 * 1024


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
