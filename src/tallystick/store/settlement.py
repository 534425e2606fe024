"""Settlements on PostgreSQL: create many in one transaction, read, list, the tenant's fee."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.core.idempotency import Claim, Known, Tenant, replay
from tallystick.core.keys import FORMS, operation_id
from tallystick.core.outcome import Committed, Rejected
from tallystick.core.settlement import STATUSES, Status, settlement_id, settlement_name
from tallystick.core.settlement_ledger import (
    SettlementCreated,
    claim_of,
    clearing,
    created_kind,
    fees,
    in_transit,
    paid_out,
    payable,
)
from tallystick.core.settlement_terms import NO_FEE, Policy, Terms, conflict, first_key, identity, terms
from tallystick.engine import batch
from tallystick.engine.port import Contended
from tallystick.errors import require
from tallystick.store.database import Connection, Database
from tallystick.store.operation import PostgresTransaction

_SQL = queries.load(__package__, "settlement.sql")
_BEYOND_EVERY_NUMBER: Final = 2**63 - 1
# The database computed another fee than we did.
_OTHER_FEE: Final = "TS006"
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000


class SettlementView(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement as callers see it. `residue_micros` is below what the provider can write and stays payable."""

    id: str
    status: Status
    attribution_id: str
    squad_id: str
    gross_micros: int
    fee_micros: int
    net_micros: int
    amount_micros: int
    residue_micros: int
    currency: str
    provider: str
    destination: str
    idempotency_key: str
    generation: int
    transfer_id: str | None
    reason: str | None
    tries: int
    created_at: datetime
    changed_at: datetime


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement somebody wants created, under his own key.

    `step_micros` is the smallest amount the provider can write; `key_form` is how it writes our keys.
    """

    tenant: Tenant
    key: str
    operation: SettlementCreated
    step_micros: int
    key_form: str

    @property
    def id(self) -> UUID:
        """The settlement's."""
        return identity(self.tenant.name, self.operation.attribution_id, self.operation.squad_id)


class Made(msgspec.Struct, frozen=True):
    """A settlement that exists now. `is_replayed`: this very key made it before; `is_new` False: another one did."""

    view: SettlementView
    is_new: bool
    is_replayed: bool = False


class EventView(msgspec.Struct, frozen=True):
    """Something that happened to a settlement, beside its postings."""

    at: datetime
    what: str
    by: str
    body: msgspec.Raw


class PolicyView(msgspec.Struct, frozen=True):
    """A tenant's fee. `currency` empty: every currency without a line of its own."""

    currency: str
    percent_ppm: int
    fixed_micros: int
    minimum_micros: int
    changed_by: str
    changed_at: datetime


class CreateWork:
    """Group commit's work: create settlements, one transaction for all that ask."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def commit(
        self,
        items: Sequence[Wish],
        *,
        patient: bool,  # noqa: ARG002 - accounts of settlements are held for one commit only
    ) -> Sequence[Made | Rejected]:
        """Each wish's settlement: made now, or before."""
        try:
            async with self._database.writing() as connection:
                return await create(connection, items)
        except asyncpg.PostgresError as error:
            if error.sqlstate == _OTHER_FEE:
                raise Contended("the tenant's fee was changed meanwhile", held=False) from error
            raise


