"""Payments on PostgreSQL: the log of charges, with their intents and answers. Each step is one transaction for many.

Locks in one order everywhere: orders, the log, intents, attempts.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.core import order as order_core
from tallystick.core import payment
from tallystick.core.idempotency import Tenant
from tallystick.core.intent import Withheld, decode_charge
from tallystick.core.order import order_id, order_unknown
from tallystick.core.outcome import Rejected
from tallystick.core.payment import (
    Again,
    Ask,
    Begin,
    Entry,
    Hold,
    LoggedCharge,
    Payable,
    PaymentView,
    Resend,
    Settle,
    charge_of,
    pay_refusal,
)
from tallystick.core.provider import Charge, Facts, Lookup, Refused
from tallystick.core.refund import RefundView
from tallystick.core.settlement import NOTHING_SENT, Failed, History, Patience, Transferred
from tallystick.engine.group_commit import SET_ASIDE, SetAside
from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.store import intent as intents
from tallystick.store import order as orders
from tallystick.store import settling
from tallystick.store.database import Connection, Database
from tallystick.store.intent import Answered, Asking, Attempt
from tallystick.store.literal import numbers, texts
from tallystick.store.order import Changed, OrderView, unannounced

_SQL = queries.load(__package__, "payment.sql")
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000

Place = tuple[int, UUID]
Name = tuple[int, bytes]


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """What of a provider decides about charges. `refusal`: why it cannot even word one."""

    account: str
    facts: Facts
    lookup: Lookup
    refusal: Callable[[Charge], Refused | None]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """By what a click is decided, wherever it comes in.

    `leave_seconds`: how long bytes may be written. `lease`: how long a charge is left to the one who works on it.
    """

    books: Mapping[str, Books]
    patience: Patience
    lease: timedelta
    most_attempts: int
    leave_seconds: float


class Click(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants to pay an order. `provider` is for a charge that is new; `token` marks this very call.

    `under`: an earlier claim of this call, after the provider's books were asked: what is sent is sent again, and
    `response` is the evidence that it may be.
    """

    tenant: Tenant
    order_id: UUID
    name: str
    reservation_token: str
    provider: str
    payment_method: str | None
    token: UUID
    under: int | None = None
    tries: int = 0
    response: bytes | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is committed: send it. `history` is what was sent before it."""

    order: Payable
    charge: LoggedCharge
    attempt: Attempt
    instruction: Charge
    history: History
    now: datetime


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A pending charge under a claim: ask the provider's books."""

    tenant: Tenant
    order: Payable
    charge: LoggedCharge
    instruction: Charge
    history: History
    now: datetime


class Same(msgspec.Struct, frozen=True):
    """The provider has it, under the log's id."""

    order: Payable
    charge: LoggedCharge


class Held(msgspec.Struct, frozen=True):
    """Nobody knows yet. `until`: when it is worth asking again, by the database's clock, which said `now`."""

    charge: LoggedCharge | None
    until: datetime
    now: datetime


class Settled(msgspec.Struct, frozen=True):
    """What was stored has decided it, and that is in the log now: look again."""


Clicked = Begun | Claimed | Same | Held | Settled | Rejected


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a charge, under the claim it was worked on with. `response` is the evidence."""

    tenant: Tenant
    order_id: UUID
    charge: LoggedCharge
    entry: Entry
    response: bytes | None = None
    answered: Answered | None = None


class ChargeRow(msgspec.Struct, frozen=True):
    """One charge as a person wants to see it."""

    key: bytes
    attempt: int
    amount_micros: int
    currency: str
    provider: str
    payment_intent_id: str | None
    status: payment.Status
    reason: str | None
    response: bytes | None
    due_at: datetime
    created_at: datetime
    completed_at: datetime | None


class ClickWork:
    """Group commit's work: decide clicks, and commit what must be committed before anything is sent."""

    def __init__(self, database: Database, terms: Terms, changed: Changed = unannounced) -> None:
        """Writes as the owner. `changed` is told of what was committed."""
        self._database = database
        self._terms = terms
        self._changed = changed

    async def commit(
        self,
        items: Sequence[Click],
        *,
        patient: bool,  # noqa: ARG002 - an order is held for one commit only: there is nothing to step around
    ) -> Sequence[Clicked | Literal[SetAside.SET_ASIDE]]:
        """What each click comes to."""
        async with self._database.writing() as connection:
            answers = await click(connection, items, self._terms)
        # Only now is COMMIT behind us.
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Begun | Settled):
                self._changed(item.tenant.number, [item.order_id])
        return answers


