"""Settlements on a real database against a real simulator, for the tests.

Shop       database, providers, settler and the rest of one process, at one tenant's disposal
pass_time  everything that is stored of the past becomes older; decisions go by the database's clock
books      what the provider's own books say
halves     the two compared: doubled, lost, mismatched
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

import asyncpg

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.keys.derived import hex64, uuid_form
from tallystick.keys.names import settlement_id, settlement_name
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement.flow import Sender
from tallystick.movement.steps import Patience
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS, Limits
from tallystick.settlement import store
from tallystick.settlement.flow import Settlements
from tallystick.settlement.postings import SettlementCreated, clearing
from tallystick.settlement.rules import Status
from tallystick.settlement.store import EventView, Made, SettlementView
from tallystick.settlement.terms import Policy
from tallystick.settlement.tick.flow import Settler, Ticked
from tallystick.simulator.amounts import decimals
from tests.providers.worlds import Control

PATIENCE = Patience(stuck_after=timedelta(seconds=300), budget=8)
# More than a claim, a permit and the longest time in flight together: what was sent before can no longer be on its way.
A_WHILE = timedelta(minutes=20)
A_DAY = timedelta(days=1)
# What a wish says where a test says nothing.
SIMULATED = {"provider": "simulator", "destination": "acct_good", "currency": "EUR", "gross_micros": 12_340_000}

# Every moment that a later decision looks at, by table. What the journal says of them stays as it was written.
_MOMENTS: Mapping[str, Sequence[str]] = {
    "tally.settlement": ("created_at",),
    "tally.settlement_state": ("claimed_at", "due_at", "processing_since", "changed_at"),
    "tally.settlement_event": ("at",),
    "tally.intent": ("first_sent_at", "since"),
    "tally.attempt": ("sent_at", "not_after", "answered_at"),
    "tally.approval": ("asked_at", "decided_at"),
    "tally.webhook_events": ("processing_until", "due_at"),
    "tally.whereabouts": ("confirmed_at",),
    "tally.life": ("known_until", "began_at"),
}
_PAGE = 10_000


def superuser(dsn: str) -> str:
    """The same database, as somebody whom no trigger stops."""
    return dsn.replace("tally@", "postgres@")


async def pass_time(dsn: str, span: timedelta) -> None:
    """Let that much time pass, in the database: what is stored becomes older, and now stays now."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            # Without the triggers that keep all of this as it was.
            await connection.execute("SET LOCAL session_replication_role = replica")
            for table, columns in _MOMENTS.items():
                moved = ", ".join(f"{column} = {column} - $1::interval" for column in columns)
                await connection.execute(f"UPDATE {table} SET {moved}", span)
    finally:
        await connection.close()


async def open_clearing(database: Database, tenant: Tenant, *currencies: str) -> None:
    """Let a tenant promise what has not come in, as those can who were there before clearing had a floor."""
    for currency in currencies:
        name = clearing(currency)
        async with database.owning() as connection:
            is_there = await connection.fetchval(
                "SELECT true FROM tally.account WHERE tenant_id = $1 AND id = $2", tenant.number, name
            )
        if not is_there:
            await account.put(database, tenant, name, currency=currency, floor_micros=None, limits=())


async def empty(dsn: str) -> None:
    """As if nothing had ever happened in this database: many tests need an empty one, and making one takes a second."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            tables = await connection.fetch(
                "SELECT format('tally.%I', tablename) AS name FROM pg_tables"
                " WHERE schemaname = 'tally'"
                " AND tablename NOT IN ('migration', 'whereabouts', 'tenant', 'tenant_secret', 'installation',"
                " 'installation_secret')"
            )
            # Of a few rows: a TRUNCATE would make every file of every index anew.
            await connection.execute("; ".join(f"DELETE FROM {table['name']}" for table in tables))
    finally:
        await connection.close()


@dataclass(frozen=True)
class Moved:
    """One movement in the provider's own books. Its amount is in micros, whatever the provider writes."""

    dialect: str
    kind: str
    id: str
    reference: str
    amount_micros: int
    currency: str
    state: str


def books(control: Control, dialect: str = "") -> list[Moved]:
    """Payouts that moved money, of one dialect or all, oldest first: what came back later is among them, `returned`."""
    found: list[Moved] = []
    after = 0
    while True:
        page = control.call("GET", f"movements?dialect={dialect}&after={after}&limit={_PAGE}")
        found += [_moved(row) for row in page if row["kind"] in ("transfer", "payout")]
        if len(page) < _PAGE:
            return found
        after = page[-1]["number"]


