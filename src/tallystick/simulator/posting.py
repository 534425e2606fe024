"""HTTP POSTs, for webhooks: a client just large enough, so that a fault of the adapters' client is not shared.

Connections are kept for the next: opening one costs both ends more than the webhook itself.
"""

import asyncio
import re
from collections import deque
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

_LONGEST_HEAD: Final = 16 * 1024
# An answer longer than this is not read, and its connection not kept: nothing in it is of interest.
_LONGEST_BODY: Final = 64 * 1024
# Idle connections of one receiver.
_MOST_KEPT: Final = 64
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: *(\d{1,6})\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9}) *\r\n", re.IGNORECASE)
_CLOSING: Final = re.compile(rb"\r\nconnection: *close *\r\n", re.IGNORECASE)


class NotDelivered(Exception):
    """No HTTP answer came; the message says why."""


class Answered(msgspec.Struct, frozen=True):
    """What the receiver said. `retry_after_seconds` None: it did not ask for a pause."""

    status: int
    retry_after_seconds: float | None


class Posting:
    """Posts to any number of receivers, one request at a time on each connection."""

    def __init__(self) -> None:
        self._receivers: dict[str, _Receiver] = {}
        self._open: dict[float, _Open] = {}

    def post(
        self, url: str, headers: tuple[tuple[str, str], ...], body: bytes, *, seconds: float
    ) -> "asyncio.Future[Answered]":
        """What the receiver says, or NotDelivered. Raises ValueError for an address that is none."""
        receiver = self._receivers.get(url)
        if receiver is None:
            receiver = self._receivers[url] = _Receiver(url)
        open_ = self._open.get(seconds)
        if open_ is None:
            open_ = self._open[seconds] = _Open(seconds)
        post = _Post(receiver, receiver.request(headers, body), open_)
        post.begin()
        return post.answer

    def close(self) -> None:
        """Break off what is under way, close what is kept."""
        for open_ in self._open.values():
            open_.break_off()
        for receiver in self._receivers.values():
            receiver.close()
        self._receivers.clear()


class _Open:
    """Requests under way that all have the same time: who began first ends first, so one timer is enough for them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        # Oldest first, with their deadlines in the loop's time.
        self._posts: dict[_Post, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, post: "_Post") -> None:
        self._posts[post] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._expire)

    def discard(self, post: "_Post") -> None:
        self._posts.pop(post, None)

    def break_off(self) -> None:
        for post in list(self._posts):
            post.break_off()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        now = self._loop.time()
        for post in [post for post, deadline in self._posts.items() if deadline <= now]:
            post.expire()
        oldest = next(iter(self._posts.values()), None)
        self._timer = None if oldest is None else self._loop.call_at(oldest, self._expire)


class _Receiver:
    """One address, and the connections to it that nobody uses at the moment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._head = f"POST {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        self._kept: deque[_Wire] = deque()

    def request(self, headers: tuple[tuple[str, str], ...], body: bytes) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return f"{self._head}content-length: {len(body)}\r\n{lines}\r\n".encode("latin-1") + body

    def taken(self) -> "_Wire | None":
        while self._kept:
            wire = self._kept.pop()
            if not wire.is_over:
                return wire
        return None

    def give_back(self, wire: "_Wire") -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(wire)
        else:
            wire.close()

    async def opened(self) -> "_Wire":
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(_Wire, self._host, self._port, ssl=True if self._secure else None)
        return wire

    def close(self) -> None:
        for wire in self._kept:
            wire.close()


