"""Refunds on PostgreSQL: begun with their intents, claimed when due, recorded with their ledger and their event.

Locks in one order everywhere: orders, the log, intents, attempts, accounts, events.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import acting, by_provider
from tallystick.checkout import break_store as payment_break
from tallystick.checkout.order.rules import order_name
from tallystick.checkout.payment.rules import Entry, Hold
from tallystick.checkout.postings import Move, PaymentItem, PaymentMoved
from tallystick.checkout.postings_store import post
from tallystick.checkout.refund.rules import NOT_GIVEN_BACK, Owed, RefundView, instruction_of, waits_for
from tallystick.database.literal import texts
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.keys.derived import is_reference, reference_bounds
from tallystick.ledger.claims import Tenant
from tallystick.movement import store as intents
from tallystick.movement.life import store as life
from tallystick.movement.rules import LONGEST_TRUSTED, Absence, AskFirst, Attempt, decode_refund
from tallystick.movement.steps import NOTHING_SENT, UNPROVEN, Failed, Happened, History
from tallystick.movement.store import Answered, Asking
from tallystick.movement.terms import ProviderTerms
from tallystick.providers.words import Refund
from tallystick.webhooks import inbox
from tallystick.webhooks.inbox import ClaimedEvent
from tallystick.webhooks.rules import End

_SQL = queries.load(__package__, "store.sql")
_MOST_COUNTED: Final = 10_000

KeyName = tuple[int, bytes]


class RefundTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How refunds are begun. `lease`: how long one is left to whoever works on it; `permit_seconds`: to write bytes."""

    providers: Mapping[str, ProviderTerms]
    lease: timedelta
    permit_seconds: float


class Debt(msgspec.Struct, frozen=True, kw_only=True):
    """A payment that is to be given back: all of it, or the `part` that was asked for. The provider hears `reason`.

    `since`: when giving it back was first owed, whichever generation this is.
    """

    tenant: Tenant
    order_id: UUID
    provider: str
    payment_intent_id: str
    amount_micros: int
    currency: str
    reason: str
    since: datetime
    generation: int = 0
    part: bytes | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A refund with a committed attempt: send it. `history` is what was sent before it."""

    tenant: Tenant
    owed: Owed
    instruction: Refund
    attempt: Attempt
    history: History
    now: datetime


class ClaimedRefund(msgspec.Struct, frozen=True, kw_only=True):
    """A refund that is due, under a claim."""

    tenant: Tenant
    owed: Owed
    instruction: Refund
    history: History
    now: datetime


class RefundResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a refund. `claim_number` None: the provider told it by itself, so no claim is asked for.

    `event` is the one that waits for it, where the caller has it in hand. `failed_as`: the provider's id of a refund
    that it made and that failed: what is told of it later must not be taken for the next one's.
    """

    tenant: Tenant
    key: bytes
    claim_number: int | None
    entry: Entry
    response: bytes | None = None
    answered: Answered | None = None
    event: ClaimedEvent | None = None
    failed_as: str | None = None
    # It is still to be asked about before anything is sent.
    ask_first: bool = False


class RefundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One refund as a person wants to see it. `why` it is owed; `received_at`: when it came to be owed.

    `asked_under`: the caller's key, of a part that was asked for.
    """

    key: bytes
    generation: int
    provider: str
    response: bytes | None
    tries: int
    due_at: datetime
    why: str
    received_at: datetime
    view: RefundView
    asked_under: str | None = None
    restock: bool = False


class ReceiptRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a payment, as a person wants to see it."""

    provider: str
    payment_intent_id: str
    amount_micros: int
    currency: str
    fate: str
    reason: str | None
    event_number: int
    received_at: datetime
    recorded_at: datetime


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A refund that only a person can go on with. `part`: the key it was asked for under; None: the saga's."""

    tenant: str
    order_id: str
    provider: str
    payment_intent_id: str
    part: str | None
    amount_micros: int
    currency: str
    status: str
    reason: str
    tries: int
    created_at: datetime


class RefundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """For every process the same. `times`: upper bound in seconds to count and sum; quantiles of the last day."""

    pending: int
    oldest_seconds: float
    times: tuple[tuple[float, int, float], ...]
    p50_seconds: float | None
    p99_seconds: float | None


