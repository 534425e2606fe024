"""HTTP/1.1 as `webhook_protocol` has it, with a short way for calls of the API as well.

An ordinary call goes from its bytes straight to its resource, and the reply from there straight to the socket: no
parser's callbacks, no ASGI messages. Ordinary is what clients send: a request that came in one piece with all of its
body, plain headers, a plain path that leads to a resource, and nothing else under way on its connection. Of anything
else not one byte is judged here: the server's own parser gets all of it, and the same resource answers.
"""

import asyncio
import re
import traceback
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Final

import structlog

from tallystick.http.call import WHEN_GONE, Scope
from tallystick.http.directory import Directory
from tallystick.http.http1 import head
from tallystick.http.http1.protocol import MOST_TARGET_BYTES
from tallystick.http.http1.webhook_protocol import WebhookProtocol
from tallystick.http.refusals import STRANGER
from tallystick.http.resource import Resource

log = structlog.get_logger("tallystick.http")

# HEAD, which is answered without a body, and what is seldom sent, are the parser's.
_REQUEST: Final = re.compile(rb"(GET|POST|PUT|DELETE) ((?:/[0-9A-Za-z_\-]+)+)(?:\?([0-9A-Za-z_\-=&]*))? HTTP/1\.1")
# Clients send the same lines again and again, but for these, which would only push the others out.
_NEVER_AGAIN: Final = frozenset({b"idempotency-key"})
_MOST_LINES: Final = 1_024
_MOST_LINE_BYTES: Final = 128


class _Calling:
    """A call under way: as much of it as the server's protocol looks at, and what its resource receives."""

    __slots__ = ("_gone", "_leaving", "body", "disconnected", "keep_alive", "response_complete")

    def __init__(self, body: bytes) -> None:
        self.body: bytes | None = body
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False
        self._leaving: asyncio.Future[None] | None = None
        self._gone: Callable[[], None] | None = None

    @property
    def message_event(self) -> "_Calling":
        return self

    def set(self) -> None:
        """The server: the connection is lost."""
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
        if self._gone is not None:
            self._gone()

    def when_gone(self, gone: Callable[[], None] | None) -> None:
        """Have this called when the caller hangs up; None: no longer."""
        self._gone = gone
        if self.disconnected and gone is not None:
            gone()

    async def receive(self) -> MutableMapping[str, Any]:
        """The body; then, when the caller has hung up, that."""
        body, self.body = self.body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        if not (self.disconnected or self.response_complete):
            self._leaving = asyncio.get_running_loop().create_future()
            await self._leaving
        return {"type": "http.disconnect"}


class CallProtocol(WebhookProtocol):
    """Of an application whose `api` is a directory; any other is served as before."""

    # Lines of heads that were read before, of all connections. Bounded: who sends others costs himself the reading.
    _lines: Final[dict[bytes, head.Field]] = {}

    def __init__(self, config: Any, *more: Any, **named: Any) -> None:  # noqa: ANN401 - the server's own arguments
        """As the server makes it."""
        super().__init__(config, *more, **named)
        api = getattr(config.loaded_app, "api", None)
        self._directory = api if isinstance(api, Directory) else None

    def _taken(self, data: bytes) -> bool:
        return super()._taken(data) or (self._directory is not None and self._called(self._directory, data))

    def _called(self, directory: Directory, data: bytes) -> bool:
        """False: it is not for the short way, and nothing happened."""
        end = data.find(head.END, 0, head.MOST_BYTES)
        # Who does not read his replies gets no more of them.
        if end < 0 or self.flow.write_paused:
            return False
        lines = data[:end].split(b"\r\n")
        asked = _REQUEST.fullmatch(lines[0])
        found = None if asked is None else directory.find(asked[2].decode("ascii"))
        if asked is None or found is None or len(lines) > self._crowd.limits.head_fields:
            return False
        if len(lines[0]) > MOST_TARGET_BYTES:
            return False
        resource, parameters = found
        headers: list[head.Field] = []
        length = self._read(lines, headers)
        start = end + len(head.END)
        if length != len(data) - start or not isinstance(resource, Resource):
            return False
        calling = _Calling(data[start:])
        scope: Scope = {
            "method": asked[1].decode("ascii"),
            "path_params": parameters,
            "query_string": asked[3] or b"",
            "headers": headers,
            "client": self.client,
            WHEN_GONE: calling.when_gone,
            STRANGER: self,
        }
        self.came = len(data)
        self.cycle = calling  # type: ignore[assignment]
        self.deadline = self._unread_until
        task = self.loop.create_task(self._serve(calling, resource, scope))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return True

    def _read(self, lines: list[bytes], headers: list[head.Field]) -> int:
        """The length of the body, with all headers read into `headers`; -1: it is no ordinary head."""
        known = self._lines
        length = -1
        for line in lines[1:]:
            field = known.get(line) or self._learned(line)
            if field is None:
                return -1
            if field[0] == head.LENGTH:
                if length >= 0:
                    return -1
                length = int(field[1])
            headers.append(field)
        return max(length, 0)

    def _learned(self, line: bytes) -> head.Field | None:
        field = head.read_field(line)
        if field is not None and len(line) <= _MOST_LINE_BYTES and field[0] not in _NEVER_AGAIN:
            if len(self._lines) >= _MOST_LINES:
                self._lines.clear()
            self._lines[line] = field
        return field

    async def _serve(self, calling: _Calling, resource: Resource, scope: Scope) -> None:
        try:
            await resource.serve(scope, calling.receive, partial(self.reply, calling))
        except BaseException as error:
            # It answers its own failures: whatever this is, the caller learns from the broken connection.
            self.transport.abort()
            if not isinstance(error, Exception):
                raise
            log.error("call_failed", trace=traceback.format_exc())
