"""Payments on PostgreSQL: the log of charges, with their intents and answers. Each step is one transaction for many.

Locks in one order everywhere: orders, the log, intents, attempts.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import acting, by_provider
from tallystick.checkout.order import rules as order_core
from tallystick.checkout.order import store as orders
from tallystick.checkout.order.rules import order_id, order_unknown, token_name
from tallystick.checkout.order.store import Changed, OrderView, unannounced
from tallystick.checkout.payment import rules
from tallystick.checkout.payment.key import Bound, method_digest
from tallystick.checkout.payment.plan import (
    Beginning,
    Begun,
    Binding,
    ChargeTerms,
    ClaimedCharge,
    Click,
    Clicked,
    ClickFacts,
    Decided,
    Later,
    OrderName,
    Plan,
    Settled,
    begun,
    plan,
)
from tallystick.checkout.payment.rules import (
    Entry,
    Hold,
    LoggedCharge,
    Payable,
    PaymentRefused,
    PaymentView,
    encode_refusal,
    shown,
)
from tallystick.checkout.refund import store as refunds
from tallystick.checkout.refund.rules import RefundView, waits_for
from tallystick.commit.group import SET_ASIDE, SetAside
from tallystick.database.literal import booleans, numbers, texts
from tallystick.database.pool import Connection, Database
from tallystick.errors import RestoredDatabase
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement import store as intents
from tallystick.movement.life import store as life
from tallystick.movement.rules import LONGEST_TRUSTED, Attempt, Withheld, decode_charge
from tallystick.movement.steps import NOTHING_SENT, Failed, Happened, History
from tallystick.movement.store import Answered, Asking
from tallystick.providers.words import Lookup
from tallystick.webhooks import inbox

_SQL = queries.load(__package__, "store.sql")
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000

KeyName = tuple[int, bytes]
KeyOfCaller = tuple[int, str]
# Of an order that there is not.
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class ChargeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a charge, under the claim it was worked on with. `response` is the evidence.

    `awaits_customer`: the provider has it, and waits. `refused`: what callers are told of a failure.
    """

    tenant: Tenant
    order_id: UUID
    charge: LoggedCharge
    entry: Entry
    response: bytes | None = None
    answered: Answered | None = None
    awaits_customer: bool = False
    refused: PaymentRefused | None = None
    # The provider's id of what a refusal has left there, to be paid by another card.
    left_as: str = ""
    # What the provider's books told of its money: the saga hears of it as of a webhook, by this very commit.
    told: tuple[inbox.Told, ...] = ()


class ChargeRow(msgspec.Struct, frozen=True):
    """One charge as a person wants to see it."""

    key: bytes
    attempt: int
    amount_micros: int
    currency: str
    provider: str
    payment_intent_id: str | None
    status: rules.Status
    reason: str | None
    response: bytes | None
    due_at: datetime
    created_at: datetime
    completed_at: datetime | None


class ClickWork:
    """Group commit's work: decide clicks, and commit what must be committed before anything is sent."""

    def __init__(self, database: Database, terms: ChargeTerms, changed: Changed = unannounced) -> None:
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
        items: Sequence[ChargeResult],
        *,
        patient: bool,  # noqa: ARG002 - like ClickWork's
    ) -> Sequence[bool]:
        """True for each that is durable; False where the claim was lost: only the answer was kept, as evidence."""
        # What became of a charge is the provider's word, whoever clicked.
        with acting(by_provider(*(item.charge.provider for item in items))):
            async with self._database.writing() as connection:
                recorded = await record(connection, items)
        for item, is_recorded in zip(items, recorded, strict=True):
            if is_recorded:
                self._changed(item.tenant.number, [item.order_id])
        return recorded


async def click(
    connection: Connection, items: Sequence[Click], terms: ChargeTerms
) -> list[Clicked | Literal[SetAside.SET_ASIDE]]:
    """Decide inside the caller's transaction: nothing may be sent before he has committed it.

    Raises RestoredDatabase: what this database does not know may have been charged.
    """
    if not await life.notice(connection):
        raise RestoredDatabase
    batch = _Batch(connection, terms)
    return await batch.write(plan(items, await batch.read(items), terms))