class RecordWork:
    """Group commit's work: record what became of refunds."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def commit(
        self,
        items: Sequence[RefundResult],
        *,
        patient: bool,  # noqa: ARG002 - a claim is held by its owner alone: there is nothing to step around
    ) -> Sequence[bool]:
        """True for each that is durable; False where the claim was lost: only the answer was kept, as evidence."""
        # Whoever asked: what became of a refund is the provider's word.
        providers = (item.answered.attempt.provider for item in items if item.answered is not None)
        with acting(by_provider(*providers)):
            async with self._database.writing() as connection:
                return await record(connection, items)


async def begin(connection: Connection, debts: Sequence[Debt], terms: RefundTerms) -> list[Begun]:
    """Commit refunds with their first attempts, inside the caller's transaction, which has written their receipts.

    Nothing may be sent before he has committed it. Raises RestoredDatabase: what this database does not know may have
    been given back already.
    """
    if not debts:
        return []
    if not await life.notice(connection):
        raise RestoredDatabase
    wanted = sorted(((debt, _instruction(debt)) for debt in debts), key=lambda one: (one[1].key, one[0].tenant.number))
    asked = [_asking(debt, instruction, terms) for debt, instruction in wanted]
    for place in await _in_doubt(connection, [debt for debt, _ in wanted], terms):
        # Whoever was refused need not be known by this key any more: it is relied on for no time at all.
        asked[place] = msgspec.structs.replace(asked[place], is_relied_on=False)
    attempts = await intents.begin(connection, asked)
    await connection.execute(
        _SQL["log_refunds"],
        [debt.tenant.number for debt, _ in wanted],
        [instruction.key for _, instruction in wanted],
        [debt.order_id for debt, _ in wanted],
        [debt.generation for debt, _ in wanted],
        [debt.amount_micros for debt, _ in wanted],
        [debt.currency for debt, _ in wanted],
        [debt.provider for debt, _ in wanted],
        [debt.payment_intent_id for debt, _ in wanted],
        terms.lease,
        [attempt.from_ if isinstance(attempt, AskFirst) else None for attempt in attempts],
        [debt.part for debt, _ in wanted],
    )
    begun = []
    for (debt, instruction), attempt in zip(wanted, attempts, strict=True):
        match attempt:
            case Attempt():
                begun.append(_begun(debt, instruction, attempt))
            case AskFirst():
                # Logged and due: the sweeper asks the provider's books before anything is sent.
                continue
            case _:
                raise InvariantBroken(f"a refund that was just logged was sent before: {instruction.key.hex()}")
    return begun


async def _in_doubt(connection: Connection, debts: Sequence[Debt], terms: RefundTerms) -> list[int]:
    """Which of them a lost life may have given back under another key.

    All of a payment has keys that are known here.
    """
    parts = [(place, debt) for place, debt in enumerate(debts) if debt.part is not None]
    if not parts:
        return []
    rows = await connection.fetch(
        _SQL["in_doubt"],
        [debt.provider for _, debt in parts],
        [debt.payment_intent_id for _, debt in parts],
        [debt.amount_micros for _, debt in parts],
        [debt.currency for _, debt in parts],
        LONGEST_TRUSTED,
        ["refund" in terms.providers[debt.provider].facts.lists for _, debt in parts],
    )
    return [parts[row["place"] - 1][0] for row in rows]


async def send_again(
    connection: Connection, claimed: Sequence[tuple[ClaimedRefund, Absence | None]], terms: RefundTerms
) -> list[Begun]:
    """Further attempts under claims, inside the caller's transaction. Those that may be sent.

    With each the proof, where there is one, that the provider's books do not show it.
    """
    if not claimed:
        return []
    if not await life.notice(connection):
        raise RestoredDatabase
    absences = {(one.tenant.number, one.owed.key): absence for one, absence in claimed}
    ordered = sorted((one for one, _ in claimed), key=lambda one: (one.owed.key, one.tenant.number))
    rows = await connection.fetch(
        _SQL["extend"],
        [one.tenant.number for one in ordered],
        [one.owed.key for one in ordered],
        [one.owed.claim_number for one in ordered],
        terms.lease,
    )
    kept = {row["idempotency_key"] for row in rows}
    mine = [one for one in ordered if one.owed.key in kept]
    attempts = await intents.begin(
        connection,
        [_asking(one, one.instruction, terms, absences[one.tenant.number, one.owed.key]) for one in mine],
    )
    return [
        Begun(
            tenant=one.tenant,
            # Its books were asked. Stored with what comes of the send: killed before, it is asked anew.
            owed=msgspec.structs.replace(one.owed, ask_first=False),
            instruction=one.instruction,
            attempt=attempt,
            history=one.history,
            now=one.now,
        )
        for one, attempt in zip(mine, attempts, strict=True)
        if isinstance(attempt, Attempt)
    ]


async def claim_due(
    connection: Connection,
    *,
    providers: Sequence[str],
    most: int,
    lease: timedelta,
    only_asked: bool = False,
    due_before: datetime | None = None,
) -> list[ClaimedRefund]:
    """Refunds that are due, under a new claim, and what was sent for each.

    `only_asked`: those that must be asked about before anything is sent. Who wants others is going to send: raises
    RestoredDatabase.
    """
    if not only_asked and not await life.notice(connection):
        raise RestoredDatabase
    rows = await connection.fetch(_SQL["claim_due"], most, list(providers), lease, only_asked, due_before)
    by_provider: dict[str, list[KeyName]] = {}
    for row in rows:
        by_provider.setdefault(row["provider"], []).append((row["tenant_id"], row["idempotency_key"]))
    histories: dict[KeyName, History] = {}
    for provider, names in by_provider.items():
        histories |= await intents.sent(connection, provider, names)
    return [_claimed(row, histories) for row in rows]


async def record(connection: Connection, items: Sequence[RefundResult]) -> list[bool]:
    """Record results inside the caller's transaction: the log, the ledger, and the event that waited, in one commit."""
    ordered = sorted(items, key=lambda item: (item.key, item.tenant.number))
    rows = {
        (row["tenant_id"], row["idempotency_key"]): row
        for row in await connection.fetch(
            _SQL["lock"], [item.tenant.number for item in ordered], [item.key for item in ordered]
        )
    }
    mine = [(item, row) for item in ordered for row in [rows[item.tenant.number, item.key]] if _is_mine(item, row)]
    if mine:
        await connection.execute(_SQL["record"], *_recorded([item for item, _ in mine]))
    answered = [item.answered for item in ordered if item.answered is not None]
    if answered:
        await intents.record_answers(connection, answered)
    done = [(item, row) for item, row in mine if isinstance(item.entry, Happened)]
    if done:
        await connection.execute(
            _SQL["explain_breaks"],
            [row["provider"] for _, row in done],
            [item.entry.transfer_id for item, _ in done if isinstance(item.entry, Happened)],
        )
    failed = [(item, row) for item, row in mine if isinstance(item.entry, Failed)]
    if failed:
        await _report(connection, failed)
    await post(connection, [*_moves(done, "refunded"), *_moves_of_failed(failed)])
    written = {id(item) for item, _ in mine}
    # A batch that is run again after a lost COMMIT finds its own results. So does who was overtaken by the provider's
    # own word: the event that he has in hand is his to end.
    there = [
        (item, row)
        for item in ordered
        for row in [rows[item.tenant.number, item.key]]
        if id(item) not in written and _is_there(item, row)
    ]
    await _compensate(connection, [*done, *((item, row) for item, row in there if isinstance(item.entry, Happened))])
    written |= {id(item) for item, _ in there}
    return [id(item) in written for item in items]