class RecordWork:
    """Group commit's work: record what became of charges."""

    def __init__(self, database: Database, changed: Changed = unannounced) -> None:
        """Writes as the owner. `changed` is told of what was committed."""
        self._database = database
        self._changed = changed

    async def commit(
        self,
        items: Sequence[Result],
        *,
        patient: bool,  # noqa: ARG002 - like ClickWork's
    ) -> Sequence[bool]:
        """True for each that is durable; False where the claim was lost: only the answer was kept, as evidence."""
        async with self._database.writing() as connection:
            recorded = await record(connection, items)
        for item, is_recorded in zip(items, recorded, strict=True):
            if is_recorded:
                self._changed(item.tenant.number, [item.order_id])
        return recorded


async def click(
    connection: Connection, items: Sequence[Click], terms: Terms
) -> list[Clicked | Literal[SetAside.SET_ASIDE]]:
    """Decide inside the caller's transaction: nothing may be sent before he has committed it.

    Raises RestoredDatabase: what this database does not know may have been charged.
    """
    if not await settling.is_here(connection):
        raise RestoredDatabase
    batch = _Batch(connection, terms)
    await batch.read({(item.tenant.number, item.order_id) for item in items})
    answers = [batch.decide(item) for item in items]
    return await batch.write(answers)


class _Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that this batch wants to begin: the first of a new charge, or a further one of `charge`."""

    item: Click
    order: Payable
    charge: LoggedCharge
    instruction: Charge
    history: History
    now: datetime
    is_new: bool


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that a click is decided by."""

    item: Click
    order: Payable
    charge: LoggedCharge | None
    row: asyncpg.Record | None
    history: History
    provider: str
    books: Books
    now: datetime


_Decided = Clicked | _Beginning | Literal[SetAside.SET_ASIDE]


