"""Reconciliation: a provider's books held against our settlements, both ways round.

    list       every transfer and payout the provider made in the span and a little around it, chunk by chunk:
               which settlement does it mean, and do both say the same?
    doubles    payouts that the list showed more than once
    unshown    payouts sent in the span and recorded as transferred that the list did not show: asked for by their id

Sends no money. Without `repair` it changes nothing. With it, news that contradict a row go the way a webhook's go (the
row becomes disputed and the ledger follows), and what the provider does not have is disputed. Each is done once; a
person resolves it.

Safe beside running workers: an intent is committed before anything is sent, so whatever is listed has its row; and a
row that changed after the reading began, or whose bytes may still be on their way, is left to the next run (`timing`).

What is covered: movements by when the provider made them, settlements by when they were sent. So a payout that was sent
in the span and made outside of the list is still asked for, by its id; one that was sent before the span and came back
in it is seen only by a run whose span holds its sending. That is why the span reaches back, unless told otherwise, as
far as the provider's successes can be undone.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from tallystick.database.pool import Database
from tallystick.errors import InFlight, Misconfigured, ProviderUnreachable, RestoredDatabase
from tallystick.keys.derived import digest
from tallystick.ledger.outcome import Rejected
from tallystick.money.currencies import Purpose
from tallystick.movement import asking
from tallystick.movement.life import orphans
from tallystick.movement.life import store as life
from tallystick.movement.witness import Witness
from tallystick.providers.port import Provider
from tallystick.providers.words import Absent, Done, Exchange, Facts, Fetched, Movement, NotShown, Transfer, Undecided
from tallystick.reconciliation import rules, store
from tallystick.reconciliation.rules import Finding, Here, Kind, Question, judge, told
from tallystick.reconciliation.store import Cursor, Sheet
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.review.flow import Reviews

log = structlog.get_logger("tallystick.reconciliation")

# Movements matched at once, and settlements looked for.
CHUNK: Final = 500
# Asked for and looked up in one go: adapters bound how many pages one list may have.
_SLICE: Final = timedelta(days=1)
# The provider's clock against the database's, to either side; adapters allow the same.
_SKEW: Final = timedelta(minutes=10)
# Days that cannot be read, before the provider is taken to be away.
_MOST_TROUBLES: Final = 3
_ASKED_AT_ONCE: Final = 20
# Questions by id to one provider in one run. More rows than that are not there for one reason, and a person finds it.
MOST_ASKED: Final = 10_000
# How far back a run goes when nothing was said: at least this, and as long as a success may still be undone.
_SHORTEST_SPAN: Final = timedelta(days=7)
_ROOM: Final = timedelta(days=1)
# Ten years: an earlier time is a slip of the finger, and every day of it is a question to the provider.
_LONGEST_SPAN: Final = timedelta(days=3_660)
# Of an answer, as evidence for a person.
_SAID_CHARACTERS: Final = 500

_OUT: Final[frozenset[Purpose]] = frozenset({"transfer", "payout"})
_OK = 200


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the halves differ. `said` tells it to a person. `is_repaired`: this run did what is safe."""

    provider: str
    kind: Kind
    reason: str
    said: str
    tenant: str | None = None
    settlement: str | None = None
    status: str | None = None
    transfer_id: str | None = None
    movement: Movement | None = None
    is_repaired: bool = False


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one provider. `broken_off`: why it is not the whole; then nothing is said to be missing there."""

    provider: str
    since: datetime
    until: datetime
    movements: int
    expected: int
    asked: int
    breaks: Mapping[str, int]
    timing: int
    repaired: int
    broken_off: str | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What one run found. `not_compared`: providers that were left out, and why."""

    as_of: datetime
    compared: tuple[Compared, ...]
    not_compared: Mapping[str, str]

    @property
    def breaks(self) -> int:
        """Over all providers, without what was too fresh to judge."""
        return sum(sum(one.breaks.values()) for one in self.compared)

    @property
    def is_complete(self) -> bool:
        """Whether every list was read to its end and every question answered."""
        return all(one.broken_off is None for one in self.compared)


Moment = datetime | timedelta
Tell = Callable[[Break], None]
Progress = Callable[[str, int], None]