async def wake(database: Database, provider: str, most: int) -> None:
    """Make due what waits for this provider: it answers again."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["wake"], provider, most)


async def decide(
    connection: Connection, tenant: Tenant, order_id: UUID, payment_intent_id: str, part: bytes | None = None
) -> tuple[asyncpg.Record, asyncpg.Record | None] | None:
    """A receipt under its lock, and its newest refund; or a part's, which alone is locked. None: no such payment."""
    statement = "lock_receipt" if part is None else "receipt"
    receipt = await connection.fetchrow(_SQL[statement], tenant.number, order_id, payment_intent_id)
    if receipt is None:
        return None
    refund = await connection.fetchrow(_SQL["newest"], tenant.number, payment_intent_id, receipt["provider"], part)
    return receipt, refund


async def standing(connection: Connection, tenant: Tenant, key: bytes) -> ClaimedRefund | None:
    """A refund and what was sent for it, without a claim: nothing may be written by it."""
    row = await connection.fetchrow(_SQL["standing"], tenant.number, key)
    if row is None:
        return None
    histories = await intents.sent(connection, row["provider"], [(tenant.number, key)])
    return _claimed(row, histories)


async def due_now(connection: Connection, tenant: Tenant, key: bytes) -> None:
    """Have the next sweep go on with it."""
    await connection.execute(_SQL["due_now"], tenant.number, key)


