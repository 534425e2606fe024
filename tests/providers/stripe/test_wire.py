"""What is put on Stripe's wire, and what is believed of what comes back."""

from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.keys.derived import digest
from tallystick.providers.stripe import request
from tallystick.providers.words import Answer, Busy, Done, Instruction, Refused, Unknown
from tallystick.secret import Secret
from tests.providers.scripted import Asked, Canned, scripted
from tests.providers.stripe import samples
from tests.providers.stripe.samples import (
    CHARGE,
    CONNECTED_PAYOUT,
    PAYOUT,
    REFERENCE,
    REFUND,
    TRANSFER,
    reply_to,
    send,
)

Changes = dict[str, Any]


async def sent(instruction: Instruction, answer: Canned) -> tuple[Answer, Asked]:
    async with scripted(answer) as server:
        stripe = samples.adapter(server.base)
        got = await send(stripe, instruction)
        await stripe.close()
        (asked,) = server.asked
    return got, asked


def form(asked: Asked) -> list[tuple[str, str]]:
    return parse_qsl(asked.body.decode("ascii"), keep_blank_values=True, strict_parsing=True)


WIRE = [
    (
        CHARGE,
        "/v1/payment_intents",
        [
            ("amount", "1234"),
            ("currency", "usd"),
            ("automatic_payment_methods[enabled]", "true"),
            ("automatic_payment_methods[allow_redirects]", "never"),
            ("confirm", "true"),
            ("payment_method", "pm_1"),
            ("description", "Order 7"),
            ("metadata[tally_key]", REFERENCE),
        ],
    ),
    (
        msgspec.structs.replace(CHARGE, payment_method=None, description="", customer="cus_1"),
        "/v1/payment_intents",
        [
            ("amount", "1234"),
            ("currency", "usd"),
            ("automatic_payment_methods[enabled]", "true"),
            ("customer", "cus_1"),
            ("metadata[tally_key]", REFERENCE),
        ],
    ),
    (
        REFUND,
        "/v1/refunds",
        [("amount", "1234"), ("payment_intent", "pi_1"), ("metadata[tally_key]", REFERENCE)],
    ),
    (
        msgspec.structs.replace(REFUND, payment_id="ch_1", reason="duplicate"),
        "/v1/refunds",
        [("amount", "1234"), ("charge", "ch_1"), ("reason", "duplicate"), ("metadata[tally_key]", REFERENCE)],
    ),
    (
        msgspec.structs.replace(REFUND, reason="wrong size & colour"),
        "/v1/refunds",
        [
            ("amount", "1234"),
            ("payment_intent", "pi_1"),
            ("metadata[tally_reason]", "wrong size & colour"),
            ("metadata[tally_key]", REFERENCE),
        ],
    ),
    (
        msgspec.structs.replace(TRANSFER, description="März = 100 % + Ü&x"),
        "/v1/transfers",
        [
            ("amount", "1234"),
            ("currency", "usd"),
            ("destination", "acct_1"),
            ("description", "März = 100 % + Ü&x"),
            ("transfer_group", REFERENCE),
            ("metadata[tally_key]", REFERENCE),
        ],
    ),
    (
        PAYOUT,
        "/v1/payouts",
        [("amount", "1234"), ("currency", "usd"), ("destination", "ba_1"), ("metadata[tally_key]", REFERENCE)],
    ),
    (
        CONNECTED_PAYOUT,
        "/v1/payouts",
        [("amount", "1234"), ("currency", "usd"), ("destination", "ba_1"), ("metadata[tally_key]", REFERENCE)],
    ),
]


