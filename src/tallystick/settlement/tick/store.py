"""Settling on PostgreSQL: claim, claim again, record. Each is one transaction for a whole chunk.

Locks in one order everywhere: states of settlements, intents, attempts, accounts, keys of operations.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from tallystick import queries
from tallystick.audit.author import acting, by_worker
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken
from tallystick.keys.derived import forms_of, settlement_key
from tallystick.keys.names import settlement_name
from tallystick.ledger import batch
from tallystick.ledger.claims import Claim, Tenant
from tallystick.ledger.outcome import Committed, Duplicate
from tallystick.ledger.store import PostgresTransaction
from tallystick.movement import store as intents
from tallystick.movement.evidence import Evidence
from tallystick.movement.steps import NOTHING_SENT, Disputed, Failed, Happened, History, Verdict, Wait
from tallystick.movement.store import Answered, sent
from tallystick.providers.words import Transfer, may_have_paid
from tallystick.settlement.postings import Move, PayoutItem, PayoutMoved, SettlementMoved, postings
from tallystick.settlement.rules import status_after

_SQL = queries.load(__package__, "store.sql")
# Workers that share a row of counts wait for each other's commit.
_COUNT_SLOTS = 16
# Each needs a recorded failure and two people: no life of a database that was lost had more of them to give.
_LATER_GENERATIONS = 3
_MOVES: Mapping[type, Move] = {Happened: "transferred", Failed: "failed"}


class ClaimedSettlement(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement under a claim. `now` is the database's time when it was claimed."""

    tenant: Tenant
    number: int
    id: UUID
    attribution_id: str
    squad_id: str
    currency: str
    net_micros: int
    amount_micros: int
    provider: str
    destination: str
    generation: int
    key: bytes
    created_at: datetime
    claim_number: int
    tries: int
    ask_first: bool
    now: datetime
    # As people write its id.
    name: str
    # What is asked of the provider: the same bytes for ever, because all of it is fixed at creation.
    instruction: Transfer

    @property
    def later_keys(self) -> tuple[bytes, ...]:
        """The keys that its next generations would have."""
        return tuple(self.key_of(self.generation + ahead) for ahead in range(1, _LATER_GENERATIONS + 1))

    def key_of(self, generation: int) -> bytes:
        """The key that its content gives it in that generation."""
        return settlement_key(
            tenant=self.tenant.name,
            currency=self.currency,
            provider=self.provider,
            attribution_id=self.attribution_id,
            squad_id=self.squad_id,
            net_micros=self.net_micros,
            generation=generation,
        )


class SettlementResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a claimed settlement. `answered` is the attempt's answer, where one was made."""

    claimed: ClaimedSettlement
    verdict: Verdict
    answered: Answered | None = None
    evidence: tuple[Evidence, ...] = ()
    # Whether the question that must be asked first is still open.
    ask_first: bool = False


async def claim(
    connection: Connection,
    provider: str,
    *,
    after: int,
    most: int,
    stuck_after: timedelta,
    token: UUID,
    by: str,
    without: Collection[int] = (),
) -> list[ClaimedSettlement]:
    """Pass 1, inside the caller's transaction: pending rows become processing. `post_claims` belongs to it.

    `without`: tenants whose books refuse it.
    """
    statement, more = _SQL["claim"], []
    if without:
        # Only then: the condition would tempt the planner away from the index of pending rows.
        statement, more = (
            statement.replace("number > $2", "number > $2 AND tenant_id <> ALL ($7::integer[])"),
            [list(without)],
        )
    rows = await connection.fetch(statement, provider, after, most, stuck_after, token, by, *more)
    return [claimed_row(row) for row in rows]


async def post_claims(connection: Connection, claimed: Sequence[ClaimedSettlement], *, token: UUID, by: str) -> None:
    """The money of claimed rows goes in transit. Last in its transaction: everybody needs that account."""
    await _run(connection, postings([_moved(row, "claimed") for row in claimed], token.hex))
    await count(connection, by, {"claimed": len(claimed)})