async def waiting(database: Database, *, most: int) -> list[WaitingRow]:
    """Refunds of every tenant that only a person can go on with, the oldest first."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["waiting"], most)
    return [WaitingRow(**{**dict(row), "order_id": order_name(row["order_id"].bytes)}) for row in rows]


async def under_reference(connection: Connection, provider: str, reference: str) -> set[bytes]:
    """The keys of our refunds that a provider may have written so, of whatever tenant."""
    bounds = reference_bounds(reference)
    if bounds is None:
        return set()
    low, high = bounds
    rows = await connection.fetch(_SQL["by_key"], [provider], [low], [high])
    return {row["idempotency_key"] for row in rows if is_reference(row["idempotency_key"], reference)}


async def let_go(connection: Connection, tenant: Tenant, key: bytes) -> bool:
    """Have the sweeper send a refund that waits for a person since a restore. False: it does not.

    Raises RestoredDatabase: recovery is not over.
    """
    if not await life.notice(connection):
        raise RestoredDatabase
    return await connection.fetchval(_SQL["let_go"], tenant.number, key, UNPROVEN) is not None


async def is_known(connection: Connection, provider: str, refund_id: str) -> bool:
    """Whether a refund of ours has this id of the provider's already."""
    return bool(await connection.fetch(_SQL["by_id"], texts([provider]), texts([intents.storable(refund_id)])))


def instruction(debt: Debt) -> Refund:
    """What is asked of the provider for this debt."""
    return _instruction(debt)


def key_of(debt: Debt) -> bytes:
    """The key that the refund of this debt has."""
    return _instruction(debt).key


async def set_fate(connection: Connection, receipt: asyncpg.Record, fate: str) -> None:
    """What a person has decided of a payment in review."""
    place = (receipt[name] for name in ("tenant_id", "order_id", "payment_intent_id", "provider"))
    await connection.execute(_SQL["decide_receipt"], *place, fate)


async def keep(connection: Connection, tenant: Tenant, receipt: asyncpg.Record) -> None:
    """The money of a payment in review stays: it is the tenant's."""
    await set_fate(connection, receipt, "KEPT")
    item = PaymentItem(order_name(receipt["order_id"].bytes), receipt["payment_intent_id"], receipt["amount_micros"])
    await post(connection, [PaymentMoved(tenant, "kept", receipt["provider"], receipt["currency"], item)])


async def read(database: Database, tenant: Tenant, order_id: UUID) -> list[RefundRow]:
    """Every refund of an order, the oldest first."""
    async with database.reading(tenant.number) as connection:
        return await of_order(connection, tenant.number, order_id)


async def of_order(connection: Connection, tenant_number: int, order_id: UUID) -> list[RefundRow]:
    """The same, on a connection that reads as this tenant."""
    rows = await connection.fetch(_SQL["of_order"], tenant_number, order_id)
    return [
        RefundRow(
            key=row["idempotency_key"],
            generation=row["attempt"],
            provider=row["provider"],
            response=row["provider_response"],
            tries=row["tries"],
            due_at=row["due_at"],
            why=row["why"],
            received_at=row["received_at"],
            view=view(row),
            asked_under=row["asked_under"],
            restock=row["restock"],
        )
        for row in rows
    ]