async def create(connection: Connection, wishes: Sequence[Wish]) -> list[Made | Rejected]:
    """Create settlements inside the caller's transaction. Order of the answers is that of the wishes."""
    transaction = PostgresTransaction(connection)
    names = [(wish.tenant.number, operation_id(wish.tenant.name, wish.key)) for wish in wishes]
    # Rows, then keys, then rows again: a twin that commits meanwhile is seen with its key, and told as a replay.
    places = [(wish.tenant, wish.id) for wish in wishes]
    rows = await _rows(connection, places)
    known = dict(await transaction.read(dict.fromkeys(names)))
    if any(
        name in known and (tenant.number, id_) not in rows for name, (tenant, id_) in zip(names, places, strict=True)
    ):
        rows = await _rows(connection, places)
    decided = await _decided(connection, wishes)
    policies = await _policies(connection, {wish.tenant.number for wish in wishes})
    fresh: dict[tuple[int, UUID], tuple[Wish, Terms]] = {}
    answers: list[Made | Rejected | None] = [None] * len(wishes)
    for position, (wish, name) in enumerate(zip(wishes, names, strict=True)):
        stored, place = known.get(name), (wish.tenant.number, wish.id)
        if (wish.tenant.number, wish.key) in decided:
            answers[position] = _vanished(wish)
        elif stored is None and place not in rows and place not in fresh:
            worth = terms(wish.operation, _policy(policies, wish), step_micros=wish.step_micros)
            if isinstance(worth, Rejected):
                answers[position] = worth
                continue
            fresh[place] = (wish, worth)
            known[name] = Known(wish.key, _claim(wish, worth).request, b"")
    if fresh:
        await _make(connection, transaction, list(fresh.values()))
        rows |= await _rows(connection, [(wish.tenant, wish.id) for wish, _ in fresh.values()])
    makers = {id(wish) for wish, _ in fresh.values()}
    for position, (wish, name) in enumerate(zip(wishes, names, strict=True)):
        if answers[position] is None:
            row = rows.get((wish.tenant.number, wish.id))
            answers[position] = _answer(wish, known.get(name), row, is_maker=id(wish) in makers)
    return [answer for answer in answers if answer is not None]


def _answer(wish: Wish, stored: Known | None, row: asyncpg.Record | None, *, is_maker: bool) -> Made | Rejected:
    if is_maker and row is not None:
        return Made(_as_created(row, wish.tenant), is_new=True)
    if stored is not None:
        claim = _claim(wish, Terms(fee_micros=0, net_micros=0, amount_micros=0))
        answer = replay(claim, stored)
        if isinstance(answer, Rejected) or row is None:
            return answer if isinstance(answer, Rejected) else _vanished(wish)
        return Made(_as_created(row, wish.tenant), is_new=True, is_replayed=True)
    if row is None:
        return _vanished(wish)
    refusal = conflict(wish.operation, _wish_of(row), settlement_name(row["id"].bytes))
    return refusal or Made(view(row), is_new=False)


def _vanished(wish: Wish) -> Rejected:
    # The key belongs to an operation of another kind that happens to look alike; nothing of it is a settlement.
    return Rejected(
        "key_reused",
        f"The idempotency key {wish.key!r} was used for something that is no settlement.",
        "Use a new key for a new request.",
    )


async def _make(connection: Connection, transaction: PostgresTransaction, fresh: Sequence[tuple[Wish, Terms]]) -> None:
    await _ensure_accounts(connection, [wish for wish, _ in fresh])
    claims = [_claim(wish, worth) for wish, worth in fresh]
    at: datetime | None = None
    for answer in await batch.run(transaction, claims, patient=True):
        match answer:
            case Committed():
                at = answer.transaction.at
            case Rejected():
                raise LedgerRefused(answer)
            case _:
                raise Contended("a key was used meanwhile", held=False)
    operations = [wish.operation for wish, _ in fresh]
    keys = [first_key(wish.tenant.name, wish.operation, worth.net_micros) for wish, worth in fresh]
    await connection.execute(
        _SQL["create"],
        [wish.tenant.number for wish, _ in fresh],
        [wish.id for wish, _ in fresh],
        [operation.attribution_id for operation in operations],
        [operation.squad_id for operation in operations],
        [operation.currency for operation in operations],
        [operation.gross_micros for operation in operations],
        [worth.fee_micros for _, worth in fresh],
        [worth.net_micros for _, worth in fresh],
        [worth.amount_micros for _, worth in fresh],
        [operation.provider for operation in operations],
        [operation.destination for operation in operations],
        keys,
        at,
    )
    await _ask_about_orphans(connection, [wish for wish, _ in fresh], keys)


