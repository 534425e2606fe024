"""A scan: everything that was made in a span of time, however much it is, matched by us.

A few pages are read one after the other. A span that is fuller is cut into slices, and these are read side by side.
What a slice held is remembered for a while, as digests of our references:

    a question that was asked before the slice was read    may use it: it is told what a reading of its own would tell
    a slice that is over, by either clock                  stays as it is: half an hour long, any question may use it

So the questions of an outage read a full span once, and a scan that runs out of time goes on where it stopped when it
is asked again. A slice that seems to have what is looked for is read again: what became of it may have changed since.

A scan is bounded by time and memory. It is never ended by a number of pages, which would be a cliff: no question about
a busy hour could ever be answered.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from tallystick.providers.steady import steady
from tallystick.providers.words import Exchange

# Up to a thousand objects: most spans are no fuller, and cutting them would only cost questions.
FEW_PAGES: Final = 10
# A span is cut into so many slices at most, of ten seconds or twice that, and twice that again: on a grid, so that
# questions about other spans share them. One that proves too full for a scan's time is cut into parts.
SLICES: Final = 128
SHORTEST_SECONDS: Final = 10
PARTS: Final = 8
# Slices that are read at once: the provider's rate is the bound that counts, and sends must find room beside this.
LANES: Final = 8
# How long one question goes on. Whoever asks holds a claim for half a minute.
SCAN_SECONDS: Final = 20.0
# Less than an hour: two listings that are to be an hour apart are two.
REMEMBERED_SECONDS: Final = 1_800.0
# Eight bytes each: what a day of 46 payments a second holds.
MOST_REFERENCES: Final = 4_000_000
# Slices that proved too full.
_MOST_FULL: Final = 10_000
# A provider's clock against the database's: what was made at our first send may bear a time before it. How late its
# lists may be is less.
SKEW: Final = timedelta(minutes=10)
# Nothing is made later than this: an open end, which costs nothing, as hardly anything is there.
_AHEAD: Final = timedelta(days=366)
# Enough to see how the question ended; a scan of a thousand pages is no evidence that a person reads.
KEPT_EXCHANGES: Final = 3


class Kept(Protocol):
    """An object of the provider's books."""

    @property
    def id(self) -> str: ...
    @property
    def reference(self) -> str: ...


T = TypeVar("T", bound=Kept)
# What was made from the first second up to, not including, the last; page by page.
Read = Callable[[int, int], AsyncGenerator[tuple[Sequence[T], Exchange], None]]
Slice = tuple[int, int]


class Unfinished(Exception):
    """The time was over before the span was. Asked again, it goes on from there."""

    def __init__(self, unread: int, exchanges: Sequence[Exchange]) -> None:
        """`unread` slices are left."""
        super().__init__(f"{unread} slices of the span are still to be read")
        self.exchanges = tuple(exchanges)


class Scanned(msgspec.Struct, Generic[T], frozen=True):
    """Everything under the reference, each once, and how the reading ended."""

    found: tuple[T, ...]
    exchanges: tuple[Exchange, ...]


