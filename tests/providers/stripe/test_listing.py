"""Stripe's books and events, listed to the end or not at all."""

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Misconfigured, PartlyUnreadable, ProviderUnreachable
from tallystick.providers.stripe import listing
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.stripe.objects import Page
from tallystick.providers.stripe.request import Pairs
from tallystick.providers.words import EventPage, Movement
from tests.providers.scripted import NOW, Asked, Canned, scripted
from tests.providers.stripe import samples
from tests.providers.stripe.samples import listed

SINCE = NOW - timedelta(days=1)
EMPTY = Canned(200, listed())


async def movements(stripe: Stripe) -> list[Movement]:
    return [each async for each in stripe.movements(since=SINCE, until=NOW)]


async def test_every_kind_is_listed_to_its_end() -> None:
    answers = [
        listed(samples.payment_intent(id="pi_3"), samples.payment_intent(id="pi_2"), more=True),
        listed(samples.payment_intent(id="pi_1")),
        listed(samples.refund()),
        listed(samples.transfer()),
        listed(samples.payout()),
        listed(samples.payout(id="po_2")),
    ]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        found = await movements(samples.adapter(server.base, connected_accounts=("acct_1",)))
        asked = server.asked
    assert [each.id for each in found] == ["pi_3", "pi_2", "pi_1", "re_1", "tr_1", "po_1", "acct_1/po_2"]
    assert found[3].parent == "pi_1"
    assert [each.path for each in asked] == [
        "/v1/payment_intents",
        "/v1/payment_intents",
        "/v1/refunds",
        "/v1/transfers",
        "/v1/payouts",
        "/v1/payouts",
    ]
    assert asked[1].query["starting_after"] == ["pi_2"]
    for each in asked:
        assert each.query["created[gte]"] == [str(int(SINCE.timestamp()))]
        assert each.query["created[lt]"] == [str(int(NOW.timestamp()))]
    assert [each.headers.get("stripe-account") for each in asked] == [None] * 5 + ["acct_1"]


async def test_two_spans_that_meet_inside_a_second_share_nothing_and_miss_nothing() -> None:
    middle = NOW - timedelta(milliseconds=300)
    async with scripted(*[EMPTY] * 8) as server:
        stripe = samples.adapter(server.base, connected_accounts=())
        assert [each async for each in stripe.movements(since=SINCE, until=middle)] == []
        assert [each async for each in stripe.movements(since=middle, until=NOW + timedelta(seconds=9))] == []
        ends = {each.query["created[lt]"][0] for each in server.asked[:4]}
        starts = {each.query["created[gte]"][0] for each in server.asked[4:]}
    assert ends == starts


async def test_what_is_made_later_in_the_last_second_is_in_the_next_span() -> None:
    """Its time is cut off to the second, and the first span was read before it was there."""
    until = NOW + timedelta(milliseconds=250)
    born = samples.transfer(created=int(NOW.timestamp()))
    answers = [EMPTY] * 6 + [Canned(200, listed(born)), EMPTY]
    async with scripted(*answers) as server:
        stripe = samples.adapter(server.base, connected_accounts=())
        assert [each async for each in stripe.movements(since=SINCE, until=until)] == []
        later = [each.id async for each in stripe.movements(since=until, until=NOW + timedelta(hours=1))]
        asked = server.asked[6]
    assert later == ["tr_1"]
    assert int(asked.query["created[gte]"][0]) <= born["created"] < int(asked.query["created[lt]"][0])


