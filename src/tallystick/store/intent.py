"""Intents on PostgreSQL: commit what is about to be sent, and what came of it. Both for many at once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.core.idempotency import Tenant
from tallystick.core.intent import (
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    Leave,
    OtherInstruction,
    StillSending,
    encode_instruction,
    leave,
)
from tallystick.core.provider import Answer, Busy, Done, Instruction, Refused, Unknown
from tallystick.store.database import Connection, Database

_SQL = queries.load(__package__, "intent.sql")
_ANSWERS = {Done: "done", Refused: "refused", Busy: "busy", Unknown: "unknown"}
# A row is evidence, not a log file.
_MOST_CODE_CHARACTERS = 200

Name = tuple[int, bytes, str]


class Asking(msgspec.Struct, frozen=True):
    """An attempt that wants to begin. `token` is new for each; `leave_seconds` is how long bytes may be written."""

    tenant: Tenant
    provider: str
    purpose: str
    instruction: Instruction
    token: UUID
    leave_seconds: float


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that is committed: its bytes may leave until `not_after`."""

    tenant: Tenant
    provider: str
    key: bytes
    number: int
    first_sent_at: datetime
    not_after: datetime


class Answered(msgspec.Struct, frozen=True):
    """What came of an attempt."""

    attempt: Attempt
    answer: Answer


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt as a person wants to see it."""

    number: int
    sent_at: datetime
    not_after: datetime
    answered_at: datetime | None
    answer: str | None
    code: str | None
    provider_id: str | None
    evidence: bytes | None


class IntentView(msgspec.Struct, frozen=True):
    """An intent with its attempts."""

    provider: str
    purpose: str
    instruction: bytes
    first_sent_at: datetime
    attempts: tuple[AttemptView, ...]


class BreakerView(msgspec.Struct, frozen=True):
    """What one process last said of its breaker."""

    provider: str
    process: str
    state: str
    reason: str
    changed_at: datetime


class BeginWork:
    """Group commit's work: make intents and begin attempts, one transaction for all that ask."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def commit(
        self,
        items: Sequence[Asking],
        *,
        patient: bool,  # noqa: ARG002 - an intent is held for one commit only: there is nothing to step around
    ) -> Sequence[Attempt | StillSending | OtherInstruction]:
        """Each item's leave to send, or why not."""
        async with self._database.writing() as connection:
            return await begin(connection, items)


class AnswerWork:
    """Group commit's work: record answers."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def commit(
        self,
        items: Sequence[Answered],
        *,
        patient: bool,  # noqa: ARG002 - like BeginWork's
    ) -> Sequence[bool]:
        """True for each, once it is durable."""
        async with self._database.writing() as connection:
            await record_answers(connection, items)
        return [True] * len(items)


async def begin(connection: Connection, items: Sequence[Asking]) -> list[Attempt | StillSending | OtherInstruction]:
    """Begin attempts inside the caller's transaction: nothing may be sent before he has committed it."""
    names = [_name(item) for item in items]
    encoded = [encode_instruction(item.instruction) for item in items]
    await connection.execute(_SQL["make"], *_columns(names), [item.purpose for item in items], encoded)
    rows = await connection.fetch(_SQL["lock"], *_columns(list(dict.fromkeys(names))))
    sent_before = [row for row in rows if row["attempts"]]
    earlier = await _last_attempts(connection, sent_before) if sent_before else []
    now: datetime = max(row["now"] for row in (*rows, *earlier))
    last = {_row_name(row): _last_attempt(row) for row in earlier}
    known = {
        _row_name(row): KnownIntent(row["instruction"], row["first_sent_at"], last.get(_row_name(row))) for row in rows
    }
    begun: list[tuple[Asking, int]] = []
    outcomes: list[Attempt | StillSending | OtherInstruction] = []
    for item, name, instruction in zip(items, names, encoded, strict=True):
        intent = known[name]
        found: Leave = leave(intent, instruction, item.token, now=now)
        match found:
            case Begin(number):
                not_after = now + timedelta(seconds=item.leave_seconds)
                begun.append((item, number))
                known[name] = msgspec.structs.replace(
                    intent, last=LastAttempt(number, item.token, not_after, is_answered=False)
                )
                outcomes.append(_attempt(item, intent, number, not_after))
            case Begun(number, not_after):
                outcomes.append(_attempt(item, intent, number, not_after))
            case StillSending() | OtherInstruction():
                outcomes.append(found)
    if begun:
        await connection.execute(
            _SQL["begin"],
            *_columns([_name(item) for item, _ in begun]),
            [number for _, number in begun],
            [item.token for item, _ in begun],
            [item.leave_seconds for item, _ in begun],
            now,
        )
    return outcomes


