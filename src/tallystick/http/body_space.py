"""Room for the bodies of calls in work, in bytes, with a share for each tenant; and turns of reading the large ones."""

import asyncio
from collections import defaultdict

from tallystick.errors import Busy, ShareUsed
from tallystick.settings import LIMITS, Limits


class BodySpace:
    """Counts what is held. A tenant's share is less than all there is, so that one leaves room for the others."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        """Nothing is held yet."""
        self._limits = limits
        self._by_tenant: defaultdict[int, int] = defaultdict(int)
        # Whose turn it is, of each tenant that ever sent a large body.
        self._turns: dict[int, asyncio.Lock] = {}
        self.held = 0

    def take(self, tenant_number: int, size: int) -> None:
        """Room for so many bytes more. Raises ShareUsed or Busy, and nothing is taken."""
        limits = self._limits
        held = self._by_tenant[tenant_number]
        if held + size > limits.call_bytes_per_tenant:
            raise ShareUsed(limits.retry_after_seconds)
        if self.held + size > limits.call_bytes:
            raise Busy(limits.retry_after_seconds)
        self._by_tenant[tenant_number] = held + size
        self.held += size

    def give(self, tenant_number: int, size: int) -> None:
        """Give so much of it back."""
        self.held -= size
        self._by_tenant[tenant_number] -= size
        if not self._by_tenant[tenant_number]:
            del self._by_tenant[tenant_number]

    async def turn(self, tenant_number: int, size: int) -> None:
        """Wait until it is this body's turn to be read, which is at once where it is small.

        What is made of a body before its endpoint first waits, nobody else can interrupt. So of a tenant's large ones
        one is read at a time, and after it the others have the process for as long again.
        """
        if size < self._limits.turn_bytes:
            return
        turn = self._turns.setdefault(tenant_number, asyncio.Lock())
        await turn.acquire()
        loop = asyncio.get_running_loop()
        loop.call_soon(_read, turn, loop.time())


def _read(turn: asyncio.Lock, began: float) -> None:
    """The process is free again: so is the turn, when it has been free for as long as it was taken."""
    loop = asyncio.get_running_loop()
    loop.call_later(loop.time() - began, turn.release)
