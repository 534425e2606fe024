"""Adyen's wire: what is put on it, and that nothing doubtful passes for a payment."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import Misconfigured
from tallystick.providers.adyen.adapter import Adyen
from tallystick.providers.adyen.reading import payment_answer, refund_answer, transfer_answer
from tallystick.providers.adyen.wording import Wording, charge_wording, refund_wording, transfer_wording
from tallystick.providers.http import Reply
from tallystick.providers.line import Said
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Exchange,
    Instruction,
    Refused,
    Sending,
    Unknown,
)
from tallystick.secret import Secret
from tests.providers.adyen.examples import (
    AMOUNT,
    API_KEY,
    CHARGE,
    HMAC_KEY,
    INSTRUMENT,
    KEY,
    PAYMENT,
    REFERENCE,
    REFUND,
    REFUNDED,
    TRANSFER,
    TRANSFERRED,
    account,
    adyen,
    changed,
    encoded,
)
from tests.providers.scripted import FIRST_SENT_AT, NOW, Canned, Scripted, leave, scripted

CALLS: list[tuple[Instruction, dict[str, Any], int]] = [
    (CHARGE, PAYMENT, 200),
    (REFUND, REFUNDED, 201),
    (TRANSFER, TRANSFERRED, 202),
]
# Deeper than the decoder goes.
DEEP = b'{"action":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
EVERY_CALL = pytest.mark.parametrize(("instruction", "reply", "status"), CALLS, ids=["charge", "refund", "transfer"])


async def send(provider: Adyen, instruction: Instruction, sending: Sending | None = None) -> Answer:
    port: Provider = provider
    return await port.send(instruction, sending or leave())


async def answered(instruction: Instruction, *answers: Canned) -> tuple[Answer, Scripted]:
    async with scripted(*answers) as server:
        provider = adyen(server.base)
        answer = await send(provider, instruction)
        await provider.close()
    assert API_KEY not in repr(answer)
    return answer, server


@EVERY_CALL
async def test_one_request_leaves_with_our_key(instruction: Instruction, reply: dict[str, Any], status: int) -> None:
    answer, server = await answered(instruction, Canned(status, reply))
    assert isinstance(answer, Done)
    assert not answer.replayed
    (asked,) = server.asked
    assert asked.method == "POST"
    assert asked.headers["idempotency-key"] == REFERENCE
    assert asked.headers["x-api-key"] == API_KEY
    assert asked.headers["content-type"] == "application/json"
    assert answer.movement.reference == REFERENCE
    assert (answer.movement.amount_micros, answer.movement.currency) == (11_300_000, "EUR")


async def test_the_charge_on_the_wire() -> None:
    answer, server = await answered(msgspec.structs.replace(CHARGE, customer="shopper-1"), Canned(200, PAYMENT))
    assert isinstance(answer, Done)
    assert (answer.id, answer.movement.state, answer.movement.status) == ("PSP1", "moved", "Authorised")
    assert server.asked[0].path == "/checkout/v72/payments"
    assert server.asked[0].json() == {
        "amount": AMOUNT,
        "merchantAccount": "TestMerchant",
        "reference": REFERENCE,
        "paymentMethod": {"type": "scheme", "storedPaymentMethodId": "8415698462516992"},
        "shopperReference": "shopper-1",
    }


async def test_a_payment_method_of_json_is_passed_on_as_it_is() -> None:
    method = {"type": "ideal", "issuer": "1121"}
    charge = msgspec.structs.replace(CHARGE, payment_method=msgspec.json.encode(method).decode())
    _, server = await answered(charge, Canned(200, PAYMENT))
    assert server.asked[0].json()["paymentMethod"] == method  # type: ignore[index]


async def test_the_refund_on_the_wire() -> None:
    answer, server = await answered(REFUND, Canned(201, REFUNDED))
    assert isinstance(answer, Done)
    assert (answer.id, answer.movement.parent, answer.movement.state) == ("PSP2", "PSP1", "moving")
    assert server.asked[0].path == "/checkout/v72/payments/PSP1/refunds"
    assert server.asked[0].json() == {
        "amount": AMOUNT,
        "merchantAccount": "TestMerchant",
        "reference": REFERENCE,
        "merchantRefundReason": "DUPLICATE",
    }


async def test_a_reason_adyen_does_not_know_is_left_out() -> None:
    _, server = await answered(msgspec.structs.replace(REFUND, reason="the order was cancelled"), Canned(201, REFUNDED))
    assert "merchantRefundReason" not in server.asked[0].json()  # type: ignore[operator]


@pytest.mark.parametrize("status", [200, 202])
async def test_the_transfer_on_the_wire(status: int) -> None:
    answer, server = await answered(TRANSFER, Canned(status, TRANSFERRED))
    assert isinstance(answer, Done)
    assert (answer.id, answer.movement.state, answer.movement.created_at) == (
        "3JERI6",
        "waiting",
        FIRST_SENT_AT + timedelta(seconds=1),
    )
    assert server.asked[0].path == "/btl/v4/transfers"
    assert server.asked[0].json() == {
        "amount": AMOUNT,
        "balanceAccountId": "BA1",
        "category": "bank",
        "counterparty": {"transferInstrumentId": INSTRUMENT},
        "reference": REFERENCE,
        "description": "Pay 7",
        "priorities": ["regular"],
    }


async def test_a_transfer_inside_the_platform_has_no_priority() -> None:
    transfer = msgspec.structs.replace(TRANSFER, destination="balanceAccount:BA2", description="")
    _, server = await answered(transfer, Canned(200, TRANSFERRED))
    assert server.asked[0].json() == {
        "amount": AMOUNT,
        "balanceAccountId": "BA1",
        "category": "internal",
        "counterparty": {"balanceAccountId": "BA2"},
        "reference": REFERENCE,
    }


@EVERY_CALL
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b'"ok"',
        b"<html>ok</html>",
        b'{"pspReference":"PSP1"',
        b"\xff\xfe",
        b"[accepted]",
        DEEP,
    ],
)
async def test_a_success_that_cannot_be_read_is_unknown(
    instruction: Instruction, reply: dict[str, Any], status: int, body: bytes
) -> None:
    """The official package makes an empty success of it."""
    answer, server = await answered(instruction, Canned(status, body))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_unreadable"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("instruction", "reply", "fields"),
    [
        (CHARGE, PAYMENT, {"pspReference": None}),
        (CHARGE, PAYMENT, {"pspReference": ""}),
        (CHARGE, PAYMENT, {"pspReference": 7}),
        (CHARGE, PAYMENT, {"pspReference": "PSP\x001"}),
        (CHARGE, PAYMENT, {"pspReference": "../PSP1"}),
        (CHARGE, PAYMENT, {"resultCode": "Autho\x00rised"}),
        (REFUND, REFUNDED, {"pspReference": "PSP\x002"}),
        (REFUND, REFUNDED, {"pspReference": "PSP 2"}),
        (REFUND, REFUNDED, {"status": "rec\x00eived"}),
        (TRANSFER, TRANSFERRED, {"id": "3JE\x00RI6"}),
        (TRANSFER, TRANSFERRED, {"id": "3JE/RI6"}),
        (TRANSFER, TRANSFERRED, {"status": "rec\x00eived"}),
        (CHARGE, PAYMENT, {"resultCode": None}),
        (CHARGE, PAYMENT, {"amount": {"value": "1130", "currency": "EUR"}}),
        (CHARGE, PAYMENT, {"amount": {"value": 1130.0, "currency": "EUR"}}),
        (REFUND, REFUNDED, {"pspReference": None}),
        (REFUND, REFUNDED, {"amount": None}),
        (REFUND, REFUNDED, {"status": None}),
        (TRANSFER, TRANSFERRED, {"id": None}),
        (TRANSFER, TRANSFERRED, {"id": ""}),
        (TRANSFER, TRANSFERRED, {"status": 7}),
        (TRANSFER, TRANSFERRED, {"amount": [1130, "EUR"]}),
    ],
)
async def test_a_success_of_the_wrong_shape_is_unknown(
    instruction: Instruction, reply: dict[str, Any], fields: dict[str, Any]
) -> None:
    answer, _ = await answered(instruction, Canned(200, changed(reply, **fields)))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_unreadable"


@pytest.mark.parametrize(
    ("instruction", "reply", "fields"),
    [
        (CHARGE, PAYMENT, {"amount": None}),
        (CHARGE, PAYMENT, {"amount": {"value": 113, "currency": "EUR"}}),
        (CHARGE, PAYMENT, {"amount": {"value": 1130, "currency": "USD"}}),
        (CHARGE, PAYMENT, {"merchantReference": "another"}),
        (CHARGE, PAYMENT, {"merchantReference": "another", "resultCode": "Refused"}),
        (CHARGE, PAYMENT, {"resultCode": "PartiallyAuthorised", "amount": {"value": 100, "currency": "EUR"}}),
        (REFUND, REFUNDED, {"amount": {"value": 1131, "currency": "EUR"}}),
        (REFUND, REFUNDED, {"paymentPspReference": "PSP9"}),
        (REFUND, REFUNDED, {"reference": "another"}),
        (TRANSFER, TRANSFERRED, {"amount": {"value": 113000, "currency": "EUR"}}),
        (TRANSFER, TRANSFERRED, {"reference": "another"}),
        (TRANSFER, TRANSFERRED, {"reference": None}),
    ],
)
async def test_a_success_of_something_else_is_unknown(
    instruction: Instruction, reply: dict[str, Any], fields: dict[str, Any]
) -> None:
    answer, _ = await answered(instruction, Canned(200, changed(reply, **fields)))
    assert isinstance(answer, Unknown)
    assert answer.code == "answer_differs"


@pytest.mark.parametrize(("instruction", "reply"), [(CHARGE, PAYMENT), (REFUND, REFUNDED), (TRANSFER, TRANSFERRED)])
@pytest.mark.parametrize("status", [204, 206, 301, 302, 307])
async def test_a_redirect_is_not_followed_and_is_unknown(
    instruction: Instruction, reply: dict[str, Any], status: int
) -> None:
    answer, server = await answered(
        instruction, Canned(status, b"" if status == 204 else reply, {"location": "http://127.0.0.1:1/"})
    )
    assert isinstance(answer, Unknown)
    assert len(server.asked) == 1


@EVERY_CALL
@pytest.mark.parametrize("cut", [0, 10, 60])
async def test_an_answer_that_breaks_off_is_unknown(
    instruction: Instruction, reply: dict[str, Any], status: int, cut: int
) -> None:
    answer, server = await answered(instruction, Canned(status, reply, cut=cut))
    assert isinstance(answer, Unknown)
    assert answer.code == "unanswered"
    assert len(server.asked) == 1


@EVERY_CALL
async def test_a_provider_that_cannot_be_reached_was_not_asked(
    instruction: Instruction, reply: dict[str, Any], status: int
) -> None:
    async with scripted() as server:
        base = server.base
    answer = await send(adyen(base), instruction)
    assert isinstance(answer, Busy)
    assert answer.code == "unreachable"


async def test_without_leave_nothing_is_sent() -> None:
    async with scripted(Canned(200, TRANSFERRED)) as server:
        late = Sending(first_sent_at=FIRST_SENT_AT, not_after=FIRST_SENT_AT, sendable_until=steady() - 1)
        answer = await send(adyen(server.base), TRANSFER, late)
        assert isinstance(answer, Busy)
        assert server.asked == []


@pytest.mark.parametrize("word", ["Refused", "Error", "Cancelled"])
async def test_a_refused_payment_is_refused(word: str) -> None:
    reply = changed(PAYMENT, resultCode=word, amount=None, refusalReason="Not enough balance", refusalReasonCode="12")
    answer, _ = await answered(CHARGE, Canned(200, reply))
    assert isinstance(answer, Refused)
    assert answer.code == word.lower()
    assert "Not enough balance (12)" in answer.message


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("Pending", "moving"),
        ("Received", "moving"),
        ("RedirectShopper", "waiting"),
        ("IdentifyShopper", "waiting"),
        ("ChallengeShopper", "waiting"),
        ("PresentToShopper", "waiting"),
        ("SomethingNew", "moving"),
    ],
)
async def test_a_payment_that_is_not_decided_is_done_and_not_moved(word: str, state: str) -> None:
    answer, _ = await answered(CHARGE, Canned(200, changed(PAYMENT, resultCode=word)))
    assert isinstance(answer, Done)
    assert (answer.movement.state, answer.movement.status) == (state, word)


async def test_what_the_customer_needs_is_kept_and_not_shown() -> None:
    action = {"type": "redirect", "url": "https://checkout.example/pay?d=1"}
    reply = changed(PAYMENT, resultCode="RedirectShopper", amount=None, action=action)
    answer, _ = await answered(CHARGE, Canned(200, reply))
    assert isinstance(answer, Done)
    assert answer.client_secret is not None
    assert msgspec.json.decode(answer.client_secret.reveal()) == action
    assert "checkout.example" not in repr(answer)


@pytest.mark.parametrize(
    "fields",
    [
        {"merchantReference": "another"},
        {"amount": {"value": 1, "currency": "EUR"}},
        {"pspReference": ""},
        {"pspReference": 7},
        {"resultCode": None},
        {"resultCode": "Refused"},
    ],
)
@pytest.mark.parametrize("status", [200, 302])
async def test_what_the_customer_needs_is_not_shown_by_an_answer_that_cannot_be_used(
    fields: dict[str, Any], status: int
) -> None:
    action = {"type": "redirect", "url": "https://checkout.example/pay?d=1", "data": {"MD": "his-session"}}
    reply = changed(PAYMENT, **({"resultCode": "RedirectShopper", "action": action} | fields))
    answer, _ = await answered(CHARGE, Canned(status, reply))
    assert isinstance(answer, Unknown | Refused)
    assert len(answer.evidence) == 1
    assert "checkout.example" not in repr(answer)
    assert "his-session" not in repr(answer)


@pytest.mark.parametrize("status", ["refused", "failed", "cancelled"])
async def test_a_transfer_that_is_refused_at_once_is_refused(status: str) -> None:
    answer, _ = await answered(TRANSFER, Canned(200, changed(TRANSFERRED, status=status, reason="notEnoughBalance")))
    assert isinstance(answer, Refused)
    assert answer.code == "notEnoughBalance"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("authorised", "moving"),
        ("booked", "moved"),
        ("approvalPending", "waiting"),
        ("error", "moving"),
        ("x", "moving"),
    ],
)
async def test_a_transfer_does_what_its_status_says(status: str, state: str) -> None:
    answer, _ = await answered(TRANSFER, Canned(200, changed(TRANSFERRED, status=status)))
    assert isinstance(answer, Done)
    assert (answer.movement.state, answer.movement.status) == (state, status)


async def test_both_hosts_share_one_breaker() -> None:
    """Five failures of payments stop transfers too; questions pass."""
    async with scripted(*[Canned(500, b"")] * 5, Canned(200, {"data": []})) as server:
        provider = adyen(server.base)
        for _ in range(5):
            assert isinstance(await send(provider, CHARGE), Unknown)
        stopped = await send(provider, TRANSFER)
        assert isinstance(stopped, Busy)
        assert stopped.code == "breaker_open"
        assert isinstance(await provider.look_up(TRANSFER, first_sent_at=FIRST_SENT_AT, now=NOW), Absent)
        assert len(server.asked) == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"merchant_account": "a:b"},
        {"merchant_account": ""},
        {"balance_account": "a b"},
        {"api_key": Secret("")},
        {"api_key": Secret("a\nb")},
    ],
)
def test_an_account_that_cannot_work_is_a_misconfiguration(fields: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured):
        Adyen(msgspec.structs.replace(account(), **fields))


@given(
    body=st.one_of(
        st.binary(max_size=80),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
            lambda inner: st.dictionaries(st.sampled_from([*TRANSFERRED, *PAYMENT, *REFUNDED]), inner, max_size=8),
            max_leaves=12,
        ).map(encoded),
    ),
    status=st.sampled_from([200, 201, 202]),
)
def test_no_success_that_was_made_up_passes_for_a_payment(body: bytes, status: int) -> None:
    said = Said(Reply(status, {}, body), Exchange(asked="POST", status=status))
    charge, refund = charge_wording(CHARGE, account()), refund_wording(REFUND, account())
    transfer = transfer_wording(TRANSFER, account())
    assert isinstance(charge, Wording)
    assert isinstance(refund, Wording)
    assert isinstance(transfer, Wording)
    for answer in (
        payment_answer(said, charge),
        refund_answer(said, refund, "PSP1"),
        transfer_answer(said, transfer),
    ):
        assert isinstance(answer, Unknown)


@pytest.mark.parametrize(
    ("base", "where"),
    [
        ("https://1797a841fbb37ca7-Acme-checkout-live.adyenpayments.com/checkout/v72", "live"),
        ("https://checkout-test.adyen.com/v72", "test"),
        ("https://checkout-test.adyen.com/not-live/v72", "test"),
        ("http://127.0.0.1:1", "test"),
    ],
)
def test_an_adapter_names_whose_account_it_is(base: str, where: str) -> None:
    assert Adyen(msgspec.structs.replace(account(), api_base=base)).account == f"TestMerchant/BA1 {where}"


def test_secrets_are_shown_nowhere() -> None:
    shown = repr(account("http://127.0.0.1:1", HMAC_KEY)) + repr(vars(adyen("http://127.0.0.1:1", HMAC_KEY)))
    assert API_KEY not in shown
    assert HMAC_KEY not in shown


def test_the_key_is_adyens_length() -> None:
    assert len(REFERENCE) == Adyen.facts.key_characters
    assert KEY.hex() == REFERENCE
