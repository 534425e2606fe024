"""Payments on PostgreSQL: the log of charges, with their intents and answers. Each step is one transaction for many.

Locks in one order everywhere: orders, the log, intents, attempts.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import acting, by_provider, current
from tallystick.checkout.order import rules as order_core
from tallystick.checkout.order import store as orders
from tallystick.checkout.order.rules import order_id, order_unknown, token_name
from tallystick.checkout.order.store import Changed, OrderView, unannounced
from tallystick.checkout.payment import rules as payment
from tallystick.checkout.payment.key import Asked, Bound, key_fault
from tallystick.checkout.payment.rules import (
    Again,
    Ask,
    Begin,
    Close,
    Entry,
    Hold,
    LoggedCharge,
    Payable,
    PaymentRefused,
    PaymentView,
    Resend,
    Settle,
    Told,
    charge_of,
    encode_refusal,
    pay_refusal,
    recorded_refusal,
    refusal_of,
    shown,
)
from tallystick.checkout.refund import store as refunds
from tallystick.checkout.refund.rules import RefundView, waits_for
from tallystick.commit.group import SET_ASIDE, SetAside
from tallystick.database.literal import booleans, numbers, texts
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement import store as intents
from tallystick.movement.life import store as life
from tallystick.movement.rules import LONGEST_TRUSTED, Absence, AskFirst, Withheld, decode_charge
from tallystick.movement.steps import NOTHING_SENT, Failed, Happened, History, Patience
from tallystick.movement.store import Answered, Asking, Attempt
from tallystick.movement.terms import ProviderTerms
from tallystick.providers.words import Charge, Lookup
from tallystick.webhooks import inbox

_SQL = queries.load(__package__, "store.sql")
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000

OrderName = tuple[int, UUID]
KeyName = tuple[int, bytes]


class ChargeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """By what a click is decided, wherever it comes in.

    `permit_seconds`: how long bytes may be written. `lease`: how long a charge is left to the one who works on it.
    """

    providers: Mapping[str, ProviderTerms]
    patience: Patience
    lease: timedelta
    most_attempts: int
    permit_seconds: float


class Click(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants to pay an order. `provider` is for a charge that is new; `token` marks this very call.

    `key` is the caller's own; None: nobody asked, a worker goes on. `told`: the payment was there, and the caller is
    about to be told so: that is what his key is bound to. `under`: an earlier claim of this call, after the provider's
    books were asked: what is sent is sent again, and `response` is the evidence that it may be, and `absence` the
    proof, where they do not show it.
    """

    tenant: Tenant
    order_id: UUID
    name: str
    reservation_token: str
    provider: str
    payment_method: str | None
    token: UUID
    key: str | None = None
    told: Told | None = None
    under: int | None = None
    tries: int = 0
    response: bytes | None = None
    author: str = msgspec.field(default_factory=current)
    absence: Absence | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is committed: send it. `history` is what was sent before it."""

    order: Payable
    charge: LoggedCharge
    attempt: Attempt
    instruction: Charge
    history: History
    now: datetime


class ClaimedCharge(msgspec.Struct, frozen=True, kw_only=True):
    """A pending charge under a claim: ask the provider's books."""

    tenant: Tenant
    order: Payable
    charge: LoggedCharge
    instruction: Charge
    history: History
    now: datetime


class Same(msgspec.Struct, frozen=True):
    """The provider has it, under the log's id. `recorded`: the answer that the caller's key has, where it has one."""

    order: Payable
    charge: LoggedCharge
    recorded: PaymentView | None = None


class Closing(msgspec.Struct, frozen=True):
    """What a refused attempt left at the provider is cancelled there, before the next one begins."""

    charge: LoggedCharge
    now: datetime


class Held(msgspec.Struct, frozen=True):
    """Nobody knows yet. `until`: when it is worth asking again, by the database's clock, which said `now`."""

    charge: LoggedCharge | None
    until: datetime
    now: datetime


class Settled(msgspec.Struct, frozen=True):
    """What was stored has decided it, and that is in the log now: look again."""


class Noted(msgspec.Struct, frozen=True):
    """The key is bound to what the caller is about to be told."""


