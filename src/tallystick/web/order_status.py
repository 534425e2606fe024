"""How orders stand, over HTTP: at once, or as soon as it has changed. Who hangs up is forgotten."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from tallystick.app import Service
from tallystick.core.order_status import OrderStatus, wait_refused
from tallystick.core.outcome import Rejected
from tallystick.settings import LIMITS
from tallystick.web.call import Call, Receive, Reply, json_reply
from tallystick.web.query import number

# To nobody: the connection is closed.
_GONE: Final = Reply(499, b"")


class OrderStatuses:
    """The endpoint that waits."""

    def __init__(self, service: Service) -> None:
        """Asks, and waits, with everybody else of this process."""
        self._statuses = service.statuses

    async def read(self, call: Call) -> Reply | Rejected:
        """How an order stands."""
        query = call.query("wait", "after")
        if isinstance(query, Rejected):
            return query
        wait = number(query.get("wait", "0"))
        if wait is None:
            return wait_refused(LIMITS.status_wait_seconds)
        asking = self._statuses.read(call.access.tenant, call.path("id"), wait_seconds=wait, after=query.get("after"))
        found = await (_unless_gone(asking, call.receive) if wait else asking)
        if found is None:
            return _GONE
        return found if isinstance(found, Rejected) else json_reply(200, found)


async def _unless_gone(
    asking: Coroutine[Any, Any, OrderStatus | Rejected], receive: Receive
) -> OrderStatus | Rejected | None:
    """The answer; None as soon as the caller has hung up, and nobody waits for him any more."""
    try:
        async with asyncio.timeout(None) as patience:
            # Asked here and not in a task of its own: starting one, and waiting for two, takes longer than the rest.
            leaving = asyncio.create_task(_end_when_gone(patience, receive))
            try:
                return await asking
            finally:
                # Nothing of it runs after this, not even if he hangs up now.
                leaving.cancel()
    except TimeoutError:
        if patience.expired():
            return None
        raise


async def _end_when_gone(patience: asyncio.Timeout, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    patience.reschedule(asyncio.get_running_loop().time())
