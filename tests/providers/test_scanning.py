"""Scans: a span is read whole, however full it is, once for all who ask, and believed no longer than it is true."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tallystick.keys.derived import hex64, square45
from tallystick.providers import scanning
from tallystick.providers.port import Provider
from tallystick.providers.scanning import SKEW, Scanner, Unfinished
from tallystick.providers.words import Absent, Exchange, Found
from tests.providers.scripted import Asked, Canned, answering
from tests.providers.square import samples as square
from tests.providers.stripe import samples as stripe

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
SINCE = NOW - timedelta(minutes=25)
PAGE = 100


class Made(msgspec.Struct, frozen=True):
    """One object in the books."""

    id: str
    reference: str
    at: int


class Books:
    """Somebody's, newest first. `pages` were read; `broken` is where a reading breaks off, if it does."""

    def __init__(self, count: int) -> None:
        first = int(SINCE.timestamp())
        span = int(NOW.timestamp()) - first
        self.made = [Made(f"o{number}", f"r{number}", first + number * span // count) for number in range(count)]
        self.pages = 0
        self.broken: int | None = None

    async def read(self, first: int, end: int) -> AsyncGenerator[tuple[Sequence[Made], Exchange], None]:
        found = [one for one in self.made if first <= one.at < end][::-1]
        for start in range(0, max(len(found), 1), PAGE):
            await asyncio.sleep(0)
            self.pages += 1
            if self.broken is not None and self.pages >= self.broken:
                raise ConnectionError("broken off")
            yield found[start : start + PAGE], Exchange(asked="GET", status=200)

    async def find(self, scanner: Scanner, reference: str, *, now: datetime = NOW) -> list[str]:
        scanned = await scanner.find("charge", reference, self.read, since=SINCE, until=NOW, now=now)
        assert len(scanned.exchanges) <= 3
        return [one.id for one in scanned.found]


async def test_a_few_pages_are_read_one_after_the_other_without_slices() -> None:
    books = Books(950)
    assert await books.find(Scanner(), "r7") == ["o7"]
    assert books.pages == 10


async def test_a_full_span_is_read_to_its_end_and_what_is_in_it_is_found() -> None:
    books = Books(100_000)
    assert await books.find(Scanner(), "r3") == ["o3"]
    assert await books.find(Scanner(), "r99999") == ["o99999"]
    assert await books.find(Scanner(), "nobody's") == []


async def test_two_under_one_reference_are_both_told_however_far_apart() -> None:
    books = Books(20_000)
    twin = msgspec.structs.replace(books.made[-5], id="twin", reference="r5")
    books.made.append(twin)
    assert sorted(await books.find(Scanner(), "r5")) == ["o5", "twin"]


async def test_all_who_ask_at_once_read_a_full_span_once() -> None:
    """After an outage a hundred charges are asked about: at 25 requests a second that must not take an hour."""
    books, scanner = Books(20_000), Scanner()
    found = await asyncio.gather(*(books.find(scanner, f"r{number * 150}") for number in range(100)))
    assert found == [[f"o{number * 150}"] for number in range(100)]
    alone = Books(20_000)
    await alone.find(Scanner(), "nobody's")
    # Each reads the ten pages by which it learns that the span is full, and the slice that has what it looks for.
    assert books.pages <= alone.pages + 100 * (scanning.FEW_PAGES + 1 + 3)


async def test_a_scan_that_runs_out_of_time_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    later = NOW + 2 * SKEW
    books, scanner, asked = Books(20_000), Scanner(), 0
    # Each look at the clock takes a tenth of a second, so a question is over after two hundred.
    clock = itertools.count(10_000)
    monkeypatch.setattr(scanning, "steady", lambda: next(clock) / 10)
    found: list[str] = []
    while not found and asked < 1_000:
        asked += 1
        with suppress(Unfinished):
            found = await books.find(scanner, "r3", now=later)
    assert found == ["o3"]
    assert asked > 1
    whole = Books(20_000)
    monkeypatch.undo()
    await whole.find(Scanner(), "r3", now=later)
    # What the lanes had begun is read again; nothing else.
    assert books.pages <= whole.pages + asked * scanning.LANES * 3


async def test_a_slice_that_is_too_full_for_the_time_is_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be begun for ever, and what was read of it lost each time."""
    books, scanner, asked = Books(30_000), Scanner(), 0
    moment = int(SINCE.timestamp()) + 100
    books.made = [msgspec.structs.replace(one, at=moment + number % 7) for number, one in enumerate(books.made)]
    clock = itertools.count(10_000)
    monkeypatch.setattr(scanning, "steady", lambda: next(clock) / 5)
    found: list[str] = []
    while not found and asked < 100:
        asked += 1
        with suppress(Unfinished):
            found = await books.find(scanner, "r3", now=NOW + 2 * SKEW)
    assert found == ["o3"]
    assert asked > 1


async def test_a_long_span_costs_no_more_questions_than_it_has_pages_and_slices() -> None:
    books = Books(2_000)
    since = NOW - timedelta(days=1)
    books.made = [msgspec.structs.replace(one, at=one.at - 80_000 + n * 40) for n, one in enumerate(books.made)]
    scanned = await Scanner().find("charge", "r3", books.read, since=since, until=NOW, now=NOW)
    assert [one.id for one in scanned.found] == ["o3"]
    assert books.pages < 2_000 / PAGE + scanning.SLICES + scanning.FEW_PAGES + 2


async def test_what_breaks_off_is_no_absence_and_is_read_again() -> None:
    books, scanner = Books(20_000), Scanner()
    books.broken = 60
    with pytest.raises(ConnectionError):
        await books.find(scanner, "r3")
    books.broken = None
    assert await books.find(scanner, "r3") == ["o3"]


async def test_a_slice_that_is_not_over_is_read_again_for_a_later_question() -> None:
    """What is made after it was read would be taken for absent."""
    books, scanner = Books(20_000), Scanner()
    assert await books.find(scanner, "late") == []
    books.made.append(Made("late", "late", int((NOW - SKEW).timestamp()) + 1))
    assert await books.find(scanner, "late") == ["late"]


async def test_what_is_remembered_is_read_again_after_half_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two listings that must be an hour apart are two."""
    later, moment = NOW + 2 * SKEW, [1_000.0]
    monkeypatch.setattr(scanning, "steady", lambda: moment[0])
    books, scanner = Books(20_000), Scanner()
    assert await books.find(scanner, "nobody's", now=later) == []
    whole, books.pages = books.pages, 0
    assert await books.find(scanner, "nobody's", now=later) == []
    assert books.pages < whole / 4
    books.pages, moment[0] = 0, moment[0] + scanning.REMEMBERED_SECONDS
    assert await books.find(scanner, "nobody's", now=later) == []
    assert books.pages >= whole - scanning.FEW_PAGES - 1


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "MOST_REFERENCES", 5_000)
    books, scanner = Books(20_000), Scanner()
    assert await books.find(scanner, "r19999") == ["o19999"]
    assert await books.find(scanner, "r3") == ["o3"]
    assert 0 < scanner._size <= 5_000


DAY = 86_400
LAST = int(NOW.timestamp())
# Where a span begins on the grid of its slices, how long it is, and when in it, or before or after it, was asked.
SPANS = [(LAST + off, long, part) for off in (-7, 0, 3) for long in (1, 10, 1_281, DAY) for part in (-1, 0, 0.5, 1, 2)]


@pytest.mark.parametrize(("first", "long", "part"), SPANS)
def test_the_slices_of_a_span_leave_no_second_of_it_out(first: int, long: int, part: float) -> None:
    """A charge in a second that nobody reads counts as absent, and is made again."""
    end = first + long
    cells = list(scanning._slices(first, end, first + int(long * part)))
    assert cells[0][0] <= first
    assert cells[-1][1] >= end
    # A slice is read up to its end and without it: the next one must begin with that very second.
    assert [one_end for _, one_end in cells[:-1]] == [start for start, _ in cells[1:]]


@pytest.mark.parametrize("asked", [NOW + 2 * SKEW, NOW, NOW - SKEW, SINCE - SKEW], ids=["over", "now", "ahead", "open"])
async def test_a_charge_of_any_second_of_a_full_span_is_found(asked: datetime) -> None:
    """At each side of every boundary between slices, and where the provider's clock is ahead of ours."""
    books, first = Books(0), int(SINCE.timestamp())
    books.made = [Made(f"o{second}", "ours", second) for second in range(first, LAST + 1)]
    ours = [one.id for one in books.made]
    # The newest are listed first: these are all that the few pages before the slices hold.
    books.made += [Made(f"x{number}", "theirs", LAST) for number in range((scanning.FEW_PAGES + 1) * PAGE)]
    scanner = Scanner()
    assert sorted(await books.find(scanner, "ours", now=asked)) == ours
    # In parts as well.
    for cell in scanning._slices(first, LAST + 1, int(asked.timestamp())):
        scanner.is_too_full("charge", cell)
    assert sorted(await books.find(scanner, "ours", now=asked)) == ours


# --- the adapters, over the wire

CROWD = 12_000
FIRST = NOW - timedelta(minutes=20)


class Crowd:
    """A list of so many payments, a few of them in every second, as Stripe and as Square list them."""

    def __init__(self, count: int, *, ours: Collection[int]) -> None:
        first, span = int(FIRST.timestamp()), int((NOW - FIRST).total_seconds())
        self.times: list[float] = [first + number * span // count for number in range(count)]
        self.ours = ours

    def stripe(self, asked: Asked) -> Canned:
        low, high = (int(asked.query[f"created[{end}]"][0]) for end in ("gte", "lte"))
        after = int(asked.query["starting_after"][0].removeprefix("pi_")) if "starting_after" in asked.query else 10**9
        found = [n for n, at in enumerate(self.times) if low <= at <= high and n < after][::-1]
        data = [
            stripe.payment_intent(
                id=f"pi_{n}", created=self.times[n], metadata={"tally_key": self._key(n, stripe.REFERENCE, hex64)}
            )
            for n in found[:PAGE]
        ]
        return Canned(200, {"object": "list", "data": data, "has_more": len(found) > PAGE})

    def square(self, asked: Asked) -> Canned:
        low, high = (datetime.fromisoformat(asked.query[f"{end}_time"][0]).timestamp() for end in ("begin", "end"))
        start = int(asked.query.get("cursor", ["0"])[0])
        found = [n for n, at in enumerate(self.times) if low <= at <= high]
        page = [
            square.payment(
                id=f"P{n}",
                created_at=datetime.fromtimestamp(self.times[n], UTC).isoformat(),
                reference_id=self._key(n, square.REFERENCE, square45)[:40],
            )
            for n in found[start : start + PAGE]
        ]
        more = {"cursor": str(start + PAGE)} if start + PAGE < len(found) else {}
        return Canned(200, {"payments": page, **more})

    def _key(self, number: int, ours: str, form: Any) -> str:
        return ours if number in self.ours else form(number.to_bytes(32, "big"))


@pytest.mark.parametrize("dialect", ["stripe", "square"])
@pytest.mark.parametrize("ours", [0, CROWD - 1, None])
async def test_a_charge_is_found_or_absent_among_twelve_thousand(dialect: str, ours: int | None) -> None:
    """At 17 charges a second this is what a quarter of an hour holds."""
    crowd = Crowd(CROWD, ours=() if ours is None else (ours,))
    samples: Any = {"stripe": stripe, "square": square}[dialect]
    async with answering(getattr(crowd, dialect)) as server:
        provider: Provider = samples.adapter(server.base)
        looked = await provider.look_up(samples.CHARGE, first_sent_at=FIRST, now=NOW)
        await provider.close()
    if ours is None:
        assert isinstance(looked, Absent), looked
    else:
        assert isinstance(looked, Found), looked
        assert [movement.id.strip("piP_") for movement in looked.movements] == [str(ours)]
    # As many as there are pages, and at most one for each slice beside them.
    assert len(server.asked) < CROWD / PAGE + scanning.SLICES + scanning.FEW_PAGES + 2


@pytest.mark.parametrize(("dialect", "before"), [("stripe", 1), ("square", 0.001)])
async def test_what_was_made_beside_the_boundary_of_a_slice_is_found(dialect: str, before: float) -> None:
    """Stripe counts in seconds, Square in their parts: the last moment of a slice, the first of the next, and ahead."""
    first = int(FIRST.timestamp())
    # Every tenth second: the slices are so long, or a multiple of it. The last is the provider's clock, ahead of ours.
    beside = [at - early for at in range(first, LAST, 10) for early in (before, 0)] + [LAST + 30 - before]
    crowd = Crowd(CROWD, ours=())
    times = sorted([(at, True) for at in beside] + [(at, False) for at in crowd.times])
    crowd.times = [at for at, _ in times]
    crowd.ours = {number for number, (_, is_ours) in enumerate(times) if is_ours}
    samples: Any = {"stripe": stripe, "square": square}[dialect]
    async with answering(getattr(crowd, dialect)) as server:
        provider: Provider = samples.adapter(server.base)
        looked = await provider.look_up(samples.CHARGE, first_sent_at=FIRST, now=NOW)
        await provider.close()
    assert isinstance(looked, Found), looked
    assert {int(movement.id.strip("piP_")) for movement in looked.movements} == crowd.ours
