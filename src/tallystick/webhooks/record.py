"""A delivery as one record of a log: all that the receiver read, so that whoever stores it later parses nothing again.

Pure. A marked version stands first: what is not ours, and what a newer version wrote, is told apart from ours.
"""

from typing import Final

import msgspec

from tallystick.providers.words import Event
from tallystick.webhooks.rules import kept_key

_MARK: Final = b"tally/webhook/"
_VERSION: Final = b"1\n"
# As the guard has it: a longer name could never be stored.
_MOST_NAME_BYTES: Final = 40


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """What one webhook told, under the name its provider is configured under."""

    provider: str
    events: tuple[Event, ...]


class Poison(msgspec.Struct, frozen=True, gc=False):
    """Why a record cannot be stored as a webhook. Holds nothing of the record."""

    reason: str


class Record(msgspec.Struct, frozen=True, gc=False):
    """One as it lies in the log. `appended`: seconds since 1970 by the log's clock; None: it has none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended: float | None


class Gap(msgspec.Struct, frozen=True):
    """Records that the log no longer had when they were to be read: from `first` up to, and without, `next`."""

    partition: int
    first: int
    next: int


class Batch(msgspec.Struct, frozen=True):
    """What was read at once."""

    topic: str
    records: tuple[Record, ...] = ()
    gaps: tuple[Gap, ...] = ()

    def ends(self) -> dict[int, int]:
        """Of each partition in it, the next record to read."""
        found: dict[int, int] = {gap.partition: gap.next for gap in self.gaps}
        for record in self.records:
            found[record.partition] = max(record.offset + 1, found.get(record.partition, 0))
        return found

    def begins(self) -> dict[int, int]:
        """Of each partition in it, where to read it again from."""
        found = {gap.partition: gap.first for gap in self.gaps}
        for record in self.records:
            found[record.partition] = min(record.offset, found.get(record.partition, record.offset))
        return found


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Delivered)


def encode(provider: str, events: tuple[Event, ...]) -> bytes:
    """The record's value."""
    return _MARK + _VERSION + _ENCODER.encode(Delivered(provider, events))


def key(provider: str, events: tuple[Event, ...]) -> bytes:
    """What places the record: one event told twice lies in one partition. Of several events, the first one's."""
    return f"{provider}/{kept_key(events[0].dedup_key)}".encode("utf-8", "replace")


def decode(value: bytes | None) -> Delivered | Poison:
    """The delivery, or why it is none."""
    if value is None or not value.startswith(_MARK):
        return Poison("it is no record of Tallystick")
    if not value.startswith(_VERSION, len(_MARK)):
        return Poison("it is of a version that this code does not know")
    try:
        found = _DECODER.decode(memoryview(value)[len(_MARK) + len(_VERSION) :])
    except (msgspec.MsgspecError, ValueError):
        # The exception's own words may show what the provider sent.
        return Poison("it cannot be read")
    if not 1 <= len(found.provider.encode()) <= _MOST_NAME_BYTES:
        return Poison("its provider has no name that can be stored")
    return found
