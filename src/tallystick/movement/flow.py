"""Sending: the one way an instruction reaches a provider.

    begin   commit intent, first_sent_at, attempt and not-after     ── many callers, one transaction
    send    write the bytes once, if the permit still stands       ── no transaction is open
    record  commit the answer with its evidence                     ── many callers, one transaction

Killed after `begin`: an attempt without an answer, which recovery looks up. Killed before: nothing was sent.
"""

import os
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Final, Self
from uuid import UUID, uuid4

import msgspec
import structlog

from tallystick.commit.group import GroupCommit
from tallystick.database.pool import Database
from tallystick.errors import InvariantBroken, Misconfigured, TallystickError
from tallystick.ledger.claims import Tenant
from tallystick.movement import store as intents
from tallystick.movement.rules import Absence, OtherInstruction, Withheld
from tallystick.movement.store import Answered, AnswerWork, Asking, Attempt, BeginWork
from tallystick.movement.witness import Witness
from tallystick.providers.breaker import BreakerState
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Answer,
    Charge,
    Instruction,
    Refund,
    Refused,
    Sending,
    Transfer,
    Unknown,
)
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.sending")

_PROCESS: Final = f"{socket.gethostname()}:{os.getpid()}"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that was made. `is_recorded` False: the answer is known here and could not be stored."""

    answer: Answer
    attempt: int
    first_sent_at: datetime
    is_recorded: bool


class Sender:
    """Sends for every tenant, over every configured provider. Use as an async context manager."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        *,
        limits: Limits = LIMITS,
        new_token: Callable[[], UUID] = uuid4,
    ) -> None:
        """The providers stay the caller's to close."""
        self._database = database
        self._providers = providers
        self._limits = limits
        self._new_token = new_token
        self._beginning: GroupCommit[Asking, Attempt | Withheld] = GroupCommit(BeginWork(database), limits=limits)
        self._answering = GroupCommit(AnswerWork(database), limits=limits)
        # What answers and look-ups of every flow show of lives that were lost.
        self.witness = Witness(database, providers)
        self._told: dict[str, BreakerState] = {}
        # By provider and class of answer, since this process began.
        self.answers: Counter[tuple[str, str]] = Counter()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._stack.enter_async_context(self._answering)
        await self._stack.enter_async_context(self._beginning)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer what waits, stop; and take back what was said of breakers."""
        await self._stack.__aexit__(kind, error, trace)
        if self._told:
            try:
                await intents.breaker_gone(self._database, _PROCESS)
            except TallystickError as unreachable:
                log.warning("breaker_not_cleared", reason=str(unreachable))

    async def send(
        self,
        tenant: Tenant,
        provider: str,
        instruction: Instruction,
        *,
        since: datetime,
        mark: str = "",
        absence: Absence | None = None,
    ) -> Sent | Withheld | Refused:
        """Make one attempt. Raises when the intent could not be committed: then nothing was sent.

        `since`: when what it pays for was created; `mark`: what that is, by its room; `absence`: proof that the
        provider's books do not show it.
        Withheld: nothing was sent now, and the answer says why (`movement.rules`). Refused: the provider cannot take it
        in any form, and nothing was stored either.
        """
        adapter = self._providers.get(provider)
        if adapter is None:
            raise Misconfigured(f"The provider {provider!r} is not configured. Nothing was sent.")
        refused = adapter.refusal(instruction)
        if refused is not None:
            return refused
        began = steady()
        asking = Asking(
            tenant=tenant,
            provider=provider,
            purpose=adapter.purpose(instruction),
            instruction=instruction,
            account=adapter.account,
            token=self._new_token(),
            permit_seconds=self._limits.send_seconds,
            since=since,
            remembered=adapter.facts.remembered,
            settles_in=adapter.facts.settles_in,
            mark=mark,
            absence=absence,
        )
        attempt: Attempt | Withheld = await self._beginning.submit(asking, source=tenant.number)
        if isinstance(attempt, OtherInstruction):
            raise InvariantBroken(
                f"one key for two instructions: the key {instruction.key.hex()} was first used for another "
                f"instruction at {attempt.first_sent_at:%Y-%m-%d %H:%M:%S} UTC. Nothing was sent."
            )
        if not isinstance(attempt, Attempt):
            return attempt
        # Counted from before the commit: this clock's not-after is never later than the database's.
        sending = Sending(
            first_sent_at=attempt.first_sent_at,
            not_after=attempt.not_after,
            sendable_until=began + self._limits.send_seconds,
            mark=attempt.mark,
        )
        answer = await call(adapter, instruction, sending)
        self.heard(provider, answer)
        is_recorded = await self._record(tenant, attempt, answer)
        await self.tell_breaker(provider)
        return Sent(answer=answer, attempt=attempt.number, first_sent_at=attempt.first_sent_at, is_recorded=is_recorded)

    def heard(self, provider: str, answer: Answer) -> None:
        """Count an answer, also one to a send that another flow made."""
        self.answers[provider, type(answer).__name__.lower()] += 1

    def breakers(self) -> dict[str, BreakerState]:
        """How each provider's breaker stands in this process."""
        return {name: provider.breaker.state for name, provider in self._providers.items()}

    async def _record(self, tenant: Tenant, attempt: Attempt, answer: Answer) -> bool:
        try:
            return await self._answering.submit(Answered(attempt, answer), source=tenant.number)
        except Exception:  # noqa: BLE001 - whatever it is: raising would tell the caller that nothing was sent
            # The money is where the answer says. The row shows an attempt without an answer, and recovery
            # treats that as unknown: it asks the provider.
            log.error("answer_not_recorded", provider=attempt.provider, key=attempt.key.hex(), trace=_trace())
            return False

    async def tell_breaker(self, name: str) -> None:
        """Let the others know when this process's breaker for a provider has changed."""
        adapter = self._providers[name]
        state = adapter.breaker.state
        if self._told.get(name, "closed") == state:
            return
        self._told[name] = state
        try:
            await intents.breaker_changed(self._database, name, _PROCESS, state, adapter.breaker.reason)
        except Exception:  # noqa: BLE001 - like in `_record`: the provider was called, and the caller must hear the answer
            log.warning("breaker_not_told", provider=name, trace=_trace())


def _trace() -> str:
    """Where it happened, without the values: a log that shows locals would show credentials."""
    return traceback.format_exc()


async def call(adapter: Provider, instruction: Instruction, sending: Sending) -> Answer:
    """Write it once, under a committed attempt. Never raises: what is not certain is Unknown."""
    try:
        match instruction:
            case Charge():
                return await adapter.charge(instruction, sending)
            case Refund():
                return await adapter.refund(instruction, sending)
            case Transfer():
                return await adapter.transfer(instruction, sending)
    except Exception:  # noqa: BLE001 - whatever it was, somebody must be told that the outcome is unknown
        # A bug of an adapter. Bytes may have left, so it is not known that nothing happened.
        log.error("adapter_failed", provider=adapter.facts.name, trace=_trace())
        return Unknown(code="adapter_failed", message="The adapter failed; the log has the trace.")
