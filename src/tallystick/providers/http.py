"""HTTP/1.1 to a provider, written so that one thing is always known: whether the request left this machine.

    Reply        a whole answer
    NotSent      not one byte of the request was written: it cannot have run
    Unanswered   bytes were written and no whole answer came: it may have run

The permit to send is checked in the same breath as the write, on the steady clock: between the two there is no
await. Nothing is retried, no redirect is followed, no answer is believed that has no length.

Written by hand because general clients hide that line (a pool may resend on a fresh connection) and cost 3 to 10
times the processor time (docs/decisions/0006).
"""

import asyncio
import contextlib
import ipaddress
import os
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from tallystick.errors import Misconfigured
from tallystick.providers.steady import steady

# A page of a hundred objects is 0.3 MB; an endless body must not fill the memory.
MOST_BODY_BYTES: Final = 8 * 1024 * 1024
MOST_HEADERS: Final = 200
MOST_HEAD_BYTES: Final = 64 * 1024
# Servers close idle connections after 5 to 75 s. One that closes while we write makes an Unknown out of nothing.
IDLE_SECONDS: Final = 4.0
CONNECT_SECONDS: Final = 5.0
_INFORMATIONAL: Final = 200


class Reply(msgspec.Struct, frozen=True):
    """A whole answer. Header names are lower case; of a repeated one the last counts."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotSent(msgspec.Struct, frozen=True):
    """Not one byte of the request was written."""

    reason: str
    # The permit to send ran out before there was a connection: nobody is to blame but the clock.
    expired: bool = False


class Unanswered(msgspec.Struct, frozen=True):
    """Bytes were written; no whole answer came."""

    reason: str


HttpResult = Reply | NotSent | Unanswered


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResult] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._status = 0
        self._headers: dict[str, str] = {}
        self._header_count = 0
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._look: select.poll | None = None
        self.usable = True
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._settle(Unanswered(f"the connection was lost ({type(exc).__name__})" if exc else "the peer hung up"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done() or self._parser is None:
            # Bytes nobody asked for: what comes next on this connection could answer another request.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the answer changes the protocol")
        except httptools.HttpParserError:
            self._fail("the answer is not HTTP")
        else:
            # Counted while there is no head yet: what came with its end may be body.
            self._head_bytes += 0 if self._status else len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._fail("the head of the answer is too large")

    async def ask(self, request: bytes, *, sendable_until: float, answer_seconds: float) -> HttpResult:
        """Write the request and wait for the whole answer."""
        transport = self._transport
        if not self.usable or transport is None or transport.is_closing():
            return NotSent("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self._status = self._header_count = self._head_bytes = self._body_bytes = 0
        self._headers, self._body = {}, []
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[HttpResult] = loop.create_future()
        self._answer = answer
        if steady() >= sendable_until:
            return NotSent("the permit to send ran out", expired=True)
        transport.write(request)
        timer = loop.call_later(answer_seconds, self._late, answer_seconds)
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()

    def is_quiet(self) -> bool:
        """Whether nothing waits to be read: bytes nobody asked for would be taken for the next request's answer."""
        transport = self._transport
        wire = None if transport is None else transport.get_extra_info("socket")
        if not self.usable or wire is None or wire.fileno() < 0:
            return False
        if self._look is None:
            # The number stays this connection's for as long as its socket is open, which was just asked.
            self._look = select.poll()
            self._look.register(wire.fileno(), select.POLLIN)
        return not self._look.poll(0)

    def close(self) -> None:
        """Also what the kernel still holds to send is dropped: it must not reach the provider after we gave up."""
        self.usable = False
        transport = self._transport
        if transport is None:
            return
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.fileno() >= 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(wire.fileno())) as options:
                options.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def _late(self, answer_seconds: float) -> None:
        self._fail(f"no whole answer within {answer_seconds:g} s")

    def _fail(self, reason: str) -> None:
        self.close()
        self._settle(Unanswered(reason))

    def _settle(self, result: HttpResult) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(result)

    # What the parser calls.

    def on_message_begin(self) -> None:
        # A second answer behind the first: whatever it is, it must not be read as the next request's.
        if self._answer is None or self._answer.done():
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        # Trailers come when the head is complete: they may not change what it said.
        if self._header_count <= MOST_HEADERS and not self._status:
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        parser = cast("httptools.HttpResponseParser", self._parser)
        self._status = parser.get_status_code()
        if self._header_count > MOST_HEADERS:
            self._fail("the answer has too many headers")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MOST_BODY_BYTES:
            self._fail("the body of the answer is too large")
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status < _INFORMATIONAL:
            self._status, self._headers = 0, {}
            return
        parser = cast("httptools.HttpResponseParser", self._parser)
        if not parser.should_keep_alive():
            self.usable = False
        self._settle(Reply(self._status, self._headers, b"".join(self._body)))
        # Whatever follows on this connection (a second answer) is none of that reply's.
        self._headers, self._body = {}, []