async def receipts(database: Database, tenant: Tenant, order_id: UUID) -> list[ReceiptRow]:
    """What was taken for an order, and what became of it."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["receipts_of_order"], tenant.number, order_id)
    return [ReceiptRow(**dict(row)) for row in rows]


def view(row: asyncpg.Record) -> RefundView:
    """As callers see it."""
    return RefundView(
        status=row["status"],
        payment_intent_id=row["payment_intent_id"],
        refund_id=row["refund_id"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        reason=row["reason"] or row["why"],
        created_at=row["created_at"],
        completed_at=row["completed_at"],
        part=row["asked_under"],
        waits_for_person=waits_for(
            row["status"], row["reason"], is_part=row["asked_under"] is not None, is_newest=row["is_newest"]
        ),
    )


async def figures(database: Database) -> RefundFigures:
    """What is owed, and how long it took."""
    async with database.owning() as connection:
        ((pending, oldest),) = await connection.fetch(_SQL["figures"], _MOST_COUNTED)
        times = await connection.fetch(_SQL["times"])
        quantiles = await connection.fetchval(_SQL["quantiles"], _MOST_COUNTED)
    p50, p99 = quantiles or (None, None)
    return RefundFigures(
        pending=pending,
        oldest_seconds=oldest,
        times=tuple((one["le"], one["count"], one["seconds"]) for one in times),
        p50_seconds=p50,
        p99_seconds=p99,
    )


async def _report(connection: Connection, failed: Sequence[tuple[RefundResult, asyncpg.Record]]) -> None:
    """A refund that failed is a break: the customer's money is here, and only a person can go on.

    Not a part that two persons have called failed: it is owed to nobody, and they know.
    """
    failed = [
        (item, row)
        for item, row in failed
        if row["part"] is None or not isinstance(item.entry, Failed) or item.entry.reason != NOT_GIVEN_BACK
    ]
    if not failed:
        return
    await connection.execute(
        payment_break.ADD,
        ["refund_failed"] * len(failed),
        [row["provider"] for _, row in failed],
        ["refund"] * len(failed),
        [item.key.hex() for item, _ in failed],
        [intents.storable(item.entry.reason) for item, _ in failed if isinstance(item.entry, Failed)],
        [row["amount_micros"] for _, row in failed],
        [row["currency"] for _, row in failed],
        [row["tenant_id"] for _, row in failed],
        [row["order_id"] for _, row in failed],
        [row["event_number"] for _, row in failed],
    )


def _moves_of_failed(failed: Sequence[tuple[RefundResult, asyncpg.Record]]) -> list[PaymentMoved]:
    """What the saga owes stays owed, whatever the provider says; a part that nobody gave back is its tenant's again."""
    whole = [(item, row) for item, row in failed if row["part"] is None and row["status"] == "COMPLETED"]
    parts = [(item, row) for item, row in failed if row["part"] is not None]
    return [
        *_moves(whole, "refund_failed"),
        *_moves([(item, row) for item, row in parts if row["status"] == "COMPLETED"], "came_back"),
        *_moves([(item, row) for item, row in parts if row["status"] == "PENDING"], "not_given_back"),
    ]


def _moves(of: Sequence[tuple[RefundResult, asyncpg.Record]], move: Move) -> list[PaymentMoved]:
    return [
        PaymentMoved(
            item.tenant,
            move,
            row["provider"],
            row["currency"],
            PaymentItem(order_name(row["order_id"].bytes), row["payment_intent_id"], row["amount_micros"]),
            item.key.hex(),
        )
        for item, row in of
    ]


async def _compensate(connection: Connection, done: Sequence[tuple[RefundResult, asyncpg.Record]]) -> None:
    """The events that waited are PROCESSED_COMPENSATED, each under a claim: the caller's, or one taken here."""
    held = {item.event.number: item.event for item, _ in done if item.event is not None}
    finished: set[int] = set()
    if held:
        finished = await inbox.finish(
            connection, [(event, End("PROCESSED_COMPENSATED", event.tries)) for event in held.values()]
        )
    waiting = sorted({row["event_number"] for _, row in done if row["event_number"] is not None} - finished)
    if not waiting:
        return
    # One that somebody else has in hand is left to him: he finds the refund completed.
    taken = [row["number"] for row in await connection.fetch(_SQL["take_events"], waiting)]
    if taken:
        await connection.execute(_SQL["compensate_events"], taken)


def _is_mine(item: RefundResult, row: asyncpg.Record) -> bool:
    if item.claim_number is not None and row["claim_number"] != item.claim_number:
        return False
    # What the provider has may still come back; nothing else changes what is final.
    return bool(row["status"] == "PENDING" or (row["status"] == "COMPLETED" and isinstance(item.entry, Failed)))