class _Batch:
    """One transaction for many clicks: what is read, and what is written of their plan."""

    def __init__(self, connection: Connection, terms: ChargeTerms) -> None:
        self._connection = connection
        self._terms = terms

    async def read(self, items: Sequence[Click]) -> list[ClickFacts]:
        """Lock the orders, then read what was logged and sent for each, and what the callers' keys were used for."""
        places = {(item.tenant.number, item.order_id) for item in items}
        # As the ids sort themselves, and faster.
        ordered = sorted(places, key=lambda place: (place[0], place[1].bytes))
        columns = numbers([tenant for tenant, _ in ordered]), [id_ for _, id_ in ordered]
        rows = await self._connection.fetch(_SQL["lock_orders"], *columns)
        locked = {(row["tenant_id"], row["id"]): (payable(row, row["status"]), row["now"]) for row in rows}
        found = await self._connection.fetch(
            _SQL["newest"],
            numbers([item.tenant.number for item in items]),
            [item.order_id for item in items],
            texts([item.key for item in items]),
        )
        newest = sorted(found, key=lambda row: row["place"])
        # Where one order is clicked twice, its history is the same.
        pending = {
            (item.tenant.number, row["idempotency_key"]): row["provider"]
            for item, row in zip(items, newest, strict=True)
            if row["status"] == "PENDING"
        }
        histories = await _histories(self._connection, pending)
        return [_facts(item, row, locked, histories) for item, row in zip(items, newest, strict=True)]

    async def write(self, planned: Plan) -> list[Clicked | Literal[SetAside.SET_ASIDE]]:
        """Claims, intents with their attempts, new charges: all that must be durable before anything is sent."""
        if planned.decided:
            await record(self._connection, [_result(one) for one in planned.decided])
        if planned.claims:
            await self._claim(planned.claims)
        beginnings = planned.beginnings
        attempts: dict[UUID, Attempt | Withheld] = {}
        doubtful: set[UUID] = set()
        bindings = planned.bindings
        if beginnings:
            doubtful = await self._in_doubt([one for one in beginnings if one.is_new])
            asked = [self._asking(one, is_relied_on=one.item.token not in doubtful) for one in beginnings]
            made = await intents.begin(self._connection, asked)
            attempts = {asking.token: attempt for asking, attempt in zip(asked, made, strict=True)}
            fresh = [beginning for beginning in beginnings if beginning.is_new]
            if fresh:
                # In one statement with the charges that they are bound to.
                await self._log(fresh, bindings)
                bindings = {}
            if doubtful:
                keys = [one.charge.key for one in beginnings if one.item.token in doubtful]
                await self._connection.execute(_SQL["ask_first"], keys)
        if bindings:
            await self._connection.execute(_SQL["bind"], *_bound_keys(bindings))
        return [
            begun(answer, attempts, doubtful)
            if isinstance(answer, Beginning)
            else SET_ASIDE
            if isinstance(answer, Later)
            else answer
            for answer in planned.answers
        ]

    async def _in_doubt(self, fresh: Sequence[Beginning]) -> set[UUID]:
        """Of which of them a lost life may have charged a further attempt, after this one was refused.

        A provider need not keep a refusal under its key: that protects nobody then.
        """
        asked_for = {name for name, one in self._terms.providers.items() if one.lookup in (Lookup.EXACT, Lookup.SCAN)}
        fresh = [one for one in fresh if one.charge.provider in asked_for]
        if not fresh:
            return set()
        names = sorted({one.charge.provider for one in fresh})
        found = {row["provider"]: row for row in await self._connection.fetch(_SQL["shown"], names, LONGEST_TRUSTED)}
        later = [
            (one, key)
            for one in fresh
            if found[one.charge.provider]["has_orphans"]
            for key in rules.search_for(
                one.order,
                NOTHING_SENT,
                attempt=one.charge.attempt,
                provider=one.charge.provider,
                most_attempts=self._terms.most_attempts,
            ).others
        ]
        rows = []
        if later:
            providers = [one.charge.provider for one, _ in later]
            rows = await self._connection.fetch(_SQL["shown_under"], providers, [key for _, key in later])
        return {one.item.token for one in fresh if found[one.charge.provider]["is_unread"]} | {
            later[row["place"] - 1][0].item.token for row in rows
        }

    async def _claim(self, claims: Sequence[tuple[Click, LoggedCharge]]) -> None:
        ordered = sorted(claims, key=lambda claim: (claim[1].key, claim[0].tenant.number))
        await self._connection.execute(
            _SQL["claim_again"],
            [item.tenant.number for item, _ in ordered],
            [charge.key for _, charge in ordered],
            [charge.claim_number for _, charge in ordered],
            [charge.tries for _, charge in ordered],
            self._terms.lease,
            [item.response for item, _ in ordered],
        )

    async def _log(self, fresh: Sequence[Beginning], bindings: Mapping[KeyOfCaller, Binding]) -> None:
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
            texts([one.item.author for one in fresh]),
            *_bound_keys(bindings),
        )

    def _asking(self, beginning: Beginning, *, is_relied_on: bool) -> Asking:
        return Asking(
            tenant=beginning.item.tenant,
            terms=self._terms.providers[beginning.charge.provider],
            instruction=beginning.instruction,
            token=beginning.item.token,
            permit_seconds=self._terms.permit_seconds,
            since=beginning.order.created_at,
            is_relied_on=is_relied_on,
            mark=f"order/{beginning.order.name}",
            absence=beginning.item.absence,
            author=beginning.item.author,
        )


