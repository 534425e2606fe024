"""The inbox: what a provider told is stored and ended, inside the transaction of whoever hears of it."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from tallystick import queries
from tallystick.database.copying import moment
from tallystick.database.literal import numbers, texts
from tallystick.database.pool import Connection
from tallystick.money.currencies import Purpose
from tallystick.providers.words import Event, Movement
from tallystick.webhooks.rules import End, kept_key, kept_object, kept_type

_SQL: Final = queries.load(__package__, "inbox.sql")

# Between the elements of a column of text, and what stands for NULL: as the statement `append` reads them.
_BETWEEN: Final = "\x1e"
_ABSENT: Final = "\x1d"
# Of what `append` sorts: provider and key.
_KEY: Final = itemgetter(0, 1)


class Told(Protocol):
    """What one provider told, in one delivery or one page of its list."""

    @property
    def provider(self) -> str:
        """The name it is configured under."""

    @property
    def events(self) -> Sequence[Event]:
        """In the order it told them."""


class ClaimedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event under a lease. `movement` is None where it tells of no money we know of.

    `object_purpose`: it only names one of that purpose, by `object_id`; the provider is asked for it before a handler
    sees the event.
    """

    number: int
    claim_number: int
    provider: str
    event_id: str
    type: str
    movement: Movement | None
    occurred_at: datetime | None
    received_at: datetime
    tries: int
    object_id: str | None = None
    object_purpose: Purpose | None = None


async def append(connection: Connection, deliveries: Sequence[Told]) -> list[int]:
    """Store what was not told before: one statement, a transaction of its own or inside the caller's.

    How many events of each delivery were new.
    """
    told = [
        (delivery.provider, kept_key(event.dedup_key), position, event)
        for position, delivery in enumerate(deliveries)
        for event in delivery.events
    ]
    # One global order: a key that another transaction is writing is waited for, and two must not wait for each other.
    told.sort(key=_KEY)
    fresh = [len(delivery.events) for delivery in deliveries]
    if not told:
        return fresh
    events = [row[3] for row in told]
    movements = [event.movement for event in events]
    # Who tells of a movement has its id there.
    named = [kept_object(event.object_id) if event.movement is None else None for event in events]
    bodies = [event.body for event in events]
    lengths = [len(body) for body in bodies]
    repeated = await connection.fetch(
        _SQL["append"],
        _joined([row[0] for row in told]),
        _joined([row[1] for row in told]),
        _joined([kept_type(event.type) for event in events]),
        _joined([_ABSENT if movement is None else movement.purpose for movement in movements]),
        _joined([_ABSENT if movement is None else movement.id for movement in movements]),
        _joined([_ABSENT if movement is None else movement.reference for movement in movements]),
        _joined([_ABSENT if movement is None else movement.parent for movement in movements]),
        _joined([_ABSENT if movement is None else movement.currency for movement in movements]),
        _joined([_ABSENT if movement is None else movement.state for movement in movements]),
        _joined([_ABSENT if movement is None else movement.status for movement in movements]),
        _joined([name or _ABSENT for name in named]),
        _joined([(name and event.object_purpose) or _ABSENT for name, event in zip(named, events, strict=True)]),
        numbers([None if movement is None else movement.amount_micros for movement in movements]),
        numbers([None if event.occurred_at is None else _moment(event.occurred_at) for event in events]),
        numbers(list(accumulate(lengths[:-1], initial=1))),
        numbers(lengths),
        b"".join(bodies),
    )
    for (place,) in repeated:
        fresh[told[place - 1][2]] -= 1
    return fresh


def _joined(texts: list[str]) -> str:
    """A column as one text, with an element at its end that the statement passes over."""
    joined = _BETWEEN.join(texts) + _BETWEEN
    if joined.count(_BETWEEN) != len(texts):
        # Nobody writes control characters into ids; if somebody does, the body has them.
        return _BETWEEN.join([text.replace(_BETWEEN, "\ufffd") for text in texts]) + _BETWEEN
    return joined


# Providers tell whole seconds: many events of one batch have the same.
_moment: Final = lru_cache(maxsize=256)(moment)


async def finish(connection: Connection, ended: Sequence[tuple[ClaimedEvent, End]]) -> set[int]:
    """Write the ends, inside the caller's transaction. The numbers that were still under these claims.

    The rest is another worker's now: whoever did something about it in this transaction must not commit that.
    """
    ended = sorted(ended, key=lambda pair: pair[0].number)
    rows = await connection.fetch(
        _SQL["finish"],
        *names_of([claimed for claimed, _ in ended]),
        texts([end.status for _, end in ended]),
        numbers([end.tries for _, end in ended]),
        texts([end.reason for _, end in ended]),
        numbers([end.after_seconds for _, end in ended]),
    )
    return {row["number"] for row in rows}


async def hold(connection: Connection, claims: Sequence[ClaimedEvent]) -> set[int]:
    """The numbers that are still under these claims, locked until the caller's transaction ends."""
    claims = sorted(claims, key=lambda claimed: claimed.number)
    return {row["number"] for row in await connection.fetch(_SQL["hold"], *names_of(claims))}


def names_of(claims: Sequence[ClaimedEvent]) -> tuple[str, str]:
    """Which events, under which claims: as statements take them."""
    return numbers([claimed.number for claimed in claims]), numbers([claimed.claim_number for claimed in claims])
