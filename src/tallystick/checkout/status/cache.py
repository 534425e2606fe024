"""Answers kept for a moment, and not trusted while a change might not be heard of. Pure: the time is passed in.

    read begins ──> ticket ──> row ──> put(ticket) ──> get ... get
                       │                  │               └── only while trusted, and young enough
                       └── a change announced in between makes the ticket void: the row may be older than the change

Trust begins when notifications are heard, is proven again and again, and ends by itself when the next proof is late.
"""

from typing import Final

import msgspec

from tallystick.checkout.status.rules import OrderStatus, may_be_kept
from tallystick.checkout.status.store import OrderName

# Changes are counted by order in so many places: two orders that share one only lose a chance to be kept.
_SLOTS: Final = 4_096
_NEVER: Final = float("-inf")


class Ticket(msgspec.Struct, frozen=True):
    """Taken before a read: what was known of changes at that moment, and when that was."""

    epoch: int
    changes: int
    at: float


class Cache:
    """A bounded memory of answers, by tenant and order."""

    def __init__(self, *, most: int, age_seconds: float) -> None:
        """Empty, and not trusted."""
        self._most = most
        self._age_seconds = age_seconds
        self._kept: dict[OrderName, tuple[OrderStatus, float]] = {}
        self._changes = [0] * _SLOTS
        self._epoch = 0
        self._trusted_until = _NEVER

    def is_trusted(self, now: float) -> bool:
        """Whether a change would have been heard of."""
        return now < self._trusted_until

    def trust(self, until: float) -> None:
        """Notifications are heard, as of a proof that counts until then."""
        self._trusted_until = until

    def distrust(self) -> None:
        """Nobody can say what was missed: forget everything, and what is being read now."""
        self._trusted_until = _NEVER
        self.drop_all()

    def get(self, place: OrderName, now: float) -> OrderStatus | None:
        """The answer, if it may be given from memory."""
        kept = self._kept.get(place)
        if kept is None or not self.is_trusted(now):
            return None
        found, since = kept
        if now - since >= self._age_seconds:
            del self._kept[place]
            return None
        return found

    def ticket(self, place: OrderName, now: float) -> Ticket:
        """To be taken before the read begins."""
        return Ticket(self._epoch, self._changes[hash(place) % _SLOTS], now)

    def put(self, place: OrderName, ticket: Ticket, found: OrderStatus, now: float) -> None:
        """Keep what was read, unless a change was announced since the ticket, or it may not be kept at all."""
        is_void = ticket.epoch != self._epoch or ticket.changes != self._changes[hash(place) % _SLOTS]
        # What was kept before is older than this.
        self._kept.pop(place, None)
        if is_void or not may_be_kept(found) or not self.is_trusted(now):
            return
        if len(self._kept) >= self._most:
            # The oldest: a dictionary has them in the order they came.
            del self._kept[next(iter(self._kept))]
        self._kept[place] = found, ticket.at

    def drop(self, place: OrderName) -> None:
        """It has changed: forget it, and what is being read of it now."""
        self._changes[hash(place) % _SLOTS] += 1
        self._kept.pop(place, None)

    def drop_all(self) -> None:
        """Anything may have changed."""
        self._epoch += 1
        self._kept.clear()