@pytest.mark.parametrize(("instruction", "path", "pairs"), WIRE)
async def test_an_instruction_is_one_request_under_our_key(
    instruction: Instruction, path: str, pairs: list[tuple[str, str]]
) -> None:
    answer, asked = await sent(instruction, Canned(200, reply_to(instruction)))
    assert isinstance(answer, Done)
    assert (asked.method, asked.path) == ("POST", path)
    assert form(asked) == pairs
    assert asked.headers["idempotency-key"] == REFERENCE
    assert asked.headers["authorization"] == f"Bearer {samples.API_KEY}"
    assert asked.headers["stripe-version"] == "2026-10-28.endive"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert asked.headers.get("stripe-account") == ("acct_1" if instruction is CONNECTED_PAYOUT else None)


@pytest.mark.parametrize("instruction", samples.INSTRUCTIONS)
async def test_the_same_instruction_is_the_same_bytes_for_ever(instruction: Instruction) -> None:
    """Other bytes under the same key are an error at Stripe, and would leave the payment unknown."""
    _, one = await sent(instruction, Canned(200, reply_to(instruction)))
    _, two = await sent(instruction, Canned(200, reply_to(instruction)))
    assert (one.body, one.path) == (two.body, two.path)


async def test_the_bytes_of_a_transfer_stay_what_they_are() -> None:
    """A release that writes them otherwise would break every re-send that is under way."""
    _, asked = await sent(TRANSFER, Canned(200, reply_to(TRANSFER)))
    expected = f"amount=1234&currency=usd&destination=acct_1&transfer_group={REFERENCE}&metadata[tally_key]={REFERENCE}"
    assert asked.body == expected.encode()


@pytest.mark.parametrize(
    ("instruction", "changes", "state", "status"),
    [
        (CHARGE, {}, "moved", "succeeded"),
        (CHARGE, {"status": "processing"}, "moving", "processing"),
        (CHARGE, {"status": "requires_action"}, "waiting", "requires_action"),
        (CHARGE, {"status": "requires_payment_method"}, "waiting", "requires_payment_method"),
        (CHARGE, {"status": "requires_confirmation"}, "waiting", "requires_confirmation"),
        (CHARGE, {"status": "requires_capture"}, "moving", "requires_capture"),
        (CHARGE, {"status": "never_heard_of"}, "moving", "never_heard_of"),
        (REFUND, {}, "moved", "succeeded"),
        (REFUND, {"status": "pending"}, "moving", "pending"),
        (REFUND, {"status": "requires_action"}, "waiting", "requires_action"),
        (REFUND, {"status": "never_heard_of"}, "moving", "never_heard_of"),
        (TRANSFER, {}, "moved", ""),
        (TRANSFER, {"reversed": True}, "returned", "reversed"),
        (PAYOUT, {}, "moving", "pending"),
        (PAYOUT, {"status": "in_transit"}, "moving", "in_transit"),
        (PAYOUT, {"status": "paid"}, "moved", "paid"),
        (PAYOUT, {"status": "never_heard_of"}, "moving", "never_heard_of"),
    ],
)
async def test_each_status_is_told_in_our_words(
    instruction: Instruction, changes: Changes, state: str, status: str
) -> None:
    """A word nobody knows is a movement under way: never moved, never failed."""
    answer, _ = await sent(instruction, Canned(200, reply_to(instruction, **changes)))
    assert isinstance(answer, Done)
    assert (answer.movement.state, answer.movement.status) == (state, status)
    assert (answer.movement.amount_micros, answer.movement.currency) == (12_340_000, "USD")
    assert answer.movement.reference == REFERENCE
    assert answer.replayed is False


@pytest.mark.parametrize(
    ("instruction", "changes", "code"),
    [
        (CHARGE, {"status": "canceled"}, "payment_canceled"),
        (REFUND, {"status": "failed", "failure_reason": "expired_or_canceled_card"}, "expired_or_canceled_card"),
        (REFUND, {"status": "canceled"}, "refund_canceled"),
        (PAYOUT, {"status": "failed", "failure_code": "account_closed"}, "account_closed"),
        (PAYOUT, {"status": "canceled"}, "payout_canceled"),
    ],
)
async def test_an_object_that_failed_for_good_is_a_refusal(
    instruction: Instruction, changes: Changes, code: str
) -> None:
    answer, _ = await sent(instruction, Canned(200, reply_to(instruction, **changes)))
    assert isinstance(answer, Refused)
    assert answer.code == code


