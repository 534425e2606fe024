"""Tallystick as a contender: the real flows on a real database, with the provider at the simulator."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self

import asyncpg
import msgspec

from tallystick import app, queries
from tallystick.access import store as tenants
from tallystick.database import pool as postgres
from tallystick.errors import require
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement.flow import Sender
from tallystick.movement.steps import Patience
from tallystick.probes.contender import GoOn, Hold, Pace, account
from tallystick.probes.ground import connected, open_clearing
from tallystick.providers.port import Provider
from tallystick.providers.words import Answer, Instruction, Looked, Sending
from tallystick.settings import LIMITS
from tallystick.settlement.flow import Settlements
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.store import Made
from tallystick.settlement.tick.flow import Settler, Ticked

PROVIDER: Final = "simulator"
GROSS_MICROS: Final = 12_340_000
CURRENCY: Final = "EUR"

_SQL = queries.load(__package__, "probes.sql")
_CONNECTIONS: Final = 16
_BUDGET: Final = 8


class Ours:
    """One database's Tallystick. Use as an async context manager."""

    kind: Literal["ours", "naive"] = "ours"

    def __init__(self, dsn: str, url: str, *, pace: Pace | None = None) -> None:
        """`url` is the simulator's."""
        self.dsn = dsn
        self.url = url
        self.pace = pace or Pace()
        self._limits = replace(LIMITS, send_seconds=self.pace.send)
        self._ticks = 0
        self._created = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect."""
        self._superuser = await self._stack.enter_async_context(connected(self.dsn, superuser=True))
        self.database = await postgres.connect(self.dsn, connections=_CONNECTIONS, limits=self._limits)
        self.tenant = await tenants.ensure_tenant(self.database, "default")
        self._provider = self._adapter(GoOn())
        self.settlements = await Settlements(
            self.database, {PROVIDER: self._provider}, limits=self._limits
        ).__aenter__()
        await open_clearing(self.database, self.tenant)
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Disconnect."""
        await self._stack.aclose()
        await self.settlements.__aexit__(*exception)
        await self._provider.close()
        await self.database.close()

    async def create(self, names: Sequence[str]) -> None:
        """Promise a payout for each name, for the tenant `default`, under a new idempotency key each time."""
        for name in names:
            self._created += 1
            key = f"create-{self._created}"
            made = await self.wish(self.tenant, key, attribution_id=name, destination=account(name))
            require(isinstance(made, Made), f"a payout to attack could not be created: {made}")

    async def set_back(self, names: Sequence[str]) -> None:
        """An operator at the database's own prompt, who wants them sent once more."""
        async with connected(self.dsn) as connection:
            for statement in ("set_pending", "set_untried", "other_key", "forget_attempts", "forget_intents"):
                try:
                    await connection.execute(_SQL[statement], list(names))
                except asyncpg.PostgresError:
                    continue

    async def wish(self, tenant: Tenant, idempotency_key: str, **fields: Any) -> Made | Rejected:  # noqa: ANN401 - an attacker's
        """Create one settlement as a caller would. What is not given is ordinary."""
        ordinary: dict[str, Any] = {
            "squad_id": "squad",
            "gross_micros": GROSS_MICROS,
            "currency": CURRENCY,
            "provider": PROVIDER,
            "destination": "acct_ordinary",
        }
        return await self.settlements.create(tenant, SettlementCreated(**ordinary | fields), idempotency_key)

    async def tick(self, hold: Hold | None = None) -> None:
        """Claim, send, recover."""
        await self.ticked(hold)

    async def ticked(self, hold: Hold | None = None) -> Ticked:
        """The same, with what it did. Each is a worker of its own: its name, its breaker, its connections."""
        provider = self._adapter(hold or GoOn())
        self._ticks += 1
        try:
            async with Sender(self.database, {PROVIDER: provider}, limits=self._limits) as sender:
                settler = Settler(
                    self.database,
                    {PROVIDER: provider},
                    sender,
                    patience={PROVIDER: Patience(stuck_after=timedelta(seconds=self.pace.stuck_after), budget=_BUDGET)},
                    by=f"{app.worker_name()}:{self._ticks}",
                    limits=self._limits,
                )
                return await settler.tick()
        finally:
            await provider.close()

    async def renew_claims(self) -> None:
        """Without a word to anybody."""
        async with connected(self.dsn) as connection:
            await connection.execute(_SQL["renew_claims"])

    async def pass_time(self, seconds: float) -> None:
        """Only a superuser may do it: triggers keep everybody else from changing what was sent, and when."""
        async with self._superuser.transaction():
            await self._superuser.execute(_SQL["triggers_off"])
            # In the order in which a tick locks them.
            for statement in ("age_states", "age_intents", "age_attempts"):
                await self._superuser.execute(_SQL[statement], timedelta(seconds=seconds))

    def _adapter(self, hold: Hold) -> Provider:
        made = app.simulator(self.url)
        made.facts = msgspec.structs.replace(made.facts, longest_in_flight=timedelta(seconds=self.pace.in_flight))
        # The adapter waits 20 s for an answer; an attack that swallows answers would take minutes.
        line: Any = made._line  # type: ignore[attr-defined]  # noqa: SLF001
        line._facts = msgspec.structs.replace(made.facts, answer_seconds=self.pace.answer)  # noqa: SLF001
        _hold_calls(made, hold)
        return made


def _hold_calls(provider: Provider, hold: Hold) -> None:
    """Tell `hold` of each call; the call itself stays the adapter's."""
    write: Callable[[Instruction, Sending], Awaitable[Answer]] = provider.send
    ask: Callable[..., Awaitable[Looked]] = provider.look_up

    async def send(instruction: Instruction, sending: Sending) -> Answer:
        await hold.at("before_send")
        answer = await write(instruction, sending)
        await hold.at("after_answer")
        return answer

    async def look_up(
        instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        looked = await ask(instruction, first_sent_at=first_sent_at, now=now, until=until)
        await hold.at("looked_up")
        return looked

    provider.send = send  # type: ignore[method-assign]
    provider.look_up = look_up  # type: ignore[method-assign]
