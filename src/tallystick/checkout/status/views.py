"""How orders stand, over HTTP: at once, or as soon as it has changed. Who hangs up is forgotten."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from tallystick.app import Service
from tallystick.checkout.status.rules import OrderStatus, wait_refused
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.query import number
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS

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
        found = await (_unless_gone(asking, call) if wait else asking)
        if found is None:
            return _GONE
        return found if isinstance(found, Rejected) else json_reply(200, found)


async def _unless_gone(
    asking: Coroutine[Any, Any, OrderStatus | Rejected], call: Call
) -> OrderStatus | Rejected | None:
    """The answer; None as soon as the caller has hung up, and nobody waits for him any more."""
    try:
        async with asyncio.timeout(None) as patience:
            # Asked here and not in a task of its own: starting one, and waiting for two, takes longer than the rest.
            is_told = call.when_gone(partial(_end, patience))
            leaving = None if is_told else asyncio.create_task(_end_when_gone(patience, call))
            try:
                return await asking
            finally:
                # Nothing of it runs after this, not even if he hangs up now.
                if leaving is None:
                    call.when_gone(None)
                else:
                    leaving.cancel()
    except TimeoutError:
        if patience.expired():
            return None
        raise


async def _end_when_gone(patience: asyncio.Timeout, call: Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass
    _end(patience)


def _end(patience: asyncio.Timeout) -> None:
    patience.reschedule(asyncio.get_running_loop().time())
