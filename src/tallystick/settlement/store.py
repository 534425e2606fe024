"""Settlements on PostgreSQL: create many in one transaction, read, list, the tenant's fee."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.audit.author import current
from tallystick.authority import approvals
from tallystick.authority import store as authority
from tallystick.authority.rules import DAY_CEILING_REACHED, OTHER_POLICY
from tallystick.commit.group import SET_ASIDE, SetAside
from tallystick.commit.port import Contended
from tallystick.database.pool import Connection, Database
from tallystick.errors import require
from tallystick.keys.derived import FORMS, operation_id
from tallystick.keys.names import settlement_id, settlement_name
from tallystick.ledger import batch
from tallystick.ledger.account import store as accounts_of_ledger
from tallystick.ledger.claims import Claim, Known, Tenant, replay
from tallystick.ledger.outcome import Committed, Rejected
from tallystick.ledger.store import PostgresTransaction
from tallystick.money.amounts import format_amount
from tallystick.movement.life import store as life
from tallystick.settlement.postings import (
    SettlementCreated,
    claim_of,
    clearing,
    created_kind,
    fees,
    in_transit,
    paid_out,
    payable,
)
from tallystick.settlement.rules import STATUSES, Status
from tallystick.settlement.terms import (
    NO_FEE,
    Policy,
    Terms,
    conflict,
    first_key,
    identity,
    payout_approval,
    terms,
)

_SQL = queries.load(__package__, "store.sql")
_BEYOND_EVERY_NUMBER: Final = 2**63 - 1
# The database computed another fee than we did, or found a payout beyond the policy.
OTHER_POLICIES: Final = ("TS006", OTHER_POLICY)
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000


class SettlementView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A settlement as callers see it. `residue_micros` is below what the provider can write and stays payable.

    `source` is the account that was debited, where that is not clearing; `approval` what a second person decides about,
    where it was held for one.
    """

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
    source: str | None = None
    approval: str | None = None


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A settlement somebody wants created, under his own key.

    `step_micros` is the smallest amount the provider can write; `key_form` is how it writes our keys.
    """

    tenant: Tenant
    key: str
    operation: SettlementCreated
    step_micros: int
    key_form: str
    author: str = msgspec.field(default_factory=current)

    @property
    def id(self) -> UUID:
        """The settlement's."""
        return identity(self.tenant.name, self.operation.attribution_id, self.operation.squad_id)


class Fresh(NamedTuple):
    """A wish that is being made, what it is worth, and whether it waits for a second person."""

    wish: Wish
    worth: Terms
    needs_approval: bool


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


class _NothingMade(Exception):
    """Every wish of a batch was refused."""

    def __init__(self, answers: "Sequence[Made | Rejected | SetAside]") -> None:
        super().__init__("nothing was made")
        self.answers = answers


class CreateWork:
    """Group commit's work: create settlements, one transaction for all that ask."""

    def __init__(self, database: Database) -> None:
        """Writes as the owner."""
        self._database = database

    async def commit(self, items: Sequence[Wish], *, patient: bool) -> Sequence[Made | Rejected | SetAside]:
        """Each wish's settlement: made now, or before; or why there is none."""
        try:
            async with self._database.writing() as connection:
                answers = await create(connection, items, patient=patient)
                if not any(isinstance(answer, Made) for answer in answers):
                    # Rolled back: a refusal leaves nothing behind, not even an empty account.
                    raise _NothingMade(answers)  # noqa: TRY301 - out of the transaction
                return answers
        except _NothingMade as nothing:
            return nothing.answers
        except asyncpg.PostgresError as error:
            if error.sqlstate in OTHER_POLICIES:
                raise Contended("the tenant's fee, or its policy, was changed meanwhile", held=False) from error
            raise


