"""A resource: one path. Finds the method, asks the doorkeeper, runs the endpoint, and answers every failure.

Nothing leaves here but a reply: refusals and exceptions become problems, and every request is counted.
"""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

import msgspec
import structlog

from tallystick.access.store import Access
from tallystick.audit.author import sign
from tallystick.errors import RateExceeded, ShareUsed, TooManyGuesses
from tallystick.http.access import Doorkeeper, Need
from tallystick.http.body_space import BodySpace
from tallystick.http.call import Call, Receive, Reply, Scope, Send, problem_reply
from tallystick.http.http1.protocol import Header
from tallystick.http.metrics import Metrics
from tallystick.http.problem import failed, is_expected, refused, retry_after_seconds
from tallystick.http.refusals import Refusals
from tallystick.http.route import Route
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected

log = structlog.get_logger("tallystick.http")

_NOBODY: Final = Access(Tenant(0, ""), "nobody", "")
_CHALLENGE: Final[Header] = (b"www-authenticate", b'Bearer realm="tallystick"')


class Resource:
    """An ASGI application for one path, with its methods."""

    def __init__(
        self,
        path: str,
        methods: Mapping[str, Route],
        doorkeeper: Doorkeeper,
        metrics: Metrics,
        room: BodySpace | None = None,
        *,
        refusals: Refusals | None = None,
    ) -> None:
        """HEAD is GET; the server leaves the body out. `room` and `refusals` are shared by all resources."""
        self._room = BodySpace() if room is None else room
        self._refusals = Refusals() if refusals is None else refusals
        self._path = path
        self._methods = dict(methods)
        if "GET" in methods:
            self._methods["HEAD"] = methods["GET"]
        self._doorkeeper = doorkeeper
        self._rate = doorkeeper.rate
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = perf_counter()
        reply = await self._answer(scope, receive)
        if reply.is_of_stranger:
            # Not in the figures: they tell how long answers take to be made.
            started += await self._refusals.wait(scope)
        await reply.send(send)
        self._metrics.request(self._path, reply.status, perf_counter() - started)

    async def serve(self, scope: Scope, receive: Receive, write: Callable[[Reply], None]) -> None:
        """The same for a protocol that writes replies itself. Of `scope` only what `Call` reads has to be there."""
        started = perf_counter()
        reply = await self._answer(scope, receive)
        if reply.is_of_stranger:
            # Not in the figures: they tell how long answers take to be made.
            started += await self._refusals.wait(scope)
        write(reply)
        self._metrics.request(self._path, reply.status, perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        route = self._methods.get(scope["method"])
        if route is None:
            return _of_stranger(self._method_not_allowed())
        call = Call(scope, receive, _NOBODY, self._room, self._rate)
        try:
            if route.need is not Need.NOTHING:
                access = await self._doorkeeper.admit(call.headers(b"authorization"), route.need, scope)
                if isinstance(access, Rejected):
                    reply = _refusal(access)
                    return _of_stranger(reply) if access.code == "unauthenticated" else reply
                call.access = access
                # From here on it is his doing, whatever is written for it.
                sign(access.author)
            answer = await route.endpoint(call)
        except TooManyGuesses as error:
            return _of_stranger(_failure(error, route))
        except Exception as error:  # noqa: BLE001 - a caller is owed an answer, whatever went wrong
            return _failure(error, route)
        finally:
            call.end()
        return _refusal(answer) if isinstance(answer, Rejected) else answer

    def _method_not_allowed(self) -> Reply:
        allowed = ", ".join(self._methods)
        rejected = Rejected("method_not_allowed", f"This address answers to {allowed}.", "See /docs.")
        return problem_reply(refused(rejected), (b"allow", allowed.encode()))


class Nowhere:
    """The answer at an address that does not exist."""

    def __init__(self, refusals: Refusals) -> None:
        """`refusals` says who waits for it."""
        self._refusals = refusals

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._refusals.wait(scope)
        rejected = Rejected("path_unknown", "There is nothing at this address.", "See /docs for what there is.")
        await problem_reply(refused(rejected)).send(send)


def _of_stranger(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, is_of_stranger=True)


def _refusal(rejected: Rejected) -> Reply:
    problem = refused(rejected)
    headers = (_CHALLENGE,) if rejected.code == "unauthenticated" else ()
    return problem_reply(problem, *headers)


def _failure(error: Exception, route: Route) -> Reply:
    if isinstance(error, RateExceeded | ShareUsed | TooManyGuesses):
        # Counted by their status: who asks too often must not fill the log as well.
        pass
    elif is_expected(error):
        log.warning("request_failed", route=route.name, error=str(error))
    else:
        log.error("request_failed", route=route.name, exc_info=error)
    after = retry_after_seconds(error)
    headers = () if after is None else ((b"retry-after", b"%d" % after),)
    return problem_reply(failed(error), *headers)