class Scanner:
    """What one account of a provider was seen to hold. Shared by all questions of this process."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._seen: OrderedDict[tuple[str, Slice], _Seen] = OrderedDict()
        self._size = 0
        self._full: set[tuple[str, Slice]] = set()
        self.lanes = LANES
        self._locks: dict[str, asyncio.Lock] = {}

    async def find(
        self, source: str, reference: str, read: Read[T], *, since: datetime, until: datetime, now: datetime
    ) -> Scanned[T]:
        """Look for a reference in what `read` lists; `source` names that list.

        `now` is the database's time: when the question was asked. Raises Unfinished, and what `read` raises.
        """
        scan = _Scan(self, source, reference, read, now)
        first, end = int(since.timestamp()), int(until.timestamp()) + 1
        cells = [part for cell in _slices(first, end, int(now.timestamp())) for part in self._parts(source, cell)]
        if any((source, cell) in self._seen for cell in cells) or not await scan.is_whole(first, end):
            lock = self._locks.setdefault(source, asyncio.Lock())
            try:
                async with asyncio.timeout(SCAN_SECONDS):
                    await lock.acquire()
            except TimeoutError:
                raise Unfinished(len(cells), scan.exchanges) from None
            try:
                await scan.slices(cells)
            finally:
                lock.release()
        return Scanned(tuple(scan.found.values()), tuple(scan.exchanges))

    def remember(self, source: str, cell: Slice, references: Sequence[str], *, read_at: float, is_over: bool) -> None:
        """What a slice held when it was read, which began at `read_at`."""
        self._forget(source, cell)
        digests = array("q", sorted(hash(each) for each in references))
        self._seen[source, cell] = _Seen(digests, read_at, is_over)
        self._size += len(digests)
        while self._size > MOST_REFERENCES and len(self._seen) > 1:
            self._forget(*next(iter(self._seen)))

    def may_hold(self, source: str, cell: Slice, reference: str, *, asked_at: float, at: float) -> bool:
        """Whether the slice must be read for this question. `at` is now."""
        seen = self._seen.get((source, cell))
        if seen is None:
            return True
        is_fresh = seen.read_at >= asked_at or (seen.is_over and at - seen.read_at < REMEMBERED_SECONDS)
        if not is_fresh:
            return True
        wanted = hash(reference)
        place = bisect_left(seen.digests, wanted)
        return place < len(seen.digests) and seen.digests[place] == wanted

    def is_too_full(self, source: str, cell: Slice) -> None:
        """It could not be read within a scan's time: from now on in parts, so that what was read is not lost again."""
        if len(self._full) >= _MOST_FULL:
            self._full.clear()
        self._full.add((source, cell))

    def _parts(self, source: str, cell: Slice) -> Iterator[Slice]:
        first, end = cell
        if (source, cell) not in self._full or end - first == 1:
            yield cell
            return
        step = max(1, (end - first) // PARTS)
        for start in range(first, end, step):
            yield from self._parts(source, (start, min(start + step, end)))

    def _forget(self, source: str, cell: Slice) -> None:
        seen = self._seen.pop((source, cell), None)
        if seen is not None:
            self._size -= len(seen.digests)


class _Seen(msgspec.Struct, frozen=True):
    digests: "array[int]"
    read_at: float
    is_over: bool


class _Scan(Generic[T]):
    """One question."""

    def __init__(self, scanner: Scanner, source: str, reference: str, read: Read[T], now: datetime) -> None:
        self._scanner = scanner
        self._source = source
        self._reference = reference
        self._read = read
        self._over = int((now - SKEW).timestamp())
        self._asked_at = steady()
        self.found: dict[str, T] = {}
        self.exchanges: list[Exchange] = []

    async def is_whole(self, first: int, end: int) -> bool:
        """Read a few pages. False: there are more."""
        pages = 0
        async with aclosing(self._read(first, end)) as listed:
            async for items, exchange in listed:
                if pages == FEW_PAGES:
                    return False
                pages += 1
                self._match(items, exchange)
        return True

    async def slices(self, cells: Sequence[Slice]) -> None:
        """Read those that must be read. Raises Unfinished, and what the reading raises."""
        began = steady()
        deadline = began + SCAN_SECONDS
        wanted = [cell for cell in cells if self._must_be_read(cell, began)]
        waiting = iter(wanted)
        lanes = self._scanner.lanes
        done = await asyncio.gather(*(self._lane(waiting, deadline) for _ in range(lanes)), return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        read = sum(one for one in done if isinstance(one, int))
        # Side by side none of them came to its end: fewer will, and then the next question has less to read.
        self._scanner.lanes = max(1, lanes // 2) if wanted and not read else LANES
        if read < len(wanted):
            raise Unfinished(len(wanted) - read, self.exchanges)

    async def _lane(self, waiting: Iterator[Slice], deadline: float) -> int:
        """How many slices were read to their end."""
        read = 0
        for cell in waiting:
            if not await self._slice(cell, deadline):
                break
            read += 1
        return read

    async def _slice(self, cell: Slice, deadline: float) -> bool:
        read_at = steady()
        references: list[str] = []
        pages = 0
        async with aclosing(self._read(*cell)) as listed:
            async for items, exchange in listed:
                pages += 1
                self._match(items, exchange)
                references += [item.reference for item in items if item.reference]
                if steady() >= deadline:
                    # Unless it only came too late.
                    if pages > FEW_PAGES or read_at < deadline - SCAN_SECONDS / 2:
                        self._scanner.is_too_full(self._source, cell)
                    return False
        self._scanner.remember(self._source, cell, references, read_at=read_at, is_over=cell[1] <= self._over)
        return True

    def _must_be_read(self, cell: Slice, at: float) -> bool:
        return self._scanner.may_hold(self._source, cell, self._reference, asked_at=self._asked_at, at=at)

    def _match(self, items: Sequence[T], exchange: Exchange) -> None:
        self.found |= {item.id: item for item in items if item.reference == self._reference}
        self.exchanges = [*self.exchanges[1 - KEPT_EXCHANGES :], exchange]


def window(first_sent_at: datetime, *, now: datetime, until: datetime | None) -> tuple[datetime, datetime]:
    """Between which moments of the provider's clock something of ours can have been made."""
    if until is None:
        # No end is known: a provider whose clock is ahead of ours must not have its answer left out.
        return first_sent_at - SKEW, now + _AHEAD
    return first_sent_at - SKEW, min(now, until) + SKEW


def _slices(first: int, end: int, now: int) -> Iterator[Slice]:
    """What is to come is one: hardly anything is there."""
    step = SHORTEST_SECONDS
    while (min(end, now) - first) > step * SLICES:
        step *= 2
    start = first - first % step
    while start < min(end, now):
        yield start, start + step
        start += step
    if start < end:
        yield start, end


def moment(seconds: int) -> datetime:
    """A whole second, as a time."""
    return datetime.fromtimestamp(seconds, UTC)
