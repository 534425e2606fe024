"""Webhook events and their bodies in PostgreSQL's binary COPY format (see `copying`).

Thirteen array parameters cost the driver 0.6 to 0.9 microseconds for each element: more than everything else that is
done about an event once it was read. Packed here, a row costs a quarter of that.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from struct import Struct
from typing import Final

from tallystick.core.provider import Event
from tallystick.core.webhook import kept_type
from tallystick.store.copying import HEADER, TRAILER, moment

EVENT_COLUMNS: Final = (
    "number",
    "provider",
    "event_id",
    "received_at",
    "due_at",
    "type",
    "occurred_at",
    "purpose",
    "provider_id",
    "reference",
    "parent",
    "amount_micros",
    "currency",
    "state",
    "word",
)
BODY_COLUMNS: Final = ("received_at", "number", "body")

_LENGTH: Final = Struct("!i").pack
# Field count, then length and value of each.
_NUMBERED: Final = Struct("!hiq").pack
_TIMES: Final = Struct("!iqiq").pack
_BIG: Final = Struct("!iq").pack
_BODY: Final = Struct("!hiqiqi").pack
_NULL: Final = _LENGTH(-1)
_NO_MOVEMENT: Final = _NULL * 8

# A stored event: its number, its provider, its key as it is kept, and what was told.
Row = tuple[int, str, str, Event]


def events(rows: Iterable[Row], at: int) -> bytes:
    """One row of `tally.webhook_events` each. `at` is when they were received, as the server counts."""
    parts = [HEADER]
    times = _TIMES(8, at, 8, at)
    columns = len(EVENT_COLUMNS)
    for number, provider, key, event in rows:
        movement, occurred_at = event.movement, event.occurred_at
        parts += (
            _NUMBERED(columns, 8, number),
            _known(provider),
            _text(key),
            times,
            _known(kept_type(event.type)),
            _NULL if occurred_at is None else _moment(occurred_at),
        )
        if movement is None:
            parts.append(_NO_MOVEMENT)
        else:
            parts += (
                _known(movement.purpose),
                _text(movement.id),
                _text(movement.reference),
                _text(movement.parent),
                _BIG(8, movement.amount_micros),
                _known(movement.currency),
                _known(movement.state),
                _known(movement.status),
            )
    parts.append(TRAILER)
    return b"".join(parts)


def bodies(rows: Iterable[Row], at: int) -> bytes:
    """One row of `tally.webhook_body` each."""
    parts = [HEADER]
    for number, _provider, _key, event in rows:
        body = event.body
        parts += (_BODY(3, 8, at, 8, number, len(body)), body)
    parts.append(TRAILER)
    return b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH(len(encoded)) + encoded


# Names, types, currencies and states come from small sets.
_known: Final = lru_cache(maxsize=1024)(_text)


@lru_cache(maxsize=256)
def _moment(at: datetime) -> bytes:
    """Providers tell whole seconds: many events of one batch have the same."""
    return _BIG(8, moment(at))
