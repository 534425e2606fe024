"""Who is refused without a key waits for it, once his address is refused often.

A refusal costs the process something, and whoever gets it nothing: so he is kept waiting for the next one until the
last are paid off at a rate. Only refusals wait. A call with a key, a webhook that its provider signed and /livez never
do, whoever else has their address: so no provider's deliveries are limited because somebody forged from the same cloud,
nor everybody behind a proxy because one of them guesses keys. And a connection that waits so is nobody's answer in the
making: it gives way like an idle one.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Protocol

from tallystick.http.address import caller_address
from tallystick.http.rate import Rate
from tallystick.settings import LIMITS, IpNetwork, Limits

# In a scope: the connection.
STRANGER: Final = "tallystick.stranger"


class Stranger(Protocol):
    """A connection that is being refused."""

    # Bytes of the request that is refused: what it took to read it.
    came: int
    is_held: bool


class Refusals:
    """Counts what the refusals of each address cost. Bounded: the longest unseen are forgotten."""

    def __init__(self, *, limits: Limits = LIMITS, proxies: tuple[IpNetwork, ...] = ()) -> None:
        """`proxies` are believed whom they speak for."""
        self._limits = limits
        self._proxies = proxies
        self._rate = Rate(limits.refusals_per_second)
        self._paid_until: dict[str, float] = {}
        # How many had to wait.
        self.held = 0

    def wait_seconds(self, scope: MutableMapping[str, Any], came: int, now: float) -> float:
        """One more is refused, of so many bytes: how long he waits for it."""
        address = caller_address(scope, self._proxies)
        paid_until = self._paid_until.pop(address, now)
        wait = min(self._rate.wait_seconds(paid_until, 0, now), self._limits.refusal_seconds)
        if len(self._paid_until) >= self._limits.guessers:
            del self._paid_until[next(iter(self._paid_until))]
        # What is more than the longest wait is forgiven: nobody is kept from asking for hours.
        most = now + self._rate.ahead_seconds + self._limits.refusal_seconds
        spent = self._rate.spent(paid_until, 1 + came // self._limits.refusal_bytes, now)
        self._paid_until[address] = min(spent, most)
        return wait

    async def wait(self, scope: MutableMapping[str, Any]) -> float:
        """Be refused no sooner than it is paid off. The seconds that took."""
        stranger: Stranger | None = scope.get(STRANGER)
        if stranger is None:
            return 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        seconds = self.wait_seconds(scope, stranger.came, began)
        if not seconds:
            return 0.0
        self.held += 1
        stranger.is_held = True
        try:
            await asyncio.sleep(seconds)
        finally:
            stranger.is_held = False
        return loop.time() - began

    def hold(self, stranger: Stranger, scope: MutableMapping[str, Any], came: int, refuse: Callable[[], None]) -> None:
        """The same for a protocol that writes by itself: `refuse` is called then, or now."""
        loop = asyncio.get_running_loop()
        seconds = self.wait_seconds(scope, came, loop.time())
        if not seconds:
            refuse()
            return

        def end() -> None:
            stranger.is_held = False
            refuse()

        self.held += 1
        stranger.is_held = True
        loop.call_later(seconds, end)
