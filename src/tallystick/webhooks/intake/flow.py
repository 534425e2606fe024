"""Intake: what receivers appended to a log is stored in the database, at a pace that it can take.

    read a batch ──> decode ──> one transaction: events by the guard, poison aside, how far it is ──> note it in the log
                                  └── not stored: rewound, read again

Killed anywhere, it is read again from where the database is, and the guard knows what it has: nothing is lost, and
nothing is there twice. What cannot be stored as a webhook is kept aside, whole, and stops nobody.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
import structlog

from tallystick.database.pool import Database
from tallystick.errors import TallystickError
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks import store as webhook
from tallystick.webhooks.intake import store
from tallystick.webhooks.intake.store import PoisonView, SetAside
from tallystick.webhooks.record import Batch, Delivered, Gap, Poison, Record, decode

log = structlog.get_logger("tallystick.intake")

_REFUSED: Final = "the database does not take it"
_DELETED: Final = "the log had deleted these records before they were read"


class Reader(Protocol):
    """Whatever the log is kept in. One call at a time."""

    async def read(self, most: int) -> Batch:
        """Up to so many records; none after a moment without any. Raises LogUnreachable, and loses nothing by it."""

    async def commit(self, batch: Batch) -> None:
        """Note in the log that it was read. Only once it is stored."""

    async def rewind(self, batch: Batch) -> None:
        """Have it read again."""

    async def close(self) -> None:
        """Let others have it."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did. `fresh` events were not told before; `aside` records could not be stored as webhooks."""

    records: int = 0
    fresh: int = 0
    aside: int = 0
    # How long the database took.
    seconds: float = 0.0


class Intake:
    """Feeds the database from the log. Any number may run side by side: each has partitions of its own."""

    def __init__(self, database: Database, reader: Reader, *, limits: Limits = LIMITS) -> None:
        """The reader is closed by `close`."""
        self._database = database
        self._reader = reader
        self._limits = limits

    async def run_once(self) -> Taken:
        """One batch: stored, and then noted. Raises LogUnreachable, Unreachable, InFlight and OutcomeUnknown."""
        batch = await self._reader.read(self._limits.kafka_batch)
        if not batch.records:
            return Taken()
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            taken = await self._store(batch)
        except BaseException:
            await self._reader.rewind(batch)
            raise
        seconds = clock() - began
        # Only now: what is noted is never read again.
        await self._reader.commit(batch)
        if taken.fresh:
            await self._announce()
        return msgspec.structs.replace(taken, seconds=seconds)

    async def close(self) -> None:
        """Let others have the partitions."""
        await self._reader.close()

    async def _store(self, batch: Batch) -> Taken:
        deliveries: list[tuple[Record, Delivered]] = []
        aside = [_gap(gap) for gap in batch.gaps]
        for record in batch.records:
            found = decode(record.value)
            if isinstance(found, Poison):
                aside.append(_aside(record, found.reason))
            else:
                deliveries.append((record, found))
        try:
            fresh, put = await self._commit(batch.topic, [found for _, found in deliveries], aside, batch.ends())
        except Exception as error:
            if not store.is_own_fault(error):
                raise
            # Some record of it is to blame: all of it in smaller parts, and how far that is when all of them are there.
            fresh, refused = await self._divided(batch.topic, deliveries)
            aside += refused
            _, put = await self._commit(batch.topic, [], aside, batch.ends())
        for each in aside if put else ():
            log.error(
                "webhook_record_set_aside",
                topic=batch.topic,
                partition=each.partition,
                offset=each.first_offset,
                records=each.next_offset - each.first_offset,
                reason=each.reason,
                next="tally events poison",
            )
        return Taken(records=len(batch.records), fresh=fresh, aside=put)

    async def _divided(self, topic: str, deliveries: Sequence[tuple[Record, Delivered]]) -> tuple[int, list[SetAside]]:
        """Store halves until the culprits are alone; they are given back."""
        if not deliveries:
            return 0, []
        try:
            fresh, _ = await self._commit(topic, [found for _, found in deliveries], [], {})
        except Exception as error:
            if not store.is_own_fault(error):
                raise
            if len(deliveries) == 1:
                return 0, [_aside(deliveries[0][0], f"{_REFUSED}: {type(error).__name__}")]
            middle = len(deliveries) // 2
            first, second = (
                await self._divided(topic, deliveries[:middle]),
                await self._divided(topic, deliveries[middle:]),
            )
            return first[0] + second[0], first[1] + second[1]
        return fresh, []

    async def _commit(
        self, topic: str, deliveries: Sequence[Delivered], aside: Sequence[SetAside], read: dict[int, int]
    ) -> tuple[int, int]:
        return await store.store(self._database, topic, deliveries, aside, read)

    async def _announce(self) -> None:
        try:
            await webhook.notify(self._database)
        except TallystickError as error:
            # The workers' own poll finds it.
            log.warning("webhook_not_announced", reason=str(error))


class Retried(msgspec.Struct, frozen=True):
    """What became of a record that was read once more. `refused` is why it stays aside."""

    number: int
    fresh: int | None
    refused: str | None


async def retry_poison(database: Database, view: PoisonView) -> Retried:
    """Read it with this version of the code, and store it if that can be done now. Safe to do twice."""
    if view.bytes is None:
        return Retried(view.number, None, view.reason)
    try:
        found = await store.retry(database, view.number, _decoded)
    except Exception as error:
        if not store.is_own_fault(error):
            raise
        found = f"{_REFUSED}: {type(error).__name__}"
    if isinstance(found, str):
        return Retried(view.number, None, found)
    return Retried(view.number, found or 0, None)


def pause_after(seconds: float, limits: Limits) -> float:
    """How long to rest after a batch that took so long: a slow database is left as much time as was taken of it."""
    return min(seconds, limits.intake_longest_rest_seconds) if seconds > limits.kafka_slow_seconds else 0.0


def _decoded(value: bytes | None) -> Delivered | str:
    found = decode(value)
    return found.reason if isinstance(found, Poison) else found


def _aside(record: Record, reason: str) -> SetAside:
    return SetAside(
        partition=record.partition,
        first_offset=record.offset,
        next_offset=record.offset + 1,
        reason=reason,
        key=record.key,
        value=b"" if record.value is None else record.value,
        appended=record.appended,
    )


def _gap(gap: Gap) -> SetAside:
    return SetAside(partition=gap.partition, first_offset=gap.first, next_offset=gap.next, reason=_DELETED)