async def _ask_about_orphans(connection: Connection, wishes: Sequence[Wish], keys: Sequence[bytes]) -> None:
    """What a provider already has of it (its row was lost with a restore) is asked about, not sent."""
    references = [FORMS[wish.key_form](key) for wish, key in zip(wishes, keys, strict=True)]
    rows = await connection.fetch(
        _SQL["orphaned"],
        [wish.operation.provider for wish in wishes],
        references,
        [wish.id for wish in wishes],
    )
    asked = [wishes[row["place"] - 1] for row in rows]
    if not await connection.fetchval(_SQL["is_here"]):
        # While a restored database is not confirmed, anything may have been sent by the life that was lost.
        asked = list(wishes)
    if asked:
        await connection.execute(_SQL["ask_first"], [wish.tenant.number for wish in asked], [wish.id for wish in asked])


class LedgerRefused(Exception):
    """The ledger refuses one of the batch; alone, its wish gets the refusal."""

    def __init__(self, refusal: Rejected) -> None:
        """As the ledger said it."""
        super().__init__(refusal.code)
        self.refusal = refusal


async def read(database: Database, tenant: Tenant, name: str) -> SettlementView | Rejected:
    """One settlement by its id."""
    row = await row_of(database, tenant, name)
    return row if isinstance(row, Rejected) else view(row)


async def row_of(database: Database, tenant: Tenant, name: str) -> asyncpg.Record | Rejected:
    """One settlement by its id, with everything that is stored of it."""
    id_ = settlement_id(name)
    if id_ is not None:
        async with database.reading(tenant.number) as connection:
            rows = await connection.fetch(_SQL["by_ids"], [tenant.number], [id_])
        if rows:
            return rows[0]
    return unknown(name)


def unknown(name: str) -> Rejected:
    """The refusal for a settlement this tenant does not have."""
    return Rejected(
        "settlement_unknown",
        f"There is no settlement {name!r:.80}.",
        "Use the id that creating it returned (st_ and 32 hexadecimal digits).",
    )


async def list_settlements(
    database: Database,
    tenant: Tenant,
    *,
    status: Status | None = None,
    squad_id: str | None = None,
    stuck: bool = False,
    before: int | None = None,
    most: int,
) -> tuple[list[SettlementView], int | None]:
    """A page, newest first, and the cursor of the next. `stuck`: processing and overdue by the database's clock."""
    filters, arguments = "", []
    if status is not None:
        require(status in STATUSES, "a status is one of five")
        # Spelled out, because the partial indexes are found by it.
        filters += f" AND st.status = '{status}'"
    if stuck:
        filters += " AND st.status = 'processing' AND st.due_at <= clock_timestamp()"
    if squad_id is not None:
        filters += " AND s.squad_id = $4"
        arguments.append(squad_id)
    statement = _SQL["list"].replace("{filters}", filters)
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(statement, tenant.number, before or _BEYOND_EVERY_NUMBER, most + 1, *arguments)
    page = [view(row) for row in rows[:most]]
    return page, rows[most - 1]["number"] if len(rows) > most else None


async def events(database: Database, tenant: Tenant, id_: UUID) -> list[EventView]:
    """What happened to a settlement, oldest first."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["events"], tenant.number, id_)
    return [EventView(row["at"], row["what"], row["by"], msgspec.Raw(row["body"])) for row in rows]


async def find_by_transfer(database: Database, tenant: Tenant, transfer_id: str) -> list[str]:
    """Settlements that the provider knows under this id."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["by_transfer"], tenant.number, transfer_id)
    return [settlement_name(row["id"].bytes) for row in rows]


async def policy(database: Database, tenant: Tenant) -> list[PolicyView]:
    """The tenant's fees."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["policy"], tenant.number)
    return [PolicyView(*row) for row in rows]


async def put_policy(database: Database, tenant: Tenant, currency: str, fee: Policy, *, by: str) -> None:
    """Change the tenant's fee for settlements created from now on. Journaled. Raises InFlight and Unreachable."""
    async with database.stepping() as connection:
        await connection.execute(
            _SQL["put_policy"], tenant.number, currency, fee.percent_ppm, fee.fixed_micros, fee.minimum_micros, by
        )