async def create(
    connection: Connection, wishes: Sequence[Wish], *, patient: bool = True
) -> list[Made | Rejected | SetAside]:
    """Create settlements inside the caller's transaction. Order of the answers is that of the wishes.

    What the ledger refuses is refused alone. Impatient: what needs an account that somebody holds is set aside.
    """
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
    lines = await connection.fetch(_SQL["policies"], sorted({wish.tenant.number for wish in wishes}))
    policies = _policies(lines)
    judge = authority.Judge(connection)
    await judge.read(
        [line for line in lines if line["currency"] is None], [(wish.tenant.number, wish.operation) for wish in wishes]
    )
    fresh: dict[tuple[int, UUID], Fresh] = {}
    answers: list[Made | Rejected | SetAside | None] = [None] * len(wishes)
    for position, (wish, name) in enumerate(zip(wishes, names, strict=True)):
        stored, place = known.get(name), (wish.tenant.number, wish.id)
        if (wish.tenant.number, wish.key) in decided:
            answers[position] = _vanished(wish)
        elif stored is None and place not in rows and place not in fresh:
            found = _judged(wish, _policy(policies, wish), judge)
            if isinstance(found, Rejected):
                answers[position] = found
                continue
            fresh[place] = found
            known[name] = Known(wish.key, _claim(wish, found.worth).request, b"")
    refused: dict[tuple[int, UUID], Rejected | SetAside] = {}
    if fresh:
        refused = await _make(connection, transaction, list(fresh.values()), patient=patient)
        rows |= await _rows(connection, [(one.wish.tenant, one.wish.id) for one in fresh.values()])
    makers = {id(one.wish) for one in fresh.values()}

    def answer(
        wish: Wish, stored: Known | None, given: Made | Rejected | SetAside | None
    ) -> Made | Rejected | SetAside:
        is_maker, unmade = id(wish) in makers, refused.get((wish.tenant.number, wish.id))
        if refused and isinstance(given, Rejected) and given.code == DAY_CEILING_REACHED:
            # One before it was counted, and then had no money: it looks again.
            return SET_ASIDE
        if given is None and unmade is not None:
            # A twin of what was not made looks again: the refusal was of the first one's own words.
            return unmade if is_maker else SET_ASIDE
        return given or _answer(wish, stored, rows.get((wish.tenant.number, wish.id)), is_maker=is_maker)

    return [answer(wish, known.get(name), given) for wish, name, given in zip(wishes, names, answers, strict=True)]


def _judged(wish: Wish, fee: Policy, judge: authority.Judge) -> Fresh | Rejected:
    worth = terms(wish.operation, fee, step_micros=wish.step_micros)
    if isinstance(worth, Rejected):
        return worth
    verdict = judge.judge(wish.tenant.number, wish.operation, wish.author)
    return verdict if isinstance(verdict, Rejected) else Fresh(wish, worth, verdict.needs_approval)


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
    refusal = conflict(wish.operation, wish_of(row), settlement_name(row["id"].bytes))
    return refusal or Made(view(row), is_new=False)


def _vanished(wish: Wish) -> Rejected:
    # The key belongs to an operation of another kind that happens to look alike; nothing of it is a settlement.
    return Rejected(
        "key_reused",
        f"The idempotency key {wish.key!r} was used for something that is no settlement.",
        "Use a new key for a new request.",
    )


async def _make(
    connection: Connection, transaction: PostgresTransaction, fresh: "Sequence[Fresh]", *, patient: bool
) -> dict[tuple[int, UUID], Rejected | SetAside]:
    """Post and write them; those that were not made, and why."""
    await _ensure_accounts(connection, [one.wish for one in fresh])
    claims = [_claim(one.wish, one.worth) for one in fresh]
    at: datetime | None = None
    made: list[Fresh] = []
    refused: dict[tuple[int, UUID], Rejected | SetAside] = {}
    for one, answer in zip(fresh, await batch.run(transaction, claims, patient=patient), strict=True):
        match answer:
            case Committed():
                at = answer.transaction.at
                made.append(one)
            case Rejected() | SetAside():
                refused[one.wish.tenant.number, one.wish.id] = answer
            case _:
                raise Contended("a key was used meanwhile", held=False)
    if made:
        await _write(connection, made, at)
    return refused


async def _write(connection: Connection, fresh: "Sequence[Fresh]", at: datetime | None) -> None:
    # Before any of them is there: what is noticed is dated by the newest that was.
    is_trusted = await life.notice(connection, hold=True)
    wishes = [one.wish for one in fresh]
    operations = [wish.operation for wish in wishes]
    keys = [first_key(one.wish.tenant.name, one.wish.operation, one.worth.net_micros) for one in fresh]
    await connection.execute(
        _SQL["create"],
        [wish.tenant.number for wish in wishes],
        [wish.id for wish in wishes],
        [operation.attribution_id for operation in operations],
        [operation.squad_id for operation in operations],
        [operation.currency for operation in operations],
        [operation.gross_micros for operation in operations],
        [one.worth.fee_micros for one in fresh],
        [one.worth.net_micros for one in fresh],
        [one.worth.amount_micros for one in fresh],
        [operation.provider for operation in operations],
        [operation.destination for operation in operations],
        keys,
        at,
        [operation.source for operation in operations],
        [one.needs_approval for one in fresh],
    )
    held = [one.wish for one in fresh if one.needs_approval]
    if held:
        await authority.ask(connection, [_asking(wish) for wish in held])
    await _ask_about_orphans(connection, wishes, keys, is_trusted=is_trusted)


