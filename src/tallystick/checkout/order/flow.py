"""Orders: the gate in front of the stock, and the ways out of a reservation.

A reservation is made once under its key, first come, first served within a process; it is never more than there is. It
ends once: paid, cancelled, or swept when nobody paid in time. Many callers are one transaction, so that a SKU that
everybody wants is locked and written once for all of them.
"""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Self

import msgspec
import structlog

from tallystick.checkout.order import store
from tallystick.checkout.order.rules import (
    OrderReserved,
    Swept,
    claim_of,
    place_of,
    sku_fault,
    sku_unknown,
    stock_fault,
    wish_fault,
)
from tallystick.checkout.order.store import Changed, OrderView, Reserved, ReserveWork, SkuView, unannounced
from tallystick.checkout.release.flow import Releases
from tallystick.checkout.watermark.flow import Log, Watermark
from tallystick.commit.group import GroupCommit
from tallystick.database.pool import Database
from tallystick.errors import LogUnreachable
from tallystick.ledger.claims import Claim, Tenant, key_refusal
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Limits

logger = structlog.get_logger("tallystick.order")


class Orders:
    """Reserves, cancels and sweeps for every tenant. Use as an async context manager."""

    def __init__(
        self,
        database: Database,
        *,
        ttl: timedelta,
        grace: timedelta,
        changed: Changed = unannounced,
        log: Log | None = None,
        releases: Releases | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`ttl` is how long a reservation holds, `grace` how much longer the sweeper lets it be.

        `changed` is told of orders that ended; of a new one nobody can have heard before. `log`: where webhooks are
        appended before they are in the database. `releases`: who ends payments at the providers; without them an order
        whose charge is live is never swept.
        """
        self._releases = releases
        self._database = database
        self.watermark = Watermark(database, grace=grace, log=log, limits=limits)
        self._changed = changed
        self._grace = grace
        self._limits = limits
        self._group: GroupCommit[Claim, Reserved | Rejected] = GroupCommit(
            ReserveWork(database, ttl), footprint=_sku_of, limits=limits, in_order=True
        )
        # A crowd that cancels may not take the connections of those who reserve.
        self._steps = asyncio.Semaphore(limits.order_steps)
        # Refusals are written nowhere, so that is all that is known of them.
        self.sold_out = 0

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Answer what waits, stop."""
        await self._group.__aexit__(*exception)

    async def reserve(self, tenant: Tenant, wish: OrderReserved, idempotency_key: str) -> Reserved | Rejected:
        """Hold stock for a buyer, once. Raises like `Engine.submit`; the same call again is then safe."""
        refusal = key_refusal(idempotency_key) or wish_fault(wish)
        if refusal is not None:
            return refusal
        answer = await self._group.submit(claim_of(tenant, wish, idempotency_key), source=tenant.number)
        if isinstance(answer, Rejected) and answer.code == "sold_out":
            self.sold_out += 1
        return answer

    async def cancel(self, tenant: Tenant, order_id: str) -> OrderView | Rejected:
        """Give a reservation back, once. One that is paid is refused; one that is cancelled stays as it is."""
        async with self._steps:
            return await store.cancel(self._database, tenant, order_id, changed=self._changed)

    async def sweep(self, *, most: int | None = None, patience_seconds: float = 0.0) -> Swept:
        """Cancel what is overdue now, in chunks, until nothing is or `most` were cancelled.

        Not what was charged, while something that was received in time is undecided: `patience_seconds` is how long a
        single run waits for what is on its way. Safe beside other sweepers, cancellations and payments, and to kill
        at any moment.
        """
        watermark = await self._reached(patience_seconds)
        asked: Counter[str] = Counter()
        if watermark is not None and self._releases is not None:
            asked = await self._releases.run_once(grace=self._grace, watermark=watermark)
        sweep = store.Sweep(self._database, grace=self._grace, watermark=watermark, changed=self._changed)
        done = Swept()
        while most is None or done.cancelled < most:
            chunk = self._limits.sweep_chunk if most is None else min(self._limits.sweep_chunk, most - done.cancelled)
            swept = await sweep.chunk(chunk)
            done = Swept(
                done.cancelled + swept.cancelled,
                done.released + swept.released,
                done.refused + swept.refused,
                told=asked["told"],
                held=asked["waiting"],
            )
            if swept.is_complete:
                return done
        return msgspec.structs.replace(done, is_complete=False)

    async def _reached(self, patience_seconds: float) -> datetime | None:
        try:
            return await self.watermark.read(patience_seconds=patience_seconds)
        except LogUnreachable as error:
            # Webhooks that it has acknowledged may lie there: whoever was charged is left alone until it is back.
            logger.warning("sweep_without_the_log", reason=str(error))
            return None

    async def set_stock(self, tenant: Tenant, sku: str, stock: int) -> SkuView | Rejected:
        """Put so many up for sale, in all: what is reserved and sold counts towards it."""
        refusal = sku_fault(sku) or stock_fault(stock)
        if refusal is not None:
            return refusal
        async with self._steps:
            return await store.set_stock(self._database, tenant, sku, stock)

    async def read(self, tenant: Tenant, order_id: str) -> OrderView | Rejected:
        """An order as it stands."""
        return await store.read(self._database, tenant, order_id)

    async def sku(self, tenant: Tenant, sku: str) -> SkuView | Rejected:
        """What there is of a SKU."""
        if sku_fault(sku) is not None:
            return sku_unknown(f"{sku!s:.80}")
        return await store.read_sku(self._database, tenant, sku)


def _sku_of(claim: Claim) -> tuple[tuple[int, str], ...]:
    """Orders of one SKU would wait for each other."""
    return (place_of(claim),)
