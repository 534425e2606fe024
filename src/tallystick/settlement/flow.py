"""Settlements: creating them, and what callers are told.

A settlement is recognised by attribution and squad: created again, it is returned as it stands and moves nothing. The
fee is the tenant's policy's; no caller can set it, and the database computes it again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from tallystick import caller
from tallystick.commit.group import GroupCommit
from tallystick.database.pool import Connection, Database
from tallystick.errors import TallystickError
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import step_micros
from tallystick.providers.port import Provider
from tallystick.providers.words import Transfer
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.store import CreateWork, Made, Wish
from tallystick.settlement.terms import wish_fault

_NO_KEY = bytes(32)


class Settlements:
    """Creates settlements for every tenant. Use as an async context manager."""

    def __init__(self, database: Database, providers: Mapping[str, Provider], *, limits: Limits = LIMITS) -> None:
        """The providers stay the caller's to close."""
        self._providers = providers
        self._group: GroupCommit[Wish, Made | Rejected] = GroupCommit(
            CreateWork(database), footprint=_clearing_of, limits=limits
        )

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Answer what waits, stop."""
        await self._group.__aexit__(*exception)

    async def create(self, tenant: Tenant, wish: SettlementCreated, idempotency_key: str) -> Made | Rejected:
        """Promise a payout, once. Raises like `Engine.submit`; the same call again is then safe."""
        checked = self._checked(tenant, wish, idempotency_key)
        if isinstance(checked, Rejected):
            return checked
        return await self._group.submit(checked, source=tenant.number)

    async def create_within(
        self, connection: Connection, tenant: Tenant, wish: SettlementCreated, idempotency_key: str
    ) -> Made | Rejected:
        """The same in the caller's own open transaction: nothing is promised before his COMMIT."""
        checked = self._checked(tenant, wish, idempotency_key)
        return checked if isinstance(checked, Rejected) else await caller.create_settlement(connection, checked)

    async def create_many(
        self, tenant: Tenant, wishes: Sequence[tuple[SettlementCreated, str]]
    ) -> list[Made | Rejected | TallystickError]:
        """Each on its own; the answers stand in the order of the wishes, and an exception is an answer."""

        async def one(wish: SettlementCreated, key: str) -> Made | Rejected | TallystickError:
            try:
                return await self.create(tenant, wish, key)
            except TallystickError as error:
                return error

        return await asyncio.gather(*(one(wish, key) for wish, key in wishes))

    def _checked(self, tenant: Tenant, wish: SettlementCreated, key: str) -> Wish | Rejected:
        refusal = key_refusal(key) or wish_fault(wish)
        if refusal is not None:
            return refusal
        provider = self._providers.get(wish.provider)
        if provider is None:
            known = ", ".join(sorted(self._providers)) or "none"
            return Rejected(
                "provider_not_configured",
                f"The provider {wish.provider!r:.60} is not configured here.",
                f"Use one of: {known}; or configure it (TALLY_{wish.provider.upper():.20}_API_KEY).",
            )
        # The smallest and most ordinary payout to that destination: what refuses it would refuse every amount.
        probe = Transfer(
            key=_NO_KEY, destination=wish.destination, amount_micros=wish.gross_micros, currency=wish.currency
        )
        step = step_micros(wish.currency, wire=provider.facts.wire, purpose=provider.purpose(probe))
        payable = max(wish.gross_micros - wish.gross_micros % step, step)
        refused = provider.refusal(
            Transfer(key=_NO_KEY, destination=wish.destination, amount_micros=payable, currency=wish.currency)
        )
        if refused is not None:
            return Rejected(
                refused.code,
                f"{wish.provider} cannot pay this: {refused.message}",
                "Correct the destination, the currency or the amount. Nothing was created.",
            )
        return Wish(tenant=tenant, key=key, operation=wish, step_micros=step, key_form=provider.facts.key_form)


def _clearing_of(wish: Wish) -> tuple[tuple[int, str], ...]:
    """Settlements of one tenant and currency are paid from one account, and would wait for each other."""
    return ((wish.tenant.number, wish.operation.currency),)