async def reclaim(
    connection: Connection,
    provider: str,
    *,
    most: int,
    stuck_after: timedelta,
    token: UUID,
    by: str,
    due_before: datetime | None,
    only_asked: bool = False,
) -> tuple[list[ClaimedSettlement], dict[int, History]]:
    """Pass 2, inside the caller's transaction: overdue rows under a new claim, and what was sent for each."""
    rows = await connection.fetch(_SQL["reclaim"], provider, most, stuck_after, token, by, only_asked, due_before)
    claimed = [claimed_row(row) for row in rows]
    if claimed:
        await count(connection, by, {"reclaimed": len(claimed)})
    return claimed, await histories(connection, provider, claimed)


async def histories(connection: Connection, provider: str, claimed: Sequence[ClaimedSettlement]) -> dict[int, History]:
    """What was sent so far, by the settlement's number."""
    if not claimed:
        return {}
    found = await sent(connection, provider, [(row.tenant.number, row.key) for row in claimed])
    asked = [row for row in claimed if row.ask_first]
    before = await _made_before(connection, asked)
    born = await _born(connection, provider, asked)
    return {
        row.number: msgspec.structs.replace(
            found.get((row.tenant.number, row.key), NOTHING_SENT),
            moved_as=before.get(row.number),
            since=min(row.created_at, born.get(row.number, row.created_at)),
        )
        for row in claimed
    }


async def _born(connection: Connection, provider: str, claimed: Sequence[ClaimedSettlement]) -> dict[int, datetime]:
    """How old they may be, as far as their intents know: older than their rows, where a life may have been lost."""
    if not claimed:
        return {}
    rows = await connection.fetch(
        _SQL["born"], [row.tenant.number for row in claimed], [row.key for row in claimed], provider
    )
    known = {(row["tenant_id"], row["key"]): row["since"] for row in rows}
    names = {row.number: (row.tenant.number, row.key) for row in claimed}
    return {number: known[name] for number, name in names.items() if name in known}


async def _made_before(connection: Connection, asked: Sequence[ClaimedSettlement]) -> dict[int, str]:
    """Movements that bear the name of a settlement, and not its key."""
    if not asked:
        return {}
    by_id = {row.id: row for row in asked}
    before = {}
    for made in await connection.fetch(_SQL["made_before"], list(by_id)):
        row = by_id[made["subject"]]
        if made["reference"] not in forms_of(row.key) and may_have_paid(
            made["provider_id"], row.instruction.destination
        ):
            before[row.number] = made["provider_id"]
    return before


async def begin_again(
    connection: Connection, rows: Sequence[tuple[ClaimedSettlement, int]], *, stuck_after: timedelta
) -> list[ClaimedSettlement]:
    """Those of the rows that are still under their claim; the takeover of these counts from now. With their tries."""
    kept = {
        (row["tenant_id"], row["number"])
        for row in await connection.fetch(_SQL["fence"], *_names([row for row, _ in rows]))
        if row["status"] == "processing"
    }
    mine = [(row, tries) for row, tries in rows if (row.tenant.number, row.number) in kept]
    await connection.execute(
        _SQL["extend"], *_names([row for row, _ in mine]), stuck_after, [tries for _, tries in mine]
    )
    return [row for row, _ in mine]


async def policies_since(connection: Connection, rows: Sequence[ClaimedSettlement]) -> dict[int, datetime]:
    """When the policy that gives each of them its fee was last changed, by the settlement's number.

    A tenant who never had one: since he is here.
    """
    tenants, numbers, _ = _names(rows)
    found = await connection.fetch(_SQL["policies_since"], tenants, numbers, [row.currency for row in rows])
    return {row["number"]: row["since"] for row in found}


class PostingRefused(InvariantBroken):
    """A tenant's books refuse a settlement's own posting: they were damaged, or an account is full."""

    def __init__(self, tenant: Tenant, reason: str) -> None:
        """`reason` as the ledger said it."""
        super().__init__(f"the ledger of tenant {tenant.name} refuses a settlement's own posting: {reason}")
        self.tenant = tenant


