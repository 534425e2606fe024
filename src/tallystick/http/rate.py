"""A rate: how much somebody may ask for within a second, and when what is asked for now may be done.

Pure; the caller passes the time. One number tells how somebody stands: `paid_until`, when all that he was granted is
paid off at the rate. He may be as far ahead of the clock as a second's worth, or one call, takes.

    now ────────────────┬── paid_until ──┐
         granted, not   │   what is      │ a second's worth ahead: not further
         paid off yet   │   asked for    │

A call for more than that at once (a batch) begins when nothing is owed but itself, and is paid off afterwards: over any
time nobody gets more than the rate, a second's worth, and the last call.
"""

from dataclasses import dataclass, field
from typing import Final

# Of clocks and of adding up parts of a second: who came exactly when he was told is not too early.
_ROUNDING_SECONDS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second."""

    per_second: float
    # How far ahead of the clock: a second, and what one takes where that is longer.
    ahead_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """Worked out once."""
        object.__setattr__(self, "ahead_seconds", max(1.0, 1 / self.per_second))

    def wait_seconds(self, paid_until: float, count: int, now: float) -> float:
        """Until so many may be done; 0: now."""
        owed = max(paid_until - now, 0.0)
        wait = owed + min(count / self.per_second, self.ahead_seconds) - self.ahead_seconds
        return wait if wait > _ROUNDING_SECONDS else 0.0

    def spent(self, paid_until: float, count: int, now: float) -> float:
        """`paid_until` once so many were granted."""
        return max(paid_until, now) + count / self.per_second
