"""Square's books, listed and matched by our key: found, absent, or not decided."""

from typing import Any

import msgspec
import pytest

from tallystick.keys.derived import digest
from tallystick.providers import scanning
from tallystick.providers.words import Absent, Done, Found, Instruction, Lookup, NotShown, Undecided
from tests.providers.scripted import FIRST_SENT_AT, NOW, Canned, scripted
from tests.providers.square import samples
from tests.providers.square.samples import CHARGE, INSTRUCTIONS, REFUND, TRANSFER

QUERY = {
    "begin_time": ["2026-11-15T11:50:00.000Z"],
    # No end is known: a provider whose clock is ahead of ours has nothing left out.
    "end_time": ["2027-11-16T12:30:01.001Z"],
    "sort_order": ["ASC"],
    "location_id": ["LMAIN"],
    "limit": ["100"],
}


async def look_up(base: str, instruction: Instruction) -> Found | Absent | Undecided:
    return await samples.adapter(base).look_up(instruction, first_sent_at=FIRST_SENT_AT, now=NOW)


@pytest.mark.parametrize(
    ("instruction", "path", "page"),
    [
        (CHARGE, "/v2/payments", {"payments": [samples.payment(id="P2", reference_id="other"), samples.payment()]}),
        (REFUND, "/v2/refunds", {"refunds": [samples.refund(id="R2", reason="wrong size"), samples.refund()]}),
    ],
)
async def test_what_bears_our_key_is_found(instruction: Instruction, path: str, page: dict[str, Any]) -> None:
    async with scripted(Canned(200, page)) as server:
        found = await look_up(server.base, instruction)
        (asked,) = server.asked
    assert isinstance(found, Found)
    assert len(found.movements) == 1
    assert (asked.method, asked.path, dict(asked.query)) == ("GET", path, QUERY)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
@pytest.mark.parametrize("page", [{}, {"payments": [], "refunds": []}, {"cursor": None}, {"errors": []}])
async def test_absence_is_never_proof(instruction: Instruction, page: dict[str, Any]) -> None:
    """Square leaves an empty list out, and its lists are seconds late."""
    async with scripted(Canned(200, page)) as server:
        found = await look_up(server.base, instruction)
    assert isinstance(found, Absent)
    assert found.lookup is Lookup.SCAN


async def test_two_under_one_key_are_both_told() -> None:
    two = [samples.payment(), samples.payment(id="PAY2")]
    async with scripted(Canned(200, {"payments": two})) as server:
        found = await look_up(server.base, CHARGE)
    assert isinstance(found, Found)
    assert [each.id for each in found.movements] == ["PAY1", "PAY2"]


async def test_a_scan_is_read_to_its_end() -> None:
    pages = [
        {"payments": [samples.payment(reference_id=None)], "cursor": "a+b/c="},
        {"cursor": "second"},
        {"payments": [samples.payment()]},
    ]
    async with scripted(*(Canned(200, page) for page in pages)) as server:
        found = await look_up(server.base, CHARGE)
        assert [asked.query.get("cursor") for asked in server.asked] == [None, ["a+b/c="], ["second"]]
    assert isinstance(found, Found)


@pytest.mark.parametrize(
    "broken",
    [
        Canned(cut=0),
        Canned(500),
        Canned(429),
        Canned(401),
        Canned(301),
        Canned(200, b""),
        Canned(200, b"[]"),
        Canned(200, b"<html>"),
        Canned(200, {"payments": {}}),
        Canned(200, {"payments": None}),
        Canned(200, {"payments": [], "cursor": 7}),
        Canned(200, {"errors": [{"category": "API_ERROR", "code": "TEMPORARY_ERROR"}]}),
        Canned(200, {"payments": [{"id": "PAY1"}]}),
        Canned(200, {"payments": [samples.payment(amount_money={"amount": 1, "currency": "XYZ"})]}),
    ],
)
async def test_a_list_that_breaks_off_decides_nothing(broken: Canned) -> None:
    first = Canned(200, {"payments": [samples.payment(reference_id="other")], "cursor": "next"})
    async with scripted(broken) as server:
        assert isinstance(await look_up(server.base, CHARGE), Undecided)
    async with scripted(first, broken) as server:
        assert isinstance(await look_up(server.base, CHARGE), Undecided)


async def test_a_list_without_end_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read for a while, not for ever."""
    monkeypatch.setattr(scanning, "SCAN_SECONDS", 0.0)
    async with scripted(*(Canned(200, {"cursor": f"c{number}"}) for number in range(100))) as server:
        found = await look_up(server.base, CHARGE)
        assert scanning.FEW_PAGES < len(server.asked) < 100
    assert isinstance(found, Undecided)
    assert found.code == "lookup_unfinished"


async def test_a_list_that_goes_in_a_circle_decides_nothing() -> None:
    async with scripted(*[Canned(200, {"cursor": "same"})] * 5) as server:
        assert isinstance(await look_up(server.base, CHARGE), Undecided)
        assert len(server.asked) == 2


async def test_a_transfer_was_never_sent_so_nothing_is_asked() -> None:
    async with scripted() as server:
        found = await look_up(server.base, TRANSFER)
        assert server.asked == []
    assert isinstance(found, Absent)
    assert found.lookup is Lookup.NONE


async def test_another_key_is_not_taken_for_ours() -> None:
    other = msgspec.structs.replace(CHARGE, key=digest("test", number=2))
    async with scripted(Canned(200, {"payments": [samples.payment()]})) as server:
        assert isinstance(await look_up(server.base, other), Absent)


@pytest.mark.parametrize(
    ("purpose", "body", "path"),
    [
        ("charge", {"payment": samples.payment()}, "/v2/payments/PAY1"),
        ("refund", {"refund": samples.refund()}, "/v2/refunds/PAY1_R1"),
        ("payout", {"payout": samples.payout()}, "/v2/payouts/po_1"),
    ],
)
async def test_one_object_is_fetched_by_its_id(purpose: Any, body: dict[str, Any], path: str) -> None:
    async with scripted(Canned(200, body)) as server:
        answer = await samples.adapter(server.base).fetch(purpose, path.rpartition("/")[2])
        assert server.asked[0].path == path
    assert isinstance(answer, Done)
    assert answer.id == path.rpartition("/")[2]


@pytest.mark.parametrize(
    "canned",
    [Canned(403), Canned(401), Canned(500), Canned(200, b"{}"), Canned(200, {"payment": samples.payment(id="P2")})],
)
async def test_what_is_not_fetched_whole_decides_nothing(canned: Canned) -> None:
    async with scripted(canned) as server:
        assert isinstance(await samples.adapter(server.base).fetch("charge", "PAY1"), Undecided)


@pytest.mark.parametrize(("purpose", "provider_id"), [("charge", ""), ("charge", "a/b"), ("transfer", "PAY1")])
async def test_what_cannot_be_is_not_asked_for(purpose: Any, provider_id: str) -> None:
    async with scripted() as server:
        assert isinstance(await samples.adapter(server.base).fetch(purpose, provider_id), Absent | NotShown)
        assert server.asked == []