class _Batch:
    """One transaction for many clicks: what is read, what is decided, what is to be written."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self._connection = connection
        self._terms = terms
        self._orders: dict[Place, tuple[Payable, datetime]] = {}
        self._rows: dict[Place, asyncpg.Record] = {}
        self._histories: dict[Name, History] = {}
        self._results: list[Result] = []
        self._claims: list[tuple[Click, LoggedCharge]] = []
        self._touched: set[Place] = set()

    async def read(self, places: set[Place]) -> None:
        """Lock the orders, then read what was logged and sent for each."""
        # As the ids sort themselves, and faster.
        ordered = sorted(places, key=lambda place: (place[0], place[1].bytes))
        columns = numbers([tenant for tenant, _ in ordered]), [id_ for _, id_ in ordered]
        rows = await self._connection.fetch(_SQL["lock_orders"], *columns)
        self._orders = {(row["tenant_id"], row["id"]): (_payable(row, row["status"]), row["now"]) for row in rows}
        newest = await self._connection.fetch(_SQL["newest"], *columns)
        self._rows = {(row["tenant_id"], row["order_id"]): row for row in newest}
        self._histories = await _histories(self._connection, [row for row in newest if row["status"] == "PENDING"])

    def decide(self, item: Click) -> _Decided:
        """What this click comes to. Two clicks on one order in one batch: the second looks again after the first."""
        seen = self._see(item)
        if not isinstance(seen, _Seen):
            return seen
        if seen.row is not None and seen.row["token"] == item.token:
            # This very call, run again after a COMMIT whose answer was lost.
            return _resumed(seen, seen.row)
        step = self._next_step(seen)
        match step:
            case Rejected():
                return step
            case Hold():
                return Held(seen.charge, step.until, seen.now)
            case Begin(attempt):
                return self._begin(seen, attempt)
            case Again() | Settle() | Ask() | Resend():
                if seen.charge is None or seen.row is None:
                    raise InvariantBroken("a charge that nobody logged is to be gone on with")
                return self._go_on(seen, seen.charge, decode_charge(seen.row["instruction"]), step)

    def _see(self, item: Click) -> _Seen | Rejected | Literal[SetAside.SET_ASIDE]:
        place = item.tenant.number, item.order_id
        known = self._orders.get(place)
        if known is None:
            return order_unknown(item.name)
        order, now = known
        refusal = pay_refusal(order, item.reservation_token, now=now)
        if refusal is not None:
            return refusal
        if place in self._touched:
            return SET_ASIDE
        row = self._rows.get(place)
        charge = None if row is None else _logged(row)
        provider = item.provider if charge is None or charge.status == "FAILED" else charge.provider
        books = self._terms.books.get(provider)
        if books is None:
            return _not_configured(provider)
        history = NOTHING_SENT if charge is None else self._histories.get((place[0], charge.key), NOTHING_SENT)
        return _Seen(
            item=item, order=order, charge=charge, row=row, history=history, provider=provider, books=books, now=now
        )

    def _next_step(self, seen: _Seen) -> payment.Step | Rejected:
        item, charge = seen.item, seen.charge
        if item.under is None:
            return payment.next_step(
                seen.order,
                charge,
                seen.history,
                account=seen.books.account,
                lookup=seen.books.lookup,
                now=seen.now,
                facts=seen.books.facts,
                patience=self._terms.patience,
                most_attempts=self._terms.most_attempts,
            )
        # The books were asked under this claim. Whoever has another one since knows more.
        is_mine = charge is not None and charge.status == "PENDING" and charge.claim_number == item.under
        return Resend(item.tries) if is_mine and seen.order.is_open(seen.now) else Hold(seen.now, item.tries)

    def _begin(self, seen: _Seen, attempt: int) -> _Beginning | Rejected:
        item, order = seen.item, seen.order
        instruction = charge_of(order, attempt=attempt, provider=seen.provider, payment_method=item.payment_method)
        refused = seen.books.refusal(instruction)
        if refused is not None:
            # In any form: nothing is logged, because nothing will ever be asked of the provider.
            return Rejected(
                "payment_not_possible",
                f"{seen.provider} cannot take this payment: {refused.code}: {refused.message}",
                "Correct what it names. The order is still reserved, and nothing was sent.",
            )
        self._touched.add((item.tenant.number, item.order_id))
        charge = LoggedCharge(
            key=instruction.key,
            attempt=attempt,
            provider=seen.provider,
            status="PENDING",
            payment_intent_id=None,
            reason=None,
            claim_number=1,
            tries=0,
            due_at=seen.now + self._terms.lease,
        )
        return _Beginning(
            item=item,
            order=order,
            charge=charge,
            instruction=instruction,
            history=NOTHING_SENT,
            now=seen.now,
            is_new=True,
        )

    def _go_on(
        self, seen: _Seen, charge: LoggedCharge, instruction: Charge, step: Again | Settle | Ask | Resend
    ) -> _Decided:
        item, order = seen.item, seen.order
        if isinstance(step, Again):
            return Same(order, charge)
        self._touched.add((item.tenant.number, item.order_id))
        if isinstance(step, Settle):
            self._results.append(Result(tenant=item.tenant, order_id=order.id, charge=charge, entry=step.verdict))
            return Settled()
        claim, tries = item.under or charge.claim_number + 1, step.tries if isinstance(step, Resend) else charge.tries
        claimed = msgspec.structs.replace(charge, claim_number=claim, tries=tries)
        self._claims.append((item, claimed))
        if isinstance(step, Ask):
            return Claimed(
                tenant=item.tenant,
                order=order,
                charge=claimed,
                instruction=instruction,
                history=seen.history,
                now=seen.now,
            )
        return _Beginning(
            item=item,
            order=order,
            charge=claimed,
            instruction=instruction,
            history=seen.history,
            now=seen.now,
            is_new=False,
        )

    async def write(self, answers: Sequence[_Decided]) -> list[Clicked | Literal[SetAside.SET_ASIDE]]:
        """Claims, intents with their attempts, new charges: all that must be durable before anything is sent."""
        if self._results:
            await record(self._connection, self._results)
        if self._claims:
            await self._claim()
        beginnings = [answer for answer in answers if isinstance(answer, _Beginning)]
        begun: dict[UUID, Attempt | Withheld] = {}
        if beginnings:
            asked = [self._asking(beginning) for beginning in beginnings]
            attempts = await intents.begin(self._connection, asked)
            begun = {asking.token: attempt for asking, attempt in zip(asked, attempts, strict=True)}
            fresh = [beginning for beginning in beginnings if beginning.is_new]
            if fresh:
                await self._log(fresh)
        return [_begun(answer, begun) if isinstance(answer, _Beginning) else answer for answer in answers]

    async def _claim(self) -> None:
        ordered = sorted(self._claims, key=lambda claim: (claim[1].key, claim[0].tenant.number))
        await self._connection.execute(
            _SQL["claim_again"],
            [item.tenant.number for item, _ in ordered],
            [charge.key for _, charge in ordered],
            [charge.claim_number for _, charge in ordered],
            [charge.tries for _, charge in ordered],
            self._terms.lease,
            [item.response for item, _ in ordered],
        )

    async def _log(self, fresh: Sequence[_Beginning]) -> None:
        fresh = sorted(fresh, key=lambda one: (one.charge.key, one.item.tenant.number))
        await self._connection.execute(
            _SQL["log_charges"],
            numbers([one.item.tenant.number for one in fresh]),
            [one.charge.key for one in fresh],
            [one.order.id for one in fresh],
            numbers([one.charge.attempt for one in fresh]),
            numbers([one.order.amount_micros for one in fresh]),
            texts([one.order.currency for one in fresh]),
            texts([one.charge.provider for one in fresh]),
            [one.now for one in fresh],
            self._terms.lease,
        )

    def _asking(self, beginning: _Beginning) -> Asking:
        books = self._terms.books[beginning.charge.provider]
        return Asking(
            tenant=beginning.item.tenant,
            provider=beginning.charge.provider,
            purpose="charge",
            instruction=beginning.instruction,
            account=books.account,
            token=beginning.item.token,
            leave_seconds=self._terms.leave_seconds,
            remembered=books.facts.key_horizon - books.facts.key_margin,
        )


async def record(connection: Connection, items: Sequence[Result]) -> list[bool]:
    """Record results inside the caller's transaction, each under the claim it was worked on with."""
    ordered = sorted(items, key=lambda item: (item.charge.key, item.tenant.number))
    columns = numbers([item.tenant.number for item in ordered]), [item.charge.key for item in ordered]
    rows = {(row["tenant_id"], row["idempotency_key"]): row for row in await connection.fetch(_SQL["fence"], *columns)}
    mine = [item for item in ordered if _is_mine(item, rows.get((item.tenant.number, item.charge.key)))]
    if mine:
        await connection.execute(_SQL["record"], *_recorded(mine))
    answered = [item.answered for item in ordered if item.answered is not None]
    if answered:
        await intents.record_answers(connection, answered)
    written = {id(item) for item in mine}
    # A batch that is run again after a lost COMMIT finds its own results.
    return [id(item) in written or _is_there(item, rows.get((item.tenant.number, item.charge.key))) for item in items]


