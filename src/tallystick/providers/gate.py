"""The gate: how many calls, and how many at once, a provider gets from this process.

A token bucket whose rate follows the provider: halved when it says 429, raised again step by step while it does
not. And a bound on calls in flight. Waiting is bounded by the caller's permit to send.
"""

import asyncio
from typing import Final

from tallystick.providers.steady import steady

# What may be sent at once after a quiet moment, as a part of a second's worth.
BURST_SECONDS: Final = 0.25
SLOWEST_PER_SECOND: Final = 1.0
# Additive increase: a tenth of the full rate for each second without a 429.
RECOVERY_PER_SECOND: Final = 0.1
# However many calls in flight are refused at once, they were one burst: the rate is halved once per this time.
HALVING_SECONDS: Final = 1.0


class Bucket:
    """Tokens at an adaptive rate. Pure: time comes in."""

    def __init__(self, per_second: float, now: float) -> None:
        """Full at the start."""
        self.full_rate = per_second
        self.rate = per_second
        self._burst = max(1.0, per_second * BURST_SECONDS)
        self._tokens = self._burst
        self._at = now
        self._closed_until = now
        self._halved_at = now - HALVING_SECONDS

    def take(self, now: float) -> float:
        """Take one token. Returns how many seconds to wait before using it; it is taken either way."""
        elapsed = max(0.0, now - self._at)
        self._at = max(self._at, now)
        if self.rate < self.full_rate:
            self.rate = min(self.full_rate, self.rate + self.full_rate * RECOVERY_PER_SECOND * elapsed)
        self._tokens = min(self._burst, self._tokens + elapsed * self.rate) - 1.0
        wait = 0.0 if self._tokens >= 0 else -self._tokens / self.rate
        return max(wait, self.closed_for(now))

    def closed_for(self, now: float) -> float:
        """How many seconds nothing may be sent at all, because the provider asked for it."""
        return max(0.0, self._closed_until - now)

    def give_back(self) -> None:
        """A token that was taken and not used."""
        self._tokens = min(self._burst, self._tokens + 1.0)

    def slow_down(self, now: float, retry_after_seconds: float) -> None:
        """The provider said 429: nothing for as long as it asked, then at half the rate."""
        self._closed_until = max(self._closed_until, now + retry_after_seconds)
        if now - self._halved_at >= HALVING_SECONDS:
            self._halved_at = now
            # Never faster than it was: an account may have a rate below the slowest.
            self.rate = min(self.rate, max(SLOWEST_PER_SECOND, self.rate / 2))


class TooLong(Exception):
    """The turn would come after the permit to send has run out. Nothing was sent."""

    def __init__(self, wait_seconds: float) -> None:
        """How long it would have been."""
        super().__init__(f"the turn would come in {wait_seconds:.1f} s")
        self.wait_seconds = wait_seconds


class Gate:
    """One provider's, shared by all calls of this process."""

    def __init__(self, per_second: float, concurrency: int) -> None:
        """`concurrency` calls at once, `per_second` of them started."""
        self.bucket = Bucket(per_second, steady())
        self._places = asyncio.Semaphore(concurrency)

    async def enter(self, until: float) -> None:
        """Wait for a place and a token, at most until then on the steady clock. Whoever is let in must `leave`.

        Raises TooLong. No context manager: that takes as long again as what it guards.
        """
        if self._places.locked():
            try:
                async with asyncio.timeout(max(0.0, until - steady())):
                    await self._places.acquire()
            except TimeoutError:
                raise TooLong(max(0.0, until - steady())) from None
        else:
            await self._places.acquire()
        try:
            wait = self.bucket.take(steady())
            if wait > 0:
                await self._pass(wait, until)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Give the place back."""
        self._places.release()

    async def _pass(self, wait: float, until: float) -> None:
        """Wait until the token may be used. Whoever does not get so far gives it back."""
        while wait > 0:
            if steady() + wait >= until:
                self.bucket.give_back()
                raise TooLong(wait)
            try:
                await asyncio.sleep(wait)
            except BaseException:
                self.bucket.give_back()
                raise
            # While we waited the provider may have asked everybody to stay away longer.
            wait = self.bucket.closed_for(steady())
