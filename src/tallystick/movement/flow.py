"""Sending: the one way an instruction reaches a provider.

    begin   `movement.store.begin`, in the transaction that decided it: intent, first_sent_at, attempt and not-after
    send    write the bytes once, if the permit still stands                     ── no transaction is open
    record  `movement.store.record_answers`, in the transaction of what it makes of the room's own rows

A tick begins and records many in one transaction, a click one; what lies between is `Sender.send` for all of them.
Killed after `begin`: an attempt without an answer, which recovery looks up. Killed before: nothing was sent.
"""

import os
import socket
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from tallystick.database.pool import Database
from tallystick.errors import TallystickError
from tallystick.money.currencies import Purpose
from tallystick.movement import asking
from tallystick.movement import store as intents
from tallystick.movement.asking import Listed
from tallystick.movement.evidence import now_after
from tallystick.movement.rules import Absence, Attempt
from tallystick.movement.steps import History, believed, made_until
from tallystick.movement.terms import ProviderTerms
from tallystick.movement.witness import Witness
from tallystick.providers.breaker import BreakerState
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Absent,
    Answer,
    Instruction,
    Looked,
    Lookup,
    Sending,
    Transfer,
    Unknown,
    is_forgotten,
)
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.sending")

_PROCESS: Final = f"{socket.gethostname()}:{os.getpid()}"


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is committed, and by what its answer is judged.

    `since`: when what it pays for was created. `now` is the database's time, which came here at `heard`; `began` is
    from before the commit. Both by the steady clock: so the permit ends no later than the database says, and nothing is
    believed to be over too early.
    """

    attempt: Attempt
    instruction: Instruction
    history: History
    since: datetime
    now: datetime
    began: float
    heard: float


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a send, `at` the database's time. `stands`: as it is now, where the answer was from memory."""

    answer: Answer
    stands: Answer
    at: datetime


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's books say of a subject.

    `absence`: the proof, where they do not show it. `moved_as`: they show it under a key that is not the one stored.
    """

    looked: Looked
    absence: Absence | None
    moved_as: str | None


class Sender:
    """Sends for every tenant, over every configured provider. Use as an async context manager."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        *,
        limits: Limits = LIMITS,
    ) -> None:
        """The providers stay the caller's to close."""
        self._database = database
        self._providers = providers
        self._limits = limits
        # What answers and look-ups of every flow show of lives that were lost.
        self.witness = Witness(database, providers)
        self._told: dict[str, BreakerState] = {}
        # By provider and class of answer, since this process began.
        self.answers: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Self:
        """Nothing is to be started."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take back what was said of breakers."""
        if self._told:
            try:
                await intents.breaker_gone(self._database, _PROCESS)
            except TallystickError as unreachable:
                log.warning("breaker_not_cleared", reason=str(unreachable))

    async def send(self, outgoing: Outgoing) -> Sent:
        """Write it once, under its committed attempt. Never raises: what is not certain is Unknown.

        The caller commits the answer, with what it makes of his own rows.
        """
        attempt, instruction = outgoing.attempt, outgoing.instruction
        adapter = self._providers[attempt.provider]
        sending = Sending(
            first_sent_at=attempt.first_sent_at,
            not_after=attempt.not_after,
            # Counted from before the commit: this clock's not-after is never later than the database's.
            sendable_until=outgoing.began + self._limits.send_seconds,
            since=outgoing.since,
            mark=attempt.mark,
        )
        answer = await call(adapter, instruction, sending)
        now = now_after(outgoing.now, outgoing.heard)
        answer = believed(
            outgoing.history, answer, attempt=attempt.number, since=outgoing.since, now=now, facts=adapter.facts
        )
        self.answers[attempt.provider, type(answer).__name__.lower()] += 1
        # It may have come back since, and whoever was told of that be lost.
        stands = await asking.as_it_stands(
            adapter, adapter.purpose(instruction), answer, seconds=self._limits.payment_wait_seconds / 2
        )
        await self.tell_breaker(attempt.provider)
        return Sent(answer=answer, stands=stands, at=now)

    async def cancel(self, provider: str, payment_id: str, *, now: datetime) -> Answer:
        """Have a payment ended that has not succeeded, by the provider's id of it. Safe to repeat. Never raises."""
        adapter = self._providers[provider]
        sending = Sending(
            first_sent_at=now,
            not_after=now + timedelta(seconds=self._limits.send_seconds),
            sendable_until=steady() + self._limits.send_seconds,
        )
        try:
            return await adapter.cancel(payment_id, sending)
        except Exception:  # noqa: BLE001 - whatever it was, it is not known to be cancelled
            log.error("adapter_failed", provider=provider, trace=_trace())
            return Unknown(code="adapter_failed", message="The adapter failed; the log has the trace.")

    async def ask(
        self,
        provider: str,
        instruction: Instruction,
        history: History,
        *,
        since: datetime,
        now: datetime,
        others: Sequence[bytes] = (),
        created: datetime | None = None,
        listed: Listed | None = None,
        name: str = "",
    ) -> Shown:
        """What the provider's books say, under its key and `others`. Dated before the question, which is `now`.

        `since`: from when on they are asked; `created`: when what it pays for was. `listed` is what they were read to
        hold by `name`: what may be older than that, its own key tells.
        """
        adapter = self._providers[provider]
        looked = None
        if listed is not None and isinstance(instruction, Transfer):
            looked = listed.of(name, instruction.key, instruction.destination)
        # From when on it is asked for, and not from its own creation: what may be older was not listed.
        if looked is None or (isinstance(looked, Absent) and _may_be_older(listed, history, since, now, adapter)):
            until = made_until(history, since=created or since, now=now, facts=adapter.facts)
            looked = await asking.look_up(adapter, instruction, others, since=since, now=now, until=until)
        await self.witness.asked(provider, history, looked)
        absence = asking.absence(looked, instruction.key, now, since=since)
        if absence is not None and listed is not None:
            absence = msgspec.structs.replace(
                absence,
                listed_since=listed.known_until,
                read_at=listed.read_at,
                since=min(since, listed.known_until),
            )
        return Shown(looked=looked, absence=absence, moved_as=asking.under_another_key(looked, instruction.key))

    def breakers(self) -> dict[str, BreakerState]:
        """How each provider's breaker stands in this process."""
        return {name: provider.breaker.state for name, provider in self._providers.items()}

    async def tell_breaker(self, name: str) -> None:
        """Let the others know when this process's breaker for a provider has changed."""
        adapter = self._providers[name]
        state = adapter.breaker.state
        if self._told.get(name, "closed") == state:
            return
        self._told[name] = state
        try:
            await intents.breaker_changed(self._database, name, _PROCESS, state, adapter.breaker.reason)
        except Exception:  # noqa: BLE001 - whatever it is: the provider was called, and the caller must hear the answer
            log.warning("breaker_not_told", provider=name, trace=_trace())