class _Post:
    """One request until its answer, its deadline, or the end of it all.

    On a connection that was kept, if there is one. A receiver may close that at any moment: it has then not answered,
    and is told again on a new one.
    """

    def __init__(self, receiver: _Receiver, request: bytes, open_: _Open) -> None:
        self.answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._receiver = receiver
        self._request = request
        self._open = open_
        self._wire: _Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_second_hand = False

    def begin(self) -> None:
        self._open.add(self)
        wire = self._receiver.taken()
        if wire is None:
            self._begin_anew()
        else:
            self._is_second_hand = True
            self._wire = wire
            wire.ask(self, self._request)

    def said(self, answered: Answered, *, is_kept: bool) -> None:
        """The wire has read it, and can be used again or not."""
        wire = self._ended()
        if wire is not None and is_kept:
            self._receiver.give_back(wire)
        elif wire is not None:
            wire.close()
        if not self.answer.done():
            self.answer.set_result(answered)

    def lost(self, error: Exception) -> None:
        """The wire is of no use any more."""
        if self._is_second_hand and isinstance(error, ConnectionError):
            self._is_second_hand = False
            self._begin_anew()
        else:
            self._fail(f"{type(error).__name__}: {error}")

    def break_off(self) -> None:
        """Nobody is told."""
        self.answer.cancel()
        self._fail("broken off")

    def _begin_anew(self) -> None:
        self._wire = None
        self._opening = asyncio.get_running_loop().create_task(self._ask_anew())

    async def _ask_anew(self) -> None:
        try:
            self._wire = await self._receiver.opened()
        except (OSError, ValueError) as error:
            self.lost(error)
        else:
            self._wire.ask(self, self._request)

    def expire(self) -> None:
        """Its time is over."""
        self._fail(f"no answer within {self._open.seconds:g} s")

    def _fail(self, why: str) -> None:
        wire = self._ended()
        if wire is not None:
            wire.close()
        if self._opening is not None:
            self._opening.cancel()
        if not self.answer.done():
            self.answer.set_exception(NotDelivered(why))

    def _ended(self) -> "_Wire | None":
        self._open.discard(self)
        wire, self._wire = self._wire, None
        return wire


class _Wire(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came = b""
        self._post: _Post | None = None
        # Of an answer whose head is read: the head, and what its body still lacks.
        self._head: Answered | None = None
        self._missing = 0
        self.is_over = False

    def ask(self, post: _Post, request: bytes) -> None:
        self._post = post
        if self._transport is None or self.is_over:
            self._lose(ConnectionResetError("the connection was closed"))
        else:
            self._transport.write(request)

    def close(self) -> None:
        """Whoever closes it wants to hear nothing more."""
        self.is_over = True
        self._post = None
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        if self._head is not None:
            # It has answered all the same.
            self._tell(self._head, is_kept=False)
        else:
            self._lose(exc or ConnectionResetError("it was closed without an answer"))

    def data_received(self, data: bytes) -> None:
        if self._post is None:
            # What nobody asked for would be taken for the next answer.
            self.close()
        elif self._head is not None:
            self._read_body(self._head, len(data))
        else:
            self._came += data
            try:
                self._read_head()
            except ValueError as error:
                self._lose(error)

    def _read_head(self) -> None:
        end = self._came.find(b"\r\n\r\n")
        if end < 0:
            if len(self._came) > _LONGEST_HEAD:
                raise ValueError("the answer's head is too long")
            return
        head, rest, self._came = self._came[: end + 4], len(self._came) - end - 4, b""
        answered, length = _understood(head)
        if length is None:
            self._tell(answered, is_kept=False)
            return
        self._head, self._missing = answered, length
        self._read_body(answered, rest)

    def _read_body(self, answered: Answered, came: int) -> None:
        """To its end, so that the next answer is what comes next."""
        self._missing -= came
        if self._missing <= 0:
            self._tell(answered, is_kept=self._missing == 0)

    def _tell(self, answered: Answered, *, is_kept: bool) -> None:
        self._head = None
        post, self._post = self._post, None
        if post is not None:
            post.said(answered, is_kept=is_kept)

    def _lose(self, error: Exception) -> None:
        post, self._post = self._post, None
        self.close()
        if post is not None:
            post.lost(error)


# A receiver says the same again and again, but for the second it is.
@lru_cache(maxsize=64)
def _understood(head: bytes) -> tuple[Answered, int | None]:
    """The answer, and how long its body is; None: its connection cannot be kept. Raises ValueError for what is none."""
    version, status, *_ = head.split(maxsplit=2)
    if not version.startswith(b"HTTP/"):
        raise ValueError("the answer is not HTTP")
    asked = _RETRY_AFTER.search(head)
    answered = Answered(int(status), None if asked is None else float(asked.group(1)))
    length = _LENGTH.search(head)
    if version != b"HTTP/1.1" or length is None or int(length[1]) > _LONGEST_BODY or _CLOSING.search(head):
        return answered, None
    return answered, int(length[1])