def _moved(row: Mapping[str, Any]) -> Moved:
    currency = row["currency"].upper()
    # Wise writes decimals of the major unit, which the simulator keeps in micros; the others write minor units.
    factor = 1 if row["dialect"] == "wise" else 10 ** (6 - decimals(row["dialect"], currency))
    return Moved(
        row["dialect"], row["kind"], row["id"], row["reference"], row["amount"] * factor, currency, row["state"]
    )


@dataclass(frozen=True)
class Row:
    """A settlement as the database has it. `keys` are those of all its generations."""

    name: str
    status: Status
    reason: str | None
    transfer_id: str | None
    amount_micros: int
    currency: str
    provider: str
    keys: tuple[bytes, ...]

    @property
    def references(self) -> set[str]:
        """How the provider's books may name it."""
        return {form(key) for key in self.keys for form in (hex64, uuid_form)}


@dataclass
class Halves:
    """What a comparison of both halves found. All but `disputed` must be empty once everything is decided."""

    # Money moved twice for one settlement, or moved for none of ours.
    doubled: list[tuple[Row | None, list[Moved]]] = field(default_factory=list)
    # Called transferred, and the provider has nothing, or had it back.
    lost: list[Row] = field(default_factory=list)
    # Called failed though it moved; another amount, currency or id than ours.
    mismatched: list[tuple[Row, list[Moved]]] = field(default_factory=list)
    # Pending or processing still.
    open: list[tuple[Row, list[Moved]]] = field(default_factory=list)
    # For a person, with what the books say.
    disputed: list[tuple[Row, list[Moved]]] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Nothing doubled, nothing lost, nothing else that differs."""
        return not (self.doubled or self.lost or self.mismatched)


async def rows(dsn: str) -> list[Row]:
    """Every settlement of every tenant."""
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(
            "SELECT s.id, st.status, st.reason, st.transfer_id, s.amount_micros, s.currency, s.provider, s.key, k.keys"
            "  FROM tally.settlement s JOIN tally.settlement_state st USING (tenant_id, number)"
            "  LEFT JOIN (SELECT tenant_id, subject, array_agg(key) AS keys FROM tally.intent"
            "              WHERE subject IS NOT NULL GROUP BY 1, 2) k ON k.tenant_id = s.tenant_id AND k.subject = s.id"
            " ORDER BY s.tenant_id, s.number"
        )
    finally:
        await connection.close()
    return [
        Row(
            name=settlement_name(row["id"].bytes),
            status=row["status"],
            reason=row["reason"],
            transfer_id=row["transfer_id"],
            amount_micros=row["amount_micros"],
            currency=row["currency"],
            provider=row["provider"],
            keys=tuple({row["key"], *(row["keys"] or ())}),
        )
        for row in found
    ]


def compare(settlements: Iterable[Row], movements: Iterable[Moved]) -> Halves:
    """Hold one half against the other."""
    by_reference: dict[str, list[Moved]] = {}
    for movement in movements:
        by_reference.setdefault(movement.reference, []).append(movement)
    halves = Halves()
    for row in settlements:
        halves.statuses[row.status] = halves.statuses.get(row.status, 0) + 1
        moved = [movement for reference in row.references for movement in by_reference.pop(reference, ())]
        _compare_one(row, moved, halves)
    # Nobody here asked for these.
    halves.doubled += [(None, strangers) for strangers in by_reference.values()]
    return halves


def _compare_one(row: Row, moved: list[Moved], halves: Halves) -> None:
    # What came back is with us again: only what stays away can be too much.
    away = [movement for movement in moved if movement.state != "returned"]
    if len(away) > 1:
        halves.doubled.append((row, moved))
    match row.status:
        case "transferred":
            named = {(movement.id, movement.amount_micros, movement.currency) for movement in away}
            if not away:
                halves.lost.append(row)
            elif (row.transfer_id, row.amount_micros, row.currency) not in named:
                halves.mismatched.append((row, moved))
        case "failed":
            if away:
                halves.mismatched.append((row, moved))
        case "disputed":
            halves.disputed.append((row, moved))
        case "held" | "pending" | "processing":
            halves.open.append((row, moved))


async def halves(dsn: str, control: Control) -> Halves:
    """Both halves, from the database and from the simulator, compared."""
    return compare(await rows(dsn), books(control))


async def ledger_differences(dsn: str) -> dict[tuple[int, str], tuple[int, int]]:
    """Accounts of settlements that are not what the rows add up to: (tenant, account) to (balance, sum)."""
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(_EXPECTED)
    finally:
        await connection.close()
    return {(row["tenant_id"], row["account"]): (row["balance"], row["expected"]) for row in found}


_EXPECTED = """
WITH row AS (
    SELECT s.*, st.status IN ('processing', 'disputed') AS in_transit, st.status = 'transferred' AS paid
      FROM tally.settlement s JOIN tally.settlement_state st USING (tenant_id, number)
), expected AS (
    SELECT tenant_id, account, sum(micros) AS micros
      FROM row CROSS JOIN LATERAL (VALUES
           ('settlement:clearing:' || currency, -gross_micros),
           ('settlement:fees:' || currency, fee_micros),
           ('settlement:payable:' || currency || ':' || squad_id,
            net_micros - amount_micros * (in_transit OR paid)::integer),
           ('settlement:in_transit:' || currency || ':' || provider, amount_micros * in_transit::integer),
           ('settlement:paid_out:' || currency || ':' || provider, amount_micros * paid::integer)
      ) AS part (account, micros) GROUP BY 1, 2
)
SELECT tenant_id, account, coalesce(a.balance_micros, 0)::bigint AS balance, coalesce(e.micros, 0)::bigint AS expected
  FROM expected e
  FULL JOIN (SELECT tenant_id, id AS account, balance_micros FROM tally.account WHERE id LIKE 'settlement:%') AS a
       USING (tenant_id, account)
 WHERE coalesce(a.balance_micros, 0) <> coalesce(e.micros, 0)