def _trace() -> str:
    """Where it happened, without the values: a log that shows locals would show credentials."""
    return traceback.format_exc()


def terms_of(name: str, adapter: Provider, purpose: Purpose) -> ProviderTerms:
    """As the adapter has them."""
    return ProviderTerms(
        name=name,
        purpose=purpose,
        account=adapter.account,
        facts=adapter.facts,
        lookup=adapter.facts.lookup.get(purpose, Lookup.NONE),
        refusal=adapter.refusal,
    )


async def call(adapter: Provider, instruction: Instruction, sending: Sending) -> Answer:
    """Write it once, under a committed attempt. Never raises: what is not certain is Unknown."""
    try:
        return await adapter.send(instruction, sending)
    except Exception:  # noqa: BLE001 - whatever it was, somebody must be told that the outcome is unknown
        # A bug of an adapter. Bytes may have left, so it is not known that nothing happened.
        log.error("adapter_failed", provider=adapter.facts.name, trace=_trace())
        return Unknown(code="adapter_failed", message="The adapter failed; the log has the trace.")


def _may_be_older(listed: Listed | None, history: History, since: datetime, now: datetime, adapter: Provider) -> bool:
    """Whether it may have been made before everything was listed from."""
    if listed is None or since > listed.known_until:
        return False
    return history.first_sent_at is not None or is_forgotten(since, adapter.facts.remembered, now)