async def test_a_stored_answer_is_told_as_replayed() -> None:
    answer, _ = await sent(TRANSFER, Canned(200, reply_to(TRANSFER), {"Idempotent-Replayed": "true"}))
    assert isinstance(answer, Done)
    assert answer.replayed


async def test_the_client_secret_is_given_to_who_asks_and_shown_to_nobody() -> None:
    answer, _ = await sent(CHARGE, Canned(200, reply_to(CHARGE, status="requires_action")))
    assert isinstance(answer, Done)
    assert answer.client_secret == Secret("pi_1_secret_NeverShown")
    assert "NeverShown" not in repr(answer)


async def test_an_object_of_a_connected_account_is_named_with_it() -> None:
    answer, _ = await sent(CONNECTED_PAYOUT, Canned(200, reply_to(CONNECTED_PAYOUT)))
    assert isinstance(answer, Done)
    assert answer.id == "acct_1/po_1"


UNREADABLE: list[object] = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"true",
    b'"tr_1"',
    b"<html><body>Bad gateway</body></html>",
    b'{"x":' + b"[" * 100_000,
    b"\xff\xfe\x00",
    msgspec.json.encode(reply_to(TRANSFER))[:-20],
    reply_to(TRANSFER, id=""),
    reply_to(TRANSFER, id=None),
    reply_to(TRANSFER, id="tr_1/../x"),
    reply_to(TRANSFER, object="payout"),
    reply_to(TRANSFER, amount="1234"),
    reply_to(TRANSFER, amount=1234.0),
    reply_to(TRANSFER, amount=True),
    reply_to(TRANSFER, amount=None),
    reply_to(TRANSFER, amount=10**30),
    reply_to(TRANSFER, currency="USD"),
    reply_to(TRANSFER, currency="xxx"),
    reply_to(TRANSFER, currency=None),
    reply_to(TRANSFER, reversed="no"),
    reply_to(TRANSFER, created="today"),
    reply_to(TRANSFER, created=10**20),
    reply_to(TRANSFER, metadata={"tally_key": 1}),
    {"error": {"type": "card_error", "code": "card_declined"}},
    samples.listed(reply_to(TRANSFER)),
]


@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: msgspec.json.encode(repr(body)[:40]).decode())
async def test_a_success_that_cannot_be_read_is_unknown(body: object, status: int) -> None:
    answer, _ = await sent(TRANSFER, Canned(status, body))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_unreadable"
    assert answer.evidence[0].status == status


@pytest.mark.parametrize(
    ("instruction", "changes"),
    [
        (TRANSFER, {"amount": 123_400}),
        (TRANSFER, {"currency": "eur"}),
        (TRANSFER, {"metadata": {"tally_key": "another"}}),
        (TRANSFER, {"metadata": {}, "transfer_group": None}),
        (TRANSFER, {"transfer_group": "another"}),
        (TRANSFER, {"destination": "acct_2"}),
        (CHARGE, {"amount": 1}),
        (CHARGE, {"currency": "cad"}),
        (CHARGE, {"metadata": None}),
        (REFUND, {"amount": 1}),
        (REFUND, {"currency": "jpy"}),
        (REFUND, {"payment_intent": "pi_2"}),
        (REFUND, {"metadata": {}}),
        (PAYOUT, {"amount": 1}),
        (PAYOUT, {"destination": "ba_2"}),
        (PAYOUT, {"metadata": {"tally_key": ""}}),
    ],
)
async def test_an_answer_about_something_else_is_unknown(instruction: Instruction, changes: Changes) -> None:
    answer, _ = await sent(instruction, Canned(200, reply_to(instruction, **changes)))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_differs"


