"""Giving a paid order back: its tenant asks for all of it, or for a part, and the financial sweeper owns it from there.

    request   lock order and payment, decide; key, stock, ledger, log row, intent and attempt   ── one transaction
    send      one call to the provider, with a deadline                                        ── no transaction is open
    record    like every refund (`checkout.refund.flow`)

The deciders are in `checkout.refund.request.rules`.
"""

import asyncio
from collections.abc import Mapping
from math import ceil
from typing import Final

from tallystick.checkout.order.rules import order_id as id_of
from tallystick.checkout.order.rules import order_name, order_unknown
from tallystick.checkout.postings_store import LedgerRefused
from tallystick.checkout.refund import store as refunds
from tallystick.checkout.refund.flow import Refunds
from tallystick.checkout.refund.request import store
from tallystick.checkout.refund.request.rules import (
    Asked,
    RefundGiven,
    RefundPending,
    Request,
    asked_fault,
    decide,
    key_fault,
    made,
    pending,
    refusal_of,
)
from tallystick.checkout.refund.review.decisions import Changed
from tallystick.checkout.refund.store import Begun
from tallystick.commit.port import Contended, plain_errors
from tallystick.database.pool import Connection, Database
from tallystick.errors import InvariantBroken, RestoredDatabase
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.outcome import Rejected
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits

Refunded = RefundGiven | RefundPending | Rejected
# Somebody used the key meanwhile, or won a deadlock: the second look finds it.
_ROUNDS: Final = 3


class RefundRequests:
    """Gives paid orders back for every tenant."""

    def __init__(
        self,
        database: Database,
        refunds: Refunds,
        providers: Mapping[str, Provider],
        *,
        limits: Limits = LIMITS,
        changed: Changed = lambda _orders: None,
    ) -> None:
        """`refunds` sends and records, and its sweeper finishes what is left behind. `changed`: as told by it."""
        self._changed = changed
        self._database = database
        self._refunds = refunds
        self._providers = providers
        self._limits = limits

    async def refund(
        self,
        tenant: Tenant,
        order_id: str,
        *,
        amount_micros: int | None,
        reason: str,
        restock: bool,
        idempotency_key: str,
    ) -> Refunded:
        """Give back so much of a paid order, or all that is left, once for each key.

        Raises InFlight, OutcomeUnknown and Unreachable: the same call again is safe.
        """
        uuid = id_of(order_id)
        unusable = key_refusal(idempotency_key)
        if unusable is not None or uuid is None:
            return unusable or order_unknown(order_id)
        asked = Asked(key=idempotency_key, order_id=uuid, amount_micros=amount_micros, reason=reason, restock=restock)
        fault = asked_fault(asked)
        if fault is not None:
            return fault
        began = steady()
        try:
            begun = await self._begun(tenant, asked)
        except RestoredDatabase:
            return Rejected(
                "database_restored",
                "The database was restored: what it does not know may have been given back.",
                "Nothing was sent. Send the same request again when the operator's `tally recover` has ended.",
            )
        if isinstance(begun, Rejected):
            return begun
        if begun:
            flights = self._refunds.launch([(None, one) for one in begun], began=began)
            # It goes on when nobody waits for it any more.
            await asyncio.wait(flights, timeout=self._limits.payment_wait_seconds)
        if begun is not None:
            self._changed([(tenant, uuid)])
        return await self._told(tenant, asked, is_new=begun is not None)

    async def _begun(self, tenant: Tenant, asked: Asked) -> list[Begun] | Rejected | None:
        """The refund with its committed attempt, or none yet where the books are asked first; None: it was there."""
        for _ in range(_ROUNDS - 1):
            try:
                async with self._database.writing() as connection:
                    return await self._decided(connection, tenant, asked)
            except Contended:
                continue
            except _Refused as refused:
                return refused.why
        with plain_errors():
            try:
                async with self._database.writing() as connection:
                    return await self._decided(connection, tenant, asked)
            except _Refused as refused:
                return refused.why

    async def _decided(self, connection: Connection, tenant: Tenant, asked: Asked) -> list[Begun] | Rejected | None:
        sold = await store.lock(connection, tenant, asked.order_id)
        known = await store.find(connection, tenant, asked.key)
        if known is not None:
            return key_fault(known, asked)
        if sold is None:
            return order_unknown(order_name(asked.order_id.bytes))
        step = decide(sold, asked)
        if isinstance(step, Rejected):
            return step
        debt = store.debt_of(tenant, asked, sold, step)
        adapter = self._providers.get(debt.provider)
        if adapter is None:
            return Rejected(
                "provider_not_configured",
                f"The provider {debt.provider!r} is not configured here.",
                "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
            )
        refused = adapter.refusal(refunds.instruction(debt))
        if refused is not None:
            return Rejected(
                "refund_not_possible",
                f"{debt.provider} cannot give this back: {refused.code}: {refused.message}",
                "Correct what it names. Nothing was sent.",
                ("amount_micros",),
            )
        try:
            return await store.begin(connection, asked, debt, self._refunds.terms)
        except LedgerRefused as error:
            if error.rejected is None:
                raise
            # Rolled back with everything else: raised, so that nothing of it is committed.
            raise _Refused(error.rejected) from error

    async def _told(self, tenant: Tenant, asked: Asked, *, is_new: bool) -> Refunded:
        """As it is stored: the first answer and every repeat are made of the same rows."""
        async with self._database.reading(tenant.number) as connection:
            found = await store.find(connection, tenant, asked.key)
        if found is None:
            raise InvariantBroken("a refund that was committed is not there")
        return _answer(found, retry_after_seconds=ceil(self._limits.retry_after_seconds), is_replayed=not is_new)


def _answer(request: Request, *, retry_after_seconds: int, is_replayed: bool) -> Refunded:
    name = order_name(request.order_id.bytes)
    if request.was_given:
        return RefundGiven(made(name, request), is_replayed)
    if request.status == "PENDING":
        return pending(name, request, retry_after_seconds=retry_after_seconds)
    return refusal_of(name, request, is_replayed=is_replayed)


class _Refused(Exception):
    """The ledger's no, on its way out of the transaction."""

    def __init__(self, why: Rejected) -> None:
        super().__init__(why.code)
        self.why = why
