"""Wise's fourth call, the one that moves money: where it is, whatever the answer."""

import pytest

from tallystick.providers.words import Answer, Done, Refused, Unknown
from tests.providers.scripted import Canned
from tests.providers.wise.examples import FUNDED, MADE, QUOTE_ID, QUOTED, REJECTED, made
from tests.providers.wise.saga_script import (
    CANCELLING,
    FAULT,
    FUNDING,
    LOOKING,
    MAKING,
    NONE_LISTED,
    QUOTING,
    UNREADABLE,
    answered,
)


@pytest.mark.parametrize(
    "funding",
    [
        *[Canned(201, body) for body in UNREADABLE],
        Canned(201, FUNDED, cut=30),
        Canned(201, {"type": "BALANCE"}),
        Canned(201, {"status": "COMPLETED"}),
        Canned(201, FUNDED | {"type": "BANK_TRANSFER"}),
        Canned(201, FUNDED | {"status": "PENDING"}),
        Canned(201, FUNDED | {"errorCode": "odd"}),
        Canned(302, b""),
        Canned(400, b"type must be BALANCE"),
        Canned(404, b"Transfer not found"),
        Canned(422, FAULT),
        Canned(500, b""),
        Canned(503, b"busy"),
    ],
)
async def test_a_funding_that_does_not_say_completed_is_unknown(funding: Canned) -> None:
    answer, calls, _ = await answered(QUOTED, made(), funding)
    assert isinstance(answer, Unknown)
    assert answer.server_error is (funding.status >= 500)
    assert calls == [QUOTING, MAKING, FUNDING]


async def test_a_challenge_leaves_the_transfer_for_a_person_who_may_fund_it_so_it_is_unknown() -> None:
    answer, calls, _ = await answered(QUOTED, made(), Canned(403, b"", {"x-2fa-approval": "one-time-token"}))
    assert isinstance(answer, Unknown)
    assert answer.code == "sca_required"
    assert "A person must approve its funding at Wise" in answer.message
    assert calls == [QUOTING, MAKING, FUNDING]
    assert "one-time-token" not in repr(answer)


@pytest.mark.parametrize(
    ("status", "wanted"), [(401, "let our API key fund"), (403, "let our API key fund"), (429, "did not fund it")]
)
async def test_a_funding_that_is_turned_away_leaves_a_fundable_transfer_so_it_is_unknown(
    status: int, wanted: str
) -> None:
    answer, calls, _ = await answered(QUOTED, made(), Canned(status, b""))
    assert isinstance(answer, Unknown)
    assert answer.code == f"status_{status}"
    assert wanted in answer.message
    assert "16521632" in answer.message
    assert calls == [QUOTING, MAKING, FUNDING]


async def test_a_rejected_funding_is_refused_only_when_the_transfer_is_cancelled() -> None:
    answer, calls, _ = await answered(QUOTED, made(), Canned(201, REJECTED), made(), made(status="cancelled"))
    assert isinstance(answer, Refused)
    assert answer.code == "balance.insufficient-funds"
    assert calls == [QUOTING, MAKING, FUNDING, LOOKING, CANCELLING]


@pytest.mark.parametrize(
    ("number", "quote"),
    [(2, QUOTE_ID), (1, "an-earlier-quote"), (1, None), (2, "an-earlier-quote")],
)
async def test_a_rejected_transfer_that_another_send_may_be_funding_is_not_cancelled(
    number: int, quote: str | None
) -> None:
    """Its funding may arrive between the look and the cancelling, and be told Done."""
    answer, calls, _ = await answered(
        QUOTED, made(quoteUuid=quote), Canned(201, REJECTED), made(quoteUuid=quote), number=number
    )
    assert isinstance(answer, Unknown)
    assert answer.code == "funding_rejected"
    assert calls == [QUOTING, MAKING, FUNDING, LOOKING]


async def test_a_rejected_transfer_that_was_found_is_not_cancelled() -> None:
    found = Canned(200, [MADE | {"quoteUuid": "an-earlier-quote"}])
    answer, calls, _ = await answered(QUOTED, Canned(409, FAULT), found, NONE_LISTED, Canned(201, REJECTED), made())
    assert isinstance(answer, Unknown)
    assert answer.code == "funding_rejected"
    assert calls[-1] == LOOKING


@pytest.mark.parametrize(
    "cancelling",
    [
        made(),
        made(id=7, status="cancelled"),
        Canned(200, b""),
        Canned(200, b"{}"),
        Canned(409, {"errors": [{"code": "transfer.cancellation.not.allowed"}]}),
        Canned(500, b""),
        Canned(200, MADE, cut=20),
    ],
)
async def test_a_cancelling_that_is_not_confirmed_is_unknown(cancelling: Canned) -> None:
    """A person could still fund it."""
    answer, calls, _ = await answered(QUOTED, made(), Canned(201, REJECTED), made(), cancelling)
    assert isinstance(answer, Unknown)
    assert answer.code == "cancel_unconfirmed"
    assert calls[-1] == CANCELLING


async def test_a_rejection_of_a_second_funding_does_not_cancel_the_first() -> None:
    """Some are told 201 REJECTED instead of 409: to cancel then would take a payment back."""
    exists = Canned(201, REJECTED | {"errorCode": "payment.exists"})
    answer, calls, _ = await answered(QUOTED, made(), exists, made(status="processing"))
    assert isinstance(answer, Done)
    answer, calls, _ = await answered(QUOTED, made(), exists, made())
    assert isinstance(answer, Unknown)
    assert CANCELLING not in calls


@pytest.mark.parametrize("shown", [Canned(500, b""), Canned(200, b"{}"), made(id=7), made(status="something_new")])
async def test_a_rejection_that_cannot_be_checked_is_unknown_and_cancels_nothing(shown: Canned) -> None:
    answer, calls, _ = await answered(QUOTED, made(), Canned(201, REJECTED), shown)
    assert isinstance(answer, Unknown)
    assert CANCELLING not in calls


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        (made(status="processing"), Done),
        (made(status="outgoing_payment_sent"), Done),
        (made(status="cancelled"), Refused),
        (made(), Unknown),
        (made(id=7, status="processing"), Unknown),
        (made(status="something_new"), Unknown),
        (Canned(404, b""), Unknown),
        (Canned(200, b"{}"), Unknown),
        (Canned(200, b"", cut=5), Unknown),
    ],
)
async def test_a_second_funding_is_checked_before_it_is_believed(shown: Canned, kind: type[Answer]) -> None:
    answer, calls, _ = await answered(QUOTED, made(), Canned(409, b"PaymentAlreadyExists"), shown)
    assert isinstance(answer, kind)
    assert calls == [QUOTING, MAKING, FUNDING, LOOKING]