async def claim_due(connection: Connection, *, providers: Sequence[str], most: int, lease: timedelta) -> list[Claimed]:
    """Charges that somebody began and nobody finished, under a new claim, and what was sent for each."""
    rows = await connection.fetch(_SQL["claim_due"], most, list(providers), lease)
    histories = await _histories(connection, rows)
    return [
        Claimed(
            tenant=Tenant(row["tenant_id"], row["tenant"]),
            order=_payable(row, row["order_status"]),
            charge=_logged(row),
            instruction=decode_charge(row["instruction"]),
            history=histories.get((row["tenant_id"], row["idempotency_key"]), NOTHING_SENT),
            now=row["now"],
        )
        for row in rows
    ]


async def read(database: Database, tenant: Tenant, order_id: UUID) -> list[ChargeRow]:
    """Every charge of an order, the oldest first."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["of_order"], tenant.number, order_id)
    return [
        ChargeRow(
            key=row["idempotency_key"],
            attempt=row["attempt"],
            amount_micros=row["amount_micros"],
            currency=row["currency"],
            provider=row["provider"],
            payment_intent_id=row["payment_intent_id"],
            status=row["status"],
            reason=row["reason"],
            response=row["provider_response"],
            due_at=row["due_at"],
            created_at=row["created_at"],
            completed_at=row["completed_at"],
        )
        for row in rows
    ]


async def order(database: Database, tenant: Tenant, name: str) -> OrderView | Rejected:
    """An order and how its paying stands, both as of one moment."""
    id_ = order_id(name)
    if id_ is not None:
        async with database.reading(tenant.number) as connection:
            found = await orders_with_payment(connection, tenant.number, [id_])
        if found:
            return found[id_]
    return order_unknown(name)


async def orders_with_payment(connection: Connection, tenant_number: int, ids: Sequence[UUID]) -> dict[UUID, OrderView]:
    """Those of them that this tenant has, and how their paying stands, all as of one moment."""
    rows = await connection.fetch(_SQL["order_with_payment"], tenant_number, ids)
    return {
        row["id"]: msgspec.structs.replace(orders.view(row), payment=_payment_view(row), refund=_refund_view(row))
        for row in rows
    }


async def order_of(database: Database, tenant: Tenant, payment_intent_id: str) -> UUID | None:
    """The order that a provider's payment is for."""
    async with database.reading(tenant.number) as connection:
        found: UUID | None = await connection.fetchval(_SQL["order_of_payment"], tenant.number, payment_intent_id)
    return found