async def record_answers(connection: Connection, items: Sequence[Answered]) -> None:
    """Record what came of attempts, inside the caller's transaction."""
    ordered = sorted(items, key=lambda item: (item.attempt.tenant.number, item.attempt.key, item.attempt.provider))
    await connection.execute(
        _SQL["answer"],
        *_columns([(item.attempt.tenant.number, item.attempt.key, item.attempt.provider) for item in ordered]),
        [item.attempt.number for item in ordered],
        [_ANSWERS[type(item.answer)] for item in ordered],
        [_code(item.answer) for item in ordered],
        [item.answer.id if isinstance(item.answer, Done) else None for item in ordered],
        [msgspec.json.encode(item.answer.evidence) for item in ordered],
    )


async def read(database: Database, tenant: Tenant, key: bytes) -> list[IntentView]:
    """Every intent of the tenant under that key, one per provider."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["explain"], tenant.number, key)
    found: dict[str, IntentView] = {}
    for row in rows:
        intent = found.get(row["provider"]) or IntentView(
            row["provider"], row["purpose"], row["instruction"], row["first_sent_at"], ()
        )
        if row["number"] is not None:
            attempt = AttemptView(*(row[name] for name in AttemptView.__struct_fields__))
            intent = msgspec.structs.replace(intent, attempts=(*intent.attempts, attempt))
        found[row["provider"]] = intent
    return list(found.values())


async def breaker_changed(database: Database, provider: str, process: str, state: str, reason: str) -> None:
    """Tell the others what this process sees."""
    async with database.owning() as connection:
        await connection.execute(_SQL["breaker_changed"], provider, process, state, reason)


async def breaker_gone(database: Database, process: str) -> None:
    """A process that ends has no breakers."""
    async with database.owning() as connection:
        await connection.execute(_SQL["breaker_gone"], process)


async def breakers(database: Database) -> list[BreakerView]:
    """What every process last said."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["breakers"])
    return [BreakerView(*row) for row in rows]


def _attempt(item: Asking, intent: KnownIntent, number: int, not_after: datetime) -> Attempt:
    return Attempt(item.tenant, item.provider, item.instruction.key, number, intent.first_sent_at, not_after)


def _name(item: Asking) -> Name:
    return item.tenant.number, item.instruction.key, item.provider


def _columns(names: Sequence[Name]) -> tuple[list[int], list[str], list[bytes]]:
    return [tenant for tenant, _, _ in names], [provider for _, _, provider in names], [key for _, key, _ in names]


async def _last_attempts(connection: Connection, rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    numbers = [row["attempts"] for row in rows]
    return await connection.fetch(_SQL["last_attempts"], *_columns([_row_name(row) for row in rows]), numbers)


def _last_attempt(row: asyncpg.Record) -> LastAttempt:
    token = UUID(bytes=row["token"].bytes)
    return LastAttempt(row["number"], token, row["not_after"], is_answered=row["is_answered"])


def _row_name(row: asyncpg.Record) -> Name:
    return row["tenant_id"], row["key"], row["provider"]


def _code(answer: Answer) -> str | None:
    return None if isinstance(answer, Done) else answer.code[:_MOST_CODE_CHARACTERS]
