"""The simulated clock: real time plus an offset that is stored in the books, so it survives a restart.

Key horizons, retries of webhooks, later actions and the age of events all go by it; a test that wants tomorrow
advances it. It never goes back: objects are listed in the order of their times.

`advance` only says how far it is to go. Whoever runs what is due takes it there with `step`, from one due time to
the next, so that everything on the way happens at its own time and a month is the same as thirty days.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from functools import lru_cache
from typing import Final

from tallystick.simulator.books import Books

_OFFSET: Final = "clock_offset"
# Ahead of real time, in all. Far beyond any horizon of a provider, and far from the last year a date can hold.
FARTHEST: Final = timedelta(days=36_525)


def real_now() -> datetime:
    """The only look at the wall clock."""
    return datetime.now(UTC)


# Answers come by the hundred in one second.
@lru_cache(maxsize=4)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)


class Clock:
    """Simulated time."""

    def __init__(self, books: Books, real: Callable[[], datetime] = real_now) -> None:
        self._books = books
        self.real_now = real
        self._offset = timedelta(seconds=float(books.setting(_OFFSET) or 0))
        self._goal = self._offset
        self._latest = real() + self._offset

    def now(self) -> datetime:
        """Never earlier than an answer before."""
        self._latest = max(self._latest, self.real_now() + self._offset)
        return self._latest

    def http_date(self) -> str:
        """Now, as the head of an answer says it."""
        return _http_date(int(self.now().timestamp()))

    @property
    def offset_seconds(self) -> float:
        """How far it is ahead of real time."""
        return self._offset.total_seconds()

    @property
    def is_behind(self) -> bool:
        """Whether it has yet to go where it was told to."""
        return self._offset < self._goal

    def advance(self, seconds: float) -> None:
        """Have it go forward. Raises ValueError for a step back, and for one that is too far."""
        if not seconds >= 0:
            raise ValueError("the clock only goes forward")
        left = FARTHEST - self._goal
        if seconds > left.total_seconds():
            raise ValueError(
                f"the clock goes at most {FARTHEST.days} days ahead of real time in all: "
                f"{max(left.total_seconds(), 0.0):.0f} seconds are left"
            )
        self._goal += timedelta(seconds=seconds)

    def step(self, until: datetime | None) -> None:
        """Go on to the goal, or to `until` if that comes first."""
        offset = self._goal if until is None else min(self._goal, until - self.real_now())
        self._offset = max(self._offset, offset)
        self._books.put_setting(_OFFSET, str(self.offset_seconds))
