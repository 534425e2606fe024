"""Wise's wire: the four calls of a transfer, and where the money is when each of them breaks."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tallystick.errors import Misconfigured
from tallystick.providers.steady import steady
from tallystick.providers.wise.adapter import Wise
from tallystick.providers.words import Answer, Busy, Done, Refused, Sending, Unknown
from tallystick.secret import Secret
from tests.providers.scripted import FIRST_SENT_AT, Canned, leave, scripted
from tests.providers.wise.examples import (
    API_KEY,
    COMPLETED,
    MADE,
    NEW_RECIPIENT,
    QUOTE,
    QUOTE_ID,
    QUOTED,
    RECIPIENT,
    REFERENCE,
    TRANSFER,
    account,
    changed,
    made,
    wise,
)
from tests.providers.wise.saga_script import (
    FAULT,
    FUNDING,
    MAKING,
    NEW,
    NONE_LISTED,
    QUOTING,
    SEARCHING,
    UNREADABLE,
    answered,
)


async def test_a_transfer_is_quoted_made_and_funded() -> None:
    answer, calls, server = await answered(QUOTED, made(), COMPLETED)
    assert isinstance(answer, Done)
    assert calls == [QUOTING, MAKING, FUNDING]
    assert (answer.id, answer.movement.state, answer.movement.status) == ("16521632", "moving", "COMPLETED")
    assert (answer.movement.amount_micros, answer.movement.currency) == (150_250_000, "GBP")
    assert answer.movement.reference == REFERENCE
    assert answer.movement.created_at == FIRST_SENT_AT + timedelta(seconds=1)
    assert not answer.replayed
    quote, transfer, funding = server.asked
    assert quote.body == (
        b'{"sourceCurrency":"GBP","targetCurrency":"GBP","targetAmount":150.25,'
        b'"preferredPayIn":"BALANCE","targetAccount":8692237}'
    )
    assert transfer.json() == {
        "targetAccount": 8692237,
        "quoteUuid": QUOTE_ID,
        "customerTransactionId": REFERENCE,
        "details": {"reference": "Pay 7"},
    }
    assert funding.json() == {"type": "BALANCE"}
    for asked in server.asked:
        assert asked.headers["authorization"] == f"Bearer {API_KEY}"
        assert asked.headers["content-type"] == "application/json"


async def test_a_new_recipient_is_made_in_between() -> None:
    answer, calls, server = await answered(
        QUOTED, Canned(200, RECIPIENT), made(targetAccount=40000000), COMPLETED, transfer=NEW
    )
    assert isinstance(answer, Done)
    assert calls == [QUOTING, ("POST", "/v1/accounts"), MAKING, FUNDING]
    assert "targetAccount" not in server.asked[0].json()  # type: ignore[operator]
    assert server.asked[1].json() == NEW_RECIPIENT | {"currency": "GBP", "profile": 102}
    assert server.asked[2].json()["targetAccount"] == 40000000  # type: ignore[index]


async def test_the_balance_that_pays_may_be_in_another_currency() -> None:
    async with scripted(
        Canned(200, QUOTE | {"sourceCurrency": "EUR"}), made(sourceCurrency="EUR"), COMPLETED
    ) as server:
        provider = Wise(msgspec.structs.replace(account(server.base), source_currency="EUR"))
        assert isinstance(await provider.send(TRANSFER, leave()), Done)
        assert server.asked[0].json()["sourceCurrency"] == "EUR"  # type: ignore[index]


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_quote_that_cannot_be_read_moved_nothing(body: bytes) -> None:
    answer, calls, _ = await answered(Canned(200, body))
    assert isinstance(answer, Busy)
    assert answer.code == "quote_unreadable"
    assert calls == [QUOTING]


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"targetAmount": 150.26},
        {"targetAmount": "150.25"},
        {"targetAmount": None},
        {"targetCurrency": "USD"},
        {"sourceCurrency": "USD"},
    ],
)
async def test_a_quote_of_something_else_is_not_used(fields: dict[str, Any]) -> None:
    answer, calls, _ = await answered(Canned(200, QUOTE | fields))
    assert isinstance(answer, Busy)
    assert answer.code == "quote_differs"
    assert calls == [QUOTING]


async def test_a_blocked_quote_needs_a_person() -> None:
    notices = [{"type": "INFO", "text": "hello"}, {"type": "BLOCKED", "text": "limit reached"}]
    answer, calls, _ = await answered(Canned(200, QUOTE | {"notices": notices}))
    assert isinstance(answer, Busy)
    assert (answer.code, answer.needs_person) == ("quote_blocked", True)
    assert calls == [QUOTING]


@pytest.mark.parametrize("before", [(), (QUOTED,)], ids=["quote", "recipient"])
@pytest.mark.parametrize(
    ("broken", "kind", "needs_person"),
    [
        (Canned(200, b"", cut=10), Busy, False),
        (Canned(500, b""), Busy, False),
        (Canned(503, b"<html>"), Busy, False),
        (Canned(302, b""), Busy, False),
        (Canned(200, b"[]"), Busy, False),
        (Canned(401, b""), Busy, True),
        (Canned(403, b""), Busy, True),
        (Canned(404, b""), Busy, True),
        (Canned(429, b"", {"retry-after": "3"}), Busy, False),
        (Canned(422, FAULT), Unknown, None),
        (Canned(400, FAULT), Unknown, None),
    ],
)
async def test_before_the_transfer_nothing_can_have_moved(
    before: tuple[Canned, ...], broken: Canned, kind: type[Answer], *, needs_person: bool | None
) -> None:
    answer, calls, _ = await answered(*before, broken, NONE_LISTED, transfer=NEW)
    assert isinstance(answer, kind)
    # What is refused is refused for ever, so it is looked whether an earlier send went further.
    assert len(calls) == len(before) + (2 if kind is Unknown else 1)
    if isinstance(answer, Unknown):
        assert answer.says_refused
    if isinstance(answer, Busy):
        assert answer.needs_person is needs_person


@pytest.mark.parametrize("fields", [{"id": 0}, {"id": -1}, {"currency": "USD"}])
async def test_a_recipient_of_something_else_is_not_paid(fields: dict[str, Any]) -> None:
    answer, calls, _ = await answered(QUOTED, Canned(200, RECIPIENT | fields), transfer=NEW)
    assert isinstance(answer, Busy)
    assert answer.code == "recipient_differs"
    assert MAKING not in calls


@pytest.mark.parametrize("body", UNREADABLE)
async def test_a_transfer_that_cannot_be_read_is_unknown_and_not_funded(body: bytes) -> None:
    answer, calls, _ = await answered(QUOTED, Canned(200, body))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_unreadable"
    assert calls == [QUOTING, MAKING]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"id": ...}, "answer_unreadable"),
        ({"id": "16521632"}, "answer_unreadable"),
        ({"id": 0}, "answer_unreadable"),
        ({"status": ...}, "answer_unreadable"),
        ({"targetValue": ...}, "answer_unreadable"),
        ({"targetValue": 150.26}, "answer_differs"),
        ({"targetValue": "150.25"}, "answer_differs"),
        ({"targetValue": 15025}, "answer_differs"),
        ({"targetCurrency": "USD"}, "answer_differs"),
        ({"targetAccount": 1}, "answer_differs"),
        ({"targetAccount": None}, "answer_differs"),
        ({"customerTransactionId": None}, "answer_differs"),
        ({"customerTransactionId": "54a6bc09-cef9-49a8-9041-f1f0c654cd88"}, "answer_differs"),
        ({"status": "something_new"}, "status_unknown"),
    ],
)
async def test_a_transfer_of_something_else_is_unknown_and_not_funded(fields: dict[str, Any], code: str) -> None:
    answer, calls, _ = await answered(QUOTED, made(**fields))
    assert isinstance(answer, Unknown)
    assert answer.code == code
    assert calls == [QUOTING, MAKING]


@pytest.mark.parametrize(
    ("broken", "kind", "code"),
    [
        (made(), Unknown, "unanswered"),
        (Canned(500, b""), Unknown, "status_500"),
        (Canned(302, b""), Unknown, "answer_unreadable"),
        (Canned(404, b""), Unknown, "status_404"),
        (Canned(422, FAULT), Unknown, "NOT_VALID"),
        (Canned(401, b""), Busy, "status_401"),
        (Canned(429, b""), Busy, "status_429"),
    ],
)
async def test_errors_of_the_making_are_by_the_table(broken: Canned, kind: type[Answer], code: str) -> None:
    if code == "unanswered":
        broken = msgspec.structs.replace(broken, cut=40)
    answer, calls, _ = await answered(QUOTED, broken, NONE_LISTED)
    assert isinstance(answer, kind)
    assert not isinstance(answer, Done)
    assert answer.code == code
    says_refused = isinstance(answer, Unknown) and answer.says_refused
    assert says_refused is (code == "NOT_VALID")
    assert calls == [QUOTING, MAKING, *([SEARCHING] if says_refused else [])]


REFUSED_HERE = pytest.mark.parametrize(
    "before", [(), (QUOTED,), (QUOTED, Canned(200, RECIPIENT))], ids=["quote", "recipient", "transfer"]
)


@REFUSED_HERE
async def test_what_an_earlier_send_made_is_gone_on_with_and_not_refused(before: tuple[Canned, ...]) -> None:
    """The earlier send waited for a person, who has approved it since: it may be paid already."""
    paid = Canned(200, [changed(MADE, status="outgoing_payment_sent")])
    answer, calls, server = await answered(*before, Canned(422, FAULT), paid, NONE_LISTED, transfer=NEW, number=2)
    assert isinstance(answer, Done)
    assert answer.movement.state == "moved"
    assert FUNDING not in calls
    assert server.asked[-1].query["createdDateEnd"] == ["2026-11-15T12:11:00.001Z"]
    waiting = Canned(200, [MADE])
    answer, calls, _ = await answered(
        *before, Canned(422, FAULT), waiting, NONE_LISTED, COMPLETED, transfer=NEW, number=2
    )
    assert isinstance(answer, Done)
    assert calls[-1] == FUNDING


@REFUSED_HERE
@pytest.mark.parametrize(
    ("shown", "kind", "code"),
    [
        (Canned(500, b""), Busy, "earlier_unclear"),
        (Canned(200, b"{}"), Busy, "earlier_unclear"),
        (Canned(200, [MADE, changed(MADE, id=2)]), Unknown, "earlier_differs"),
        (Canned(200, [changed(MADE, targetValue=1)]), Unknown, "earlier_differs"),
    ],
)
async def test_nothing_is_refused_while_an_earlier_transfer_cannot_be_excluded(
    before: tuple[Canned, ...], shown: Canned, kind: type[Answer], code: str
) -> None:
    answer, calls, _ = await answered(*before, Canned(422, FAULT), shown, NONE_LISTED, transfer=NEW, number=2)
    assert isinstance(answer, kind)
    assert not isinstance(answer, Done)
    assert answer.code == code
    assert FUNDING not in calls


async def test_a_repeat_that_meets_the_earlier_unfunded_transfer_goes_on_with_it() -> None:
    """Another quote, and another recipient of the same person: harmless leftovers of the first send."""
    answer, calls, _ = await answered(
        QUOTED, Canned(200, RECIPIENT), made(quoteUuid="earlier", targetAccount=39999999), COMPLETED, transfer=NEW
    )
    assert isinstance(answer, Done)
    assert calls[-1] == FUNDING


KNOWN_IDS = [
    Canned(409, FAULT),
    Canned(422, {"errors": [{"code": "NOT_VALID", "path": "customerTransactionId"}]}),
]


@pytest.mark.parametrize("known", KNOWN_IDS)
async def test_a_repeat_that_is_only_told_that_the_id_is_known_finds_the_earlier_transfer(known: Canned) -> None:
    """Otherwise an unfunded one would wait for ever: each repeat has another quote."""
    answer, calls, server = await answered(QUOTED, known, Canned(200, [MADE]), NONE_LISTED, COMPLETED)
    assert isinstance(answer, Done)
    assert calls == [QUOTING, MAKING, SEARCHING, SEARCHING, FUNDING]
    assert server.asked[2].query["createdDateStart"] == ["2026-11-15T11:50:00.000Z"]
    # The not-after and ten minutes: Wise's clock may be ahead of ours.
    assert server.asked[2].query["createdDateEnd"] == ["2026-11-15T12:10:30.001Z"]
    answer, calls, _ = await answered(QUOTED, known, Canned(200, [changed(MADE, status="processing")]), NONE_LISTED)
    assert isinstance(answer, Done)
    assert FUNDING not in calls


@pytest.mark.parametrize("known", KNOWN_IDS)
@pytest.mark.parametrize(
    "shown",
    [
        Canned(200, []),
        Canned(200, [MADE, changed(MADE, id=2)]),
        Canned(200, [changed(MADE, targetValue=1)]),
        Canned(200, b"{}"),
        Canned(500, b""),
    ],
)
async def test_a_known_id_without_its_one_transfer_is_unknown_and_not_funded(known: Canned, shown: Canned) -> None:
    answer, calls, _ = await answered(QUOTED, known, shown, NONE_LISTED)
    assert isinstance(answer, Unknown)
    assert answer.code != "unanswered"
    assert FUNDING not in calls


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("incoming_payment_initiated", "moving"),
        ("processing", "moving"),
        ("funds_converted", "moving"),
        ("outgoing_payment_sent", "moved"),
        ("bounced_back", "returned"),
        # It moved and came back: to call that refused would be to deny that it moved.
        ("funds_refunded", "returned"),
    ],
)
async def test_a_transfer_that_was_funded_before_is_not_funded_again(status: str, state: str) -> None:
    answer, calls, _ = await answered(QUOTED, made(status=status))
    assert isinstance(answer, Done)
    assert (answer.movement.state, answer.movement.status) == (state, status)
    assert calls == [QUOTING, MAKING]


async def test_a_transfer_that_is_cancelled_is_refused() -> None:
    answer, calls, _ = await answered(QUOTED, made(status="cancelled"))
    assert isinstance(answer, Refused)
    assert answer.code == "transfer_cancelled"
    assert calls == [QUOTING, MAKING]


async def test_a_provider_that_cannot_be_reached_was_not_asked() -> None:
    async with scripted() as server:
        base = server.base
    answer = await wise(base).send(TRANSFER, leave())
    assert isinstance(answer, Busy)
    assert answer.code == "unreachable"


async def test_without_leave_nothing_is_sent() -> None:
    async with scripted(QUOTED) as server:
        late = Sending(first_sent_at=FIRST_SENT_AT, not_after=FIRST_SENT_AT, sendable_until=steady() - 1)
        assert isinstance(await wise(server.base).send(TRANSFER, late), Busy)
        assert server.asked == []


async def test_a_leave_that_ends_on_the_way_leaves_an_unfunded_transfer_and_so_is_unknown() -> None:
    """Each call is checked: the money is not moved after its time because the quote was in time."""
    async with scripted(QUOTED, Canned(200, MADE), COMPLETED) as server:
        provider = wise(server.base)
        line, sending = provider._line, leave()
        send, count = line.send, 0

        async def late(*words: Any, sending: Sending, **more: Any) -> Any:
            nonlocal count
            count += 1
            over = msgspec.structs.replace(sending, sendable_until=steady() - 1)
            return await send(*words, sending=over if count == 3 else sending, **more)

        line.send = late  # type: ignore[method-assign]
        answer = await provider.send(TRANSFER, sending)
        assert isinstance(answer, Unknown)
        assert answer.code == "not_after_passed"
        assert [asked.path for asked in server.asked] == [QUOTING[1], MAKING[1]]
        assert len(answer.evidence) >= 2


@pytest.mark.parametrize(
    "fields",
    [
        {"profile_id": ""},
        {"profile_id": "a"},
        {"source_currency": "eur"},
        {"api_key": Secret("")},
        {"api_key": Secret("a\nb")},
    ],
)
def test_an_account_that_cannot_work_is_a_misconfiguration(fields: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured):
        Wise(msgspec.structs.replace(account(), **fields))


def test_secrets_are_shown_nowhere() -> None:
    assert API_KEY not in repr(account()) + repr(vars(wise()))


def test_an_adapter_names_whose_account_it_is() -> None:
    assert wise().account == "profile 102"


def test_the_key_is_a_uuid() -> None:
    assert len(REFERENCE) == Wise.facts.key_characters
