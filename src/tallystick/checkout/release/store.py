"""Held orders on PostgreSQL: who waits for what stands at a provider, since when, and what became of it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.checkout.payment import store as payment
from tallystick.checkout.payment.rules import Payable, written_until
from tallystick.checkout.release.rules import Closed, LiveCharge, ReleaseVerdict
from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.movement import store as attempts
from tallystick.movement.rules import decode_charge
from tallystick.movement.steps import NOTHING_SENT, History
from tallystick.providers.words import Charge, Event
from tallystick.webhooks import inbox

_SQL = queries.load(__package__, "store.sql")


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """A charge that could be paid at its provider. Not `is_last`: the order has another one, which is younger."""

    key: bytes
    attempt: int
    provider: str
    instruction: Charge
    history: History
    standing: LiveCharge
    is_last: bool


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """An overdue order under a claim. `charge` None: none of it is live any more.

    `verdict`: the sweeper was let have it, and what stands at the provider is still to be found out.
    """

    tenant: Tenant
    order_id: UUID
    order: Payable
    claim_number: int
    held_since: datetime
    tries: int
    now: datetime
    verdict: ReleaseVerdict | None
    charge: Live | None


class ProviderWord(msgspec.Struct, frozen=True):
    """What a provider told us when we asked."""

    provider: str
    events: tuple[Event, ...]


async def claim(
    database: Database, *, grace: timedelta, watermark: datetime, most: int, lease: timedelta
) -> list[Held]:
    """Overdue orders whose charge is live, under a claim: new ones, those that are due again, and swept ones."""
    async with database.stepping() as connection:
        await connection.execute(_SQL["hold"], grace, watermark, most)
        rows = await connection.fetch(_SQL["claim"], most, lease)
        by_provider: dict[str, list[tuple[int, bytes]]] = {}
        for row in rows:
            if row["provider"] is not None:
                by_provider.setdefault(row["provider"], []).append((row["tenant_id"], row["idempotency_key"]))
        histories: dict[tuple[int, bytes], History] = {}
        for provider, names in by_provider.items():
            histories |= await attempts.sent(connection, provider, names)
    return [_held(row, histories) for row in rows]


def _held(row: asyncpg.Record, histories: dict[tuple[int, bytes], History]) -> Held:
    return Held(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        order_id=row["order_id"],
        order=payment.payable(row, row["order_status"]),
        claim_number=row["claim_number"],
        held_since=row["held_since"],
        tries=row["tries"],
        now=row["now"],
        verdict=row["verdict"],
        charge=None if row["provider"] is None else _live(row, histories),
    )


def _live(row: asyncpg.Record, histories: dict[tuple[int, bytes], History]) -> Live:
    history = histories.get((row["tenant_id"], row["idempotency_key"]), NOTHING_SENT)
    return Live(
        key=row["idempotency_key"],
        attempt=row["attempt"],
        provider=row["provider"],
        instruction=decode_charge(row["instruction"]),
        history=msgspec.structs.replace(history, since=row["since"]),
        standing=LiveCharge(
            status=row["status"],
            payment_intent_id=row["payment_intent_id"] or history.done_as,
            done_state=history.done_state,
            not_after=written_until(history, row["settled_from"]),
        ),
        is_last=row["live"] == 1,
    )


async def decide(
    database: Database,
    held: Held,
    *,
    verdict: ReleaseVerdict | None = None,
    closed_as: Closed | None = None,
    reason: str | None = None,
    evidence: bytes | None = None,
    due_at: datetime | None = None,
    told: Sequence[ProviderWord] = (),
    is_cancelled: bool = False,
) -> bool:
    """What became of it, and what the provider told with it, in one commit. False: the claim was lost.

    `is_cancelled`: by the provider's own word its charge can no longer be paid.
    """
    async with database.stepping() as connection:
        place = held.tenant.number, held.order_id, held.claim_number
        what = verdict, reason, evidence, due_at, closed_as
        mine = await connection.fetchrow(_SQL["decide"], *place, *what) is not None
        if mine and told:
            await inbox.append(connection, told)
        if mine and is_cancelled and held.charge is not None:
            await connection.execute(_SQL["end_cancelled"], held.tenant.number, held.charge.key)
    return mine


async def has_failed(database: Database, told: ProviderWord) -> bool:
    """Whether this was told before, and failed by itself when it was processed."""
    async with database.stepping() as connection:
        keys = [event.dedup_key for event in told.events]
        return bool(await connection.fetchval(_SQL["has_failed"], told.provider, keys))
