"""The line to one provider: connections, gate and breaker in one, and the evidence of each exchange.

A send passes breaker, gate and the permit to send, in this order; a question passes the gate alone.
"""

import re
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from tallystick.providers.breaker import Breaker
from tallystick.providers.gate import Gate, TooLong
from tallystick.providers.http import Http, HttpResult, NotSent, Reply, Unanswered
from tallystick.providers.steady import steady
from tallystick.providers.words import Busy, Exchange, Facts, Reachability, Sending

# Enough of a body to recognise what a provider said, and little enough for a row.
SAID_CHARACTERS: Final = 500
# How long a question may wait for its turn. A send has its permit instead.
QUESTION_SECONDS: Final = 30.0
_DEFAULT_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 3600.0
_OK: Final = 200
_NOT_US: Final = frozenset({401, 403})
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
# Shorter header values are no secrets, and may stand in any body.
_SHORTEST_SECRET: Final = 16
_REQUEST_IDS: Final = ("request-id", "pspreference", "x-request-id", "x-external-correlation-id", "x-trace-id")
# What a body may hold that opens something: a client secret, a session, a token.
_CONFIDENTIAL: Final = re.compile(
    r'("(?:client_secret|sessionData|paymentData|authorisationToken|redirectData|MD|access_token|token|secret)"\s*:\s*")'
    r'[^"\\]*(?:\\.[^"\\]*)*'
)

Headers = Sequence[tuple[str, str]]


class Said(msgspec.Struct, frozen=True):
    """What came of a call, and its evidence."""

    result: HttpResult
    exchange: Exchange


