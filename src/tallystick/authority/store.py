"""Authority on PostgreSQL: a tenant's policy, known destinations, and what of a batch of payouts may be promised."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.authority.rules import Allowed, Ceiling, Payout, Policy, judge, policy_fault
from tallystick.database.pool import Connection, Database
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.terms import destination_fault

_SQL: Final = queries.load(__package__, "store.sql")
_BEYOND_EVERY_NUMBER: Final = 2**63 - 1
_WITHOUT: Final = Allowed(needs_approval=False)


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's policy as it stands. `changed_by` null: nobody has chosen, and nothing is bounded."""

    known_destinations: bool
    waiting_seconds: int
    ceilings: tuple[Ceiling, ...]
    changed_by: str | None
    changed_at: datetime | None


class DestinationView(msgspec.Struct, frozen=True, kw_only=True):
    """A destination that was made known. `usable_at`: from when on the policy of now lets it be paid."""

    provider: str
    destination: str
    added_by: str
    added_at: datetime
    usable_at: datetime
    withdrawn_at: datetime | None


class Judge:
    """Judges the payouts of one transaction, in order; each counts for those after it."""

    def __init__(self, connection: Connection) -> None:
        """The connection is inside a transaction; who opened it ends it."""
        self._connection = connection
        self._policies: dict[int, Policy] = {}
        self._used: dict[int, dict[str, int]] = {}
        self._known: dict[tuple[int, str, str], datetime] = {}
        self._now: datetime | None = None

    async def read(self, rows: Sequence[asyncpg.Record], wanted: Sequence[tuple[int, SettlementCreated]]) -> None:
        """Lock and read what belongs to these lines of policies. Without one there is nothing to read."""
        if not rows:
            return
        governed = [row["tenant_id"] for row in rows]
        self._now = max(row["now"] for row in rows)
        ceilings: dict[int, list[Ceiling]] = {tenant: [] for tenant in governed}
        for row in await self._connection.fetch(_SQL["lock_ceilings"], governed):
            fields = {field: row[field] for field in Ceiling.__struct_fields__}
            ceilings[row["tenant_id"]].append(Ceiling(**fields))
            self._used.setdefault(row["tenant_id"], {})[row["currency"]] = row["used_micros"]
        for row in rows:
            self._policies[row["tenant_id"]] = Policy(
                known_destinations=row["known_destinations"],
                waiting_seconds=row["waiting_seconds"],
                ceilings=tuple(ceilings[row["tenant_id"]]),
            )
        asked = [(tenant, wish) for tenant, wish in wanted if tenant in self._policies]
        for row in await self._connection.fetch(
            _SQL["known"],
            [tenant for tenant, _ in asked],
            [wish.provider for _, wish in asked],
            [wish.destination for _, wish in asked],
        ):
            self._known[row["tenant_id"], row["provider"], row["destination"]] = row["added_at"]

    def judge(self, tenant: int, wish: SettlementCreated, author: str) -> Allowed | Rejected:
        """Whether this one may be promised. Allowed, it counts."""
        policy = self._policies.get(tenant)
        if policy is None or self._now is None:
            return _WITHOUT
        used = self._used.setdefault(tenant, {})
        verdict = judge(
            policy,
            Payout(
                gross_micros=wish.gross_micros,
                currency=wish.currency,
                provider=wish.provider,
                destination=wish.destination,
                author=author,
                known_since=self._known.get((tenant, wish.provider, wish.destination)),
            ),
            used,
            self._now,
        )
        if isinstance(verdict, Allowed):
            used[wish.currency] = used.get(wish.currency, 0) + wish.gross_micros
        return verdict


async def policy_of(connection: Connection, tenant: Tenant) -> list[asyncpg.Record]:
    """The tenant's line, shared with other creators; none: it has no policy."""
    return list(await connection.fetch(_SQL["policy_of"], tenant.number))


async def ask(connection: Connection, asked: Sequence[tuple[int, UUID, UUID, str, str]]) -> None:
    """Ask a second person about payouts: tenant, the approval's id, the settlement's, why, and who asks."""
    await connection.execute(_SQL["ask"], *map(list, zip(*asked, strict=True)))


async def read(database: Database, tenant: Tenant) -> PolicyView:
    """The tenant's policy."""
    async with database.reading(tenant.number) as connection:
        row = await connection.fetchrow(_SQL["read"], tenant.number)
    if row is None:
        return PolicyView(known_destinations=False, waiting_seconds=0, ceilings=(), changed_by=None, changed_at=None)
    return PolicyView(
        known_destinations=row["known_destinations"],
        waiting_seconds=row["waiting_seconds"],
        ceilings=msgspec.json.decode(row["ceilings"], type=tuple[Ceiling, ...]),
        changed_by=row["changed_by"],
        changed_at=row["changed_at"],
    )


async def put(database: Database, tenant: Tenant, policy: Policy, *, by: str) -> Rejected | None:
    """Replace the tenant's policy, for payouts promised from now on. Journaled. Raises InFlight and Unreachable."""
    refusal = policy_fault(policy)
    if refusal is not None:
        return refusal
    ceilings = policy.ceilings
    currencies = [one.currency for one in ceilings]
    async with database.stepping() as connection:
        await connection.execute(_SQL["put"], tenant.number, policy.known_destinations, policy.waiting_seconds, by)
        await connection.execute(_SQL["drop_ceilings"], tenant.number, currencies)
        await connection.execute(
            _SQL["put_ceilings"],
            tenant.number,
            currencies,
            [one.payout_micros for one in ceilings],
            [one.day_micros for one in ceilings],
            [one.second_person_micros for one in ceilings],
        )
    return None


async def put_destination(
    database: Database, tenant: Tenant, provider: str, destination: str, *, is_known: bool, by: str
) -> DestinationView | Rejected:
    """Make a destination known, or withdraw it. Journaled; safe to repeat."""
    refusal = destination_fault(destination)
    if refusal is not None:
        return refusal
    async with database.stepping() as connection:
        if is_known:
            await connection.execute(_SQL["add_destination"], tenant.number, provider, destination, by)
        else:
            await connection.execute(_SQL["withdraw_destination"], tenant.number, provider, destination)
        row = await connection.fetchrow(_SQL["destination"], tenant.number, provider, destination)
    if row is None:
        return Rejected(
            "destination_unknown",
            f"{destination!r:.80} at {provider} was not made known before.",
            "There is nothing to withdraw.",
        )
    return _view(row)


async def list_destinations(
    database: Database, tenant: Tenant, *, before: int | None, most: int
) -> tuple[list[DestinationView], int | None]:
    """A page, newest first, and the cursor of the next."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["destinations"], tenant.number, before or _BEYOND_EVERY_NUMBER, most + 1)
    return [_view(row) for row in rows[:most]], rows[most - 1]["number"] if len(rows) > most else None


def _view(row: asyncpg.Record) -> DestinationView:
    return DestinationView(**{field: row[field] for field in DestinationView.__struct_fields__})
