"""Square's books and events, listed to the end or not at all."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.errors import ProviderUnreachable
from tallystick.providers.square import listing
from tests.providers.scripted import NOW, Asked, Canned, scripted
from tests.providers.square import samples

SINCE = NOW - timedelta(days=1)


async def test_every_kind_is_listed_to_its_end() -> None:
    answers: list[dict[str, Any]] = [
        {"payments": [samples.payment()], "cursor": "more"},
        {"payments": [samples.payment(id="PAY2", status="FAILED")]},
        {},
        {"payouts": [samples.payout()]},
    ]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        square = samples.adapter(server.base)
        found = [each async for each in square.movements(since=SINCE, until=NOW)]
        asked = server.asked
    assert [(each.purpose, each.id, each.state) for each in found] == [
        ("charge", "PAY1", "moved"),
        ("charge", "PAY2", "failed"),
        ("payout", "po_1", "moving"),
    ]
    assert found[2].amount_micros == -5_000_000
    assert [each.path for each in asked] == ["/v2/payments", "/v2/payments", "/v2/refunds", "/v2/payouts"]
    assert asked[1].query["cursor"] == ["more"]
    assert all(each.query["location_id"] == ["LMAIN"] for each in asked)


async def test_the_end_of_the_span_is_not_in_it() -> None:
    times = ["2026-11-14T12:29:59.999Z", "2026-11-14T12:30:00Z", "2026-11-15T12:29:59.999Z", "2026-11-15T12:30:00Z"]
    payments = [samples.payment(id=f"P{number}", created_at=at) for number, at in enumerate(times)]
    async with scripted(Canned(200, {"payments": payments}), *[Canned(200, {})] * 2) as server:
        found = [each async for each in samples.adapter(server.base).movements(since=SINCE, until=NOW)]
    assert [each.id for each in found] == ["P1", "P2"]


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(401),
        Canned(200, b""),
        Canned(200, b"<html>"),
        Canned(200, {"payments": [{}]}),
        Canned(200, {"payments": [samples.payment(amount_money={"amount": 1, "currency": "XYZ"})]}),
        Canned(200, {"errors": [{"category": "API_ERROR", "code": "TEMPORARY_ERROR"}]}),
        Canned(200, {"cursor": "more"}),
    ],
)
async def test_half_a_list_does_not_pass_for_the_whole(broken: Canned) -> None:
    async with scripted(Canned(200, {"payments": [samples.payment()], "cursor": "more"}), broken) as server:
        reading = samples.adapter(server.base).movements(since=SINCE, until=NOW)
        assert (await anext(reading)).id == "PAY1"
        with pytest.raises(ProviderUnreachable, match="square"):
            await anext(reading)


async def test_a_list_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_PAGES", 2)
    async with scripted(*(Canned(200, {"cursor": f"c{number}"}) for number in range(5))) as server:
        with pytest.raises(ProviderUnreachable):
            await anext(samples.adapter(server.base).movements(since=SINCE, until=NOW))
        assert len(server.asked) == 2


def event(number: int) -> dict[str, Any]:
    return samples.event("payment", samples.payment(), "payment.updated", event_id=f"e{number}")


def span(asked: Asked) -> dict[str, str]:
    found: dict[str, str] = msgspec.convert(asked.json(), dict[str, Any])["query"]["filter"]["created_at"]
    return found


async def test_events_are_searched_from_as_far_back_as_square_reaches() -> None:
    async with scripted(Canned(200, {"events": [event(1)]})) as server:
        page = await samples.adapter(server.base).events(cursor=None, now=NOW)
        (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v2/events")
    assert asked.json() == {
        "limit": 100,
        "query": {
            "filter": {
                "created_at": {"start_at": "2026-10-18T12:30:00.000Z", "end_at": "2026-11-15T12:30:00.000Z"},
            },
            "sort": {"field": "DEFAULT", "order": "ASC"},
        },
    }
    assert [each.dedup_key for each in page.events] == ["e1"]
    assert msgspec.json.decode(page.events[0].body) == event(1)
    assert not page.more


async def test_a_search_is_read_on_with_squares_own_cursor_and_the_same_question() -> None:
    answers = [{"events": [event(1)], "cursor": "two"}, {"events": [event(2)]}]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        second = await square.events(cursor=first.cursor, now=NOW + timedelta(hours=1))
        one, two = (msgspec.convert(each.json(), dict[str, Any]) for each in server.asked)
    assert first.more
    assert not second.more
    assert two.pop("cursor") == "two"
    assert one == two
    assert [each.dedup_key for each in (*first.events, *second.events)] == ["e1", "e2"]


async def test_the_next_search_starts_a_little_earlier_and_tells_nothing_twice() -> None:
    """An event that appeared late must not be missed."""
    answers = [{"events": [event(1), event(3)]}, {"events": [event(1), event(2), event(3), event(4)]}, {}]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        second = await square.events(cursor=first.cursor, now=NOW + timedelta(minutes=5))
        third = await square.events(cursor=second.cursor, now=NOW + timedelta(minutes=6))
        assert span(server.asked[1]) == {"start_at": "2026-11-15T12:29:00.000Z", "end_at": "2026-11-15T12:35:00.000Z"}
    assert [each.dedup_key for each in second.events] == ["e2", "e4"]
    assert third.events == ()


async def test_a_cursor_that_lay_too_long_starts_where_square_still_reaches() -> None:
    async with scripted(Canned(200, {}), Canned(200, {})) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        await square.events(cursor=first.cursor, now=NOW + timedelta(days=90))
        assert span(server.asked[1])["start_at"] == "2027-01-16T12:30:00.000Z"


async def test_a_cursor_stays_short() -> None:
    answers = [Canned(200, {"events": [event(number) for number in range(start, start + 100)]}) for start in (0, 100)]
    async with scripted(*answers) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor="", now=NOW)
        second = await square.events(cursor=first.cursor, now=NOW)
    assert len(msgspec.json.decode(second.cursor, type=listing.Cursor).seen) == listing.MOST_SEEN


@pytest.mark.parametrize(
    "broken",
    [Canned(cut=0), Canned(500), Canned(401), Canned(200, b""), Canned(200, {"events": [{"event_id": "e1"}]})],
)
async def test_events_that_cannot_be_read_are_not_skipped(broken: Canned) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=None, now=NOW)


@pytest.mark.parametrize("cursor", ["x", "{}", '{"begin":"soon"}', "\ud800"])
async def test_a_cursor_that_is_none_of_ours_is_told(cursor: str) -> None:
    async with scripted() as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=cursor, now=NOW)
        assert server.asked == []
