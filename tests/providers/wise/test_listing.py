"""Wise's lists: the whole list or nothing; and the questions about one transfer and about nothing."""

import asyncio
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import NotOffered, ProviderUnreachable
from tallystick.providers.http import Reply
from tallystick.providers.line import Said
from tallystick.providers.wise.adapter import Wise
from tallystick.providers.words import Absent, Charge, Done, Exchange, Found, Lookup, NotShown, Undecided
from tests.providers.scripted import FIRST_SENT_AT, NOW, Canned, Scripted, scripted
from tests.providers.wise.examples import KEY, MADE, REFERENCE, TRANSFER, changed, made, wise


async def look_up(*answers: Canned) -> tuple[Any, Scripted]:
    async with scripted(*answers) as server:
        looked = await wise(server.base).look_up(TRANSFER, first_sent_at=FIRST_SENT_AT, now=NOW)
    return looked, server


def page(*transfers: dict[str, Any], others: int = 0) -> Canned:
    strangers = [changed(MADE, id=1000 + n, customerTransactionId=None) for n in range(others)]
    return Canned(200, [*strangers, *transfers])


async def test_a_transfer_is_found_among_all_since_the_first_send() -> None:
    shouted = changed(MADE, customerTransactionId=REFERENCE.upper())
    looked, server = await look_up(page(others=100), page(shouted, others=3), page())
    assert isinstance(looked, Found)
    assert [(each.id, each.state, each.reference) for each in looked.movements] == [("16521632", "waiting", REFERENCE)]
    assert [asked.query["offset"] for asked in server.asked] == [["0"], ["100"], ["104"]]
    assert server.asked[0].path == "/v1/transfers"
    assert server.asked[0].query == {
        "profile": ["102"],
        "createdDateStart": ["2026-11-15T11:50:00.000Z"],
        # Ten minutes past now: Wise's clock may be ahead of ours.
        "createdDateEnd": ["2026-11-15T12:40:00.001Z"],
        "limit": ["100"],
        "offset": ["0"],
    }


async def test_several_matches_are_all_told_and_one_seen_twice_is_one() -> None:
    looked, _ = await look_up(page(MADE, others=99), page(MADE, changed(MADE, id=2)), page())
    assert isinstance(looked, Found)
    assert [each.id for each in looked.movements] == ["16521632", "2"]


async def test_a_full_list_without_it_is_absence_by_scan() -> None:
    looked, server = await look_up(page(others=100), page())
    assert isinstance(looked, Absent)
    assert looked.lookup is Lookup.SCAN
    assert len(server.asked) == 2


async def test_a_page_that_is_shorter_than_was_asked_for_is_not_the_last() -> None:
    looked, server = await look_up(page(others=50), page(others=50), page(MADE, others=2), page())
    assert isinstance(looked, Found)
    assert [asked.query["offset"] for asked in server.asked] == [["0"], ["50"], ["100"], ["103"]]


@pytest.mark.parametrize(
    "broken",
    [
        Canned(200, b""),
        Canned(200, b"{}"),
        Canned(200, b"[" * 100_000),
        Canned(200, b"<html>"),
        Canned(200, [{}]),
        page(changed(MADE, id="1")),
        page(changed(MADE, targetValue="150.25")),
        Canned(200, [], cut=20),
        Canned(401, b"[]"),
        Canned(500, b"[]"),
    ],
)
async def test_half_a_list_decides_nothing(broken: Canned) -> None:
    looked, _ = await look_up(broken)
    assert isinstance(looked, Undecided)
    looked, _ = await look_up(page(MADE, others=99), broken)
    assert isinstance(looked, Undecided)


async def test_a_list_without_end_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.providers.wise.listing.MOST_PAGES", 3)
    looked, server = await look_up(*[page(others=100)] * 5)
    assert isinstance(looked, Undecided)
    assert looked.code == "too_many_pages"
    assert len(server.asked) == 3


async def test_charges_cannot_be_looked_up() -> None:
    charge = Charge(key=KEY, amount_micros=10_000, currency="EUR")
    looked = await wise().look_up(charge, first_sent_at=FIRST_SENT_AT, now=NOW)
    assert isinstance(looked, Undecided)
    assert looked.code == "no_lookup"
    assert wise().purpose(charge) == "charge"