Clicked = Begun | ClaimedCharge | Same | Closing | Held | Settled | Noted | Rejected


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
    status: payment.Status
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
    await batch.read(items)
    answers = [batch.decide(item, row) for item, row in zip(items, batch.rows, strict=True)]
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


class _Binding(msgspec.Struct, frozen=True):
    """A caller's key that becomes this attempt's."""

    item: Click
    attempt: int


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that a click is decided by. `is_bound`: its key is this charge's already."""

    item: Click
    order: Payable
    charge: LoggedCharge | None
    is_bound: bool
    history: History
    provider: str
    terms: ProviderTerms
    now: datetime


_Decided = Clicked | _Beginning | Literal[SetAside.SET_ASIDE]


class _Batch:
    """One transaction for many clicks: what is read, what is decided, what is to be written."""

    def __init__(self, connection: Connection, terms: ChargeTerms) -> None:
        self._connection = connection
        self._terms = terms
        self._orders: dict[OrderName, tuple[Payable, datetime]] = {}
        # For each click, in their order.
        self.rows: list[asyncpg.Record] = []
        self._histories: dict[KeyName, History] = {}
        self._results: list[ChargeResult] = []
        self._claims: list[tuple[Click, LoggedCharge]] = []
        self._bindings: dict[tuple[int, str], _Binding] = {}
        self._touched: set[OrderName] = set()

    async def read(self, items: Sequence[Click]) -> None:
        """Lock the orders, then read what was logged and sent for each, and what the callers' keys were used for."""
        places = {(item.tenant.number, item.order_id) for item in items}
        # As the ids sort themselves, and faster.
        ordered = sorted(places, key=lambda place: (place[0], place[1].bytes))
        columns = numbers([tenant for tenant, _ in ordered]), [id_ for _, id_ in ordered]
        rows = await self._connection.fetch(_SQL["lock_orders"], *columns)
        self._orders = {(row["tenant_id"], row["id"]): (payable(row, row["status"]), row["now"]) for row in rows}
        found = await self._connection.fetch(
            _SQL["newest"],
            numbers([item.tenant.number for item in items]),
            [item.order_id for item in items],
            texts([item.key for item in items]),
        )
        self.rows = sorted(found, key=lambda row: row["place"])
        # Where one order is clicked twice, its history is the same.
        pending = {
            (item.tenant.number, row["idempotency_key"]): row["provider"]
            for item, row in zip(items, self.rows, strict=True)
            if row["status"] == "PENDING"
        }
        self._histories = await _histories(self._connection, pending)

    def decide(self, item: Click, row: asyncpg.Record) -> _Decided:
        """What this click comes to. Two clicks on one order in one batch: the second looks again after the first."""
        seen = self._see(item, row)
        if not isinstance(seen, _Seen):
            return seen
        if seen.charge is not None and row["token"] == item.token:
            # This very call, run again after a COMMIT whose answer was lost.
            return _resumed(seen, row)
        step = self._next_step(seen)
        if item.told is not None and not isinstance(step, Again):
            # What the caller was about to be told is no longer so.
            return Settled()
        match step:
            case Rejected():
                return step
            case Hold():
                return self._held(seen, step)
            case Begin(attempt):
                return self._begin(seen, attempt)
            case Close() | Again() | Settle() | Ask() | Resend():
                if seen.charge is None:
                    raise InvariantBroken("a charge that nobody logged is to be gone on with")
                if isinstance(step, Close):
                    return Closing(seen.charge, seen.now)
                return self._go_on(seen, seen.charge, decode_charge(row["instruction"]), step)

    def _held(self, seen: _Seen, hold: Hold) -> Held:
        if seen.charge is not None:
            self._bind(seen, seen.charge.attempt)
        return Held(seen.charge, hold.until, seen.now)

    def _see(self, item: Click, row: asyncpg.Record) -> _Seen | Same | Rejected | Literal[SetAside.SET_ASIDE]:
        place = item.tenant.number, item.order_id
        bound = _bound(row)
        refusal = None if bound is None else key_fault(bound, _asked(item))
        if refusal is not None:
            return refusal
        known = self._orders.get(place)
        if known is None:
            return order_unknown(item.name)
        order, now = known
        if bound is None:
            refusal = pay_refusal(order, item.reservation_token, now=now)
            if refusal is not None:
                return refusal
        if place in self._touched or (item.tenant.number, item.key) in self._bindings:
            return SET_ASIDE
        charge = None if row["idempotency_key"] is None else _logged(row)
        if bound is not None:
            recorded = _recorded_answer(item, order, bound, charge, row)
            if recorded is not None:
                return recorded
        provider = item.provider if charge is None or charge.status == "FAILED" else charge.provider
        terms = self._terms.providers.get(provider)
        if terms is None:
            return _not_configured(provider)
        history = NOTHING_SENT if charge is None else self._histories.get((place[0], charge.key), NOTHING_SENT)
        since = order.created_at if charge is None else min(row["since"] or order.created_at, order.created_at)
        history = msgspec.structs.replace(history, since=since)
        return _Seen(
            item=item,
            order=order,
            charge=charge,
            is_bound=bound is not None,
            history=history,
            provider=provider,
            terms=terms,
            now=now,
        )

    def _next_step(self, seen: _Seen) -> payment.PayStep | Rejected:
        item, charge = seen.item, seen.charge
        if item.under is None:
            holder = None if charge is None else self._terms.providers.get(charge.provider)
            return payment.next_step(
                seen.order,
                charge,
                seen.history,
                account=seen.terms.account,
                lookup=seen.terms.lookup,
                now=seen.now,
                facts=seen.terms.facts,
                holder=None if holder is None else holder.facts,
                patience=self._terms.patience,
                most_attempts=self._terms.most_attempts,
            )
        # The books were asked under this claim. Whoever has another one since knows more.
        is_mine = charge is not None and charge.status == "PENDING" and charge.claim_number == item.under
        return Resend(item.tries) if is_mine and seen.order.is_open(seen.now) else Hold(seen.now, item.tries)

    def _begin(self, seen: _Seen, attempt: int) -> _Beginning | Rejected:
        item, order = seen.item, seen.order
        instruction = charge_of(order, attempt=attempt, provider=seen.provider, payment_method=item.payment_method)
        refused = seen.terms.refusal(instruction)
        if refused is not None:
            # In any form: nothing is logged, because nothing will ever be asked of the provider.
            return Rejected(
                "payment_not_possible",
                f"{seen.provider} cannot take this payment: {refused.code}: {refused.message}",
                "Correct what it names. The order is still reserved, and nothing was sent.",
            )
        self._touched.add((item.tenant.number, item.order_id))
        self._bind(seen, attempt)
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
            history=msgspec.structs.replace(NOTHING_SENT, since=order.created_at),
            now=seen.now,
            is_new=True,
        )

    def _go_on(
        self, seen: _Seen, charge: LoggedCharge, instruction: Charge, step: Again | Settle | Ask | Resend
    ) -> _Decided:
        item, order = seen.item, seen.order
        if isinstance(step, Again):
            if item.told is None:
                return Same(order, charge)
            self._bind(seen, charge.attempt)
            return Noted()
        self._bind(seen, charge.attempt)
        self._touched.add((item.tenant.number, item.order_id))
        if isinstance(step, Settle):
            self._results.append(_settled(item, charge, step.verdict, seen.history))
            return Settled()
        claim, tries = item.under or charge.claim_number + 1, step.tries if isinstance(step, Resend) else charge.tries
        # What is sent again was asked about. Stored with what comes of the send: killed before, it is asked anew.
        is_asked = charge.ask_first and isinstance(step, Ask)
        claimed = msgspec.structs.replace(charge, claim_number=claim, tries=tries, ask_first=is_asked)
        self._claims.append((item, claimed))
        if isinstance(step, Ask):
            return ClaimedCharge(
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

    def _bind(self, seen: _Seen, attempt: int) -> None:
        """From this commit on the caller's key is that attempt's, whose answer is its own."""
        if seen.item.key is not None and not seen.is_bound:
            self._bindings[seen.item.tenant.number, seen.item.key] = _Binding(seen.item, attempt)

    async def write(self, answers: Sequence[_Decided]) -> list[Clicked | Literal[SetAside.SET_ASIDE]]:
        """Claims, intents with their attempts, new charges: all that must be durable before anything is sent."""
        if self._results:
            await record(self._connection, self._results)
        if self._claims:
            await self._claim()
        beginnings = [answer for answer in answers if isinstance(answer, _Beginning)]
        begun: dict[UUID, Attempt | Withheld] = {}
        doubtful: set[UUID] = set()
        if beginnings:
            doubtful = await self._in_doubt([one for one in beginnings if one.is_new])
            asked = [self._asking(one, is_relied_on=one.item.token not in doubtful) for one in beginnings]
            attempts = await intents.begin(self._connection, asked)
            begun = {asking.token: attempt for asking, attempt in zip(asked, attempts, strict=True)}
            fresh = [beginning for beginning in beginnings if beginning.is_new]
            if fresh:
                await self._log(fresh)
            if doubtful:
                keys = [one.charge.key for one in beginnings if one.item.token in doubtful]
                await self._connection.execute(_SQL["ask_first"], keys)
        if self._bindings:
            await self._connection.execute(_SQL["bind"], *self._bound_keys())
        return [_begun(answer, begun, doubtful) if isinstance(answer, _Beginning) else answer for answer in answers]

    async def _in_doubt(self, fresh: Sequence[_Beginning]) -> set[UUID]:
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
            for key in payment.search_for(
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
            texts([one.item.author for one in fresh]),
            *self._bound_keys(),
        )
        # In one statement with the charges that they are bound to.
        self._bindings = {}

    def _bound_keys(self) -> tuple[object, ...]:
        """Sorted: two batches that use the same keys for other orders wait for each other in one direction only."""
        ordered = [self._bindings[name] for name in sorted(self._bindings)]
        return (
            numbers([one.item.tenant.number for one in ordered]),
            texts([one.item.key for one in ordered]),
            [one.item.order_id for one in ordered],
            numbers([one.attempt for one in ordered]),
            [_asked(one.item).method_digest for one in ordered],
            texts([one.item.told for one in ordered]),
        )

    def _asking(self, beginning: _Beginning, *, is_relied_on: bool) -> Asking:
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


def _begun(
    beginning: _Beginning, begun: Mapping[UUID, Attempt | Withheld], doubtful: Collection[UUID]
) -> Begun | ClaimedCharge | Held:
    attempt = begun[beginning.item.token]
    if isinstance(attempt, AskFirst):
        # What is only doubted is asked for at once: a buyer waits, and its own key is remembered.
        if attempt.from_ > beginning.now and beginning.item.token not in doubtful:
            return Held(beginning.charge, attempt.from_, beginning.now)
        # Logged, and not sent: the provider may have forgotten its key, so its books are asked first.
        return ClaimedCharge(
            tenant=beginning.item.tenant,
            order=beginning.order,
            charge=beginning.charge,
            instruction=beginning.instruction,
            history=msgspec.structs.replace(beginning.history, since=attempt.since),
            now=beginning.now,
        )
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
        intents.mark_in(row),
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


def _settled(item: Click, charge: LoggedCharge, verdict: Happened | Failed, history: History) -> ChargeResult:
    """What was stored already decides: in the words that it left."""
    return ChargeResult(
        tenant=item.tenant,
        order_id=item.order_id,
        charge=charge,
        entry=verdict,
        awaits_customer=isinstance(verdict, Happened) and history.done_state == "waiting",
        refused=refusal_of(item.name, charge, verdict.reason) if isinstance(verdict, Failed) else None,
    )


def _asked(item: Click) -> Asked:
    return Asked(
        key=item.key or "",
        order_id=item.order_id,
        reservation_token=item.reservation_token,
        payment_method=item.payment_method,
    )


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


def _recorded_answer(
    item: Click, order: Payable, bound: Bound, newest: LoggedCharge | None, row: asyncpg.Record
) -> Same | Rejected | None:
    """The answer that the key has; None: its attempt has none yet."""
    charge = newest if newest is not None and newest.attempt == bound.attempt else _logged(row, "older_")
    if charge.status == "PENDING":
        return None
    answered = charge.answered(bound.told)
    return recorded_refusal(item.name, charge) if answered is None else Same(order, charge, answered)


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


def _not_configured(provider: str) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The provider {provider!r} is not configured here.",
        "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
    )
