"""How many unknown keys an address may try: so many at once, and then one now and then."""

from math import ceil

from tallystick.settings import LIMITS, Limits


class Guesses:
    """Counts what is left to each address, and grows it again with time. Bounded: the longest unseen are forgotten."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        """Everybody may."""
        self._limits = limits
        # What was left, and when that was.
        self._left: dict[str, tuple[float, float]] = {}

    def wait_seconds(self, address: str, now: float) -> int:
        """Until this address may try another; 0: now."""
        left = self._left_to(address, now)
        return 0 if left >= 1 else max(ceil((1 - left) / self._limits.guesses_per_second), 1)

    def spend(self, address: str, now: float) -> None:
        """One is being tried."""
        left = self._left_to(address, now)
        self._left.pop(address, None)
        if len(self._left) >= self._limits.guessers:
            del self._left[next(iter(self._left))]
        self._left[address] = left - 1, now

    def give_back(self, address: str) -> None:
        """It was no guess."""
        if address in self._left:
            left, at = self._left[address]
            self._left[address] = left + 1, at

    def _left_to(self, address: str, now: float) -> float:
        left, at = self._left.get(address, (float(self._limits.guesses), now))
        return min(left + (now - at) * self._limits.guesses_per_second, self._limits.guesses)
