"""What the books hold: objects, events, and what is due. Times are aware; the file keeps microseconds."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Entry(msgspec.Struct, frozen=True):
    """One object in the provider's books.

    `kind`: charge, refund, transfer, payout, reversal, quote, recipient ...; those five are what moves money.
    `parent`: what it hangs on ("" if nothing): a refund's payment, a fund's transfer, a transfer's destination.
    `amount` is in the provider's own minor units (Wise: micros). `state` is one of the words common to all
    (waiting, moving, moved, failed, returned); `body` is the object as the provider renders it.
    """

    dialect: str
    kind: str
    id: str
    reference: str
    parent: str
    amount: int
    currency: str
    state: str
    created_at: datetime
    body: dict[str, Any]


class Event(msgspec.Struct, frozen=True):
    """Something the provider announced. `body` is its payload before it is signed."""

    dialect: str
    type: str
    id: str
    object_id: str
    created_at: datetime
    body: dict[str, Any]


class Due(msgspec.Struct, frozen=True):
    """What the provider does by itself, now."""

    number: int
    dialect: str
    action: str
    object_id: str


def to_microseconds(at: datetime) -> int:
    """As the books keep times."""
    return (at - _EPOCH) // _MICROSECOND


def from_microseconds(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)
