"""Intents on PostgreSQL: commit what is about to be sent, and what came of it. Both for many at once."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import current
from tallystick.database.literal import booleans, numbers, texts
from tallystick.database.pool import Connection, Database
from tallystick.ledger.claims import Tenant
from tallystick.movement.life import store as life
from tallystick.movement.mark import mark_of, proof_by_answer
from tallystick.movement.rules import (
    Absence,
    AlreadyDone,
    AskFirst,
    Attempt,
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    OtherAccount,
    OtherInstruction,
    OtherKey,
    PastHorizon,
    Permit,
    StillSending,
    Wanted,
    Withheld,
    encode_instruction,
    permit,
)
from tallystick.movement.steps import History
from tallystick.movement.terms import ProviderTerms
from tallystick.providers.words import (
    LONGEST_LEASE,
    Answer,
    Busy,
    Done,
    Instruction,
    Refused,
    Unknown,
    permit_ended,
)

_SQL = queries.load(__package__, "store.sql")
_ANSWERS = {Done: "done", Refused: "refused", Busy: "busy", Unknown: "unknown"}
# A row is evidence, not a log file.
_MOST_CODE_CHARACTERS = 200

IntentName = tuple[int, bytes, str]


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that wants to begin. `token` is new for each; `permit_seconds` is how long bytes may be written.

    `terms` are those of the provider that it will be sent to. `since`: when what it pays for was created (a settlement,
    an order, the first generation of a refund); `is_relied_on` False: the provider's memory of its key counts for
    nothing, however young it is; `absence`: proof that its books do not show it. `subject` is what the intent serves (a
    settlement): it can have one live key. `mark` is what it pays for, by its room: it shows in the provider's books
    where they have room for it (`movement.mark`). `covers_policy`: its key covers more than what a caller sent;
    `policy_since`: when that was last changed, as far as somebody has looked. `author` is whoever asks.
    """

    tenant: Tenant
    terms: ProviderTerms
    instruction: Instruction
    token: UUID
    permit_seconds: float
    since: datetime
    mark: str
    is_relied_on: bool = True
    absence: Absence | None = None
    covers_policy: bool = False
    policy_since: datetime | None = None
    subject: UUID | None = None
    author: str = msgspec.field(default_factory=current)

    @property
    def provider(self) -> str:
        """By the name it is configured under."""
        return self.terms.name

    @property
    def remembered(self) -> timedelta:
        """How long after the creation of what it pays for its key may be relied on."""
        return self.terms.facts.remembered if self.is_relied_on else timedelta()


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


async def begin(connection: Connection, items: Sequence[Asking]) -> list[Attempt | Withheld]:
    """Begin attempts inside the caller's transaction: nothing may be sent before he has committed it."""
    names = [_name(item) for item in items]
    encoded = [encode_instruction(item.instruction) for item in items]
    rows = await connection.fetch(
        _SQL["make"],
        *_columns(names),
        texts([item.terms.purpose for item in items]),
        encoded,
        texts([item.terms.account for item in items]),
        [item.subject for item in items],
        [item.token for item in items],
        numbers([item.permit_seconds for item in items]),
        texts([item.author for item in items]),
        [item.since for item in items],
        numbers([item.remembered.total_seconds() for item in items]),
        texts([item.mark for item in items]),
    )
    first = {row["token"]: row for row in rows}
    again = [position for position, item in enumerate(items) if item.token not in first]
    later = await _begin_again(connection, [(items[n], names[n], encoded[n]) for n in again]) if again else []
    of_later = dict(zip(again, later, strict=True))
    return [
        of_later[position]
        if position in of_later
        else _attempt(item, first[item.token]["sent_at"], 1, first[item.token]["not_after"], mark_in(first[item.token]))
        for position, item in enumerate(items)
    ]