async def figures(database: Database) -> tuple[int, float]:
    """Charges whose outcome nobody knows yet (bounded), and how many seconds ago the oldest of them was begun."""
    async with database.owning() as connection:
        ((pending, oldest),) = await connection.fetch(_SQL["waiting"], _MOST_COUNTED)
    return pending, oldest


async def _histories(connection: Connection, rows: Sequence[asyncpg.Record]) -> dict[Name, History]:
    by_provider: dict[str, list[Name]] = {}
    for row in rows:
        by_provider.setdefault(row["provider"], []).append((row["tenant_id"], row["idempotency_key"]))
    found: dict[Name, History] = {}
    for provider, names in by_provider.items():
        found |= await settling.sent(connection, provider, names)
    return found


def _begun(beginning: _Beginning, begun: Mapping[UUID, Attempt | Withheld]) -> Begun | Held:
    attempt = begun[beginning.item.token]
    if not isinstance(attempt, Attempt):
        # Somebody is at it, or it was done a moment ago: what is stored decides next time.
        return Held(beginning.charge, beginning.now, beginning.now)
    return Begun(
        order=beginning.order,
        charge=beginning.charge,
        attempt=attempt,
        instruction=beginning.instruction,
        history=beginning.history,
        now=beginning.now,
    )


def _resumed(seen: _Seen, row: asyncpg.Record) -> Begun | Held:
    if seen.charge is None or seen.charge.status != "PENDING":
        return Held(seen.charge, seen.now, seen.now)
    attempt = Attempt(
        seen.item.tenant,
        seen.charge.provider,
        seen.charge.key,
        row["number"],
        row["first_sent_at"],
        row["not_after"],
    )
    return Begun(
        order=seen.order,
        charge=seen.charge,
        attempt=attempt,
        instruction=decode_charge(row["instruction"]),
        # Nothing was sent under this attempt yet; whether anything was before it, its number tells.
        history=NOTHING_SENT if attempt.number == 1 else seen.history,
        now=seen.now,
    )