async def reconcile(
    database: Database,
    providers: Mapping[str, Provider],
    reviews: Reviews,
    *,
    by: str,
    since: Moment | None = None,
    until: Moment | None = None,
    only: str | None = None,
    repair: bool = False,
    limits: Limits = LIMITS,
    tell: Tell = lambda _break: None,
    progress: Progress = lambda _provider, _movements: None,
) -> Reconciled:
    """Compare every provider's books, or one's, with the settlements. `tell` hears of each break as it is found.

    `since` and `until` are moments, or how long ago. Raises Misconfigured for a span or a provider that is none,
    RestoredDatabase where `repair` would act on rows that are known to be old, and Unreachable.
    """
    if only is not None and only not in providers:
        known = ", ".join(sorted(providers)) or "none"
        raise Misconfigured(f"The provider {only!r:.60} is not configured here. Configured: {known}.")
    if repair:
        async with database.owning() as connection:
            if not await life.notice(connection):
                raise RestoredDatabase
    compared = []
    skipped: dict[str, str] = {}
    async with store.sheet(database) as sheet:
        as_of = await sheet.now()
        for name in [name for name in providers if only in (None, name)]:
            facts = providers[name].facts
            if not facts.pushes_money or not facts.lists & _OUT:
                skipped[name] = "it makes no payouts for others, or does not list them"
                continue
            span = _span(since, until, as_of, facts)
            run = _Run(database, sheet, reviews, name, providers[name], by=by, limits=limits, repair=repair, tell=tell)
            compared.append(await run.compare(*span, progress=progress))
            await sheet.forget()
        if only is None:
            skipped |= {
                name: "it is not configured here, and has settlements"
                for name in await sheet.providers()
                if name not in providers
            }
    return Reconciled(as_of=as_of, compared=tuple(compared), not_compared=skipped)


