"""Webhooks on PostgreSQL: append many in one statement, claim, renew, finish under a fence; bodies by the day."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Final, Protocol

import asyncpg
import msgspec

from tallystick import queries
from tallystick.core.currencies import Purpose
from tallystick.core.provider import Event, Movement
from tallystick.core.webhook import STATUSES, End, Status, kept_key, kept_object, kept_type
from tallystick.errors import require
from tallystick.store.copying import moment
from tallystick.store.database import Connection, Database
from tallystick.store.literal import numbers, texts

_SQL: Final = queries.load(__package__, "webhook.sql")

CHANNEL: Final = "tally_webhook"
# Between the elements of a column of text, and what stands for NULL: as the statement `append` reads them.
_BETWEEN: Final = "\x1e"
_ABSENT: Final = "\x1d"
# Of what `append` sorts: provider and key.
_KEY: Final = itemgetter(0, 1)
_BEYOND_EVERY_NUMBER: Final = 2**63 - 1
_MOST_DIGITS: Final = 18
# Rows that are counted for the figures: "so many or more" is all that anybody needs to know.
_MOST_COUNTED: Final = 10_000


class Told(Protocol):
    """What one provider told, in one delivery or one page of its list."""

    @property
    def provider(self) -> str:
        """The name it is configured under."""

    @property
    def events(self) -> Sequence[Event]:
        """In the order it told them."""


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
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


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as people see it."""

    number: int
    provider: str
    event_id: str
    type: str
    purpose: str | None
    provider_id: str | None
    reference: str | None
    amount_micros: int | None
    currency: str | None
    state: str | None
    object_id: str | None
    status: Status
    tries: int
    reason: str | None
    received_at: datetime
    due_at: datetime
    processed_at: datetime | None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the database knows of events, for every process the same. Counts stop at a bound."""

    oldest_seconds: float
    unprocessed: int
    in_processing: int
    dead_letters: int
    bodies_without_a_day: int


class AppendWork:
    """Appends deliveries, many in one transaction (`engine.group_commit`)."""

    def __init__(self, database: Database, stored: Callable[[int], None] = lambda _fresh: None) -> None:
        """`stored` is told how many were new, after each commit."""
        self._database = database
        self._stored = stored

    async def commit(self, items: Sequence[Told], *, patient: bool) -> Sequence[int]:  # noqa: ARG002 - see below
        """How many events of each delivery were new. Nothing is locked but the keys, and those only for one commit."""
        async with self._database.stating() as connection:
            fresh = await append(connection, items)
        total = sum(fresh)
        if total:
            self._stored(total)
        return fresh


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


async def claim(database: Database, *, most: int, lease: timedelta, by: str) -> list[Claimed]:
    """Take events that are due, or whose lease is over: up to `most` of each. Raises Unreachable and InFlight."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["claim"], most, lease, by)
    return [_claimed(row) for row in rows]


async def renew(database: Database, claims: Sequence[Claimed], *, lease: timedelta) -> set[int]:
    """Hold them for another lease. The numbers of those that are still ours."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["renew"], *_names(claims), lease)
    return {row["number"] for row in rows}


async def finish(connection: Connection, ended: Sequence[tuple[Claimed, End]]) -> set[int]:
    """Write the ends, inside the caller's transaction. The numbers that were still under these claims.

    The rest is another worker's now: whoever did something about it in this transaction must not commit that.
    """
    ended = sorted(ended, key=lambda pair: pair[0].number)
    rows = await connection.fetch(
        _SQL["finish"],
        *_names([claimed for claimed, _ in ended]),
        texts([end.status for _, end in ended]),
        numbers([end.tries for _, end in ended]),
        texts([end.reason for _, end in ended]),
        numbers([end.after_seconds for _, end in ended]),
    )
    return {row["number"] for row in rows}


async def hold(connection: Connection, claims: Sequence[Claimed]) -> set[int]:
    """The numbers that are still under these claims, locked until the caller's transaction ends."""
    claims = sorted(claims, key=lambda claimed: claimed.number)
    return {row["number"] for row in await connection.fetch(_SQL["hold"], *_names(claims))}


async def record(database: Database, ended: Sequence[tuple[Claimed, End]]) -> set[int]:
    """`finish` in a commit of its own. Raises Unreachable, InFlight and OutcomeUnknown."""
    async with database.stepping() as connection:
        return await finish(connection, ended)


