"""Slots for reads, with a share for each tenant: who waits is served by whoever has the fewest, in turn.

One tenant may have most of them, and never all: its slow lists leave the others a way.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tallystick.errors import ShareUsed
from tallystick.settings import Limits

# Nobody's: reads of our own.
OWN = 0


class FairSlots:
    """So many at once in all; each tenant `readers_per_tenant` of them, and so many waiting."""

    def __init__(self, slots: int, limits: Limits) -> None:
        """All are free."""
        self._free = slots
        # Where there is one slot, everybody's share is that one.
        self._share = max(min(limits.readers_per_tenant, slots - 1), 1)
        self._limits = limits
        self._active: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant_number: int = OWN) -> AsyncIterator[None]:
        """Raises ShareUsed when too many of this tenant wait already."""
        if self._free and not self._waiting and self._may_have(tenant_number):
            self._take(tenant_number)
        else:
            await self._wait(tenant_number)
        try:
            yield
        finally:
            self._give_back(tenant_number)

    def _may_have(self, tenant_number: int) -> bool:
        return tenant_number == OWN or self._active[tenant_number] < self._share

    def _take(self, tenant_number: int) -> None:
        self._free -= 1
        self._active[tenant_number] += 1

    def _give_back(self, tenant_number: int) -> None:
        self._free += 1
        self._active[tenant_number] -= 1
        if not self._active[tenant_number]:
            del self._active[tenant_number]
        self._hand_out()

    async def _wait(self, tenant_number: int) -> None:
        queue = self._waiting.setdefault(tenant_number, deque())
        if len(queue) >= self._limits.reads_waiting_per_tenant:
            raise ShareUsed(self._limits.retry_after_seconds)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        # Somebody else's share may be what keeps them waiting.
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(tenant_number)
            else:
                self._forget(tenant_number, turn)
            raise

    def _forget(self, tenant_number: int, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(tenant_number)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant_number]

    def _hand_out(self) -> None:
        while self._free:
            eligible = [number for number in self._waiting if self._may_have(number)]
            if not eligible:
                return
            number = min(eligible, key=self._active.__getitem__)
            # To the end of the line, so that equals take turns.
            queue = self._waiting.pop(number)
            turn = queue.popleft()
            if queue:
                self._waiting[number] = queue
            if not turn.done():
                self._take(number)
                turn.set_result(None)