class _Run:
    """One provider's books."""

    def __init__(
        self,
        database: Database,
        sheet: Sheet,
        reviews: Reviews,
        name: str,
        provider: Provider,
        *,
        by: str,
        limits: Limits,
        repair: bool,
        tell: Tell,
    ) -> None:
        self._database = database
        self._sheet = sheet
        self._reviews = reviews
        self._name = name
        self._provider = provider
        self._witness = Witness(database, {name: provider})
        self._by = by
        self._limits = limits
        self._repairs = repair
        self._tell = tell
        self._found: Counter[Kind] = Counter()
        self._movements = self._asked = self._repaired = 0
        self._broken_off: str | None = None

    async def compare(self, since: datetime, until: datetime, *, progress: Progress) -> Compared:
        """Both ways round."""
        # Anew for each provider: the ones before it took their time, and rows changed meanwhile.
        as_of = await self._sheet.now()
        facts = self._provider.facts
        permit = timedelta(seconds=self._limits.send_seconds)
        question = Question(account=self._provider.account, since=since, until=until + permit, as_of=as_of, facts=facts)
        expected = 0
        try:
            await self._list(since - _SKEW, until + permit + facts.longest_in_flight + _SKEW, question, progress)
        except ProviderUnreachable as error:
            # What came is true all the same; only what did not come says nothing.
            self._broken_off = str(error)
        await self._doubles()
        if self._broken_off is None:
            for start, end in _slices(since, until):
                expected += await self._sheet.expect(self._name, start, end)
            try:
                await self._unshown(question)
            except ProviderUnreachable as error:
                self._broken_off = str(error)
        return Compared(
            provider=self._name,
            since=since,
            until=until,
            movements=self._movements,
            expected=expected,
            asked=self._asked,
            breaks={kind: self._found[kind] for kind in rules.BREAKS if self._found[kind]},
            timing=self._found["timing"],
            repaired=self._repaired,
            broken_off=self._broken_off,
        )

    async def _list(self, since: datetime, until: datetime, question: Question, progress: Progress) -> None:
        chunk: list[Movement] = []
        try:
            async for movement in self._movements_of(since, until):
                chunk.append(movement)
                if len(chunk) == CHUNK:
                    await self._hold(chunk, question)
                    chunk = []
                    progress(self._name, self._movements)
        except ProviderUnreachable:
            await self._hold(chunk, question)
            raise
        await self._hold(chunk, question)

    async def _movements_of(self, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Raises ProviderUnreachable at the end: one day that cannot be read hides no other."""
        troubles: list[ProviderUnreachable] = []
        for start, end in _slices(since, until):
            try:
                async for movement in self._provider.movements(since=start, until=end):
                    if movement.purpose in _OUT:
                        yield movement
            except ProviderUnreachable as error:
                troubles.append(error)
                if len(troubles) == _MOST_TROUBLES:
                    break
        if troubles:
            raise troubles[0]

    async def _hold(self, movements: Sequence[Movement], question: Question) -> None:
        """Hold movements against the settlements they mean."""
        if not movements:
            return
        matched = await self._sheet.match(self._name, movements)
        self._movements += len(matched)
        for movement, meant in matched:
            for finding in judge(movement, meant, question):
                await self._note(finding)

    async def _doubles(self) -> None:
        after: Cursor | None = Cursor()
        while after is not None:
            found, after = await self._sheet.doubles(after, CHUNK)
            for here, ids in found:
                await self._note(rules.doubled(here, ids))

    async def _unshown(self, question: Question) -> None:
        after: Cursor | None = Cursor()
        while after is not None:
            rows, after = await self._sheet.unshown(after, CHUNK)
            wanted = []
            for here in rows:
                finding = rules.before_asking(here, question)
                if finding is None:
                    wanted.append(here)
                else:
                    await self._note(finding)
            for start in range(0, len(wanted), _ASKED_AT_ONCE):
                await self._ask(wanted[start : start + _ASKED_AT_ONCE], question)

    async def _ask(self, rows: Sequence[Here], question: Question) -> None:
        if self._asked + len(rows) > MOST_ASKED:
            message = (
                f"more than {MOST_ASKED:,} payouts of the span are not in its list: look whether it is the account"
            )
            raise ProviderUnreachable(self._name, message)
        self._asked += len(rows)
        answers = await asyncio.gather(*(self._fetch(here) for here in rows))
        for here, answer in zip(rows, answers, strict=True):
            match answer:
                case Done(movement=movement):
                    await self._hold([movement], question)
                case Absent(evidence=evidence):
                    await self._note(rules.not_found(here, question), evidence[-1] if evidence else None)
                case Undecided(may_pass=False, evidence=evidence) if evidence and evidence[-1].status == _OK:
                    await self._note(rules.unreadable(here), evidence[-1])
                case NotShown():
                    await self._note(rules.unreadable(here))
                case Undecided():
                    raise ProviderUnreachable(self._name, f"it did not say whether it has {here.transfer_id}")

    async def _fetch(self, here: Here) -> Fetched:
        instruction = Transfer(
            key=here.key, destination=here.destination, amount_micros=here.amount_micros, currency=here.currency
        )
        return await asking.fetch(self._provider, self._provider.purpose(instruction), here.transfer_id or "")

    async def _note(self, finding: Finding, asked: Exchange | None = None) -> None:
        self._found[finding.kind] += 1
        if finding.kind == "timing":
            return
        here = finding.here
        if finding.kind == "duplicated" and here is not None:
            await self._sheet.told(here)
        if finding.kind == "missing_here" and finding.movement is not None:
            await self._witness.saw(self._name, [finding.movement])
        is_repaired = self._repairs and await self._repair(finding, asked)
        self._repaired += is_repaired
        self._tell(
            Break(
                provider=self._name,
                kind=finding.kind,
                reason=finding.reason,
                said=told(finding, self._name),
                tenant=None if here is None else here.tenant.name,
                settlement=None if here is None else here.name,
                status=None if here is None else here.status,
                transfer_id=None if here is None else here.transfer_id,
                movement=finding.movement,
                is_repaired=is_repaired,
            )
        )

    async def _repair(self, finding: Finding, asked: Exchange | None) -> bool:
        """Do what is safe about it. False: nothing is, or it was done before and a person has decided since."""
        here, movement = finding.here, finding.movement
        try:
            match finding.kind:
                case "duplicated" if here is not None and finding.others:
                    return await store.note_double(self._database, here, finding.others, by=self._by)
                case "duplicated" | "state_differs" | "amount_differs" if movement is not None:
                    return await self._reviews.observe(self._name, movement) is not None
                case "missing_there" if here is not None:
                    return await self._dispute(here, finding, asked)
                case "missing_here" if movement is not None:
                    # A settlement that is created again under that key is asked about, not sent.
                    await orphans.keep_if_orphan(self._database, self._name, movement)
        except InFlight:
            log.info("not_repaired", settlement=here and here.name, reason="somebody else is working on it")
        return False

    async def _dispute(self, here: Here, finding: Finding, asked: Exchange | None) -> bool:
        if finding.reason == rules.MISSING:
            # Before the dispute, because a run that is killed in between finds a transferred row again.
            await store.note_missing(self._database, here, by=self._by)
        # One key for one absence: what a person has resolved since is not disputed again for the same.
        key = digest("reconciliation", settlement=here.name, transfer_id=here.transfer_id or "", reason=finding.reason)
        answer = await self._reviews.dispute(
            here.tenant,
            here.name,
            reason=finding.reason,
            evidence=_evidence(finding, self._name, asked),
            by=self._by,
            idempotency_key=f"reconcile-{key.hex()}",
        )
        if isinstance(answer, Rejected):
            log.info("not_repaired", settlement=here.name, reason=answer.code)
            return False
        return not answer.is_replayed


def _evidence(finding: Finding, provider: str, asked: Exchange | None) -> str:
    text = told(finding, provider)
    if asked is not None:
        text += f" Asked by its id: {asked.asked} -> {asked.status} {asked.request_id} {asked.said[:_SAID_CHARACTERS]}"
    return text.rstrip()


def _span(since: Moment | None, until: Moment | None, as_of: datetime, facts: Facts) -> tuple[datetime, datetime]:
    end = min(as_of, _moment(until, as_of) or as_of)
    undone = [facts.bounces[purpose] for purpose in sorted(_OUT) if purpose in facts.bounces]
    begin = _moment(since, as_of) or end - max(_SHORTEST_SPAN, *undone) - _ROOM
    if begin >= end:
        raise Misconfigured(f"The span begins at {begin.isoformat()}, which is not before its end.")
    if begin < as_of - _LONGEST_SPAN:
        raise Misconfigured(
            f"The span begins at {begin.isoformat()}: at most {_LONGEST_SPAN.days:,} days back are read."
        )
    return begin, end


def _moment(given: Moment | None, as_of: datetime) -> datetime | None:
    return as_of - given if isinstance(given, timedelta) else given


def _slices(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    while since < until:
        end = min(until, since + _SLICE)
        yield since, end
        since = end