@given(
    bounds=st.lists(st.integers(0, 9_000_000), min_size=2, max_size=6, unique=True).map(sorted),
    created=st.lists(st.integers(-2, 11), max_size=8),
)
async def test_spans_that_meet_list_each_movement_exactly_once(bounds: list[int], created: list[int]) -> None:
    """Whatever the fractions of a second they meet at."""
    start = int(NOW.timestamp())
    made = {f"tr_{number}": start + each for number, each in enumerate(created)}

    async def pages(_line: object, path: str, span: Pairs, **_options: object) -> AsyncIterator[tuple[Page, None]]:
        first, end = (int(dict(span)[name]) for name in ("created[gte]", "created[lt]"))
        items = [samples.transfer(id=name, created=at) for name, at in made.items() if first <= at < end]
        if path == "/v1/transfers":
            data = [msgspec.Raw(msgspec.json.encode(each)) for each in items]
            yield Page(object="list", data=data, has_more=False), None

    ends = [NOW + timedelta(microseconds=each) for each in bounds]
    found: list[str] = []
    stripe = samples.adapter("http://127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "pages", pages)
        for since, until in pairwise(ends):
            found += [each.id async for each in stripe.movements(since=since, until=until)]
    first, end = (int(each.timestamp()) for each in (ends[0], ends[-1]))
    assert sorted(found) == sorted(name for name, at in made.items() if first <= at < end)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        (samples.payment_intent(id="pi_9", amount=None), "pi_9"),
        (samples.payment_intent(id="pi_9", currency="bgn"), "pi_9"),
        (samples.payment_intent(id="pi_9", status="a\0b"), "pi_9"),
        ({"object": "charge", "id": "ch_9"}, "ch_9"),
        ({"object": "payment_intent"}, "without an id"),
    ],
)
async def test_one_odd_object_hides_no_other_and_is_named_at_the_end(odd: dict[str, Any], name: str) -> None:
    answers = [
        listed(samples.payment_intent(id="pi_2"), odd, samples.payment_intent(id="pi_1")),
        listed(samples.refund()),
        listed(samples.transfer()),
        listed(samples.payout()),
        listed(samples.payout(id="po_2"), samples.payout(id="po_3", currency="bgn")),
    ]
    found: list[str] = []
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        stripe = samples.adapter(server.base, connected_accounts=("acct_1",))
        with pytest.raises(ProviderUnreachable) as raised:
            async for each in stripe.movements(since=SINCE, until=NOW):
                found += [each.id]
    assert found == ["pi_2", "pi_1", "re_1", "tr_1", "po_1", "acct_1/po_2"]
    assert f"charge {name} (" in str(raised.value)
    assert "payout acct_1/po_3 (its currency is none that we know)" in str(raised.value)


async def test_not_more_odd_objects_are_named_than_a_person_reads() -> None:
    odd = [samples.payment_intent(id=f"pi_{number}", amount=None) for number in range(25)]
    async with scripted(Canned(200, listed(*odd)), *[EMPTY] * 3) as server:
        with pytest.raises(ProviderUnreachable, match=r"pi_19 \(.*\) and 5 more"):
            await movements(samples.adapter(server.base, connected_accounts=()))


async def test_a_refund_without_a_status_is_listed_as_one_still_open() -> None:
    async with scripted(EMPTY, Canned(200, listed(samples.refund(status=None))), EMPTY, EMPTY) as server:
        (found,) = await movements(samples.adapter(server.base, connected_accounts=()))
    assert (found.id, found.state, found.status) == ("re_1", "moving", "")


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(401),
        Canned(200, b"{}"),
        Canned(200, b"<html>"),
        Canned(200, listed(more=True)),
        Canned(200, b"[" * 100_000),
    ],
)
async def test_half_a_list_does_not_pass_for_the_whole(broken: Canned) -> None:
    first = Canned(200, listed(samples.payment_intent(id="pi_2"), more=True))
    async with scripted(first, broken) as server:
        reading = samples.adapter(server.base, connected_accounts=()).movements(since=SINCE, until=NOW)
        assert (await anext(reading)).id == "pi_2"
        with pytest.raises(ProviderUnreachable, match="stripe"):
            await anext(reading)


async def test_a_list_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_PAGES", 2)
    page = Canned(200, listed(samples.payment_intent(), more=True))
    async with scripted(page, page, page) as server:
        with pytest.raises(ProviderUnreachable):
            await movements(samples.adapter(server.base, connected_accounts=()))
        assert len(server.asked) == 2


class Events:
    """Stripe's list of events, as far as the filters and cursors we use go."""

    def __init__(self, created: list[int]) -> None:
        self.rows = [(f"evt_{number}", at) for number, at in enumerate(created)]

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        newest_first = list(reversed(self.rows))
        if "created[gte]" in query:
            newest_first = [row for row in newest_first if row[1] >= int(query["created[gte]"])]
        if "created[lt]" in query:
            newest_first = [row for row in newest_first if row[1] < int(query["created[lt]"])]
        ids = [row[0] for row in newest_first]
        if "ending_before" in query:
            newer = newest_first[: ids.index(query["ending_before"])]
            page, more = newer[-100:], len(newer) > 100
        else:
            rest = newest_first[ids.index(query["starting_after"]) + 1 :] if "starting_after" in query else newest_first
            page, more = rest[:100], len(rest) > 100
        items = [samples.event(samples.payout(), id=name, created=at) for name, at in page]
        return listed(*items, more=more)


