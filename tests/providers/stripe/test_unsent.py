"""What is decided before anything is sent: what cannot be right, and what a destination means."""

import msgspec
import pytest

from tallystick.errors import Misconfigured
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.words import Instruction, Refused
from tallystick.secret import Secret
from tests.providers.scripted import scripted
from tests.providers.stripe import samples
from tests.providers.stripe.samples import CHARGE, CONNECTED_PAYOUT, PAYOUT, REFUND, TRANSFER, send


@pytest.mark.parametrize(
    ("instruction", "code"),
    [
        (msgspec.structs.replace(TRANSFER, destination=""), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="acct_"), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="DE89370400440532013000"), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="acct_1/acct_2"), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="acct_1\n"), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="acct_1/ba_1\r\nx: y"), "destination_invalid"),
        (msgspec.structs.replace(TRANSFER, destination="acct_2/ba_1"), "account_not_listed"),
        (msgspec.structs.replace(TRANSFER, description="a\nb"), "text_invalid"),
        (msgspec.structs.replace(TRANSFER, description="a\x00"), "text_invalid"),
        (msgspec.structs.replace(TRANSFER, description="\ud800"), "text_invalid"),
        (msgspec.structs.replace(CHARGE, description="a\x7f"), "text_invalid"),
        (msgspec.structs.replace(CHARGE, payment_method=""), "payment_method_invalid"),
        (msgspec.structs.replace(CHARGE, payment_method="pm 1"), "payment_method_invalid"),
        (msgspec.structs.replace(CHARGE, customer=""), "customer_invalid"),
        (msgspec.structs.replace(REFUND, payment_id=""), "payment_id_invalid"),
        (msgspec.structs.replace(REFUND, payment_id="re_1"), "payment_id_invalid"),
        (msgspec.structs.replace(REFUND, reason="\u2028"), "text_invalid"),
    ],
)
async def test_what_cannot_be_right_is_refused_before_anything_is_sent(instruction: Instruction, code: str) -> None:
    async with scripted() as server:
        answer = await send(samples.adapter(server.base), instruction)
        assert server.asked == []
    assert isinstance(answer, Refused)
    assert answer.code == code
    assert answer.evidence == ()


@pytest.mark.parametrize("key", ["", "sk test", "sk_\n", "sk_é"])
def test_a_key_that_is_none_is_a_wrong_setting(key: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        Stripe(StripeAccount(api_key=Secret(key)))
    assert not key or key not in str(raised.value)


@pytest.mark.parametrize(
    ("instruction", "purpose"),
    [(CHARGE, "charge"), (REFUND, "refund"), (TRANSFER, "transfer"), (PAYOUT, "payout"), (CONNECTED_PAYOUT, "payout")],
)
def test_the_destination_decides_what_a_transfer_is(instruction: Instruction, purpose: str) -> None:
    assert samples.adapter("http://127.0.0.1:1").purpose(instruction) == purpose
