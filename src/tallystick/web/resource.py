"""A resource: one path. Finds the method, asks the doorkeeper, runs the endpoint, and answers every failure.

Nothing leaves here but a reply: refusals and exceptions become problems, and every request is counted.
"""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

import structlog

from tallystick.core.idempotency import Tenant
from tallystick.core.outcome import Rejected
from tallystick.store.tenant import Access
from tallystick.web.access import Doorkeeper, Need
from tallystick.web.call import Call, Receive, Reply, Scope, Send, problem_reply
from tallystick.web.metrics import Metrics
from tallystick.web.problem import failed, is_expected, refused, retry_after_seconds
from tallystick.web.protocol import Header
from tallystick.web.route import Route

log = structlog.get_logger("tallystick.web")

_NOBODY: Final = Access(Tenant(0, ""), "nobody", "")
_CHALLENGE: Final[Header] = (b"www-authenticate", b'Bearer realm="tallystick"')


class Resource:
    """An ASGI application for one path, with its methods."""

    def __init__(self, path: str, methods: Mapping[str, Route], doorkeeper: Doorkeeper, metrics: Metrics) -> None:
        """HEAD is GET; the server leaves the body out."""
        self._path = path
        self._methods = dict(methods)
        if "GET" in methods:
            self._methods["HEAD"] = methods["GET"]
        self._doorkeeper = doorkeeper
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = perf_counter()
        reply = await self._answer(scope, receive)
        await reply.send(send)
        self._metrics.request(self._path, reply.status, perf_counter() - started)

    async def serve(self, scope: Scope, receive: Receive, write: Callable[[Reply], None]) -> None:
        """The same for a protocol that writes replies itself. Of `scope` only what `Call` reads has to be there."""
        started = perf_counter()
        reply = await self._answer(scope, receive)
        write(reply)
        self._metrics.request(self._path, reply.status, perf_counter() - started)

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        route = self._methods.get(scope["method"])
        if route is None:
            return self._method_not_allowed()
        call = Call(scope, receive, _NOBODY)
        try:
            if route.need is not Need.NOTHING:
                access = await self._doorkeeper.admit(call.headers(b"authorization"), route.need)
                if isinstance(access, Rejected):
                    return _refusal(access)
                call.access = access
            answer = await route.endpoint(call)
        except Exception as error:  # noqa: BLE001 - a caller is owed an answer, whatever went wrong
            return _failure(error, route)
        return _refusal(answer) if isinstance(answer, Rejected) else answer

    def _method_not_allowed(self) -> Reply:
        allowed = ", ".join(self._methods)
        rejected = Rejected("method_not_allowed", f"This address answers to {allowed}.", "See /docs.")
        return problem_reply(refused(rejected), (b"allow", allowed.encode()))


async def nowhere(_scope: Scope, _receive: Receive, send: Send) -> None:
    """The answer at an address that does not exist."""
    rejected = Rejected("path_unknown", "There is nothing at this address.", "See /docs for what there is.")
    await problem_reply(refused(rejected)).send(send)


def _refusal(rejected: Rejected) -> Reply:
    problem = refused(rejected)
    headers = (_CHALLENGE,) if rejected.code == "unauthenticated" else ()
    return problem_reply(problem, *headers)


def _failure(error: Exception, route: Route) -> Reply:
    if is_expected(error):
        log.warning("request_failed", route=route.name, error=str(error))
    else:
        log.error("request_failed", route=route.name, exc_info=error)
    after = retry_after_seconds(error)
    headers = () if after is None else ((b"retry-after", b"%d" % after),)
    return problem_reply(failed(error), *headers)
