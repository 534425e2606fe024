"""A request and its reply, kept thin: the hot path builds one of each, and nothing else, per operation."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from tallystick.access.store import Access
from tallystick.http.body_space import BodySpace
from tallystick.http.http1.protocol import Header, sent_whole
from tallystick.http.problem import Problem
from tallystick.http.tenant_rate import TenantRate
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
PROBLEM_JSON = b"application/problem+json"
# In a scope whose protocol can tell that the caller has hung up, without being asked again and again.
WHEN_GONE = "tallystick.when_gone"
_MAX_QUERY_FIELDS = 20

_encode = msgspec.json.Encoder().encode


class Call:
    """One request. `access` is set by the time an endpoint that needs a key sees it."""

    __slots__ = ("_held", "_rate", "_room", "access", "receive", "scope")

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        access: Access,
        room: BodySpace | None = None,
        rate: TenantRate | None = None,
    ) -> None:
        """Reads nothing yet. `room` is for what comes in more than one piece, until `end`; `rate` for `count_as`."""
        self.scope = scope
        self.receive = receive
        self.access = access
        self._room = BodySpace() if room is None else room
        self._rate = rate
        self._held = 0

    def path(self, name: str) -> str:
        """The part of the path that the route calls by this name."""
        return str(self.scope["path_params"][name])

    def headers(self, name: bytes) -> list[bytes]:
        """Every value sent under this name (in lower case)."""
        return [value for header, value in self.scope["headers"] if header == name]

    def query(self, *known: str) -> dict[str, str] | Rejected:
        """The query parameters. A misspelled one is refused: it must not silently change the answer."""
        remedy = f"This call takes {', '.join(known)}, each once." if known else "This call takes none."
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_QUERY_FIELDS,
            )
        except ValueError:
            return Rejected("query_invalid", "The query cannot be read.", remedy)
        found: dict[str, str] = {}
        for name, value in pairs:
            if name not in known or name in found:
                return Rejected("query_invalid", f"The query parameter {name!r:.80} is unknown or repeated.", remedy)
            found[name] = value
        return found

    def when_gone(self, gone: Callable[[], None] | None) -> bool:
        """Have this called when the caller hangs up; None: no longer. False: only `receive` can tell."""
        tell = self.scope.get(WHEN_GONE)
        if tell is not None:
            tell(gone)
        return tell is not None

    async def body(self) -> bytes | Rejected:
        """The whole body, declared as JSON.

        What is too large is refused as soon as that is known; what is large waits for its turn (`BodySpace.turn`).

        Raises ShareUsed or Busy when too many bodies are held already.
        """
        if not _declares_json(self.headers(b"content-type")):
            return Rejected(
                "content_type_unsupported",
                "The Content-Type is not application/json.",
                "Send UTF-8 JSON and say so.",
            )
        length = self.headers(b"content-length")
        if length and int(length[0]) > LIMITS.body_bytes:
            return _too_large()
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return Rejected("body_incomplete", "The connection closed within the body.", "Send it again.")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > LIMITS.body_bytes:
                return _too_large()
            chunks.append(chunk)
            is_whole = not message.get("more_body", False)
            if is_whole and len(chunks) == 1 and size < LIMITS.turn_bytes:
                return chunk
            self._hold(size)
            if is_whole:
                await self._room.turn(self.access.tenant.number, size)
                return b"".join(chunks)

    def count_as(self, count: int) -> None:
        """It asks for so many things at once. Raises RateExceeded: none of them may be done now."""
        if self._rate is not None:
            self._rate.count_as(self.access.tenant, count)

    def _hold(self, size: int) -> None:
        self._room.take(self.access.tenant.number, size - self._held)
        self._held = size

    def end(self) -> None:
        """It is answered: give back what was held for it."""
        if self._held:
            self._room.give(self.access.tenant.number, self._held)
            self._held = 0


def _declares_json(values: list[bytes]) -> bool:
    if values == [JSON]:
        return True
    if len(values) != 1:
        return False
    media, _, parameter = (part.strip() for part in values[0].lower().partition(b";"))
    return media == JSON and parameter.replace(b'"', b"") in (b"", b"charset=utf-8")


def _too_large() -> Rejected:
    return Rejected(
        "body_too_large",
        f"The body is larger than {LIMITS.body_bytes} bytes.",
        f"Send at most {LIMITS.batch_call} operations, in smaller bodies.",
    )


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What goes back. `headers` come on top of the type and the length."""

    status: int
    body: bytes
    media_type: bytes = JSON
    headers: tuple[Header, ...] = ()
    # A refusal for which nobody had to show a key: he waits for it (`refusals`).
    is_of_stranger: bool = False

    async def send(self, send: Send) -> None:
        """Write it out."""
        if not self.headers and sent_whole(getattr(send, "__self__", None), self.status, self.media_type, self.body):
            return
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [
                    (b"content-type", self.media_type),
                    (b"content-length", b"%d" % len(self.body)),
                    *self.headers,
                ],
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def json_reply(status: int, value: object) -> Reply:
    """A value as JSON."""
    return Reply(status, _encode(value))


def problem_reply(problem: Problem, *headers: Header) -> Reply:
    """A problem, with the headers its status asks for."""
    return Reply(problem.status, _encode(problem), PROBLEM_JSON, headers)