"""


def _id(view: SettlementView) -> UUID:
    found = settlement_id(view.id)
    assert found is not None
    return found


class Shop:
    """One process that settles, as tenant `default`; its simulator has books of its own."""

    def __init__(
        self,
        dsn: str,
        control: Control,
        *,
        database: Database,
        tenant: Tenant,
        providers: Mapping[str, Provider],
        sender: Sender,
        settlements: Settlements,
        settler: Settler,
    ) -> None:
        """Use `shop`."""
        self.dsn = dsn
        self.control = control
        self.database = database
        self.tenant = tenant
        self.providers = providers
        self.sender = sender
        self.settlements = settlements
        self.settler = settler

    @cached_property
    def reviews(self) -> Any:
        """What people and webhooks do to settlements."""
        from tallystick.settlement.review.flow import Reviews  # noqa: PLC0415

        return Reviews(self.database)

    async def propose(
        self, attribution: str, *, key: str | None = None, tenant: Tenant | None = None, **fields: Any
    ) -> Made | Rejected:
        """Ask for a settlement, under a key of its own unless one is given."""
        wish = SettlementCreated(**{"attribution_id": attribution, "squad_id": "amber", **SIMULATED, **fields})
        own = f"create/{wish.squad_id}/{attribution}"
        if wish.source is None:
            await open_clearing(self.database, tenant or self.tenant, wish.currency)
        return await self.settlements.create(tenant or self.tenant, wish, key or own)

    async def create(self, attribution: str, **fields: Any) -> SettlementView:
        """A settlement that exists now."""
        made = await self.propose(attribution, **fields)
        assert isinstance(made, Made), made
        return made.view

    async def create_many(self, count: int, *, prefix: str = "a", squads: int = 20, **fields: Any) -> None:
        """Many, quickly: amounts and squads differ."""
        await open_clearing(self.database, self.tenant, str(fields.get("currency", SIMULATED["currency"])))
        for start in range(0, count, 1_000):
            wishes = [
                (
                    SettlementCreated(
                        **{
                            "attribution_id": f"{prefix}-{number}",
                            **SIMULATED,
                            "squad_id": f"squad-{number % squads}",
                            "gross_micros": 10_000_000 + number * 10_000,
                            **fields,
                        }
                    ),
                    f"create-{prefix}-{number}",
                )
                for number in range(start, min(start + 1_000, count))
            ]
            for made in await self.settlements.create_many(self.tenant, wishes):
                assert isinstance(made, Made), made

    async def set_fee(self, currency: str = "", **fee: int) -> None:
        """The tenant's fee from now on."""
        await store.put_policy(self.database, self.tenant, currency, Policy(**fee), by="tests")

    async def tick(self, **options: Any) -> Ticked:
        """One tick of this process."""
        return await self.settler.tick(**options)

    async def read(self, name: str) -> SettlementView:
        """A settlement as its callers see it now."""
        found = await store.read(self.database, self.tenant, name)
        assert isinstance(found, SettlementView), found
        return found

    async def history(self, view: SettlementView) -> list[EventView]:
        """What happened to it beside its postings."""
        return await store.events(self.database, self.tenant, _id(view))

    async def balances(self) -> dict[str, int]:
        """Every account of settlements that is not empty, by the end of its name: `payable:EUR:amber`."""
        async with self.database.owning() as connection:
            found = await connection.fetch(
                "SELECT substr(id, 12) AS id, balance_micros FROM tally.account"
                " WHERE tenant_id = $1 AND id LIKE 'settlement:%' AND balance_micros <> 0",
                self.tenant.number,
            )
        return {row["id"]: row["balance_micros"] for row in found}

    async def attempts(self, view: SettlementView) -> list[str | None]:
        """The answers to its attempts so far, over all generations; None: never answered."""
        async with self.database.owning() as connection:
            found = await connection.fetch(
                "SELECT a.answer FROM tally.attempt a JOIN tally.intent i USING (tenant_id, key, provider)"
                " WHERE i.tenant_id = $1 AND i.subject = $2 ORDER BY i.first_sent_at, a.number",
                self.tenant.number,
                _id(view),
            )
        return [row["answer"] for row in found]

    async def pass_time(self, span: timedelta, *, also_there: bool = True) -> None:
        """Time passes here and at the provider, where keys expire and what is to come comes.

        Not `also_there`: for spans within a provider's memory. What is sent after it has our own time, and is found by
        providers whose lists are asked for by time.
        """
        await pass_time(self.dsn, span)
        if also_there:
            self.control.advance(seconds=span.total_seconds())

    async def halves(self) -> Halves:
        """Both halves of everything, compared."""
        return await halves(self.dsn, self.control)

    def moved(self, view: SettlementView) -> list[Moved]:
        """What the provider's books say of one settlement."""
        key = bytes.fromhex(view.idempotency_key)
        return [movement for movement in books(self.control) if movement.reference in (hex64(key), uuid_form(key))]

    async def until_quiet(self, *, span: timedelta = A_WHILE, most: int = 40, also_there: bool = True) -> int:
        """Let time pass and tick, until nothing is pending or processing. Returns the number of ticks."""
        for ticks in range(most):
            async with self.database.owning() as connection:
                if not await connection.fetchval(
                    "SELECT count(*) FROM tally.settlement_state WHERE status IN ('pending', 'processing')"
                ):
                    return ticks
            await self.pass_time(span, also_there=also_there)
            await self.tick()
        raise AssertionError(f"something is undecided after {most} ticks: {(await self.halves()).open}")