async def test_movements_are_all_that_were_made_each_once() -> None:
    before = changed(MADE, id=2, created="2026-11-15 11:59:59")
    at_the_end = changed(MADE, id=3, created="2026-11-15T12:30:00Z")
    pages = [
        page(*[changed(MADE, id=100 + n) for n in range(100)]),
        page(changed(MADE, id=199), MADE, before, at_the_end),
        page(),
    ]
    async with scripted(*pages) as server:
        found = [each async for each in wise(server.base).movements(since=FIRST_SENT_AT, until=NOW)]
    assert [each.id for each in found] == [str(100 + n) for n in range(100)] + ["16521632"]
    assert {each.purpose for each in found} == {"transfer"}


@given(
    edges=st.lists(st.integers(0, 5_000_000), min_size=3, max_size=3).map(sorted),
    born=st.lists(st.integers(0, 5_000_000), max_size=8),
    printed=st.sampled_from(["seconds", "milliseconds", "microseconds"]),
)
def test_spans_that_follow_each_other_list_each_movement_once(
    edges: list[int], born: list[int], printed: Literal["seconds", "milliseconds", "microseconds"]
) -> None:
    """Whatever the precision in which Wise prints the times that it filters by."""
    times = [FIRST_SENT_AT + timedelta(microseconds=each) for each in born]

    async def ask(method: str, path: str) -> Said:
        query = parse_qs(urlsplit(path).query)
        start, end = (datetime.fromisoformat(query[f"createdDate{which}"][0]) for which in ("Start", "End"))
        found = [
            changed(MADE, id=number + 1, created=at.isoformat(timespec=printed))
            for number, at in enumerate(times)
            if start <= at <= end
        ]
        body = msgspec.json.encode(found[int(query["offset"][0]) :])
        return Said(Reply(200, {}, body), Exchange(asked=f"{method} {path}", status=200))

    async def listed() -> list[str]:
        provider = wise()
        provider._line.ask = ask  # type: ignore[method-assign, assignment]
        first, second, third = (FIRST_SENT_AT + timedelta(microseconds=each) for each in edges)
        return [
            each.id
            for since, until in ((first, second), (second, third))
            async for each in provider.movements(since=since, until=until)
        ]

    begin, end = edges[0] // 1_000_000, edges[2] // 1_000_000
    expected = [str(number + 1) for number, at in enumerate(born) if begin <= at // 1_000_000 < end]
    assert sorted(asyncio.run(listed())) == sorted(expected)


@pytest.mark.parametrize("broken", [Canned(500, b""), Canned(200, b"{}"), page(changed(MADE, targetCurrency="???"))])
async def test_half_a_list_of_movements_is_an_error(broken: Canned) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            _ = [each async for each in wise(server.base).movements(since=FIRST_SENT_AT, until=NOW)]


async def test_there_is_no_list_of_events() -> None:
    assert Wise.facts.events_reach is None
    with pytest.raises(NotOffered):
        await wise().events(cursor=None, now=NOW)


async def test_one_transfer_is_fetched_by_its_id() -> None:
    async with scripted(
        made(status="funds_refunded"), made(id=7), Canned(404, b"{}"), Canned(200, b"", cut=5)
    ) as server:
        provider = wise(server.base)
        fetched = await provider.fetch("transfer", "16521632")
        assert isinstance(fetched, Done)
        assert fetched.movement.state == "returned"
        shown = [await provider.fetch("transfer", "16521632") for _ in range(3)]
        assert [one.code for one in shown if isinstance(one, Undecided)] == ["answer_unreadable", "unanswered"]
        assert isinstance(shown[1], Absent)
        assert isinstance(await provider.fetch("transfer", "../x"), Absent)
        assert isinstance(await provider.fetch("charge", "1"), NotShown)
        assert len(server.asked) == 4


@pytest.mark.parametrize(("status", "authorised"), [(200, True), (401, False), (403, False), (500, False)])
async def test_a_ping_tells_whether_we_may(status: int, *, authorised: bool) -> None:
    async with scripted(Canned(status, [])) as server:
        found = await wise(server.base).ping()
    assert (found.reachable, found.authorised) == (True, authorised)
    assert server.asked[0].method == "GET"
    assert server.asked[0].query["profile"] == ["102"]


async def test_a_ping_of_nobody_reaches_nobody() -> None:
    async with scripted() as server:
        base = server.base
    assert not (await wise(base).ping()).reachable
