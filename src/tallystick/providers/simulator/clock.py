"""The simulated clock: real time plus an offset that is stored in the books, so it survives a restart.

Key horizons, retries of webhooks, later actions and the age of events all go by it; a test that wants tomorrow
advances it. It never goes back: objects are listed in the order of their times.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tallystick.providers.simulator.books import Books

_OFFSET: Final = "clock_offset"


def real_now() -> datetime:
    """The only look at the wall clock."""
    return datetime.now(UTC)


class Clock:
    """Simulated time."""

    def __init__(self, books: Books, real: Callable[[], datetime] = real_now) -> None:
        self._books = books
        self._real = real
        self._offset = timedelta(seconds=float(books.setting(_OFFSET) or 0))
        self._latest = real() + self._offset

    def now(self) -> datetime:
        """Never earlier than an answer before."""
        self._latest = max(self._latest, self._real() + self._offset)
        return self._latest

    @property
    def offset_seconds(self) -> float:
        """How far it is ahead of real time."""
        return self._offset.total_seconds()

    def advance(self, seconds: float) -> datetime:
        """Go forward. Raises ValueError for a step back."""
        if seconds < 0:
            raise ValueError("the clock only goes forward")
        self._offset += timedelta(seconds=seconds)
        self._books.put_setting(_OFFSET, str(self.offset_seconds))
        return self.now()
