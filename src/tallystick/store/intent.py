"""Intents on PostgreSQL: commit what is about to be sent, and what came of it. Both for many at once."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.core.idempotency import Tenant
from tallystick.core.intent import (
    AlreadyDone,
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    Leave,
    OtherAccount,
    OtherInstruction,
    OtherKey,
    PastHorizon,
    StillSending,
    Wanted,
    Withheld,
    encode_instruction,
    leave,
)
from tallystick.core.provider import Answer, Busy, Done, Instruction, Refused, Unknown
from tallystick.store.database import Connection, Database
from tallystick.store.literal import booleans, numbers, texts

_SQL = queries.load(__package__, "intent.sql")
_ANSWERS = {Done: "done", Refused: "refused", Busy: "busy", Unknown: "unknown"}
# A row is evidence, not a log file.
_MOST_CODE_CHARACTERS = 200

Name = tuple[int, bytes, str]


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that wants to begin. `token` is new for each; `leave_seconds` is how long bytes may be written.

    `account` is whose books it will be in; `remembered` how long after the first send its key may be relied on.
    `subject` is what the intent serves (a settlement): it can have one live key.
    """

    tenant: Tenant
    provider: str
    purpose: str
    instruction: Instruction
    account: str
    token: UUID
    leave_seconds: float
    remembered: timedelta
    subject: UUID | None = None


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
    account: str
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
    ) -> Sequence[Attempt | Withheld]:
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
        """True for each that is durable; False where the attempt has another answer, or is not there."""
        async with self._database.writing() as connection:
            return await record_answers(connection, items)


async def begin(connection: Connection, items: Sequence[Asking]) -> list[Attempt | Withheld]:
    """Begin attempts inside the caller's transaction: nothing may be sent before he has committed it."""
    names = [_name(item) for item in items]
    encoded = [encode_instruction(item.instruction) for item in items]
    rows = await connection.fetch(
        _SQL["make"],
        *_columns(names),
        texts([item.purpose for item in items]),
        encoded,
        texts([item.account for item in items]),
        [item.subject for item in items],
        [item.token for item in items],
        numbers([item.leave_seconds for item in items]),
    )
    first = {row["token"]: row for row in rows}
    again = [position for position, item in enumerate(items) if item.token not in first]
    later = await _begin_again(connection, [(items[n], names[n], encoded[n]) for n in again]) if again else []
    of_later = dict(zip(again, later, strict=True))
    return [
        of_later[position]
        if position in of_later
        else _attempt(item, first[item.token]["sent_at"], 1, first[item.token]["not_after"])
        for position, item in enumerate(items)
    ]


async def _begin_again(connection: Connection, items: Sequence[tuple[Asking, Name, bytes]]) -> list[Attempt | Withheld]:
    """The same for intents that were there already: what was sent before decides."""
    names = list(dict.fromkeys(name for _, name, _ in items))
    rows = await connection.fetch(_SQL["lock"], *_columns(names))
    earlier = []
    if rows:
        await connection.execute(_SQL["settle_answers"], *_columns([_row_name(row) for row in rows]))
        earlier = await _last_attempts(connection, rows)
    now: datetime = max((row["now"] for row in (*rows, *earlier)), default=datetime.min.replace(tzinfo=UTC))
    last = {_row_name(row): _last_attempt(row) for row in earlier}
    known = {
        _row_name(row): KnownIntent(
            instruction=row["instruction"],
            account=row["account"],
            first_sent_at=row["first_sent_at"],
            is_ended=row["ended"],
            last=last.get(_row_name(row)),
        )
        for row in rows
    }
    begun: list[tuple[Asking, int]] = []
    outcomes: list[Attempt | Withheld] = []
    for item, name, instruction in items:
        intent = known.get(name)
        if intent is None:
            outcomes.append(OtherKey())
            continue
        wanted = Wanted(instruction=instruction, account=item.account, token=item.token, remembered=item.remembered)
        found: Leave = leave(intent, wanted, now=now)
        match found:
            case Begin(number):
                not_after = now + timedelta(seconds=item.leave_seconds)
                begun.append((item, number))
                attempt = LastAttempt(
                    number=number,
                    token=item.token,
                    not_after=not_after,
                    is_answered=False,
                    may_have_run=True,
                    done_as=None,
                )
                known[name] = msgspec.structs.replace(intent, last=attempt)
                outcomes.append(_attempt(item, intent.first_sent_at, number, not_after))
            case Begun(number, not_after):
                outcomes.append(_attempt(item, intent.first_sent_at, number, not_after))
            case StillSending() | OtherInstruction() | OtherAccount() | OtherKey() | AlreadyDone() | PastHorizon():
                outcomes.append(found)
    if begun:
        await connection.execute(
            _SQL["begin"],
            *_columns([_name(item) for item, _ in begun]),
            numbers([number for _, number in begun]),
            [item.token for item, _ in begun],
            numbers([item.leave_seconds for item, _ in begun]),
            now,
        )
    return outcomes


