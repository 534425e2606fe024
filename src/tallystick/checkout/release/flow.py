"""Releasing orders to the sweeper: their payments are ended at the provider first. `checkout.release.rules` decides.

    claim   overdue and charged orders, each held by a row that is committed          ── one transaction
    ask     cancel the payment, or look it up                                         ── no transaction is open
    decide  released, told to the saga, or asked again later: under the claim         ── one transaction each

One that was swept before anybody answered stays due, and goes the same way until its payment is known to be over.
Killed anywhere it is asked again: to cancel what is cancelled changes nothing at any provider.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import structlog

from tallystick.checkout.payment.rules import search_for
from tallystick.checkout.release import store
from tallystick.checkout.release.rules import (
    Cancel,
    LookUp,
    Release,
    ReleaseVerdict,
    Tell,
    Wait,
    after_cancel,
    after_look,
    afterwards,
    first_step,
    held_until,
)
from tallystick.checkout.release.store import Held, Live, ProviderWord
from tallystick.database.pool import Database
from tallystick.errors import InvariantBroken
from tallystick.keys.derived import hex64
from tallystick.movement import asking
from tallystick.movement.evidence import answered, looked_up, now_after
from tallystick.movement.flow import Sender
from tallystick.movement.steps import MOVED_UNDER_ANOTHER_KEY
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Event, Looked, Lookup, Movement
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.release")

# It is not worded by a provider: this is how our own question is told apart from its webhooks.
_TYPE = "tallystick.found_by_the_sweeper"


class Releases:
    """Ends payments at providers for orders that are overdue. Any number may run side by side."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        sender: Sender,
        *,
        hold: timedelta,
        limits: Limits = LIMITS,
    ) -> None:
        """`hold`: how long a provider that is out of reach is waited for."""
        self._database = database
        self._providers = providers
        self._sender = sender
        self._hold = hold
        self._limits = limits

    async def run_once(self, *, grace: timedelta, watermark: datetime) -> Counter[str]:
        """Deal with a chunk of what is due; how many of each outcome. Raises Unreachable, InFlight, OutcomeUnknown."""
        claimed = await store.claim(
            self._database,
            grace=grace,
            watermark=watermark,
            most=self._limits.release_chunk,
            lease=timedelta(seconds=self._limits.release_lease_seconds),
        )
        heard = steady()
        outcomes = await asyncio.gather(*(self._released(held, heard) for held in claimed))
        return Counter(outcomes)

    async def _released(self, held: Held, heard: float) -> str:
        charge = held.charge
        is_swept = held.verdict is not None
        if charge is None or not (is_swept or held.order.status == "PENDING"):
            return await self._nothing_left(held)
        step, evidence = await self._asked(held, charge, heard)
        now = now_after(held.now, heard)
        match step:
            case Release("cancelled") if not charge.is_last:
                # Another one is open there as well: it is next.
                reason = "another_charge_is_live"
                await store.decide(
                    self._database, held, reason=reason, evidence=evidence, due_at=now, is_cancelled=True
                )
                return "open" if is_swept else "waiting"
            case Release("cancelled"):
                await store.decide(
                    self._database,
                    held,
                    verdict="cancelled",
                    closed_as="cancelled" if is_swept else None,
                    evidence=evidence,
                    is_cancelled=True,
                )
                return "cancelled"
            case Release(verdict):
                # Books that do not show it now may show it later: a server's error that is rolled forward.
                return await self._swept(held, verdict, Wait(verdict), evidence, now)
            case Tell(movements):
                said = ProviderWord(
                    charge.provider, tuple(_event(held, one, evidence) for one in movements or (_own(charge),))
                )
                told = (said,)
                if held.verdict is None and await store.has_failed(self._database, said):
                    # Poison holds nothing: what comes of it when it is tried again is given back.
                    return await self._swept(held, "given_up", Wait("told_and_failed"), evidence, now)
                if held.verdict is not None and not charge.is_last:
                    # Another one is open there as well: it is next, once the saga has the receipt of this.
                    return await self._swept(held, held.verdict, Wait("another_charge_is_live"), evidence, now, told)
                later = now + timedelta(seconds=self._limits.release_told_seconds)
                await store.decide(
                    self._database,
                    held,
                    closed_as="told" if is_swept else None,
                    reason="succeeded_at_the_provider",
                    evidence=evidence,
                    due_at=later,
                    told=told,
                )
                return "told"
            case Wait():
                return await self._wait(held, step, evidence, now)

    async def _nothing_left(self, held: Held) -> str:
        """Paid, cancelled, or its charge has failed meanwhile: nothing is left to end."""
        if held.verdict is not None:
            await store.decide(self._database, held, closed_as="ended")
            return "ended"
        verdict: ReleaseVerdict = "cancelled" if held.order.status == "PENDING" else "ended"
        await store.decide(self._database, held, verdict=verdict)
        return verdict

    async def _wait(self, held: Held, wait: Wait, evidence: bytes | None, now: datetime) -> str:
        if held.verdict is not None:
            return await self._swept(held, held.verdict, wait, evidence, now)
        until = held_until(held_since=held.held_since, now=now, hold=self._hold, tries=held.tries)
        if isinstance(until, Release):
            log.warning("order_given_up", order_id=str(held.order_id), reason=wait.reason)
            return await self._swept(held, until.verdict, wait, evidence, now)
        await store.decide(self._database, held, reason=wait.reason, evidence=evidence, due_at=until)
        return "waiting"

    async def _swept(  # noqa: PLR0917 - what became of a held order
        self,
        held: Held,
        verdict: ReleaseVerdict,
        wait: Wait,
        evidence: bytes | None,
        now: datetime,
        told: Sequence[ProviderWord] = (),
    ) -> str:
        """The sweeper may have it, or has it already: what stands at the provider is asked about further."""
        again = afterwards(
            held_since=held.held_since,
            now=now,
            longest=timedelta(seconds=self._limits.release_longest_seconds),
            can_be_asked=wait.can_be_asked,
        )
        if isinstance(again, datetime):
            await store.decide(
                self._database, held, verdict=verdict, reason=wait.reason, evidence=evidence, due_at=again, told=told
            )
            return verdict if held.verdict is None else "open"
        log.warning("payment_left_open", order_id=str(held.order_id), reason=wait.reason)
        await store.decide(
            self._database, held, verdict=verdict, closed_as=again, reason=wait.reason, evidence=evidence, told=told
        )
        return verdict if held.verdict is None else again

    async def _asked(self, held: Held, charge: Live, heard: float) -> tuple[Tell | Release | Wait, bytes | None]:
        """What the provider makes of it. Never raises for what the provider or the wire did."""
        adapter = self._providers.get(charge.provider)
        if adapter is None:
            return Wait("provider_not_configured"), None
        facts = adapter.facts
        now = now_after(held.now, heard)
        step: Tell | Cancel | LookUp | Release | Wait = first_step(
            charge.standing,
            now=now,
            can_cancel=facts.cancels_charges,
            lookup=facts.lookup.get("charge", Lookup.NONE),
            settles_in=facts.settles_in,
        )
        evidence: bytes | None = None
        if isinstance(step, LookUp):
            looked = await self._look_up(adapter, held, charge, now)
            step, evidence = after_look(looked, can_cancel=facts.cancels_charges), looked_up(looked)
            if isinstance(step, Tell) and asking.under_another_key(looked, charge.key) is not None:
                # A lost life's, in an attempt that nobody here has made: its money is a person's to place.
                return Wait(MOVED_UNDER_ANOTHER_KEY), evidence
        if isinstance(step, Cancel):
            answer = await self._sender.cancel(charge.provider, step.payment_intent_id, now=now)
            return after_cancel(answer), answered(answer)
        if isinstance(step, LookUp):
            return Wait("asked_before"), evidence
        return step, evidence

    async def _look_up(self, adapter: Provider, held: Held, charge: Live, now: datetime) -> Looked:
        search = search_for(
            held.order,
            charge.history,
            attempt=charge.attempt,
            provider=charge.provider,
            most_attempts=self._limits.payment_attempts,
        )
        return await asking.look_up(
            adapter, charge.instruction, search.others, since=search.since, now=now, beyond_failed=True
        )


def _own(charge: Live) -> Movement:
    """As the provider answered when it was charged: the amount that was asked for is the one it took."""
    if charge.standing.payment_intent_id is None:
        raise InvariantBroken("a charge that was answered has no id")
    return Movement(
        provider=charge.provider,
        purpose="charge",
        id=charge.standing.payment_intent_id,
        amount_micros=charge.instruction.amount_micros,
        currency=charge.instruction.currency,
        state="moved",
        status="as_answered",
        reference=hex64(charge.key),
    )


def _event(held: Held, movement: Movement, evidence: bytes | None) -> Event:
    """What the saga hears. The same for every telling, so that it is heard once."""
    told = {"what": _TYPE, "order": held.order_id.hex, "movement": movement}
    return Event(
        provider=movement.provider,
        type=_TYPE,
        dedup_key=f"{_TYPE}:{movement.id}",
        change_key=f"{_TYPE}:{movement.id}",
        object_id=movement.id,
        occurred_at=None,
        movement=movement,
        body=evidence or msgspec.json.encode(told),
    )