async def record(connection: Connection, items: Sequence[ChargeResult]) -> list[bool]:
    """Record results inside the caller's transaction, each under the claim it was worked on with."""
    ordered = sorted(items, key=lambda item: (item.charge.key, item.tenant.number))
    columns = numbers([item.tenant.number for item in ordered]), [item.charge.key for item in ordered]
    rows = {(row["tenant_id"], row["idempotency_key"]): row for row in await connection.fetch(_SQL["fence"], *columns)}
    mine = [item for item in ordered if _is_mine(item, rows.get((item.tenant.number, item.charge.key)))]
    if mine:
        await connection.execute(_SQL["record"], *_recorded(mine))
        await inbox.append(connection, [told for item in mine for told in item.told])
    answered = [item.answered for item in ordered if item.answered is not None]
    if answered:
        await intents.record_answers(connection, answered)
    written = {id(item) for item in mine}
    # A batch that is run again after a lost COMMIT finds its own results.
    return [id(item) in written or _is_there(item, rows.get((item.tenant.number, item.charge.key))) for item in items]


async def closed(database: Database, tenant: Tenant, charge: LoggedCharge) -> None:
    """The provider has cancelled what this charge left there. Raises InFlight, OutcomeUnknown and Unreachable."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["closed"], tenant.number, charge.key)


async def claim_due(
    connection: Connection,
    *,
    providers: Sequence[str],
    most: int,
    lease: timedelta,
    only_asked: bool = False,
    due_before: datetime | None = None,
) -> list[ClaimedCharge]:
    """Charges that somebody began and nobody finished, under a new claim, and what was sent for each.

    `only_asked`: those that must be asked about before anything is sent.
    """
    rows = await connection.fetch(_SQL["claim_due"], most, list(providers), lease, only_asked, due_before)
    histories = await _histories(
        connection, {(row["tenant_id"], row["idempotency_key"]): row["provider"] for row in rows}
    )
    return [
        ClaimedCharge(
            tenant=Tenant(row["tenant_id"], row["tenant"]),
            order=payable(row, row["order_status"]),
            charge=_logged(row),
            instruction=decode_charge(row["instruction"]),
            history=msgspec.structs.replace(
                histories.get((row["tenant_id"], row["idempotency_key"]), NOTHING_SENT), since=row["since"]
            ),
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
            if found and found[id_].refund is not None:
                given = await refunds.of_order(connection, tenant.number, id_)
                return msgspec.structs.replace(found[id_], refunds=tuple(one.view for one in given))
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


async def _histories(connection: Connection, pending: Mapping[KeyName, str]) -> dict[KeyName, History]:
    """What was sent for these charges, each at its provider."""
    by_provider: dict[str, list[KeyName]] = {}
    for name, provider in pending.items():
        by_provider.setdefault(provider, []).append(name)
    found: dict[KeyName, History] = {}
    for provider, names in by_provider.items():
        found |= await intents.sent(connection, provider, names)
    return found


def _facts(
    item: Click,
    row: asyncpg.Record,
    locked: Mapping[OrderName, tuple[Payable, datetime]],
    histories: Mapping[KeyName, History],
) -> ClickFacts:
    known = locked.get((item.tenant.number, item.order_id))
    if known is None:
        return ClickFacts(order=None, now=_NEVER, bound=_bound(row))
    order, now = known
    bound = _bound(row)
    if row["idempotency_key"] is None:
        return ClickFacts(
            order=order, now=now, bound=bound, history=msgspec.structs.replace(NOTHING_SENT, since=order.created_at)
        )
    charge = _logged(row)
    keyed = None
    if bound is not None:
        keyed = charge if charge.attempt == bound.attempt else _logged(row, "older_")
    history = histories.get((item.tenant.number, charge.key), NOTHING_SENT)
    return ClickFacts(
        order=order,
        now=now,
        bound=bound,
        charge=charge,
        instruction=decode_charge(row["instruction"]),
        keyed=keyed,
        history=msgspec.structs.replace(history, since=min(row["since"] or order.created_at, order.created_at)),
        begun=_attempt(item, charge, row) if row["token"] == item.token else None,
    )


def _attempt(item: Click, charge: LoggedCharge, row: asyncpg.Record) -> Attempt:
    return Attempt(
        item.tenant,
        charge.provider,
        charge.key,
        row["number"],
        row["first_sent_at"],
        row["not_after"],
        intents.mark_in(row),
    )


def _result(one: Decided) -> ChargeResult:
    return ChargeResult(
        tenant=one.item.tenant,
        order_id=one.item.order_id,
        charge=one.charge,
        entry=one.verdict,
        awaits_customer=one.awaits_customer,
        refused=one.refused,
    )


def _bound_keys(bindings: Mapping[KeyOfCaller, Binding]) -> tuple[object, ...]:
    """Sorted: two batches that use the same keys for other orders wait for each other in one direction only."""
    ordered = [bindings[name] for name in sorted(bindings)]
    return (
        numbers([one.item.tenant.number for one in ordered]),
        texts([one.item.key for one in ordered]),
        [one.item.order_id for one in ordered],
        numbers([one.attempt for one in ordered]),
        [method_digest(one.item.payment_method) for one in ordered],
        texts([one.item.told for one in ordered]),
    )


def _is_mine(item: ChargeResult, row: asyncpg.Record | None) -> bool:
    if row is None or row["claim_number"] != item.charge.claim_number:
        return False
    # What the provider has may still fail for good; nothing else changes what is final.
    return bool(row["status"] == "PENDING" or (row["status"] == "COMPLETED" and isinstance(item.entry, Failed)))


def _is_there(item: ChargeResult, row: asyncpg.Record | None) -> bool:
    if row is None:
        return False
    match item.entry:
        case Happened(payment_intent_id):
            return bool(
                row["status"] == "COMPLETED"
                and row["payment_intent_id"] == intents.storable(payment_intent_id)
                and row["awaits_customer"] == item.awaits_customer
            )
        case Failed(reason):
            # Somebody else's words for the same failure are another answer.
            is_same = row["reason"] == intents.storable(reason) and row["refusal"] == _refusal(item)
            return bool(row["status"] == "FAILED" and is_same)
        case Hold():
            return False


def _recorded(items: Sequence[ChargeResult]) -> tuple[object, ...]:
    statuses: list[str] = []
    payments: list[str | None] = []
    reasons: list[str | None] = []
    for item in items:
        match item.entry:
            case Happened(payment_intent_id):
                statuses.append("COMPLETED")
                payments.append(intents.storable(payment_intent_id))
                reasons.append(None)
            case Failed(reason):
                statuses.append("FAILED")
                payments.append(intents.storable(item.left_as) if item.left_as else None)
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
        booleans([item.awaits_customer for item in items]),
        [_refusal(item) for item in items],
        [item.entry.absent_at if isinstance(item.entry, Hold) else None for item in items],
        booleans([bool(item.left_as) for item in items]),
        booleans([item.charge.ask_first and isinstance(item.entry, Hold) for item in items]),
    )


def _refusal(item: ChargeResult) -> bytes | None:
    return None if item.refused is None else encode_refusal(item.refused)


def _bound(row: asyncpg.Record) -> Bound | None:
    if row["bound_order"] is None:
        return None
    return Bound(
        order_id=row["bound_order"],
        reservation_token=token_name(row["reservation_token"]),
        method_digest=row["bound_method"],
        attempt=row["bound_attempt"],
        told=row["told"],
    )


def _payment_view(row: asyncpg.Record) -> PaymentView | None:
    if row["payment_status"] is None:
        return None
    return PaymentView(
        status=shown(row["payment_status"], awaits_customer=row["awaits_customer"]),
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
        part=row["refund_part"],
        waits_for_person=waits_for(row["refund_status"], row["refund_stands"], is_part=row["refund_part"] is not None),
    )


def payable(row: asyncpg.Record, status: order_core.Status) -> Payable:
    """What of an order decides about its payment, from a row that has its columns."""
    return Payable(
        tenant=row["tenant"],
        id=row["id"],
        status=status,
        reservation_token=row["reservation_token"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


def _logged(row: asyncpg.Record, of: str = "") -> LoggedCharge:
    return LoggedCharge(
        key=row[f"{of}idempotency_key"],
        attempt=row[f"{of}attempt"],
        provider=row[f"{of}provider"],
        status=row[f"{of}status"],
        payment_intent_id=row[f"{of}payment_intent_id"],
        reason=row[f"{of}reason"],
        claim_number=row[f"{of}claim_number"],
        tries=row[f"{of}tries"],
        due_at=row[f"{of}due_at"],
        awaits_customer=row[f"{of}awaits_customer"],
        refusal=row[f"{of}refusal"],
        absent_at=None if of else row["absent_at"],
        is_confirmable=row[f"{of}is_confirmable"],
        ask_first=not of and row["ask_first"],
    )
