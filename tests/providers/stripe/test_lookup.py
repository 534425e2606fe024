"""Stripe's books, asked by our key: found, absent, or not decided."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.keys.derived import digest
from tallystick.providers import scanning
from tallystick.providers.stripe import lookup
from tallystick.providers.words import Absent, Done, Found, Instruction, Lookup, Undecided
from tallystick.secret import Secret
from tests.providers.scripted import FIRST_SENT_AT, NOW, Canned, scripted
from tests.providers.stripe import samples
from tests.providers.stripe.samples import (
    CHARGE,
    CONNECTED_PAYOUT,
    PAYOUT,
    REFERENCE,
    REFUND,
    TRANSFER,
    listed,
    reply_to,
)

SPAN = {
    "created[gte]": [str(int(FIRST_SENT_AT.timestamp()) - 600)],
    # No end is known: a provider whose clock is ahead of ours has nothing left out.
    "created[lte]": [str(int((NOW + timedelta(days=366)).timestamp()))],
    "limit": ["100"],
}
QUESTIONS: list[tuple[Instruction, str, dict[str, list[str]], Lookup]] = [
    (TRANSFER, "/v1/transfers", {"transfer_group": [REFERENCE], "limit": ["100"]}, Lookup.EXACT),
    (REFUND, "/v1/refunds", {"payment_intent": ["pi_1"], "limit": ["100"]}, Lookup.EXACT),
    (CHARGE, "/v1/payment_intents", SPAN, Lookup.SCAN),
    (PAYOUT, "/v1/payouts", SPAN, Lookup.SCAN),
    (CONNECTED_PAYOUT, "/v1/payouts", SPAN, Lookup.SCAN),
]


async def look_up(base: str, instruction: Instruction) -> Found | Absent | Undecided:
    return await samples.adapter(base).look_up(instruction, first_sent_at=FIRST_SENT_AT, now=NOW)


@pytest.mark.parametrize(("instruction", "path", "query", "strength"), QUESTIONS)
async def test_what_bears_our_key_is_found(
    instruction: Instruction, path: str, query: dict[str, list[str]], strength: Lookup
) -> None:
    other = reply_to(instruction, id="xx_2", metadata={"tally_key": "another"}, transfer_group=None)
    async with scripted(Canned(200, listed(other, reply_to(instruction)))) as server:
        found = await look_up(server.base, instruction)
        (asked,) = server.asked
    assert isinstance(found, Found)
    (movement,) = found.movements
    assert movement.id.rpartition("/")[2] == reply_to(instruction)["id"]
    assert (asked.method, asked.path, dict(asked.query)) == ("GET", path, query)
    assert asked.headers.get("stripe-account") == ("acct_1" if instruction is CONNECTED_PAYOUT else None)
    assert "idempotency-key" not in asked.headers


@pytest.mark.parametrize(("instruction", "path", "query", "strength"), QUESTIONS)
async def test_absence_is_told_with_its_strength(
    instruction: Instruction, path: str, query: dict[str, list[str]], strength: Lookup
) -> None:
    async with scripted(Canned(200, listed())) as server:
        found = await look_up(server.base, instruction)
    assert isinstance(found, Absent)
    assert found.lookup is strength
    assert found.evidence[0].status == 200


async def test_a_refund_of_a_charge_is_asked_by_the_charge() -> None:
    async with scripted(Canned(200, listed())) as server:
        await look_up(server.base, msgspec.structs.replace(REFUND, payment_id="ch_9"))
        assert dict(server.asked[0].query) == {"charge": ["ch_9"], "limit": ["100"]}


async def test_two_under_one_key_are_both_told() -> None:
    """It moved twice, and a person must know."""
    two = [reply_to(TRANSFER, id="tr_1"), reply_to(TRANSFER, id="tr_2", amount=99)]
    async with scripted(Canned(200, listed(*two))) as server:
        found = await look_up(server.base, TRANSFER)
    assert isinstance(found, Found)
    assert [(each.id, each.amount_micros) for each in found.movements] == [("tr_1", 12_340_000), ("tr_2", 990_000)]


async def test_a_reversed_transfer_is_found_as_returned() -> None:
    async with scripted(Canned(200, listed(reply_to(TRANSFER, reversed=True)))) as server:
        found = await look_up(server.base, TRANSFER)
    assert isinstance(found, Found)
    assert found.movements[0].state == "returned"


async def test_a_transfer_whose_metadata_was_edited_is_still_found() -> None:
    """Taken for absent, it would be sent again."""
    async with scripted(Canned(200, listed(reply_to(TRANSFER, metadata={"tally_key": "edited"})))) as server:
        assert isinstance(await look_up(server.base, TRANSFER), Found)


async def test_a_scan_is_read_to_its_end() -> None:
    pages = [listed(reply_to(CHARGE, id="pi_7", metadata={}), more=True), listed(reply_to(CHARGE))]
    async with scripted(*(Canned(200, page) for page in pages)) as server:
        found = await look_up(server.base, CHARGE)
        assert [asked.query.get("starting_after") for asked in server.asked] == [None, ["pi_7"]]
    assert isinstance(found, Found)


BROKEN = [
    Canned(cut=0),
    Canned(500),
    Canned(429),
    Canned(401),
    Canned(404, {"error": {"code": "resource_missing"}}),
    Canned(301),
    Canned(200, b""),
    Canned(200, b"{}"),
    Canned(200, b"<html>"),
    Canned(200, {"object": "list", "data": {}, "has_more": False}),
    Canned(200, {"object": "list", "data": []}),
    Canned(200, listed(more=True)),
    Canned(200, listed({"id": "tr_1"})),
    Canned(200, listed(reply_to(TRANSFER, amount="12"))),
    Canned(200, listed(reply_to(TRANSFER, currency="xyz"))),
]


@pytest.mark.parametrize("second", BROKEN)
async def test_a_list_that_breaks_off_decides_nothing(second: Canned) -> None:
    """Also when the first page was whole: what is looked for may stand on the broken one."""
    first = Canned(200, listed(reply_to(TRANSFER, id="tr_7", metadata={}, transfer_group=None), more=True))
    async with scripted(second) as server:
        assert isinstance(await look_up(server.base, TRANSFER), Undecided)
    async with scripted(first, second) as server:
        assert isinstance(await look_up(server.base, TRANSFER), Undecided)


async def test_a_list_without_end_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read for a while, not for ever."""
    monkeypatch.setattr(scanning, "SCAN_SECONDS", 0.0)
    page = Canned(200, listed(reply_to(CHARGE, metadata={}), more=True))
    async with scripted(*[page] * 100) as server:
        found = await look_up(server.base, CHARGE)
        assert scanning.FEW_PAGES < len(server.asked) < 100
    assert isinstance(found, Undecided)
    assert found.code == "lookup_unfinished"


