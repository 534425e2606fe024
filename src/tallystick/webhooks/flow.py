"""Events: claimed in batches under a lease, handed to whoever handles their purpose, finished under a fence.

    claim ──> handler of the purpose (a whole batch) ──> finish
      │  │         └── fails: each of the batch alone, so that one bad event harms no other
      │  └──> what is only named is fetched from its provider first
      └── while it works, the lease is renewed

Killed anywhere: the lease runs out, and the next claim takes the event over. So handlers are safe to run again. A
worker that was paused past its lease changes nothing: its claim number is no longer the row's.
"""

import asyncio
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol

import msgspec
import structlog

from tallystick.audit.author import acting, by_provider
from tallystick.database.pool import GONE, Connection, Database
from tallystick.errors import (
    Busy,
    InFlight,
    InvariantBroken,
    OutcomeUnknown,
    ProviderUnreachable,
    TallystickError,
    Unreachable,
    require,
)
from tallystick.money.currencies import Purpose
from tallystick.movement import asking
from tallystick.movement.witness import Witness
from tallystick.providers.port import Provider
from tallystick.providers.words import Event, Movement
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.review.flow import Reviews
from tallystick.settlement.rules import ALARMS
from tallystick.webhooks import store
from tallystick.webhooks.inbox import ClaimedEvent
from tallystick.webhooks.rules import End, Ended, EventOutcome, Failed, Ok, Postponed, Recorded, after_fetch, end

log = structlog.get_logger("tallystick.events")

# Not the event's fault, whatever it was: the same again when it is over.
OUTAGES: Final = (Unreachable, OutcomeUnknown, InFlight, Busy, ProviderUnreachable)
# Renewed this many times within a lease: one renewal may be lost to a slow database.
_RENEWALS: Final = 3
# News are looked up side by side: each is a question to the database, and most concern nothing of ours.
_NEWS_AT_ONCE: Final = 4
# Questions to providers side by side; each provider's own gate may allow fewer.
_FETCHES_AT_ONCE: Final = 4