class Line:
    """One provider's, shared by all calls of this process.

    `authorization` gives the headers that prove who we are; they are fetched for each call and kept nowhere else.
    """

    def __init__(
        self,
        facts: Facts,
        base: str,
        *,
        authorization: Callable[[], Headers],
        requests_per_second: float | None = None,
        concurrency: int | None = None,
        breaker: Breaker | None = None,
        gate: Gate | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Two lines of one provider (Adyen has two hosts) share a breaker and a gate."""
        self._facts = facts
        self._http = Http(base, tls=tls)
        self._authorization = authorization
        # Questions since it was made: of them there may be thousands.
        self.asked = 0
        # What its last answer said of the time, and when that was heard.
        self._told: tuple[str, float] | None = None
        self.breaker = breaker or Breaker()
        self.gate = gate or Gate(requests_per_second or facts.requests_per_second, concurrency or facts.concurrency)

    async def send(
        self, method: str, path: str, *, headers: Headers = (), body: bytes = b"", sending: Sending
    ) -> Said | Busy:
        """A call that may move money. Busy: breaker, gate or clock stopped it, and not one byte was written."""
        began, said = steady(), None
        away = self.breaker.admit(began)
        if away > 0:
            return Busy(
                code="breaker_open",
                message=f"{self._facts.name} is not answering ({self.breaker.reason}); nothing was sent.",
                after_seconds=away,
            )
        try:
            await self.gate.enter(sending.sendable_until)
            try:
                said = await self._exchange(method, path, headers, body, sendable_until=sending.sendable_until)
            finally:
                self.gate.leave()
        except TooLong as error:
            return Busy(
                code="gate_full",
                message=f"Too much is waiting for {self._facts.name}; nothing was sent.",
                after_seconds=max(_DEFAULT_PAUSE_SECONDS, error.wait_seconds),
            )
        finally:
            self._notice(said, began)
        if isinstance(said.result, NotSent):
            return Busy(
                code="not_after_passed" if said.result.expired else "unreachable",
                message=f"{self._facts.name}: {said.result.reason}; nothing was sent.",
                after_seconds=_DEFAULT_PAUSE_SECONDS,
                evidence=(said.exchange,),
            )
        return said

    async def ask(self, method: str, path: str, *, headers: Headers = (), body: bytes = b"") -> Said:
        """A call that moves nothing."""
        until = steady() + QUESTION_SECONDS
        self.asked += 1
        try:
            await self.gate.enter(until)
            try:
                return await self._exchange(method, path, headers, body, sendable_until=until)
            finally:
                self.gate.leave()
        except TooLong as error:
            reason = f"too much is waiting for {self._facts.name} ({error})"
            return Said(NotSent(reason), Exchange(asked=f"{method} {path}", status=0, said=reason))

    async def ping(self, path: str) -> Reachability:
        """Ask for something harmless that only our credentials may see."""
        began = steady()
        said = await self.ask("GET", path)
        seconds = steady() - began
        if not isinstance(said.result, Reply):
            return Reachability(reachable=False, authorised=False, detail=said.result.reason, seconds=seconds)
        status = said.result.status
        detail = "answers" if status == _OK else f"answered {status}"
        if status in _NOT_US:
            detail = f"answered {status}: our credentials are not accepted"
        return Reachability(reachable=True, authorised=status == _OK, detail=detail, seconds=seconds)

    def time(self) -> datetime | None:
        """What the provider's own clock says now, by its last answer; None: none has told."""
        if self._told is None:
            return None
        told, heard = self._told
        try:
            at = parsedate_to_datetime(told)
        except (ValueError, TypeError):
            return None
        return None if at.tzinfo is None else at + timedelta(seconds=steady() - heard)

    async def close(self) -> None:
        """Close the idle connections."""
        await self._http.close()

    async def _exchange(self, method: str, path: str, headers: Headers, body: bytes, *, sendable_until: float) -> Said:
        authorization = self._authorization()
        request = self._http.request(method, path, (*authorization, *headers), body)
        result = await self._http.send(
            request, sendable_until=sendable_until, answer_seconds=self._facts.answer_seconds
        )
        if isinstance(result, Reply):
            result = _without_echo(result, authorization)
            if "date" in result.headers:
                self._told = result.headers["date"], steady()
            if result.status == _TOO_MANY:
                self.gate.bucket.slow_down(steady(), retry_after_seconds(result) or _DEFAULT_PAUSE_SECONDS)
            exchange = Exchange(
                asked=f"{method} {path}",
                status=result.status,
                request_id=_request_id(result),
                said=excerpt(result.body),
            )
        else:
            exchange = Exchange(asked=f"{method} {path}", status=0, said=result.reason)
        return Said(result, exchange)

    def _notice(self, said: Said | None, began: float) -> None:
        result = None if said is None else said.result
        match result:
            case Reply() if result.status < _SERVER_ERROR or "idempotent-replayed" in result.headers:
                # A stored 500 that is replayed tells of a past trouble, not of a present one.
                self.breaker.succeeded(steady())
            case Reply():
                self.breaker.failed(steady(), f"status {result.status}")
            case None:
                self.breaker.abandoned(steady())
            case NotSent() if result.expired:
                self.breaker.abandoned(steady())
            case NotSent() | Unanswered():
                self.breaker.silent(steady(), result.reason, began=began)


def retry_after_seconds(reply: Reply) -> float | None:
    """What the provider asked for in Retry-After, in seconds and within reason; None without."""
    text = reply.headers.get("retry-after", "").strip()
    return min(float(text), _LONGEST_PAUSE_SECONDS) if text.isascii() and text.isdigit() else None


def excerpt(body: bytes) -> str:
    """The beginning of a body as text that may be stored and shown."""
    text = body[: SAID_CHARACTERS * 2].decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return _CONFIDENTIAL.sub(r"\1(hidden)", text)[:SAID_CHARACTERS]


def _without_echo(reply: Reply, authorization: Headers) -> Reply:
    """A provider, or a proxy before it, may repeat our credentials in an error: they must not come further."""
    for _, value in authorization:
        plain = value.rpartition(" ")[2]
        if len(plain) < _SHORTEST_SECRET:
            continue
        # As it is, and as JSON may write it.
        escaped = msgspec.json.encode(plain)[1:-1]
        for secret in {plain.encode("latin-1"), escaped, escaped.replace(b"/", b"\\/")}:
            if secret in reply.body:
                reply = msgspec.structs.replace(reply, body=reply.body.replace(secret, b"(hidden)"))
    return reply


def _request_id(reply: Reply) -> str:
    for name in _REQUEST_IDS:
        if name in reply.headers:
            return reply.headers[name][:SAID_CHARACTERS]
    return ""
