"""Adyen's lists: the whole list or nothing; and the questions about one transfer and about nothing."""

import asyncio
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import NotOffered, ProviderUnreachable
from tallystick.providers.adyen.adapter import Adyen
from tallystick.providers.http import Reply
from tallystick.providers.line import Said
from tallystick.providers.words import Absent, Done, Exchange, Found, Instruction, Lookup, NotShown, Undecided
from tests.providers.adyen.examples import (
    AMOUNT,
    CHARGE,
    REFERENCE,
    REFUND,
    TRANSFER,
    TRANSFERRED,
    adyen,
    changed,
    encoded,
)
from tests.providers.scripted import FIRST_SENT_AT, NOW, Canned, Scripted, scripted


async def look_up(*answers: Canned) -> tuple[Any, Scripted]:
    async with scripted(*answers) as server:
        looked = await adyen(server.base).look_up(TRANSFER, first_sent_at=FIRST_SENT_AT, now=NOW)
    return looked, server


async def test_a_transfer_is_found_by_our_reference() -> None:
    looked, server = await look_up(Canned(200, {"data": [TRANSFERRED], "_links": {}}))
    assert isinstance(looked, Found)
    assert [movement.id for movement in looked.movements] == ["3JERI6"]
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("GET", "/btl/v4/transfers")
    assert asked.query == {
        "balanceAccountId": ["BA1"],
        "createdSince": ["2026-11-15T11:50:00.000Z"],
        # Ten minutes past now: Adyen's clock may be ahead of ours.
        "createdUntil": ["2026-11-15T12:40:00.001Z"],
        "limit": ["100"],
        "reference": [REFERENCE],
    }
    assert "idempotency-key" not in asked.headers


async def test_every_page_is_read_and_every_match_is_told() -> None:
    other = changed(TRANSFERRED, id="OTHER", reference="another")
    into_ours = changed(TRANSFERRED, id="IN", direction="incoming")
    first = {
        "data": [TRANSFERRED, other, into_ours],
        "_links": {"next": {"href": "https://x/btl/v4/transfers?cursor=c2"}},
    }
    looked, server = await look_up(Canned(200, first), Canned(200, {"data": [changed(TRANSFERRED, id="TWICE")]}))
    assert isinstance(looked, Found)
    assert [movement.id for movement in looked.movements] == ["3JERI6", "TWICE"]
    assert server.asked[1].query["cursor"] == ["c2"]


async def test_an_empty_list_is_absence() -> None:
    looked, _ = await look_up(Canned(200, {"data": []}))
    assert isinstance(looked, Absent)
    assert looked.lookup is Lookup.EXACT


@pytest.mark.parametrize(
    "broken",
    [
        Canned(200, b""),
        Canned(200, b"{}"),
        Canned(200, b"<html>"),
        Canned(200, {"data": [changed(TRANSFERRED, amount="11.30")]}),
        Canned(200, {"data": [changed(TRANSFERRED, amount={"value": 1, "currency": "???"})]}),
        Canned(200, {"data": [], "_links": {"next": {"href": "/btl/v4/transfers"}}}),
        Canned(200, {"data": [changed(TRANSFERRED, id="3JE\x00RI6")]}),
        Canned(200, b'{"data":' + b"[" * 100_000),
        Canned(200, {"data": []}, cut=50),
        Canned(401, b"{}"),
        Canned(404, {"data": []}),
        Canned(422, b"{}"),
        Canned(503, b""),
    ],
)
async def test_half_a_list_decides_nothing(broken: Canned) -> None:
    looked, _ = await look_up(broken)
    assert isinstance(looked, Undecided)
    more = {"data": [TRANSFERRED], "_links": {"next": {"href": "/btl/v4/transfers?cursor=2"}}}
    looked, _ = await look_up(Canned(200, more), broken)
    assert isinstance(looked, Undecided)


async def test_a_list_without_end_decides_nothing() -> None:
    page = Canned(200, {"data": [], "_links": {"next": {"href": "/btl/v4/transfers?cursor=same"}}})
    looked, server = await look_up(*[page] * 20)
    assert isinstance(looked, Undecided)
    assert looked.code == "too_many_pages"
    assert len(server.asked) == 10


@pytest.mark.parametrize("instruction", [CHARGE, REFUND])
async def test_payments_and_refunds_cannot_be_looked_up(instruction: Instruction) -> None:
    looked = await adyen().look_up(instruction, first_sent_at=FIRST_SENT_AT, now=NOW)
    assert isinstance(looked, Undecided)
    assert looked.code == "no_lookup"


async def test_movements_are_all_that_left_the_account() -> None:
    at_the_end = changed(TRANSFERRED, id="END", creationDate="2026-11-15T12:30:00Z")
    page = {"data": [changed(TRANSFERRED, direction="incoming"), TRANSFERRED, at_the_end], "_links": {}}
    async with scripted(Canned(200, page)) as server:
        found = [each async for each in adyen(server.base).movements(since=FIRST_SENT_AT, until=NOW)]
    assert [(each.id, each.purpose, each.state) for each in found] == [("3JERI6", "transfer", "waiting")]
    assert "reference" not in server.asked[0].query


