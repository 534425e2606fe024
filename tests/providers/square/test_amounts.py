"""Amounts Square cannot write exactly are refused before a byte is sent; the others are written to the unit."""

from typing import Any

import msgspec
import pytest

from tallystick.providers.square.adapter import Square
from tallystick.providers.words import Answer, Charge, Refund, Refused
from tests.providers.scripted import leave, scripted
from tests.providers.square import samples
from tests.providers.square.samples import CHARGE, INSTRUCTIONS


async def send(square: Square, instruction: Charge | Refund) -> Answer:
    return await square.send(instruction, leave())


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
@pytest.mark.parametrize(
    ("currency", "amount_micros"),
    [
        ("ISK", 10_500_000),
        ("UGX", 10_500_000),
        ("JPY", 10_500_000),
        ("CLP", 10_010_000),
        ("HUF", 10_001_000),
        ("TWD", 10_001_000),
        ("IDR", 10_001_000),
        ("USD", 10_001_000),
        ("KWD", 1_234_500),
    ],
)
async def test_an_amount_that_cannot_be_written_is_never_sent(
    instruction: Charge | Refund, currency: str, amount_micros: int
) -> None:
    asked = msgspec.structs.replace(instruction, amount_micros=amount_micros, currency=currency)
    async with scripted() as server:
        answer = await send(samples.adapter(server.base), asked)
        assert server.asked == []
    assert isinstance(answer, Refused)
    assert answer.code == "amount_not_representable"
    assert "Nothing was sent" in answer.message


@pytest.mark.parametrize(
    ("currency", "amount_micros", "minor"),
    [
        ("USD", 10_010_000, 1001),
        ("JPY", 10_000_000, 10),
        ("ISK", 10_000_000, 10),
        ("KWD", 1_234_000, 1234),
        ("HUF", 10_500_000, 1050),
        ("IDR", 10_000_000, 1000),
    ],
)
async def test_an_amount_is_written_in_iso_units(currency: str, amount_micros: int, minor: int) -> None:
    """Off by a hundred is a wrong payment."""
    async with scripted() as server:
        charge = msgspec.structs.replace(CHARGE, amount_micros=amount_micros, currency=currency)
        await send(samples.adapter(server.base), charge)
        (asked,) = server.asked
    body = msgspec.convert(asked.json(), dict[str, Any])
    assert body["amount_money"] == {"amount": minor, "currency": currency}


@pytest.mark.parametrize(
    ("amount_micros", "currency", "code"),
    [
        (0, "USD", "amount_not_positive"),
        (-1_000_000, "USD", "amount_not_positive"),
        (2**63, "USD", "amount_overflow"),
        (True, "USD", "amount_not_integer"),
        (1_000_000, "usd", "currency_unknown"),
        (1_000_000, "XXX", "currency_unknown"),
    ],
)
async def test_what_is_no_amount_is_never_sent(amount_micros: int, currency: str, code: str) -> None:
    async with scripted() as server:
        for each in INSTRUCTIONS:
            asked = msgspec.structs.replace(each, amount_micros=amount_micros, currency=currency)
            answer = await send(samples.adapter(server.base), asked)
            assert isinstance(answer, Refused)
            assert answer.code == code
        assert server.asked == []