async def test_what_is_asked_for_by_our_key_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_PAGES", 3)
    page = Canned(200, listed(reply_to(TRANSFER, id="tr_7", metadata={}, transfer_group=None), more=True))
    async with scripted(*[page] * 10) as server:
        found = await look_up(server.base, TRANSFER)
        assert len(server.asked) == 3
    assert isinstance(found, Undecided)


async def test_a_span_ends_where_nothing_of_ours_can_have_been_made_any_more() -> None:
    until = FIRST_SENT_AT + timedelta(minutes=3)
    for asked_until, end in ((until, until), (NOW + timedelta(hours=1), NOW)):
        async with scripted(Canned(200, listed())) as server:
            adapter = samples.adapter(server.base)
            await adapter.look_up(CHARGE, first_sent_at=FIRST_SENT_AT, now=NOW, until=asked_until)
            (asked,) = server.asked
        assert asked.query["created[gte]"] == SPAN["created[gte]"]
        assert asked.query["created[lte]"] == [str(int(end.timestamp()) + 600)]


async def test_a_payment_that_is_none_is_not_asked_for() -> None:
    async with scripted() as server:
        found = await look_up(server.base, msgspec.structs.replace(REFUND, payment_id="x"))
        assert server.asked == []
    assert isinstance(found, Undecided)


async def test_somebody_elses_object_in_an_odd_currency_does_not_stop_a_scan() -> None:
    other = reply_to(CHARGE, id="pi_2", currency="xyz", metadata={})
    async with scripted(Canned(200, listed(other, reply_to(CHARGE)))) as server:
        assert isinstance(await look_up(server.base, CHARGE), Found)


async def test_another_key_is_not_taken_for_ours() -> None:
    other = msgspec.structs.replace(CHARGE, key=digest("test", number=2))
    async with scripted(Canned(200, listed(reply_to(CHARGE)))) as server:
        assert isinstance(await look_up(server.base, other), Absent)


@pytest.mark.parametrize(
    ("purpose", "provider_id", "body", "path"),
    [
        ("charge", "pi_1", samples.payment_intent(), "/v1/payment_intents/pi_1"),
        ("refund", "re_1", samples.refund(), "/v1/refunds/re_1"),
        ("transfer", "tr_1", samples.transfer(), "/v1/transfers/tr_1"),
        ("payout", "po_1", samples.payout(), "/v1/payouts/po_1"),
        ("payout", "acct_1/po_1", samples.payout(), "/v1/payouts/po_1"),
    ],
)
async def test_one_object_is_fetched_by_its_id(purpose: Any, provider_id: str, body: dict[str, Any], path: str) -> None:
    async with scripted(Canned(200, body)) as server:
        answer = await samples.adapter(server.base).fetch(purpose, provider_id)
        (asked,) = server.asked
    assert isinstance(answer, Done)
    assert answer.id == provider_id
    assert asked.path == path
    assert asked.headers.get("stripe-account") == ("acct_1" if "/" in provider_id else None)


async def test_a_fetched_charge_brings_its_client_secret() -> None:
    async with scripted(Canned(200, samples.payment_intent())) as server:
        answer = await samples.adapter(server.base).fetch("charge", "pi_1")
    assert isinstance(answer, Done)
    assert answer.client_secret == Secret("pi_1_secret_NeverShown")
    assert "NeverShown" not in repr(answer)


@pytest.mark.parametrize(
    "canned",
    [
        Canned(403),
        Canned(401),
        Canned(500),
        Canned(200, b"{}"),
        Canned(200, samples.transfer(id="tr_2")),
        Canned(cut=3),
    ],
)
async def test_what_is_not_fetched_whole_decides_nothing(canned: Canned) -> None:
    async with scripted(canned) as server:
        assert isinstance(await samples.adapter(server.base).fetch("transfer", "tr_1"), Undecided)


@pytest.mark.parametrize("provider_id", ["", "../x", "tr_1?x", "a b/po_1", "tr_1\r\n"])
async def test_an_id_that_is_none_is_not_asked_for(provider_id: str) -> None:
    async with scripted() as server:
        answer = await samples.adapter(server.base).fetch("transfer", provider_id)
        assert server.asked == []
    assert isinstance(answer, Absent)