async def test_more_than_half_a_year_is_listed_in_spans() -> None:
    async with scripted(*[Canned(200, {"data": []})] * 3) as server:
        found = [each async for each in adyen(server.base).movements(since=NOW - timedelta(days=400), until=NOW)]
    assert found == []
    spans = [(asked.query["createdSince"][0], asked.query["createdUntil"][0]) for asked in server.asked]
    assert len(spans) == 3
    assert spans[0][1] > spans[1][0]
    assert spans[2][1] == "2026-11-15T12:30:00.001Z"


@given(
    edges=st.lists(st.integers(0, 5_000_000), min_size=3, max_size=3).map(sorted),
    born=st.lists(st.integers(0, 5_000_000), max_size=8),
    printed=st.sampled_from(["seconds", "milliseconds", "microseconds"]),
)
def test_spans_that_follow_each_other_list_each_movement_once(
    edges: list[int], born: list[int], printed: Literal["seconds", "milliseconds", "microseconds"]
) -> None:
    """Whatever the precision in which Adyen prints the times that it filters by."""
    times = [FIRST_SENT_AT + timedelta(microseconds=each) for each in born]

    async def ask(method: str, path: str) -> Said:
        query = parse_qs(urlsplit(path).query)
        start, end = (datetime.fromisoformat(query[f"created{which}"][0]) for which in ("Since", "Until"))
        found = [
            changed(TRANSFERRED, id=f"T{number}", creationDate=at.isoformat(timespec=printed))
            for number, at in enumerate(times)
            if start <= at <= end
        ]
        return Said(Reply(200, {}, encoded({"data": found})), Exchange(asked=f"{method} {path}", status=200))

    async def listed() -> list[str]:
        provider = adyen()
        provider._platform.ask = ask  # type: ignore[method-assign, assignment]
        first, second, third = (FIRST_SENT_AT + timedelta(microseconds=each) for each in edges)
        return [
            each.id
            for since, until in ((first, second), (second, third))
            async for each in provider.movements(since=since, until=until)
        ]

    begin, end = edges[0] // 1_000_000, edges[2] // 1_000_000
    expected = [f"T{number}" for number, at in enumerate(born) if begin <= at // 1_000_000 < end]
    assert sorted(asyncio.run(listed())) == sorted(expected)


@pytest.mark.parametrize(
    "broken",
    [
        Canned(500, b""),
        Canned(200, b"{}"),
        Canned(200, {"data": [changed(TRANSFERRED, amount=AMOUNT | {"currency": "?"})]}),
    ],
)
async def test_half_a_list_of_movements_is_an_error(broken: Canned) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            _ = [each async for each in adyen(server.base).movements(since=FIRST_SENT_AT, until=NOW)]


async def test_there_is_no_list_of_events() -> None:
    assert Adyen.facts.events_reach is None
    with pytest.raises(NotOffered):
        await adyen().events(cursor=None, now=NOW)


async def test_one_transfer_is_fetched_by_its_id() -> None:
    async with scripted(Canned(200, changed(TRANSFERRED, status="returned")), Canned(404, b"{}")) as server:
        provider = adyen(server.base)
        fetched = await provider.fetch("transfer", "3JERI6")
        assert isinstance(fetched, Done)
        assert fetched.movement.state == "returned"
        assert isinstance(await provider.fetch("transfer", "3JERI6"), Absent)
        assert isinstance(await provider.fetch("transfer", "../x"), Absent)
        assert isinstance(await provider.fetch("charge", "PSP1"), NotShown)
        assert [asked.path for asked in server.asked] == ["/btl/v4/transfers/3JERI6"] * 2


@pytest.mark.parametrize(("status", "authorised"), [(200, True), (401, False), (403, False), (500, False)])
async def test_a_ping_tells_whether_we_may(status: int, *, authorised: bool) -> None:
    async with scripted(Canned(status, {"data": []})) as server:
        found = await adyen(server.base).ping()
    assert (found.reachable, found.authorised) == (True, authorised)
    assert server.asked[0].method == "GET"


async def test_a_ping_of_nobody_reaches_nobody() -> None:
    async with scripted() as server:
        base = server.base
    assert not (await adyen(base).ping()).reachable


async def test_what_was_sent_long_after_its_creation_is_found() -> None:
    """Held for half a year, then approved: its look-up begins with its creation, and does not end before its send."""
    created = NOW - timedelta(days=200)
    pages = [Canned(200, {"data": []}), Canned(200, {"data": [TRANSFERRED, TRANSFERRED]})]
    async with scripted(*pages) as server:
        looked = await adyen(server.base).look_up(TRANSFER, first_sent_at=created, now=NOW)
    assert isinstance(looked, Found)
    assert [movement.id for movement in looked.movements] == ["3JERI6"]
    spans = [(asked.query["createdSince"][0], asked.query["createdUntil"][0]) for asked in server.asked]
    assert spans[0][1] > spans[1][0]
    assert spans[1][1] > f"{NOW:%Y-%m-%dT%H:%M}"
