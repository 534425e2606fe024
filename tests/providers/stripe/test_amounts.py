"""Amounts Stripe cannot write exactly are refused before a byte is sent; the others are written to the unit."""

import msgspec
import pytest

from tallystick.providers.words import Instruction, Refused
from tests.providers.scripted import scripted
from tests.providers.stripe import samples
from tests.providers.stripe.samples import CHARGE, PAYOUT, REFUND, TRANSFER, send


def of(instruction: Instruction, amount_micros: int, currency: str) -> Instruction:
    return msgspec.structs.replace(instruction, amount_micros=amount_micros, currency=currency)


@pytest.mark.parametrize(
    ("instruction", "currency", "amount_micros"),
    [
        *((each, "ISK", 10_500_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "UGX", 10_010_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "KWD", 1_234_000 + 1_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "JPY", 10_500_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "CLP", 10_010_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "IDR", 10_001_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        *((each, "USD", 10_001_000) for each in (CHARGE, REFUND, TRANSFER, PAYOUT)),
        (PAYOUT, "HUF", 10_500_000),
        (PAYOUT, "TWD", 10_500_000),
    ],
)
async def test_an_amount_that_cannot_be_written_is_never_sent(
    instruction: Instruction, currency: str, amount_micros: int
) -> None:
    async with scripted() as server:
        answer = await send(samples.adapter(server.base), of(instruction, amount_micros, currency))
        assert server.asked == []
    assert isinstance(answer, Refused)
    assert answer.code == "amount_not_representable"
    assert "Nothing was sent" in answer.message


@pytest.mark.parametrize(
    ("instruction", "currency", "amount_micros", "minor"),
    [
        (TRANSFER, "ISK", 10_000_000, "1000"),
        (TRANSFER, "UGX", 10_000_000, "1000"),
        (TRANSFER, "JPY", 10_000_000, "10"),
        (TRANSFER, "CLP", 10_000_000, "10"),
        (TRANSFER, "KWD", 1_230_000, "1230"),
        (TRANSFER, "IDR", 10_000_000, "1000"),
        (TRANSFER, "HUF", 10_500_000, "1050"),
        (PAYOUT, "HUF", 10_000_000, "1000"),
        (PAYOUT, "TWD", 10_000_000, "1000"),
        (CHARGE, "MGA", 5_000_000, "5"),
    ],
)
async def test_an_amount_is_written_in_stripes_own_units(
    instruction: Instruction, currency: str, amount_micros: int, minor: str
) -> None:
    """Off by a hundred is a wrong payment."""
    async with scripted() as server:
        await send(samples.adapter(server.base), of(instruction, amount_micros, currency))
        (asked,) = server.asked
    assert asked.body.startswith(f"amount={minor}&currency={currency.lower()}&".encode())


@pytest.mark.parametrize(
    ("amount_micros", "currency", "code"),
    [
        (0, "USD", "amount_not_positive"),
        (-1_000_000, "USD", "amount_not_positive"),
        (2**63, "USD", "amount_overflow"),
        (True, "USD", "amount_not_integer"),
        (1_000_000, "usd", "currency_unknown"),
        (1_000_000, "XXX", "currency_unknown"),
        (1_000_000, "", "currency_unknown"),
    ],
)
async def test_what_is_no_amount_is_never_sent(amount_micros: int, currency: str, code: str) -> None:
    async with scripted() as server:
        for each in samples.INSTRUCTIONS:
            answer = await send(samples.adapter(server.base), of(each, amount_micros, currency))
            assert isinstance(answer, Refused)
            assert answer.code == code
        assert server.asked == []