@pytest.mark.parametrize("status", [204, 301, 302, 304, 307, 308])
async def test_neither_silence_nor_a_redirect_is_an_answer(status: int) -> None:
    answer, _ = await sent(TRANSFER, Canned(status, b"", {"location": "http://127.0.0.1:1/"}))
    assert isinstance(answer, Unknown)


@pytest.mark.parametrize("instruction", samples.INSTRUCTIONS)
@pytest.mark.parametrize("cut", [0, 5, 60, 200])
async def test_an_answer_that_breaks_off_is_unknown(instruction: Instruction, cut: int) -> None:
    answer, _ = await sent(instruction, Canned(200, reply_to(instruction), cut=cut))
    assert isinstance(answer, Unknown)
    assert answer.code == "unanswered"


async def test_a_connection_refused_is_busy_because_nothing_left() -> None:
    async with scripted() as server:
        base = server.base
    answer = await send(samples.adapter(base), TRANSFER)
    assert isinstance(answer, Busy)
    assert answer.code == "unreachable"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (402, {"type": "card_error", "code": "card_declined", "decline_code": "stolen_card"}, Refused),
        (400, {"type": "invalid_request_error", "code": "balance_insufficient"}, Refused),
        (429, {"type": "invalid_request_error", "code": "lock_timeout"}, Busy),
        (401, {"type": "invalid_request_error"}, Busy),
        (409, {"type": "invalid_request_error", "code": "idempotency_key_in_use"}, Unknown),
        (500, {"type": "api_error"}, Unknown),
    ],
)
async def test_an_error_is_classed_by_the_table(status: int, error: Changes, kind: type[Answer]) -> None:
    answer, _ = await sent(TRANSFER, Canned(status, {"error": error}, {"request-id": "req_7"}))
    assert isinstance(answer, kind)
    assert answer.evidence[0].request_id == "req_7"


async def test_a_long_text_is_cut_and_not_a_reason_to_fail() -> None:
    instruction = msgspec.structs.replace(TRANSFER, description="ü" * 600)
    answer, asked = await sent(instruction, Canned(200, reply_to(TRANSFER)))
    assert isinstance(answer, Done)
    assert dict(form(asked))["description"] == "ü" * 500


async def test_the_api_key_is_in_no_answer() -> None:
    for canned in (Canned(500, {"error": {"type": "api_error"}}), Canned(200, b"{}"), Canned(cut=0), Canned(401)):
        answer, _ = await sent(TRANSFER, canned)
        assert samples.API_KEY not in repr(answer)
        assert samples.API_KEY not in repr(samples.adapter("http://127.0.0.1:1").__dict__)


async def test_ping_tells_reachable_from_authorised() -> None:
    async with scripted(Canned(200, {"object": "balance"}), Canned(401), Canned(500)) as server:
        stripe = samples.adapter(server.base)
        found = [await stripe.ping() for _ in range(4)]
        assert [asked.path for asked in server.asked] == ["/v1/balance"] * 4
    assert [(each.reachable, each.authorised) for each in found] == [
        (True, True),
        (True, False),
        (True, False),
        (False, False),
    ]


async def test_another_key_is_another_request() -> None:
    other = msgspec.structs.replace(TRANSFER, key=digest("test", number=2))
    answer, asked = await sent(other, Canned(200, reply_to(TRANSFER)))
    assert asked.headers["idempotency-key"] != REFERENCE
    assert isinstance(answer, Unknown), "the reply is about the other one"


WRITABLE = st.text(st.characters(exclude_categories=["Cs"]))


@given(pairs=st.lists(st.tuples(WRITABLE, WRITABLE | st.from_regex("[A-Za-z0-9._~-]{1,64}", fullmatch=True))))
def test_what_is_not_quoted_needs_no_quoting(pairs: list[tuple[str, str]]) -> None:
    """Bytes of a request never change: those of a release before this one are sent again by it."""
    plainly = "&".join(f"{quote(name, safe='[]')}={quote(value, safe='')}" for name, value in pairs)
    assert request.form(tuple(pairs)) == plainly
