"""Square's books and events, listed to the end or not at all."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import ProviderUnreachable
from tallystick.providers.square import listing
from tallystick.providers.square.objects import Page
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


async def test_a_little_more_is_asked_for_than_the_span() -> None:
    """How Square rounds its times is not said."""
    async with scripted(*[Canned(200, {})] * 3) as server:
        since, until = SINCE + timedelta(milliseconds=300), NOW + timedelta(milliseconds=700)
        assert [each async for each in samples.adapter(server.base).movements(since=since, until=until)] == []
        (asked, *_) = server.asked
    assert asked.query["begin_time"] == ["2026-11-14T12:29:59.000Z"]
    assert asked.query["end_time"] == ["2026-11-15T12:30:01.001Z"]


async def test_what_is_made_later_in_the_last_second_is_in_the_next_span() -> None:
    """A payout's time is cut off to the second, and the first span was read before it was there."""
    until = NOW + timedelta(milliseconds=250)
    born = {"payouts": [samples.payout(created_at="2026-11-15T12:30:00Z")]}
    async with scripted(*[Canned(200, {})] * 5, Canned(200, born)) as server:
        square = samples.adapter(server.base)
        assert [each async for each in square.movements(since=SINCE, until=until)] == []
        later = [each.id async for each in square.movements(since=until, until=NOW + timedelta(hours=1))]
    assert later == ["po_1"]


@given(
    bounds=st.lists(st.integers(0, 9_000_000), min_size=2, max_size=6, unique=True).map(sorted),
    made=st.lists(st.tuples(st.integers(-2_000, 11_000), st.sampled_from(["seconds", "milliseconds"])), max_size=8),
)
async def test_spans_that_meet_list_each_movement_exactly_once(bounds: list[int], made: list[tuple[int, str]]) -> None:
    """Whatever the fractions of a second they meet at, and whatever those the times are written with."""
    items = {
        f"P{number}": samples.payment(
            id=f"P{number}", created_at=(NOW + timedelta(milliseconds=at)).isoformat(timespec=fineness)
        )
        for number, (at, fineness) in enumerate(made)
    }

    async def pages(_line: object, purpose: str, **_options: object) -> AsyncIterator[tuple[Page, None]]:
        if purpose == "charge":
            yield Page([msgspec.Raw(msgspec.json.encode(each)) for each in items.values()], ""), None

    ends = [NOW + timedelta(microseconds=each) for each in bounds]
    found: list[str] = []
    square = samples.adapter("http://127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "pages", pages)
        for since, until in pairwise(ends):
            found += [each.id async for each in square.movements(since=since, until=until)]
    first, last = (each.replace(microsecond=0).isoformat(timespec="milliseconds") for each in (ends[0], ends[-1]))
    expected = [
        name for name, (at, fineness) in zip(items, made, strict=True) if first <= _milliseconds(at, fineness) < last
    ]
    assert sorted(found) == sorted(expected)


def _milliseconds(at: int, fineness: str) -> str:
    moment = NOW + timedelta(milliseconds=at)
    whole = moment.replace(microsecond=0) if fineness == "seconds" else moment
    return whole.isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (samples.payment(id="PAY9", amount_money={"amount": 1, "currency": "BGN"}), "PAY9"),
        (samples.payment(id="PAY9", amount_money=None), "PAY9"),
        (samples.payment(id="PAY9", reference_id="a\0b"), "PAY9"),
        (samples.payment(id="P 9"), "without an id"),
        ({}, "without an id"),
    ],
)
async def test_one_odd_object_hides_no_other_and_is_named_at_the_end(odd: dict[str, Any], name: str) -> None:
    answers: list[dict[str, Any]] = [
        {"payments": [samples.payment(), odd, samples.payment(id="PAY2")]},
        {"refunds": [samples.refund()]},
        {"payouts": [samples.payout(id="po_9", status=None), samples.payout()]},
    ]
    found: list[str] = []
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        with pytest.raises(ProviderUnreachable) as raised:
            async for each in samples.adapter(server.base).movements(since=SINCE, until=NOW):
                found += [each.id]
    assert found == ["PAY1", "PAY2", "PAY1_R1", "po_1"]
    assert f"charge {name} (" in str(raised.value)
    assert "payout po_9 (it is no payout as Square writes them)" in str(raised.value)