def _asking(wish: Wish) -> tuple[int, UUID, UUID, str, str]:
    operation = wish.operation
    why = (
        f"A payout of {format_amount(operation.gross_micros, operation.currency)} to {operation.destination:.200} at "
        f"{operation.provider}, for attribution {operation.attribution_id} of squad {operation.squad_id}."
    )
    return wish.tenant.number, payout_approval(wish.id), wish.id, why, wish.author


async def _ask_about_orphans(
    connection: Connection, wishes: Sequence[Wish], keys: Sequence[bytes], *, is_trusted: bool
) -> None:
    """What a provider already has of it (its row was lost with a restore) is asked about, not sent."""
    references = [FORMS[wish.key_form](key) for wish, key in zip(wishes, keys, strict=True)]
    rows = await connection.fetch(
        _SQL["orphaned"],
        [wish.operation.provider for wish in wishes],
        references,
        [wish.id for wish in wishes],
    )
    asked = [wishes[row["place"] - 1] for row in rows]
    if not is_trusted:
        # While somebody distrusts this database, anything may have been sent by the life that was lost.
        asked = list(wishes)
    if asked:
        await connection.execute(_SQL["ask_first"], [wish.tenant.number for wish in asked], [wish.id for wish in asked])


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
        source=row["source"],
        approval=approvals.approval_name(payout_approval(row["id"])) if row["needs_approval"] else None,
    )


def _as_created(row: asyncpg.Record, tenant: Tenant) -> SettlementView:
    """As it was when it was made: a replay is the same to the byte, whatever has become of it."""
    key = first_key(tenant.name, wish_of(row), row["net_micros"])
    return msgspec.structs.replace(
        view(row),
        status="held" if row["needs_approval"] else "pending",
        idempotency_key=key.hex(),
        generation=0,
        transfer_id=None,
        reason=None,
        tries=0,
        changed_at=row["created_at"],
    )


def wish_of(row: asyncpg.Record) -> SettlementCreated:
    """What somebody wished for, of a settlement that is there."""
    return SettlementCreated(**{field: row[field] for field in SettlementCreated.__struct_fields__})


def _claim(wish: Wish, worth: Terms) -> Claim:
    claim = claim_of(wish.tenant, created_kind(worth.fee_micros), wish.operation, wish.key)
    return msgspec.structs.replace(claim, author=wish.author)


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


def _policies(lines: Sequence[asyncpg.Record]) -> Mapping[tuple[int, str], Policy]:
    return {
        (row["tenant_id"], row["currency"]): Policy(
            percent_ppm=row["percent_ppm"], fixed_micros=row["fixed_micros"], minimum_micros=row["minimum_micros"]
        )
        for row in lines
        if row["currency"] is not None
    }


def _policy(policies: Mapping[tuple[int, str], Policy], wish: Wish) -> Policy:
    number, currency = wish.tenant.number, wish.operation.currency
    return policies.get((number, currency)) or policies.get((number, "")) or NO_FEE


async def _ensure_accounts(connection: Connection, wishes: Sequence[Wish]) -> None:
    wanted: dict[tuple[int, str], tuple[str, int | None, str]] = {}
    for wish in wishes:
        of, currency, provider = wish.tenant.number, wish.operation.currency, wish.operation.provider
        accounts: list[tuple[str, int | None]] = [
            (paid_out(provider, currency), None),
            (in_transit(provider, currency), 0),
            (fees(currency), 0),
            (payable(wish.operation.squad_id, currency), 0),
        ]
        if wish.operation.source is None:
            # What is paid out came in before: without a floor anybody could be promised anything.
            accounts.append((clearing(currency), 0))
        for account, floor in accounts:
            wanted.setdefault((of, account), (currency, floor, wish.author))
    await accounts_of_ledger.ensure(connection, wanted)
