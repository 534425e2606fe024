"""What is put on Square's wire, and what is believed of what comes back."""

from typing import Any

import msgspec
import pytest

from tallystick.errors import Misconfigured
from tallystick.keys.derived import digest
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.adapter import Square
from tallystick.providers.words import (
    Answer,
    Busy,
    Done,
    Instruction,
    Refused,
    Unknown,
)
from tallystick.secret import Secret
from tests.providers.scripted import Asked, Canned, leave, scripted
from tests.providers.square import samples
from tests.providers.square.samples import CHARGE, IDEMPOTENCY_KEY, REFERENCE, REFUND, TRANSFER, made_for

Changes = dict[str, Any]


async def send(square: Square, instruction: Instruction) -> Answer:
    return await square.send(instruction, leave())


async def sent(instruction: Instruction, answer: Canned) -> tuple[Answer, Asked]:
    async with scripted(answer) as server:
        square = samples.adapter(server.base)
        got = await send(square, instruction)
        await square.close()
        (asked,) = server.asked
    return got, asked


WIRE: list[tuple[Instruction, str, dict[str, Any]]] = [
    (
        CHARGE,
        "/v2/payments",
        {
            "idempotency_key": IDEMPOTENCY_KEY,
            "source_id": "cnon:card-nonce-ok",
            "amount_money": {"amount": 1234, "currency": "USD"},
            "autocomplete": True,
            "location_id": "LMAIN",
            "reference_id": REFERENCE,
            "note": "Order 7",
        },
    ),
    (
        msgspec.structs.replace(CHARGE, description="", customer="CUST-1"),
        "/v2/payments",
        {
            "idempotency_key": IDEMPOTENCY_KEY,
            "source_id": "cnon:card-nonce-ok",
            "amount_money": {"amount": 1234, "currency": "USD"},
            "autocomplete": True,
            "location_id": "LMAIN",
            "reference_id": REFERENCE,
            "customer_id": "CUST-1",
        },
    ),
    (
        REFUND,
        "/v2/refunds",
        {
            "idempotency_key": IDEMPOTENCY_KEY,
            "payment_id": "PAY1",
            "amount_money": {"amount": 1234, "currency": "USD"},
            "reason": f"{IDEMPOTENCY_KEY} wrong size",
        },
    ),
]


@pytest.mark.parametrize(("instruction", "path", "body"), WIRE)
async def test_an_instruction_is_one_request_under_our_key(
    instruction: Instruction, path: str, body: dict[str, Any]
) -> None:
    answer, asked = await sent(instruction, Canned(200, made_for(instruction)))
    assert isinstance(answer, Done)
    assert (asked.method, asked.path) == ("POST", path)
    assert asked.json() == body
    assert asked.headers["authorization"] == f"Bearer {samples.API_KEY}"
    assert asked.headers["square-version"] == "2026-09-16"
    assert asked.headers["content-type"] == "application/json"


def test_our_key_fits_into_squares_fields() -> None:
    assert len(IDEMPOTENCY_KEY) == 43
    assert len(REFERENCE) == 40


@pytest.mark.parametrize("instruction", samples.INSTRUCTIONS)
async def test_the_same_instruction_is_the_same_bytes_for_ever(instruction: Instruction) -> None:
    _, one = await sent(instruction, Canned(200, made_for(instruction)))
    _, two = await sent(instruction, Canned(200, made_for(instruction)))
    assert (one.body, one.path) == (two.body, two.path)


@pytest.mark.parametrize(
    ("instruction", "changes", "state"),
    [
        (CHARGE, {}, "moved"),
        (CHARGE, {"status": "APPROVED"}, "moving"),
        (CHARGE, {"status": "PENDING"}, "moving"),
        (CHARGE, {"status": "NEVER_HEARD_OF"}, "moving"),
        (REFUND, {}, "moving"),
        (REFUND, {"status": "COMPLETED"}, "moved"),
        (REFUND, {"status": "NEVER_HEARD_OF"}, "moving"),
    ],
)
async def test_each_status_is_told_in_our_words(instruction: Instruction, changes: Changes, state: str) -> None:
    """A word nobody knows is a movement under way: never moved, never failed."""
    made = made_for(instruction, **changes)
    answer, _ = await sent(instruction, Canned(200, made))
    assert isinstance(answer, Done)
    (thing,) = made.values()
    assert (answer.id, answer.movement.state, answer.movement.status) == (thing["id"], state, thing["status"])
    assert (answer.movement.amount_micros, answer.movement.currency) == (12_340_000, "USD")
    assert answer.replayed is False