async def read_all(created: list[int]) -> tuple[list[str], int]:
    """What one gets by asking until there is no more, and with how many requests."""
    books = Events(created)
    seen: list[str] = []
    requests = 0
    cursor: str | None = None
    more = True
    while more:
        answers: list[Canned] = []
        # The script is found by running the adapter against longer and longer scripts: each request is pure.
        while True:
            async with scripted(*answers) as server:
                stripe = samples.adapter(server.base, connected_accounts=())
                try:
                    page = await stripe.events(cursor=cursor, now=NOW)
                except ProviderUnreachable:
                    answers.append(Canned(200, books.page(_flat(server.asked[-1]))))
                    assert len(answers) < 70, "it does not end"
                    continue
            break
        requests += len(answers)
        seen += [event.dedup_key for event in page.events]
        cursor, more = page.cursor, page.more
    return seen, requests


def _flat(asked: Asked) -> dict[str, str]:
    return {name: values[-1] for name, values in asked.query.items()}


END = int(NOW.timestamp())
MONTH = 30 * 86_400


@pytest.mark.parametrize(
    ("created", "most"),
    [
        ([], 1),
        ([END - 5], 1),
        (list(range(END - 100, END)), 1),
        (list(range(END - 350, END)), 40),
        ([END - MONTH + 60, *range(END - 150, END)], 10),
        ([END - 20 * 86_400] * 230, 30),
        ([*[END - 20 * 86_400] * 230, END - 7, END - 6], 30),
        ([END + 3, END + 4], 1),
    ],
    ids=["none", "one", "a page", "lately", "one long ago", "one second", "one second and more", "its clock is ahead"],
)
async def test_without_a_cursor_events_are_read_from_the_oldest(created: list[int], most: int) -> None:
    seen, requests = await read_all(created)
    assert seen == [f"evt_{number}" for number in range(len(created))]
    assert requests <= most


async def test_after_a_cursor_only_newer_events_come() -> None:
    newer = listed(samples.event(samples.payout(), id="evt_3"), samples.event(samples.payout(), id="evt_2"), more=True)
    async with scripted(Canned(200, newer), Canned(200, listed())) as server:
        stripe = samples.adapter(server.base, connected_accounts=())
        first = await stripe.events(cursor="evt_1", now=NOW)
        second = await stripe.events(cursor=first.cursor, now=NOW)
        assert [dict(each.query) for each in server.asked] == [
            {"ending_before": ["evt_1"], "limit": ["100"]},
            {"ending_before": ["evt_3"], "limit": ["100"]},
        ]
    assert [event.dedup_key for event in first.events] == ["evt_2", "evt_3"]
    assert first.more
    assert second == EventPage(events=(), cursor="evt_3", more=False)


async def test_an_event_keeps_its_own_bytes() -> None:
    item = samples.event(samples.payout())
    async with scripted(Canned(200, listed(item))) as server:
        page = await samples.adapter(server.base, connected_accounts=()).events(cursor=None, now=NOW)
    assert msgspec.json.decode(page.events[0].body) == item


async def test_a_forgotten_cursor_starts_from_the_oldest() -> None:
    """It is older than everything Stripe still has."""
    missing = Canned(400, {"error": {"type": "invalid_request_error", "code": "resource_missing"}})
    async with scripted(missing, Canned(200, listed(samples.event(samples.payout())))) as server:
        page = await samples.adapter(server.base, connected_accounts=()).events(cursor="evt_old", now=NOW)
        assert server.asked[1].query["created[gte]"] == [str(END + 1 - MONTH)]
    assert page.cursor == "evt_1"


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(401),
        Canned(400),
        Canned(200, b"{}"),
        Canned(200, b"[" * 100_000),
        Canned(200, listed({"object": "event"}, more=True)),
    ],
)
@pytest.mark.parametrize("cursor", [None, "", "evt_1"])
async def test_a_list_of_events_that_cannot_be_read_is_not_skipped(broken: Canned, cursor: str | None) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base, connected_accounts=()).events(cursor=cursor, now=NOW)