def _is_there(item: RefundResult, row: asyncpg.Record) -> bool:
    match item.entry:
        case Happened(refund_id):
            return bool(row["status"] == "COMPLETED" and row["refund_id"] == intents.storable(refund_id))
        case Failed():
            return bool(row["status"] == "FAILED")
        case Hold():
            return False


def _recorded(items: Sequence[RefundResult]) -> tuple[list[object], ...]:
    statuses: list[object] = []
    refunds: list[object] = []
    reasons: list[object] = []
    for item in items:
        match item.entry:
            case Happened(refund_id):
                statuses.append("COMPLETED")
                refunds.append(intents.storable(refund_id))
                reasons.append(None)
            case Failed(reason):
                statuses.append("FAILED")
                refunds.append(None if item.failed_as is None else intents.storable(item.failed_as))
                reasons.append(intents.storable(reason))
            case Hold():
                statuses.append("PENDING")
                refunds.append(None)
                reasons.append(None if item.entry.reason is None else intents.storable(item.entry.reason))
    return (
        [item.tenant.number for item in items],
        [item.key for item in items],
        statuses,
        refunds,
        reasons,
        [item.entry.until if isinstance(item.entry, Hold) else None for item in items],
        [item.entry.tries if isinstance(item.entry, Hold) else None for item in items],
        [item.response for item in items],
        [item.claim_number is None for item in items],
        [item.ask_first and isinstance(item.entry, Hold) for item in items],
    )


def _instruction(debt: Debt) -> Refund:
    return instruction_of(
        tenant=debt.tenant.name,
        provider=debt.provider,
        payment_intent_id=debt.payment_intent_id,
        amount_micros=debt.amount_micros,
        currency=debt.currency,
        generation=debt.generation,
        reason=debt.reason,
        part=debt.part,
    )


def _asking(
    one: Debt | ClaimedRefund, instruction: Refund, terms: RefundTerms, absence: Absence | None = None
) -> Asking:
    owed = one if isinstance(one, Debt) else one.owed
    return Asking(
        tenant=one.tenant,
        terms=terms.providers[owed.provider],
        instruction=instruction,
        token=uuid4(),
        permit_seconds=terms.permit_seconds,
        since=owed.since,
        mark=f"order/{order_name(owed.order_id.bytes)}",
        absence=absence,
    )


def _begun(debt: Debt, instruction: Refund, attempt: Attempt) -> Begun:
    owed = Owed(
        key=instruction.key,
        tenant=debt.tenant.name,
        order_id=debt.order_id,
        generation=debt.generation,
        provider=debt.provider,
        payment_intent_id=debt.payment_intent_id,
        amount_micros=debt.amount_micros,
        currency=debt.currency,
        status="PENDING",
        refund_id=None,
        reason=None,
        claim_number=1,
        tries=0,
        due_at=attempt.not_after,
        since=debt.since,
        part=debt.part,
    )
    return Begun(
        tenant=debt.tenant,
        owed=owed,
        instruction=instruction,
        attempt=attempt,
        history=msgspec.structs.replace(NOTHING_SENT, since=debt.since),
        now=attempt.first_sent_at,
    )


def _claimed(row: asyncpg.Record, histories: Mapping[KeyName, History]) -> ClaimedRefund:
    return ClaimedRefund(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        owed=_owed(row),
        instruction=decode_refund(row["instruction"]),
        history=msgspec.structs.replace(
            histories.get((row["tenant_id"], row["idempotency_key"]), NOTHING_SENT), since=row["since"]
        ),
        now=row["now"],
    )


def _owed(row: asyncpg.Record) -> Owed:
    return Owed(
        key=row["idempotency_key"],
        tenant=row["tenant"],
        order_id=UUID(bytes=row["order_id"].bytes),
        generation=row["attempt"],
        provider=row["provider"],
        payment_intent_id=row["payment_intent_id"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        status=row["status"],
        refund_id=row["refund_id"],
        reason=row["reason"],
        claim_number=row["claim_number"],
        tries=row["tries"],
        due_at=row["due_at"],
        since=row["since"],
        part=row["part"],
        ask_first=row["ask_first"],
    )