class Handler(Protocol):
    """What is done about the events of one purpose."""

    async def handle(self, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
        """Deal with a batch, and answer for each event in order. Safe to run again with the same events.

        `Recorded` for those that it finished itself (`webhooks.store.finish`) in the commit of what it did about them.
        What it raises is nobody's in particular: an outage postpones all of them, anything else is tried one by one.
        """


class Processed(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did. `late`: finished by somebody else meanwhile."""

    claimed: int = 0
    ok: int = 0
    compensated: int = 0
    recorded: int = 0
    postponed: int = 0
    failed: int = 0
    dead: int = 0
    late: int = 0


class Events:
    """Processes events of every provider. Any number may run side by side, in any number of processes."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[Purpose, Handler],
        *,
        lease: timedelta,
        by: str,
        providers: Mapping[str, Provider] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`by` signs the rows. Events whose purpose has no handler are finished: they concern nobody.

        `providers` are asked for what an event only names.
        """
        self._database = database
        self._handlers = dict(handlers)
        self._providers = dict(providers or {})
        self._lease = lease
        self._by = by
        self._limits = limits

    async def run_once(self, most: int | None = None) -> Processed:
        """Claim a batch and deal with it. Raises Unreachable, InFlight and OutcomeUnknown; nothing is lost by it."""
        claimed = await store.claim(
            self._database, most=most or self._limits.event_chunk, lease=self._lease, by=self._by
        )
        counts: dict[str, int] = {"claimed": len(claimed)}
        if claimed:
            async with self._renewed(claimed):
                named = [event for event in claimed if event.object_purpose in self._handlers]
                told = [event for event in claimed if event.object_purpose not in self._handlers]
                await self._deal_with(told, counts)
                # After the others: a provider that is slow to answer holds up nobody else's news.
                if named:
                    await self._deal_with(await self._fetched(named, counts), counts)
        return Processed(**counts)

    async def _deal_with(self, events: Sequence[ClaimedEvent], counts: dict[str, int]) -> None:
        for handler, group in self._groups(events):
            await self._finish(group, await self._handled(handler, group), counts)

    async def _fetched(self, named: Sequence[ClaimedEvent], counts: dict[str, int]) -> list[ClaimedEvent]:
        """Those whose movement the provider showed, with it; the others are finished. Each object is asked for once."""
        wanted = {(event.provider, event.object_purpose, event.object_id) for event in named}
        turns = asyncio.Semaphore(_FETCHES_AT_ONCE)

        async def ask(provider: str, purpose: Purpose | None, object_id: str | None) -> Movement | Ended:
            adapter = self._providers.get(provider)
            if adapter is None or purpose is None or object_id is None:
                # It may be configured again, and then the news counts.
                return Postponed(f"no provider {provider} is configured to ask", self._limits.event_outage_seconds)
            async with turns:
                shown = await asking.fetch(adapter, purpose, object_id, seconds=self._limits.event_handling_seconds)
            return after_fetch(shown, outage_seconds=self._limits.event_outage_seconds)

        order = list(wanted)
        found = dict(zip(order, await asyncio.gather(*(ask(*one) for one in order)), strict=True))
        shown: list[ClaimedEvent] = []
        without: list[tuple[ClaimedEvent, Ended]] = []
        for event in named:
            one = found[event.provider, event.object_purpose, event.object_id]
            if isinstance(one, Movement):
                shown.append(msgspec.structs.replace(event, movement=one))
            else:
                without.append((event, one))
        await self._finish([event for event, _ in without], [outcome for _, outcome in without], counts)
        return shown

    def ear(self) -> "Ear":
        """Something that hears when events were stored."""
        return Ear(self._database, self._limits)

    def _groups(self, claimed: Sequence[ClaimedEvent]) -> list[tuple[Handler | None, list[ClaimedEvent]]]:
        """By handler; those that need none first, because they are done at once."""
        groups: dict[int, tuple[Handler | None, list[ClaimedEvent]]] = {id(None): (None, [])}
        for event in claimed:
            handler = None if event.movement is None else self._handlers.get(event.movement.purpose)
            groups.setdefault(id(handler), (handler, []))[1].append(event)
        return [group for group in groups.values() if group[1]]

    async def _handled(self, handler: Handler | None, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
        if handler is None:
            return [Ok()] * len(events)
        try:
            # What is done about an event is the provider's doing: he said so.
            with acting(by_provider(*(event.provider for event in events))):
                async with asyncio.timeout(self._limits.event_handling_seconds):
                    outcomes = await handler.handle(events)
            require(len(outcomes) == len(events), "a handler answered for another number of events than it was given")
        except InvariantBroken:
            raise
        except OUTAGES as outage:
            return [self._postponed(outage)] * len(events)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to some event of this batch
            if len(events) == 1:
                log.error("event_failed", event_id=events[0].event_id, provider=events[0].provider, trace=_trace())
                return [Failed(_in_short(error))]
            return [(await self._handled(handler, [event]))[0] for event in events]
        return outcomes

    def _postponed(self, outage: TallystickError) -> Postponed:
        return Postponed(_in_short(outage), self._limits.event_outage_seconds)

    async def _finish(
        self, events: Sequence[ClaimedEvent], outcomes: Sequence[EventOutcome], counts: dict[str, int]
    ) -> None:
        ended: list[tuple[ClaimedEvent, End]] = []
        for event, outcome in zip(events, outcomes, strict=True):
            if isinstance(outcome, Recorded):
                _count(counts, "recorded")
            else:
                ended.append((event, self._end(event, outcome)))
        mine = await store.record(self._database, ended) if ended else set()
        for event, written in ended:
            if event.number not in mine:
                _count(counts, "late")
                continue
            _count(counts, _COUNTED[written.status] if written.status != "UNPROCESSED" else _again(written, event))
            if written.status == "DEAD_LETTER":
                log.error("event_is_dead", event_id=event.event_id, provider=event.provider, reason=written.reason)

    def _end(self, event: ClaimedEvent, outcome: Ended) -> End:
        return end(
            outcome,
            tries=event.tries,
            most_tries=self._limits.event_tries,
            first_pause_seconds=self._limits.event_first_retry_seconds,
            longest_pause_seconds=self._limits.event_longest_retry_seconds,
        )

    @asynccontextmanager
    async def _renewed(self, claimed: Sequence[ClaimedEvent]) -> AsyncIterator[None]:
        """Hold the lease for as long as the block works."""
        renewing = asyncio.create_task(self._renew(claimed), name="event lease")
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self, claimed: Sequence[ClaimedEvent]) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / _RENEWALS)
            try:
                # Finished ones are passed over by the statement itself.
                await store.renew(self._database, claimed, lease=self._lease)
            except TallystickError as error:
                # The fence holds without it: at worst somebody else does it again.
                log.warning("lease_not_renewed", reason=_in_short(error))


class Ear:
    """Hears the database's notifications. `heard` is set at each, and when the connection is lost.

    Notifications are only a wake-up call: one that was never heard costs a poll's delay, and nothing else.
    """

    def __init__(self, database: Database, limits: Limits) -> None:
        """Deaf until opened."""
        self._database = database
        self._limits = limits
        self._connection: Connection | None = None
        self.heard = asyncio.Event()

    async def open(self) -> None:
        """Listen, unless it does already. Raises Unreachable."""
        if self._connection is not None and not self._connection.is_closed():
            return
        try:
            self._connection = await store.listen(self._database, self.heard.set, self.heard.set)
        except GONE as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Hear nothing more."""
        if self._connection is None:
            return
        try:
            await self._connection.close(timeout=self._limits.close_seconds)
        except GONE:
            self._connection.terminate()
        self._connection = None


class SettlementNews:
    """Late news of payouts: one that came back, or contradicts what its row says, becomes disputed."""

    def __init__(self, reviews: Reviews, witness: Witness) -> None:
        """Reviews decide; this only tells them."""
        self._reviews = reviews
        self._witness = witness

    async def handle(self, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
        """Each by itself: what one of them runs into is not the others' trouble."""
        turns = asyncio.Semaphore(_NEWS_AT_ONCE)

        async def tell(event: ClaimedEvent) -> EventOutcome:
            async with turns:
                return await self._told(event)

        told = await asyncio.gather(*(tell(event) for event in events), return_exceptions=True)
        outcomes: list[EventOutcome] = []
        for outcome in told:
            # A broken invariant, and nothing else: as itself, not in a group that somebody takes for a failure.
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes.append(outcome)
        return outcomes

    async def _told(self, event: ClaimedEvent) -> EventOutcome:
        if event.movement is None:
            return Ok()
        try:
            disputed = await self._reviews.observe(event.provider, event.movement, alarm=ALARMS.get(event.type))
            await self._witness.heard(event.provider, [event.movement])
        except InvariantBroken:
            raise
        except OUTAGES as outage:
            return Postponed(_in_short(outage), LIMITS.event_outage_seconds)
        except Exception as error:  # noqa: BLE001 - this event's own
            log.error("event_failed", event_id=event.event_id, provider=event.provider, trace=_trace())
            return Failed(_in_short(error))
        if disputed is not None:
            log.warning("settlement_disputed_by_webhook", settlement=disputed, event_id=event.event_id)
        return Ok()


class Listed(msgspec.Struct, frozen=True):
    """A page of a provider's own list of events."""

    provider: str
    events: tuple[Event, ...]


class Backfill:
    """Webhooks that never came, read from the provider's own list of events. The guard knows those that did."""

    def __init__(self, database: Database, name: str, provider: Provider, *, limits: Limits = LIMITS) -> None:
        """`name` is what the provider is configured under."""
        self._database = database
        self.name = name
        self._provider = provider
        self._limits = limits

    async def run_once(self) -> int:
        """Read on from where the last run ended. How many were missing.

        Raises ProviderUnreachable and Unreachable. Killed between two pages it goes on from the last one stored.
        """
        missing = 0
        for _ in range(self._limits.webhook_backfill_pages):
            cursor, version, now = await store.cursor(self._database, self.name)
            page = await self._provider.events(cursor=cursor, now=now)
            if page.cursor == (cursor or "") and not page.events:
                break
            fresh, is_ours = await store.backfill(
                self._database, Listed(self.name, page.events), to=page.cursor, version=version
            )
            missing += fresh
            if not page.more or not is_ours:
                break
        if missing:
            log.warning("webhooks_were_missing", provider=self.name, events=missing)
        return missing

    @property
    def is_offered(self) -> bool:
        """Whether the provider has such a list at all."""
        return self._provider.facts.events_reach is not None


class BodyKeeper:
    """Partitions of bodies: the days to come are made, and old ones detached by policy."""

    def __init__(self, database: Database, *, detach_after_days: int | None, limits: Limits = LIMITS) -> None:
        """`detach_after_days` None: bodies are kept for good."""
        self._database = database
        self._detach_after_days = detach_after_days
        self._limits = limits

    async def run_once(self) -> tuple[int, list[str]]:
        """How many partitions were made, and the names of the tables that were detached."""
        made, gone = await store.keep_days(
            self._database, ahead=self._limits.webhook_days_ahead, detach_after=self._detach_after_days
        )
        for name in gone:
            log.info("bodies_detached", table=f"tally.{name}", next="archive it, then drop it")
        return made, gone


_COUNTED: Final = {"PROCESSED_OK": "ok", "PROCESSED_COMPENSATED": "compensated", "DEAD_LETTER": "dead"}


def _again(written: End, event: ClaimedEvent) -> str:
    return "failed" if written.tries > event.tries else "postponed"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _in_short(error: BaseException) -> str:
    """What went wrong, for the row. Of exceptions that are no promise of ours only the kind: they may show values."""
    return str(error).split(". ", 1)[0] if isinstance(error, TallystickError) else type(error).__name__


def _trace() -> str:
    """Where it happened, without the values: a log that shows locals would show what the provider sent."""
    return traceback.format_exc()
