"""Stripe's books and events, listed to the end or not at all."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.core.provider import EventPage, Movement
from tallystick.errors import Misconfigured, ProviderUnreachable
from tallystick.providers.stripe import Stripe, listing
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
        stripe = samples.adapter(server.base)
        assert [each async for each in stripe.movements(since=SINCE, until=middle)] == []
        assert [each async for each in stripe.movements(since=middle, until=NOW + timedelta(seconds=9))] == []
        ends = {each.query["created[lt]"][0] for each in server.asked[:4]}
        starts = {each.query["created[gte]"][0] for each in server.asked[4:]}
    assert ends == starts


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(401),
        Canned(200, b"{}"),
        Canned(200, b"<html>"),
        Canned(200, listed(more=True)),
        Canned(200, listed(samples.payment_intent(amount=None))),
        Canned(200, listed(samples.payment_intent(currency="xyz"))),
        Canned(200, listed({"object": "charge", "id": "ch_1"})),
    ],
)
async def test_half_a_list_does_not_pass_for_the_whole(broken: Canned) -> None:
    first = Canned(200, listed(samples.payment_intent(id="pi_2"), more=True))
    async with scripted(first, broken) as server:
        reading = samples.adapter(server.base).movements(since=SINCE, until=NOW)
        assert (await anext(reading)).id == "pi_2"
        with pytest.raises(ProviderUnreachable, match="stripe"):
            await anext(reading)


async def test_a_list_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_PAGES", 2)
    page = Canned(200, listed(samples.payment_intent(), more=True))
    async with scripted(page, page, page) as server:
        with pytest.raises(ProviderUnreachable):
            await movements(samples.adapter(server.base))
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
                stripe = samples.adapter(server.base)
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
        stripe = samples.adapter(server.base)
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
        page = await samples.adapter(server.base).events(cursor=None, now=NOW)
    assert msgspec.json.decode(page.events[0].body) == item


async def test_a_forgotten_cursor_starts_from_the_oldest() -> None:
    """It is older than everything Stripe still has."""
    missing = Canned(400, {"error": {"type": "invalid_request_error", "code": "resource_missing"}})
    async with scripted(missing, Canned(200, listed(samples.event(samples.payout())))) as server:
        page = await samples.adapter(server.base).events(cursor="evt_old", now=NOW)
        assert server.asked[1].query["created[gte]"] == [str(END + 1 - MONTH)]
    assert page.cursor == "evt_1"


@pytest.mark.parametrize(
    "broken",
    [Canned(cut=0), Canned(500), Canned(401), Canned(400), Canned(200, b"{}"), Canned(200, listed({"id": "evt_1"}))],
)
@pytest.mark.parametrize("cursor", [None, "", "evt_1"])
async def test_events_that_cannot_be_read_are_not_skipped(broken: Canned, cursor: str | None) -> None:
    async with scripted(broken) as server:
        with pytest.raises(ProviderUnreachable):
            await samples.adapter(server.base).events(cursor=cursor, now=NOW)


def test_a_connected_account_that_is_none_is_a_wrong_setting() -> None:
    with pytest.raises(Misconfigured):
        samples.adapter("http://127.0.0.1:1", connected_accounts=("acct 1",))