async def figures(database: Database) -> tuple[dict[str, int], dict[str, float], dict[str, int]]:
    """Counts of all days; the oldest processing row's age in seconds, by provider; rows that wait (bounded)."""
    async with database.owning() as connection:
        counts = {row["name"]: row["value"] for row in await connection.fetch(_SQL["counts"])}
        ages = {row["provider"]: row["oldest_seconds"] for row in await connection.fetch(_SQL["ages"])}
        ((pending, disputed),) = await connection.fetch(_SQL["waiting"], _MOST_COUNTED)
    return counts, ages, {"pending": pending, "disputed": disputed}


def view(row: asyncpg.Record) -> SettlementView:
    """A stored row as callers see it."""
    return SettlementView(
        id=settlement_name(row["id"].bytes),
        status=row["status"],
        attribution_id=row["attribution_id"],
        squad_id=row["squad_id"],
        gross_micros=row["gross_micros"],
        fee_micros=row["fee_micros"],
        net_micros=row["net_micros"],
        amount_micros=row["amount_micros"],
        residue_micros=row["net_micros"] - row["amount_micros"],
        currency=row["currency"],
        provider=row["provider"],
        destination=row["destination"],
        idempotency_key=row["key"].hex(),
        generation=row["generation"],
        transfer_id=row["transfer_id"],
        reason=row["reason"],
        tries=row["tries"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
    )


def _as_created(row: asyncpg.Record, tenant: Tenant) -> SettlementView:
    """As it was when it was made: a replay is the same to the byte, whatever has become of it."""
    key = first_key(tenant.name, _wish_of(row), row["net_micros"])
    return msgspec.structs.replace(
        view(row),
        status="pending",
        idempotency_key=key.hex(),
        generation=0,
        transfer_id=None,
        reason=None,
        tries=0,
        changed_at=row["created_at"],
    )


def _wish_of(row: asyncpg.Record) -> SettlementCreated:
    return SettlementCreated(**{field: row[field] for field in SettlementCreated.__struct_fields__})


def _claim(wish: Wish, worth: Terms) -> Claim:
    return claim_of(wish.tenant, created_kind(worth.fee_micros), wish.operation, wish.key)


async def _rows(
    connection: Connection, wanted: Sequence[tuple[Tenant, UUID]]
) -> dict[tuple[int, UUID], asyncpg.Record]:
    tenants, ids = [tenant.number for tenant, _ in wanted], [id_ for _, id_ in wanted]
    rows = await connection.fetch(_SQL["by_ids"], tenants, ids)
    return {(row["tenant_id"], row["id"]): row for row in rows}


async def _decided(connection: Connection, wishes: Sequence[Wish]) -> set[tuple[int, str]]:
    """Keys that a person's decision was made under: they cannot create anything as well."""
    rows = await connection.fetch(
        _SQL["decided"], [wish.tenant.number for wish in wishes], [wish.key for wish in wishes]
    )
    return {(row["tenant_id"], row["key"]) for row in rows}


async def _policies(connection: Connection, tenants: set[int]) -> Mapping[tuple[int, str], Policy]:
    return {
        (row["tenant_id"], row["currency"]): Policy(
            percent_ppm=row["percent_ppm"], fixed_micros=row["fixed_micros"], minimum_micros=row["minimum_micros"]
        )
        for row in await connection.fetch(_SQL["policies"], sorted(tenants))
    }


def _policy(policies: Mapping[tuple[int, str], Policy], wish: Wish) -> Policy:
    number, currency = wish.tenant.number, wish.operation.currency
    return policies.get((number, currency)) or policies.get((number, "")) or NO_FEE


async def _ensure_accounts(connection: Connection, wishes: Sequence[Wish]) -> None:
    wanted: dict[tuple[int, str], tuple[str, int | None]] = {}
    for wish in wishes:
        of, currency, provider = wish.tenant.number, wish.operation.currency, wish.operation.provider
        for account, floor in (
            (clearing(currency), None),
            (paid_out(provider, currency), None),
            (in_transit(provider, currency), 0),
            (fees(currency), 0),
            (payable(wish.operation.squad_id, currency), 0),
        ):
            wanted[of, account] = (currency, floor)
    places = sorted(wanted)
    await connection.execute(
        _SQL["ensure_accounts"],
        [of for of, _ in places],
        [account for _, account in places],
        [wanted[place][0] for place in places],
        [wanted[place][1] for place in places],
    )
