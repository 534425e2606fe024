"""Webhooks on PostgreSQL: append many in one statement, claim, renew, finish under a fence; bodies by the day."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import msgspec

from tallystick import queries
from tallystick.database.pool import Connection, Database
from tallystick.errors import require
from tallystick.providers.words import Movement
from tallystick.webhooks.inbox import ClaimedEvent, Told, append, finish, names_of
from tallystick.webhooks.rules import STATUSES, End, Status, kept_key

_SQL: Final = queries.load(__package__, "store.sql")

CHANNEL: Final = "tally_webhook"
_BEYOND_EVERY_NUMBER: Final = 2**63 - 1
_MOST_DIGITS: Final = 18
# Rows that are counted for the figures: "so many or more" is all that anybody needs to know.
_MOST_COUNTED: Final = 10_000


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
    """Appends deliveries, many in one transaction (`commit.group`)."""

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


async def claim(database: Database, *, most: int, lease: timedelta, by: str) -> list[ClaimedEvent]:
    """Take events that are due, or whose lease is over: up to `most` of each. Raises Unreachable and InFlight."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["claim"], most, lease, by)
    return [_claimed(row) for row in rows]


async def renew(database: Database, claims: Sequence[ClaimedEvent], *, lease: timedelta) -> set[int]:
    """Hold them for another lease. The numbers of those that are still ours."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["renew"], *names_of(claims), lease)
    return {row["number"] for row in rows}


async def record(database: Database, ended: Sequence[tuple[ClaimedEvent, End]]) -> set[int]:
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


def _claimed(row: asyncpg.Record) -> ClaimedEvent:
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
    return ClaimedEvent(
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