class RecordWork:
    """Group commit's work: record what became of claimed settlements."""

    def __init__(self, database: Database, by: str) -> None:
        """`by` names this worker."""
        self._database = database
        self._by = by

    async def commit(
        self,
        items: Sequence[SettlementResult],
        *,
        patient: bool,  # noqa: ARG002 - a claim is held by its owner alone: there is nothing to step around
    ) -> Sequence[bool]:
        """True for each that is durable; False where the claim was lost: only the answer was kept, as evidence."""
        with acting(by_worker(self._by)):
            async with self._database.writing() as connection:
                return await record(connection, items, by=self._by)


async def record(connection: Connection, items: Sequence[SettlementResult], *, by: str) -> list[bool]:
    """Record results inside the caller's transaction, each under the claim it was worked on with."""
    rows = {
        (row["tenant_id"], row["number"]): row
        for row in await connection.fetch(_SQL["fence"], *_names([item.claimed for item in items]))
    }
    open_: list[SettlementResult] = []
    done: list[bool] = []
    for item in items:
        row = rows.get((item.claimed.tenant.number, item.claimed.number))
        is_mine = row is not None and row["status"] == "processing"
        if is_mine:
            open_.append(item)
        # A batch that is run again after a lost COMMIT finds its own result.
        done.append(is_mine or (row is not None and _is_recorded(item, row)))
    answered = [item.answered for item in items if item.answered is not None]
    if answered:
        await intents.record_answers(connection, answered)
    await _note(connection, open_, [item for item, kept in zip(items, done, strict=True) if not kept], by)
    if open_:
        moves = [_moved(item.claimed, _MOVES[type(item.verdict)]) for item in open_ if type(item.verdict) in _MOVES]
        token = _token(open_)
        claims = postings(moves, token)
        ids = {
            part.settlement: pgproto.UUID(claim.id)
            for claim in claims
            if isinstance(claim.operation, SettlementMoved)
            for part in claim.operation.items
        }
        await connection.execute(_SQL["record"], *_names([item.claimed for item in open_]), *_columns(open_, ids))
        await _run(connection, claims)
        await count(connection, by, _counts(open_))
    late = done.count(False)
    if late:
        await count(connection, by, {"late_answers": late})
    return done


async def count(connection: Connection, by: str, counts: Mapping[str, int]) -> None:
    """Add to the figures of all days."""
    slot = int.from_bytes(hashlib.sha256(by.encode()).digest()[:2], "big") % _COUNT_SLOTS
    await connection.execute(_SQL["count"], slot, list(counts), list(counts.values()))


async def add_events(connection: Connection, events: Sequence[tuple[int, int, str, str, bytes]]) -> None:
    """What happened: tenant, settlement's number, what, by whom, details as JSON."""
    if events:
        columns = [list(column) for column in zip(*events, strict=True)]
        await connection.execute(_SQL["add_events"], *columns)


async def _note(
    connection: Connection, open_: Sequence[SettlementResult], late: Sequence[SettlementResult], by: str
) -> None:
    events = []
    for item in (*open_, *late):
        tenant, number = item.claimed.tenant.number, item.claimed.number
        events += [(tenant, number, e.what, by, msgspec.json.encode(e)) for e in item.evidence]
    for item in open_:
        if isinstance(item.verdict, Disputed):
            why = Evidence(what="disputed", found=item.verdict.reason)
            events.append((item.claimed.tenant.number, item.claimed.number, why.what, by, msgspec.json.encode(why)))
    for item in open_:
        if _came_back(item.verdict):
            back = Evidence(what="came_back", found=status_after(item.verdict))
            events.append((item.claimed.tenant.number, item.claimed.number, back.what, by, msgspec.json.encode(back)))
    for item in late:
        if item.answered is not None:
            seen = Evidence(what="late_answer", found=type(item.answered.answer).__name__.lower())
            events.append((item.claimed.tenant.number, item.claimed.number, seen.what, by, msgspec.json.encode(seen)))
    await add_events(connection, events)


def _came_back(verdict: Verdict) -> bool:
    """The provider itself showed that what it made is not with the payee."""
    return isinstance(verdict, Failed | Disputed) and verdict.reason in ("returned", "failed_at_the_provider")