async def test_not_more_odd_objects_are_named_than_a_person_reads() -> None:
    odd = {"payments": [samples.payment(id=f"P{number}", amount_money=None) for number in range(25)]}
    async with scripted(Canned(200, odd), *[Canned(200, {})] * 2) as server:
        with pytest.raises(ProviderUnreachable, match=r"P19 \(.*\) and 5 more"):
            await anext(samples.adapter(server.base).movements(since=SINCE, until=NOW))


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(401),
        Canned(200, b""),
        Canned(200, b"<html>"),
        Canned(200, b"[" * 100_000),
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
    """An event that appeared late, or was made by a clock ten minutes behind ours, must not be missed."""
    answers = [{"events": [event(1), event(3)]}, {"events": [event(1), event(2), event(3), event(4)]}, {}]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        second = await square.events(cursor=first.cursor, now=NOW + timedelta(minutes=5))
        third = await square.events(cursor=second.cursor, now=NOW + timedelta(minutes=6))
        assert span(server.asked[1]) == {"start_at": "2026-11-15T12:20:00.000Z", "end_at": "2026-11-15T12:35:00.000Z"}
    assert [each.dedup_key for each in second.events] == ["e2", "e4"]
    assert third.events == ()


@pytest.mark.parametrize("status", [400, 404])
async def test_a_search_that_square_has_forgotten_is_made_again_from_its_beginning(status: int) -> None:
    forgotten = Canned(status, {"errors": [{"category": "INVALID_REQUEST_ERROR", "code": "INVALID_CURSOR"}]})
    answers = [
        Canned(200, {"events": [event(1)], "cursor": "two"}),
        forgotten,
        Canned(200, {"events": [event(1), event(2)], "cursor": "new"}),
        Canned(200, {"events": [event(3)]}),
    ]
    later = NOW + timedelta(hours=1)
    async with scripted(*answers) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        second = await square.events(cursor=first.cursor, now=later)
        third = await square.events(cursor=second.cursor, now=later)
        asked = [msgspec.convert(each.json(), dict[str, Any]) for each in server.asked]
        spans = [span(each) for each in server.asked]
    assert [each.get("cursor") for each in asked] == [None, "two", None, "new"]
    # As far back as Square still reaches an hour later.
    assert spans[2] == {"start_at": "2026-10-18T13:30:00.000Z", "end_at": "2026-11-15T13:30:00.000Z"}
    assert [each.dedup_key for each in (*first.events, *second.events, *third.events)] == ["e1", "e2", "e3"]
    assert (second.more, third.more) == (True, False)


@pytest.mark.parametrize("broken", [Canned(500), Canned(401), Canned(429), Canned(cut=0)])
async def test_a_search_that_was_only_not_answered_keeps_its_place(broken: Canned) -> None:
    async with scripted(Canned(200, {"events": [event(1)], "cursor": "two"}), broken) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        with pytest.raises(ProviderUnreachable):
            await square.events(cursor=first.cursor, now=NOW)
        assert len(server.asked) == 2


async def test_a_search_that_is_refused_from_its_beginning_is_not_made_again() -> None:
    async with scripted(Canned(400), Canned(200, {})) as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=None, now=NOW)
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("odd", "kind", "object_id"),
    [
        (
            samples.event("payment", samples.payment(amount_money={"amount": 1, "currency": "BGN"}), event_id="e1"),
            "refund.updated",
            "PAY1",
        ),
        (samples.event("refund", samples.refund(status=None), event_id="e1"), "refund.updated", "PAY1_R1"),
        (samples.event("payment", samples.payment(), event_id="e1", created_at="soon"), "refund.updated", "PAY1"),
        (samples.event("payment", samples.payment(), event_id="e1", type="a\0b"), "unreadable", "PAY1"),
        ({"event_id": "e1"}, "unreadable", ""),
        ({"event_id": "e1", "type": 7, "created_at": 7, "data": []}, "unreadable", ""),
    ],
)
async def test_an_event_that_cannot_be_read_is_told_and_the_stream_goes_on(
    odd: dict[str, Any], kind: str, object_id: str
) -> None:
    async with scripted(Canned(200, {"events": [odd, event(2)]})) as server:
        page = await samples.adapter(server.base).events(cursor=None, now=NOW)
    first, second = page.events
    assert (first.dedup_key, first.type, first.object_id, first.movement) == ("e1", kind, object_id, None)
    assert msgspec.json.decode(first.body) == odd
    assert second.movement is not None


async def test_an_event_without_an_id_is_known_by_its_content() -> None:
    odd = {"events": [{"type": "payment.updated"}, {"type": "payment.created"}]}
    async with scripted(Canned(200, odd), Canned(200, odd)) as server:
        square = samples.adapter(server.base)
        first = await square.events(cursor=None, now=NOW)
        second = await square.events(cursor=first.cursor, now=NOW)
    assert len({each.dedup_key for each in first.events}) == 2
    assert second.events == ()


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
    [Canned(cut=0), Canned(500), Canned(401), Canned(200, b""), Canned(200, b"[" * 100_000)],
)
async def test_a_list_of_events_that_cannot_be_read_is_not_skipped(broken: Canned) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=None, now=NOW)


@pytest.mark.parametrize("cursor", ["x", "{}", "[" * 100_000, '{"begin":"soon"}', "\ud800"])
async def test_a_cursor_that_is_none_of_ours_is_told(cursor: str) -> None:
    async with scripted() as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=cursor, now=NOW)
        assert server.asked == []