def _is_mine(item: Result, row: asyncpg.Record | None) -> bool:
    if row is None or row["claim_number"] != item.charge.claim_number:
        return False
    # What the provider has may still fail for good; nothing else changes what is final.
    return bool(row["status"] == "PENDING" or (row["status"] == "COMPLETED" and isinstance(item.entry, Failed)))


def _is_there(item: Result, row: asyncpg.Record | None) -> bool:
    if row is None:
        return False
    match item.entry:
        case Transferred(payment_intent_id):
            return bool(
                row["status"] == "COMPLETED" and row["payment_intent_id"] == intents.storable(payment_intent_id)
            )
        case Failed(reason):
            return bool(row["status"] == "FAILED" and row["reason"] == intents.storable(reason))
        case Hold():
            return False


def _recorded(items: Sequence[Result]) -> tuple[object, ...]:
    statuses: list[str] = []
    payments: list[str | None] = []
    reasons: list[str | None] = []
    for item in items:
        match item.entry:
            case Transferred(payment_intent_id):
                statuses.append("COMPLETED")
                payments.append(intents.storable(payment_intent_id))
                reasons.append(None)
            case Failed(reason):
                statuses.append("FAILED")
                payments.append(None)
                reasons.append(intents.storable(reason))
            case Hold():
                statuses.append("PENDING")
                payments.append(None)
                reasons.append(None if item.entry.reason is None else intents.storable(item.entry.reason))
    return (
        numbers([item.tenant.number for item in items]),
        [item.charge.key for item in items],
        numbers([item.charge.claim_number for item in items]),
        texts(statuses),
        texts(payments),
        texts(reasons),
        [item.entry.until if isinstance(item.entry, Hold) else None for item in items],
        numbers([item.entry.tries if isinstance(item.entry, Hold) else item.charge.tries for item in items]),
        [item.response for item in items],
    )


def _payment_view(row: asyncpg.Record) -> PaymentView | None:
    if row["payment_status"] is None:
        return None
    return PaymentView(
        status=row["payment_status"],
        payment_intent_id=row["payment_intent_id"],
        attempts=row["attempt"],
        reason=row["reason"],
    )


def _refund_view(row: asyncpg.Record) -> RefundView | None:
    if row["refund_status"] is None:
        return None
    return RefundView(
        status=row["refund_status"],
        payment_intent_id=row["refunded_payment"],
        refund_id=row["refund_id"],
        amount_micros=row["refund_micros"],
        currency=row["refund_currency"],
        reason=row["refund_reason"],
        created_at=row["refund_created_at"],
        completed_at=row["refund_completed_at"],
    )


def _payable(row: asyncpg.Record, status: order_core.Status) -> Payable:
    return Payable(
        tenant=row["tenant"],
        id=row["id"],
        status=status,
        reservation_token=row["reservation_token"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        expires_at=row["expires_at"],
    )


def _logged(row: asyncpg.Record) -> LoggedCharge:
    return LoggedCharge(
        key=row["idempotency_key"],
        attempt=row["attempt"],
        provider=row["provider"],
        status=row["status"],
        payment_intent_id=row["payment_intent_id"],
        reason=row["reason"],
        claim_number=row["claim_number"],
        tries=row["tries"],
        due_at=row["due_at"],
    )


def _not_configured(provider: str) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The provider {provider!r} is not configured here.",
        "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
    )