@asynccontextmanager
async def shop(
    dsn: str,
    control: Control,
    *,
    providers: Mapping[str, Provider] | None = None,
    patience: Patience = PATIENCE,
    limits: Limits = LIMITS,
    tenant: str = "default",
    by: str = "tests",
) -> AsyncIterator[Shop]:
    """A process of its own, but for the process: several on one database are several workers.

    Without providers it has the simulator alone. Given ones stay the caller's to close.
    """
    await migrate(dsn)
    async with AsyncExitStack() as stack:
        connections = 4 * limits.lanes + limits.settlement_lanes + 1 + limits.readers
        database = await postgres.connect(dsn, connections=connections, limits=limits)
        stack.push_async_callback(database.close)
        if providers is None:
            simulated = app.simulator(control.url)
            stack.push_async_callback(simulated.close)
            providers = {"simulator": simulated}
        sender = await stack.enter_async_context(Sender(database, providers, limits=limits))
        settlements = await stack.enter_async_context(Settlements(database, providers, limits=limits))
        waits = dict.fromkeys(providers, patience)
        yield Shop(
            dsn,
            control,
            database=database,
            tenant=await ensure_tenant(database, tenant),
            providers=providers,
            sender=sender,
            settlements=settlements,
            settler=Settler(database, providers, sender, patience=waits, by=by, limits=limits),
        )