@pytest.mark.parametrize(
    ("instruction", "status", "code"),
    [
        (CHARGE, "FAILED", "charge_failed"),
        (CHARGE, "CANCELED", "charge_canceled"),
        (REFUND, "FAILED", "refund_failed"),
        (REFUND, "REJECTED", "refund_rejected"),
    ],
)
async def test_an_object_that_failed_for_good_is_a_refusal(instruction: Instruction, status: str, code: str) -> None:
    answer, _ = await sent(instruction, Canned(200, made_for(instruction, status=status)))
    assert isinstance(answer, Refused)
    assert answer.code == code


UNREADABLE: list[object] = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"<html><body>Bad gateway</body></html>",
    b'{"x":' + b"[" * 100_000,
    b"\xff\xfe\x00",
    msgspec.json.encode(made_for(CHARGE))[:-20],
    samples.payment(),
    {"payment": None},
    {"payment": []},
    {"refund": samples.refund()},
    {"errors": [{"category": "API_ERROR", "code": "TEMPORARY_ERROR"}], **made_for(CHARGE)},
    made_for(CHARGE, id=""),
    made_for(CHARGE, id=None),
    made_for(CHARGE, id="a/b"),
    made_for(CHARGE, status=None),
    made_for(CHARGE, amount_money=None),
    made_for(CHARGE, amount_money={"amount": "1234", "currency": "USD"}),
    made_for(CHARGE, amount_money={"amount": 1234.0, "currency": "USD"}),
    made_for(CHARGE, amount_money={"amount": True, "currency": "USD"}),
    made_for(CHARGE, amount_money={"amount": 1234}),
    made_for(CHARGE, amount_money={"amount": 1234, "currency": "usd"}),
    made_for(CHARGE, amount_money={"amount": 10**30, "currency": "USD"}),
    made_for(CHARGE, created_at="today"),
    made_for(CHARGE, reference_id=7),
]


@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: msgspec.json.encode(repr(body)[:40]).decode())
async def test_a_success_that_cannot_be_read_is_unknown(body: object, status: int) -> None:
    answer, _ = await sent(CHARGE, Canned(status, body))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_unreadable"
    assert answer.evidence[0].status == status


async def test_an_empty_list_of_errors_beside_the_object_is_none() -> None:
    answer, _ = await sent(CHARGE, Canned(200, {"errors": [], **made_for(CHARGE)}))
    assert isinstance(answer, Done)


@pytest.mark.parametrize(
    ("instruction", "changes"),
    [
        (CHARGE, {"amount_money": {"amount": 123_400, "currency": "USD"}}),
        (CHARGE, {"amount_money": {"amount": 1234, "currency": "CAD"}}),
        (CHARGE, {"reference_id": "another"}),
        (CHARGE, {"reference_id": None}),
        (REFUND, {"amount_money": {"amount": 1, "currency": "USD"}}),
        (REFUND, {"payment_id": "PAY2"}),
        (REFUND, {"payment_id": None}),
        (REFUND, {"reason": "wrong size"}),
        (REFUND, {"reason": None}),
    ],
)
async def test_an_answer_about_something_else_is_unknown(instruction: Instruction, changes: Changes) -> None:
    answer, _ = await sent(instruction, Canned(200, made_for(instruction, **changes)))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_differs"


@pytest.mark.parametrize("status", [204, 301, 302, 304, 307, 308])
async def test_neither_silence_nor_a_redirect_is_an_answer(status: int) -> None:
    answer, _ = await sent(CHARGE, Canned(status, b"", {"location": "http://127.0.0.1:1/"}))
    assert isinstance(answer, Unknown)


@pytest.mark.parametrize("instruction", samples.INSTRUCTIONS)
@pytest.mark.parametrize("cut", [0, 5, 60, 200])
async def test_an_answer_that_breaks_off_is_unknown(instruction: Instruction, cut: int) -> None:
    answer, _ = await sent(instruction, Canned(200, made_for(instruction), cut=cut))
    assert isinstance(answer, Unknown)
    assert answer.code == "unanswered"


async def test_a_connection_refused_is_busy_because_nothing_left() -> None:
    async with scripted() as server:
        base = server.base
    answer = await send(samples.adapter(base), CHARGE)
    assert isinstance(answer, Busy)
    assert answer.code == "unreachable"


@pytest.mark.parametrize(
    ("status", "category", "code", "kind"),
    [
        (400, "PAYMENT_METHOD_ERROR", "GENERIC_DECLINE", Refused),
        (402, "PAYMENT_METHOD_ERROR", "INSUFFICIENT_FUNDS", Refused),
        (404, "INVALID_REQUEST_ERROR", "NOT_FOUND", Refused),
        (401, "AUTHENTICATION_ERROR", "UNAUTHORIZED", Busy),
        (429, "RATE_LIMIT_ERROR", "RATE_LIMITED", Busy),
        (409, "INVALID_REQUEST_ERROR", "CONFLICT", Unknown),
        (500, "API_ERROR", "INTERNAL_SERVER_ERROR", Unknown),
    ],
)
async def test_an_error_is_classed_by_the_table(status: int, category: str, code: str, kind: type[Answer]) -> None:
    answer, _ = await sent(CHARGE, Canned(status, {"errors": [{"category": category, "code": code}]}))
    assert isinstance(answer, kind)
    assert answer.evidence[0].status == status