class Http:
    """Connections to one origin, kept for reuse. `base` may have a path: it goes in front of every call's."""

    def __init__(self, base: str, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls` replaces the machine's own trust store (tests, private certificate authorities)."""
        try:
            parts = urlsplit(base)
            port = parts.port
        except ValueError:
            raise Misconfigured(f"{_without_credentials(base)!r} is not an http or https address") from None
        # Only what can be written as it stands: other alphabets would have to be translated, and look alike.
        odd = not (base.isascii() and base.isprintable()) or " " in base or parts.query or parts.fragment
        if parts.scheme not in {"http", "https"} or not parts.hostname or odd:
            raise Misconfigured(f"{_without_credentials(base)!r} is not an http or https address")
        if parts.username or parts.password:
            raise Misconfigured(f"{_without_credentials(base)!r}: credentials do not belong into an address")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise Misconfigured(f"{base!r}: plain http would show the API key to the network; use https")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._host_line = f" HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def request(self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes = b"") -> bytes:
        """The bytes of a request. Raises ValueError for a header or path that would end early."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        length = f"content-length: {len(body)}\r\n" if body or method != "GET" else ""
        # A compressed bomb and a length that is not the body's are two troubles we need not have.
        head = f"{method} {self._prefix}{path}{self._host_line}{fields}accept-encoding: identity\r\n{length}\r\n"
        # Of the request line, host, accept-encoding and the empty line, beside the headers' own.
        breaks = len(headers) + (5 if length else 4)
        if head.count("\n") != breaks or head.count("\r") != breaks or " " in path:
            raise ValueError("a header or the path contains a line break or a space")
        return head.encode("latin-1") + body

    async def send(self, request: bytes, *, sendable_until: float, answer_seconds: float) -> HttpResult:
        """Write these bytes once. Never raises for what the network did."""
        connection = self._take_idle()
        if connection is None:
            opened = await self._connect(sendable_until)
            if isinstance(opened, NotSent):
                return opened
            connection = opened
        result = await connection.ask(request, sendable_until=sendable_until, answer_seconds=answer_seconds)
        if connection.usable and isinstance(result, Reply) and not self._closed:
            connection.idle_since = steady()
            self._idle.append(connection)
        else:
            connection.close()
        return result

    async def close(self) -> None:
        """Close what is idle; calls in flight go on to their end."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> _Connection | None:
        now = steady()
        while self._idle and (not self._idle[0].usable or now - self._idle[0].idle_since > IDLE_SECONDS):
            self._idle.popleft().close()
        while self._idle:
            # The one used last is the least likely to be closed by the other side.
            connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _connect(self, sendable_until: float) -> _Connection | NotSent:
        seconds = min(CONNECT_SECONDS, sendable_until - steady())
        if seconds <= 0:
            return NotSent("the permit to send ran out", expired=True)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    _Connection,
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            # Cut short by our own permit, it says nothing about the provider.
            return NotSent(f"no connection within {seconds:.1f} s", expired=seconds < CONNECT_SECONDS)
        except ssl.SSLCertVerificationError as error:
            return NotSent(f"the certificate of {self._host} is not trusted: {error.verify_message}")
        except ssl.SSLError as error:
            return NotSent(f"no secure connection to {self._host}: {error.reason}")
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return NotSent(f"no connection to {self._host}: {reason or type(error).__name__}")
        return connection


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        # A name, such as 127.example.com.
        return False


def _without_credentials(address: str) -> str:
    return address.rsplit("@", 1)[-1]