@pytest.mark.parametrize(
    ("odd", "kind", "object_id"),
    [
        (samples.event(samples.payment_intent(currency="bgn"), id="evt_2"), "payout.failed", "pi_1"),
        (samples.event(samples.payout(status=None), id="evt_2", account="acct_1"), "payout.failed", "acct_1/po_1"),
        (samples.event(samples.transfer(amount="1"), id="evt_2", created=10**30), "payout.failed", "tr_1"),
        (samples.event(samples.payout(), id="evt_2", type="a\0b"), "unreadable", "po_1"),
        (samples.event({"object": "plan", "id": "a\0b"}, id="evt_2"), "payout.failed", ""),
        ({"id": "evt_2"}, "unreadable", ""),
        ({"id": "evt_2", "type": 7, "created": "x", "data": []}, "unreadable", ""),
    ],
)
@pytest.mark.parametrize("cursor", [None, "evt_1"])
async def test_an_event_that_cannot_be_read_is_told_and_the_stream_goes_on(
    odd: dict[str, Any], kind: str, object_id: str, cursor: str | None
) -> None:
    after = samples.event(samples.payout(), id="evt_3")
    async with scripted(Canned(200, listed(after, odd))) as server:
        page = await samples.adapter(server.base, connected_accounts=()).events(cursor=cursor, now=NOW)
    first, second = page.events
    assert (first.dedup_key, first.type, first.object_id, first.movement) == ("evt_2", kind, object_id, None)
    assert msgspec.json.decode(first.body) == odd
    assert second.movement is not None
    assert page.cursor == "evt_3"


async def test_an_event_without_an_id_is_told_again_until_a_newer_one_came() -> None:
    odd = {"object": "event", "type": "payout.paid"}
    one, two = (samples.event(samples.payout(), id=each) for each in ("evt_1", "evt_2"))
    answers = [listed(odd, one), listed(odd), listed(two, odd)]
    async with scripted(*(Canned(200, each) for each in answers)) as server:
        stripe = samples.adapter(server.base, connected_accounts=())
        first = await stripe.events(cursor=None, now=NOW)
        second = await stripe.events(cursor=first.cursor, now=NOW)
        third = await stripe.events(cursor=second.cursor, now=NOW)
    assert [each.cursor for each in (first, second, third)] == ["evt_1", "evt_1", "evt_2"]
    assert first.events[1].dedup_key.startswith("sha256:")
    assert first.events[1] == second.events[0] == third.events[0]


async def test_a_refund_event_without_a_status_says_that_it_is_still_open() -> None:
    async with scripted(Canned(200, listed(samples.event(samples.refund(status=None), "refund.created")))) as server:
        (event,) = (await samples.adapter(server.base, connected_accounts=()).events(cursor=None, now=NOW)).events
    assert event.movement is not None
    assert event.movement.state == "moving"


def test_a_connected_account_that_is_none_is_a_wrong_setting() -> None:
    with pytest.raises(Misconfigured):
        samples.adapter("http://127.0.0.1:1", connected_accounts=("acct 1",))


LEFT = {"error": {"type": "invalid_request_error", "code": "account_invalid", "message": "no access"}}


async def test_an_account_that_left_us_hides_nothing_of_the_others_and_is_named() -> None:
    """Else no reading of the books would ever end, and after a restore nobody would be paid."""
    nothing = [EMPTY] * 4
    answers = [*nothing, Canned(403, LEFT), Canned(200, listed(samples.payout(id="po_2")))]
    found: list[str] = []
    async with scripted(*answers) as server:
        stripe = samples.adapter(server.base, connected_accounts=("acct_1", "acct_2"))
        with pytest.raises(PartlyUnreadable, match=r"payouts of acct_1 \(the list answered 403\)"):
            async for each in stripe.movements(since=SINCE, until=NOW):
                found += [each.id]
    assert found == ["acct_2/po_2"]


@pytest.mark.parametrize(
    "said",
    [Canned(503), Canned(401, LEFT), Canned(404, LEFT), Canned(403, b"{}"), Canned(403, {"error": {"type": "x"}})],
)
async def test_a_list_that_is_not_shown_is_no_account_that_left(said: Canned) -> None:
    """Credentials revoked meanwhile, or that may not list: taken for the end, a restore would pay what it hides."""
    async with scripted(*[EMPTY] * 4, *[said] * 5) as server:
        with pytest.raises(ProviderUnreachable) as raised:
            await movements(samples.adapter(server.base, connected_accounts=("acct_1",)))
    assert not isinstance(raised.value, PartlyUnreadable)