async def test_a_decline_that_brings_its_failed_payment_is_a_refusal() -> None:
    fault = {"category": "PAYMENT_METHOD_ERROR", "code": "GENERIC_DECLINE", "detail": "Declined."}
    answer, _ = await sent(CHARGE, Canned(400, {"errors": [fault], "payment": samples.payment(status="FAILED")}))
    assert isinstance(answer, Refused)
    assert answer.message == "Declined."


async def test_a_transfer_is_refused_before_anything_is_sent() -> None:
    """Square's API cannot pay third parties."""
    async with scripted() as server:
        square = samples.adapter(server.base)
        answer = await square.send(TRANSFER, leave())
        assert server.asked == []
    assert isinstance(answer, Refused)
    assert answer.code == "cannot_push_money"
    assert "cannot pay third parties" in answer.message
    assert "Stripe, Adyen or Wise" in answer.message
    assert square.facts.pushes_money is False


@pytest.mark.parametrize(
    ("instruction", "code"),
    [
        (msgspec.structs.replace(CHARGE, payment_method=None), "payment_method_required"),
        (msgspec.structs.replace(CHARGE, payment_method=""), "payment_method_invalid"),
        (msgspec.structs.replace(CHARGE, payment_method="cnon: x"), "payment_method_invalid"),
        (msgspec.structs.replace(CHARGE, customer=""), "customer_invalid"),
        (msgspec.structs.replace(CHARGE, description="a\nb"), "text_invalid"),
        (msgspec.structs.replace(CHARGE, description="\ud800"), "text_invalid"),
        (msgspec.structs.replace(REFUND, payment_id=""), "payment_id_invalid"),
        (msgspec.structs.replace(REFUND, payment_id="a/b"), "payment_id_invalid"),
        (msgspec.structs.replace(REFUND, reason="a\x00"), "text_invalid"),
    ],
)
async def test_what_cannot_be_right_is_refused_before_anything_is_sent(instruction: Instruction, code: str) -> None:
    async with scripted() as server:
        answer = await send(samples.adapter(server.base), instruction)
        assert server.asked == []
    assert isinstance(answer, Refused)
    assert answer.code == code


@pytest.mark.parametrize("reason", ["", "x" * 500, "ü" * 500, " "])
async def test_a_reason_is_cut_and_our_key_stays_whole(reason: str) -> None:
    """A refund must not fail for the length of its explanation."""
    instruction = msgspec.structs.replace(REFUND, reason=reason)
    _, asked = await sent(instruction, Canned(500))
    written = msgspec.convert(asked.json(), dict[str, Any])["reason"]
    assert len(written) <= 192
    answer, _ = await sent(instruction, Canned(200, {"refund": samples.refund(reason=written)}))
    assert isinstance(answer, Done)
    assert answer.movement.reference == IDEMPOTENCY_KEY


@pytest.mark.parametrize(("key", "location"), [("", "L1"), ("a b", "L1"), ("a\n", "L1"), ("a", ""), ("a", "L 1")])
def test_settings_that_cannot_be_right_are_told(key: str, location: str) -> None:
    with pytest.raises(Misconfigured):
        Square(SquareAccount(api_key=Secret(key), location_id=location))


async def test_the_access_token_is_in_no_answer() -> None:
    for canned in (Canned(500), Canned(200, b"{}"), Canned(cut=0), Canned(401)):
        answer, _ = await sent(CHARGE, canned)
        assert samples.API_KEY not in repr(answer)
        assert samples.API_KEY not in repr(samples.adapter("http://127.0.0.1:1").__dict__)


async def test_ping_tells_reachable_from_authorised() -> None:
    async with scripted(Canned(200, {"locations": []}), Canned(401), Canned(500)) as server:
        square = samples.adapter(server.base)
        found = [await square.ping() for _ in range(4)]
        assert [asked.path for asked in server.asked] == ["/v2/locations"] * 4
    assert [(each.reachable, each.authorised) for each in found] == [
        (True, True),
        (True, False),
        (True, False),
        (False, False),
    ]


async def test_another_key_is_another_request() -> None:
    other = msgspec.structs.replace(CHARGE, key=digest("test", number=2))
    answer, asked = await sent(other, Canned(200, made_for(CHARGE)))
    assert IDEMPOTENCY_KEY.encode() not in asked.body
    assert isinstance(answer, Unknown), "the reply is about the other one"