def _counts(items: Sequence[SettlementResult]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in items:
        if not isinstance(item.verdict, Wait):
            counts[status_after(item.verdict)] += 1
        if isinstance(item.verdict, Disputed) and item.verdict.is_double:
            counts["doubles"] += 1
        if isinstance(item.verdict, Disputed) and item.verdict.reason == "key_collision":
            counts["key_collisions"] += 1
        for evidence in item.evidence:
            counts[f"{evidence.what}.{evidence.found}"] += evidence.what == "looked_up"
    return +counts


def _is_recorded(item: SettlementResult, row: asyncpg.Record) -> bool:
    match item.verdict:
        case Happened(transfer_id):
            return bool(row["status"] == "transferred" and row["transfer_id"] == intents.storable(transfer_id))
        case Failed(reason):
            return bool(row["status"] == "failed" and row["reason"] == intents.storable(reason))
        case Disputed():
            return bool(row["status"] == "disputed" and row["reason"] == intents.storable(item.verdict.reason))
        case Wait():
            return False


def _columns(items: Sequence[SettlementResult], ids: Mapping[str, pgproto.UUID]) -> tuple[list[object], ...]:
    status: list[object] = []
    due: list[object] = []
    tries: list[object] = []
    transfers: list[object] = []
    reasons: list[object] = []
    for item in items:
        verdict = item.verdict
        status.append(status_after(verdict))
        due.append(verdict.until if isinstance(verdict, Wait) else None)
        tries.append(verdict.tries if isinstance(verdict, Wait) else item.claimed.tries)
        transfer = verdict.transfer_id if isinstance(verdict, Happened | Disputed) else None
        transfers.append(None if transfer is None else intents.storable(transfer))
        reasons.append(intents.storable(verdict.reason) if isinstance(verdict, Failed | Disputed) else None)
    results: list[object] = [ids.get(item.claimed.name) for item in items]
    return status, due, tries, transfers, reasons, results, [item.ask_first for item in items]


def _token(items: Sequence[SettlementResult]) -> str:
    """The same results under the same claims give the same keys of postings, however often they are run."""
    hashed = hashlib.sha256()
    for item in items:
        hashed.update(item.claimed.id.bytes + item.claimed.claim_number.to_bytes(8, "big"))
    return hashed.hexdigest()[:32]


def _moved(row: ClaimedSettlement, move: Move) -> PayoutMoved:
    return PayoutMoved(
        row.tenant, move, row.provider, row.currency, PayoutItem(row.name, row.squad_id, row.amount_micros)
    )


async def _run(connection: Connection, claims: Sequence[Claim]) -> None:
    if not claims:
        return
    answers = await batch.run(PostgresTransaction(connection), claims, patient=True)
    for claim_, answer in zip(claims, answers, strict=True):
        if not isinstance(answer, Committed | Duplicate):
            raise PostingRefused(claim_.tenant, str(answer))


def _names(rows: Sequence[ClaimedSettlement]) -> tuple[list[int], list[int], list[int]]:
    return [row.tenant.number for row in rows], [row.number for row in rows], [row.claim_number for row in rows]


def claimed_row(row: asyncpg.Record) -> ClaimedSettlement:
    """A row that a claiming statement returned."""
    name = settlement_name(row["id"].bytes)
    return ClaimedSettlement(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        number=row["number"],
        id=row["id"],
        attribution_id=row["attribution_id"],
        squad_id=row["squad_id"],
        currency=row["currency"],
        net_micros=row["net_micros"],
        amount_micros=row["amount_micros"],
        provider=row["provider"],
        destination=row["destination"],
        generation=row["generation"],
        key=row["key"],
        created_at=row["created_at"],
        claim_number=row["claim_number"],
        tries=row["tries"],
        ask_first=row["ask_first"],
        now=row["now"],
        name=name,
        instruction=Transfer(
            key=row["key"],
            destination=row["destination"],
            amount_micros=row["amount_micros"],
            currency=row["currency"],
            description=name,
        ),
    )