async def _begin_again(
    connection: Connection, items: Sequence[tuple[Asking, IntentName, bytes]]
) -> list[Attempt | Withheld]:
    """The same for intents that were there already: what was sent before decides."""
    names = list(dict.fromkeys(name for _, name, _ in items))
    rows = await connection.fetch(_SQL["lock"], *_columns(names))
    earlier = []
    if any(row["attempts"] for row in rows):
        await connection.execute(_SQL["settle_answers"], *_columns([_row_name(row) for row in rows]))
        earlier = await _last_attempts(connection, rows)
    now: datetime = max((row["now"] for row in (*rows, *earlier)), default=datetime.min.replace(tzinfo=UTC))
    # Not later than now, also when it was confirmed while the clock was ahead.
    life_began: datetime = min(max((row["life_began"] for row in rows), default=now), now)
    unread = {row["provider"]: row["known_until"] for row in rows}
    stopped = {row["provider"]: row["is_stopped"] for row in rows}
    marks = {_row_name(row): mark_in(row) for row in rows}
    last = {_row_name(row): _last_attempt(row) for row in earlier}
    known = {
        _row_name(row): KnownIntent(
            instruction=row["instruction"],
            account=row["account"],
            since=row["since"],
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
        wanted = Wanted(
            key=item.instruction.key,
            instruction=instruction,
            account=item.terms.account,
            token=item.token,
            since=item.since,
            remembered=item.remembered,
            # A life that was lost may have begun an attempt at its very end.
            settles_in=item.terms.facts.settles_in + timedelta(seconds=item.permit_seconds),
            absence=item.absence,
            covers_policy=item.covers_policy,
            policy_since=item.policy_since,
        )
        found: Permit = permit(
            intent,
            wanted,
            life_began=life_began,
            known_until=unread.get(item.provider),
            is_stopped=stopped.get(item.provider, False),
            now=now,
        )
        match found:
            case Begin(number):
                not_after = now + timedelta(seconds=item.permit_seconds)
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
                outcomes.append(_attempt(item, intent.first_sent_at, number, not_after, marks[name]))
            case Begun(number, not_after):
                outcomes.append(_attempt(item, intent.first_sent_at, number, not_after, marks[name]))
            case (
                StillSending()
                | OtherInstruction()
                | OtherAccount()
                | OtherKey()
                | AlreadyDone()
                | PastHorizon()
                | AskFirst()
            ):
                outcomes.append(found)
    if begun:
        await connection.execute(
            _SQL["begin"],
            *_columns([_name(item) for item, _ in begun]),
            numbers([number for _, number in begun]),
            [item.token for item, _ in begun],
            numbers([item.permit_seconds for item, _ in begun]),
            now,
            texts([item.author for item, _ in begun]),
            LONGEST_LEASE,
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
    for item in items:
        why = proof_by_answer(item.answer, attempt=item.attempt.number)
        # Written late, the first may be answered with what a further one of ours has made.
        if why is not None and isinstance(item.answer, Done) and await _is_only(connection, item):
            shown = item.answer.movement
            await life.prove(connection, item.attempt.provider, why, shown, key=item.attempt.key)
    return [(*_attempt_name(item), item.attempt.number) in recorded for item in items]


async def sent(
    connection: Connection, provider: str, names: Sequence[tuple[int, bytes]]
) -> dict[tuple[int, bytes], History]:
    """What was sent so far under keys of tenants; those that nothing was sent under are left out."""
    columns = [tenant for tenant, _ in names], [key for _, key in names]
    return {
        (row["tenant_id"], row["key"]): History(
            first_sent_at=row["first_sent_at"],
            not_after=permit_ended(row["not_after"], row["now"]),
            may_have_run=row["may_have_run"],
            is_silent=row["is_silent"],
            server_error=row["server_error"],
            done_as=row["done_as"],
            done_state=row["done_state"],
            refused_as=row["refused_as"],
            account=row["account"],
        )
        for row in await connection.fetch(_SQL["histories"], *columns, provider)
    }


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


async def _is_only(connection: Connection, item: Answered) -> bool:
    tenant, key, provider = _attempt_name(item)
    attempts = await connection.fetchval(_SQL["attempts"], tenant, provider, key)
    return bool(attempts == 1)


def _attempt(item: Asking, first_sent_at: datetime, number: int, not_after: datetime, mark: str) -> Attempt:
    return Attempt(item.tenant, item.provider, item.instruction.key, number, first_sent_at, not_after, mark)


def mark_in(row: asyncpg.Record) -> str:
    """An intent's mark as it is written. One from before there were any has none, and no attempt of it gets one."""
    return "" if row["mark"] is None else mark_of(row["installation"], row["mark"])


def _name(item: Asking) -> IntentName:
    return item.tenant.number, item.instruction.key, item.provider


def _columns(names: Sequence[IntentName]) -> tuple[str, str, list[bytes]]:
    tenants, providers = numbers([tenant for tenant, _, _ in names]), texts([provider for _, _, provider in names])
    return tenants, providers, [key for _, key, _ in names]


async def _last_attempts(connection: Connection, rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    attempts = numbers([row["attempts"] for row in rows])
    return await connection.fetch(_SQL["last_attempts"], *_columns([_row_name(row) for row in rows]), attempts)


def _last_attempt(row: asyncpg.Record) -> LastAttempt:
    return LastAttempt(
        number=row["number"],
        token=UUID(bytes=row["token"].bytes),
        not_after=permit_ended(row["not_after"], row["now"]),
        is_answered=row["is_answered"],
        may_have_run=row["may_have_run"],
        done_as=row["done_as"],
    )


def _row_name(row: asyncpg.Record) -> IntentName:
    return row["tenant_id"], row["key"], row["provider"]


def _attempt_name(item: Answered) -> IntentName:
    return item.attempt.tenant.number, item.attempt.key, item.attempt.provider


def _code(answer: Answer) -> str | None:
    return None if isinstance(answer, Done) else storable(answer.code)


def _provider_id(answer: Answer) -> str | None:
    return storable(answer.id) if isinstance(answer, Done) else None


def storable(text: str) -> str:
    """PostgreSQL takes no NUL and no half of a character: a provider's odd text must not cost us its answer."""
    return text[:_MOST_CODE_CHARACTERS].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
