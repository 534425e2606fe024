"""The circuit breaker: when to stop sending to a provider that is down. Pure; time comes in.

    closed ── several failures in a row ──> open ── pause over ──> probing ── success ──> closed
                                             ^                        └───── failure ──> open, twice as long

It stops new sends only. What is in flight goes on, and questions (lookups) always pass: they move no money and
are how an unknown outcome is resolved.
"""

from typing import Final, Literal

FAILURES_TO_OPEN: Final = 5
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
# A probe whose fate nobody reports (its task was cancelled) must not keep the breaker shut for ever.
PROBE_SECONDS: Final = 120.0

BreakerState = Literal["closed", "open", "probing"]


class Breaker:
    """One provider's. Not shared between processes: each notices for itself."""

    def __init__(self) -> None:
        """Closed."""
        self.state: BreakerState = "closed"
        self.reason = ""
        self.failures = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._until = 0.0
        self._answered_at = float("-inf")

    def admit(self, now: float) -> float:
        """0 to go ahead; otherwise how many seconds to stay away. Going ahead while probing is for one only."""
        if self.state == "closed":
            return 0.0
        if now < self._until:
            return self._until - now
        self.state, self._until = "probing", now + PROBE_SECONDS
        return 0.0

    def away(self, now: float) -> float:
        """How many seconds a send would be kept back; 0 when it would be let through. Changes nothing."""
        return 0.0 if self.state == "closed" else max(0.0, self._until - now)

    def succeeded(self, now: float) -> None:
        """The provider answered in its senses, whatever it said."""
        self._answered_at = now
        if self.state != "closed" or self.failures:
            self.state, self.reason, self.failures = "closed", "", 0
            self._pause_seconds = FIRST_PAUSE_SECONDS

    def abandoned(self, now: float) -> None:
        """A send that was let through never reached the provider, so it told nothing: the next one may probe."""
        if self.state == "probing":
            self.state, self._until = "open", now

    def silent(self, now: float, reason: str, *, began: float) -> None:
        """It could not be reached, or did not answer a call that began then.

        Of many that began together the unanswered ones end together, in a row, after all the others were answered: that
        is a few lost answers, and no outage.
        """
        if began >= self._answered_at:
            self.failed(now, reason)

    def failed(self, now: float, reason: str) -> None:
        """It failed inside."""
        self.failures += 1
        self.reason = reason
        if self.state == "probing":
            self._pause_seconds = min(self._pause_seconds * 2, LONGEST_PAUSE_SECONDS)
        elif self.state == "open" or self.failures < FAILURES_TO_OPEN:
            # Those in flight when it opened fail late: they must not make the pause longer.
            return
        self.state, self._until = "open", now + self._pause_seconds