async def list_events(
    database: Database, *, status: Status | None, provider: str | None, before: int | None, most: int
) -> list[EventView]:
    """Newest first."""
    filters, arguments = "", []
    if status is not None:
        require(status in STATUSES, "a status is one of five")
        # Spelled out, because the partial indexes are found by it.
        filters += f" AND status = '{status}'"
    if provider is not None:
        filters += " AND provider = $3"
        arguments.append(provider)
    async with database.owning() as connection:
        rows = await connection.fetch(
            _SQL["list"].replace("{filters}", filters), before or _BEYOND_EVERY_NUMBER, most, *arguments
        )
    return [EventView(**dict(row)) for row in rows]


async def find(database: Database, id_: str) -> dict[int, Status]:
    """Numbers and statuses of the events that a person may mean: our number, or a provider's id of it."""
    is_number = id_.isascii() and id_.isdigit() and len(id_) <= _MOST_DIGITS
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["find"], kept_key(id_), int(id_) if is_number else None)
    return {row["number"]: row["status"] for row in rows}


async def retry(database: Database, numbers: Sequence[int] | None) -> set[int]:
    """Let dead letters be tried again from the start; None: all of them. Those that were dead."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["retry"], None if numbers is None else list(numbers))
    return {row["number"] for row in rows}


async def body(database: Database, number: int, received_at: datetime) -> bytes | None:
    """The event as it came; None: its day was detached."""
    async with database.owning() as connection:
        found: bytes | None = await connection.fetchval(_SQL["body"], received_at, number)
    return found


async def cursor(database: Database, provider: str) -> tuple[str | None, int, datetime]:
    """How far the provider's list was read, the version of that, and the database's time."""
    async with database.owning() as connection:
        row = await connection.fetchrow(_SQL["cursor"], provider)
        now: datetime = await connection.fetchval(_SQL["now"])
    return (None, 0, now) if row is None else (row["cursor"], row["version"], now)


async def backfill(database: Database, told: Told, *, to: str, version: int) -> tuple[int, bool]:
    """Store a page of the provider's list and move the cursor past it, in one commit.

    How many were new, and whether the cursor was ours to move: False, somebody else has read on.
    """
    async with database.stepping() as connection:
        (fresh,) = await append(connection, [told])
        moved = await connection.fetchval(_SQL["move_cursor"], told.provider, to, version)
    return fresh, moved is not None


async def keep_days(database: Database, *, ahead: int, detach_after: int | None) -> tuple[int, list[str]]:
    """Make the partitions of the days to come, and detach those older than so many days; None: none.

    A tenant whose policy keeps bodies for longer keeps everybody's.
    """
    async with database.stepping() as connection:
        made: int = await connection.fetchval(_SQL["ahead"], ahead)
    gone: list[str] = []
    if detach_after is not None:
        async with database.stepping() as connection:
            gone = [row[0] for row in await connection.fetch(_SQL["detach"], detach_after)]
    return made, gone


async def notify(database: Database) -> None:
    """Wake the workers. In a transaction of its own: NOTIFY takes a lock of the whole server at commit."""
    async with database.owning() as connection:
        await connection.execute(_SQL["notify"])


async def listen(database: Database, heard: Callable[[], None], gone: Callable[[], None]) -> Connection:
    """A connection that calls `heard` at each notification, and `gone` when it is lost. The caller closes it."""
    connection = await database.open()
    connection.add_termination_listener(lambda _connection: gone())
    try:
        await connection.add_listener(CHANNEL, lambda *_notification: heard())
    except BaseException:
        connection.terminate()
        raise
    return connection


async def figures(database: Database) -> Figures:
    """What the database knows."""
    async with database.owning() as connection:
        row = await connection.fetchrow(_SQL["figures"], _MOST_COUNTED)
    return Figures(**dict(row or {}))


def _names(claims: Sequence[Claimed]) -> tuple[str, str]:
    return numbers([claimed.number for claimed in claims]), numbers([claimed.claim_number for claimed in claims])


def _claimed(row: asyncpg.Record) -> Claimed:
    movement = None
    if row["purpose"] is not None:
        movement = Movement(
            provider=row["provider"],
            purpose=row["purpose"],
            id=row["provider_id"],
            amount_micros=row["amount_micros"],
            currency=row["currency"],
            state=row["state"],
            status=row["word"],
            reference=row["reference"],
            parent=row["parent"],
        )
    return Claimed(
        number=row["number"],
        claim_number=row["claim_number"],
        provider=row["provider"],
        event_id=row["event_id"],
        type=row["type"],
        movement=movement,
        occurred_at=row["occurred_at"],
        received_at=row["received_at"],
        tries=row["tries"],
        object_id=row["object_id"],
        object_purpose=row["object_purpose"],
    )