async def record_answers(connection: Connection, items: Sequence[Answered]) -> list[bool]:
    """Record what came of attempts, inside the caller's transaction. False: it is not what the row says now."""
    ordered = sorted(items, key=_attempt_name)
    written = await connection.fetch(
        _SQL["answer"],
        *_columns([_attempt_name(item) for item in ordered]),
        numbers([item.attempt.number for item in ordered]),
        texts([_ANSWERS[type(item.answer)] for item in ordered]),
        texts([_code(item.answer) for item in ordered]),
        texts([_provider_id(item.answer) for item in ordered]),
        [msgspec.json.encode(item.answer.evidence) for item in ordered],
        booleans([isinstance(item.answer, Unknown) and item.answer.server_error for item in ordered]),
        texts([item.answer.movement.state if isinstance(item.answer, Done) else None for item in ordered]),
    )
    recorded = {(*_row_name(row), row["number"]) for row in written}
    if len(recorded) < len(items):
        # A batch that is run again after a lost COMMIT finds its own answers.
        columns = _columns([_attempt_name(item) for item in items])
        attempts = numbers([item.attempt.number for item in items])
        for row in await connection.fetch(_SQL["answers"], *columns, attempts):
            stored = row["answer"], row["code"], row["provider_id"]
            recorded |= {
                (*_attempt_name(item), item.attempt.number)
                for item in items
                if (*_attempt_name(item), item.attempt.number) == (*_row_name(row), row["number"])
                and stored == (_ANSWERS[type(item.answer)], _code(item.answer), _provider_id(item.answer))
            }
    return [(*_attempt_name(item), item.attempt.number) in recorded for item in items]


async def read(database: Database, tenant: Tenant, key: bytes) -> list[IntentView]:
    """Every intent of the tenant under that key, one per provider."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["explain"], tenant.number, key)
    found: dict[str, IntentView] = {}
    for row in rows:
        intent = found.get(row["provider"]) or IntentView(
            row["provider"], row["purpose"], row["account"], row["instruction"], row["first_sent_at"], ()
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


def _attempt(item: Asking, first_sent_at: datetime, number: int, not_after: datetime) -> Attempt:
    return Attempt(item.tenant, item.provider, item.instruction.key, number, first_sent_at, not_after)


def _name(item: Asking) -> Name:
    return item.tenant.number, item.instruction.key, item.provider


def _columns(names: Sequence[Name]) -> tuple[str, str, list[bytes]]:
    tenants, providers = numbers([tenant for tenant, _, _ in names]), texts([provider for _, _, provider in names])
    return tenants, providers, [key for _, key, _ in names]


async def _last_attempts(connection: Connection, rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    attempts = numbers([row["attempts"] for row in rows])
    return await connection.fetch(_SQL["last_attempts"], *_columns([_row_name(row) for row in rows]), attempts)


def _last_attempt(row: asyncpg.Record) -> LastAttempt:
    return LastAttempt(
        number=row["number"],
        token=UUID(bytes=row["token"].bytes),
        not_after=row["not_after"],
        is_answered=row["is_answered"],
        may_have_run=row["may_have_run"],
        done_as=row["done_as"],
    )


def _row_name(row: asyncpg.Record) -> Name:
    return row["tenant_id"], row["key"], row["provider"]


def _attempt_name(item: Answered) -> Name:
    return item.attempt.tenant.number, item.attempt.key, item.attempt.provider


def _code(answer: Answer) -> str | None:
    return None if isinstance(answer, Done) else storable(answer.code)


def _provider_id(answer: Answer) -> str | None:
    return storable(answer.id) if isinstance(answer, Done) else None


def storable(text: str) -> str:
    """PostgreSQL takes no NUL and no half of a character: a provider's odd text must not cost us its answer."""
    return text[:_MOST_CODE_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
