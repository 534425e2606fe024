"""Amounts and destinations Wise cannot take are refused before anything is sent; the others are written exactly."""

import msgspec
import pytest

from tallystick.providers.wise.objects import micros
from tallystick.providers.wise.wording import Wording, wording
from tallystick.providers.words import Charge, Refund, Refused
from tests.providers.scripted import leave, scripted
from tests.providers.wise.examples import KEY, NEW_RECIPIENT, TRANSFER, account, wise

TOO_FINE = {
    "ISK": 1_500_000,
    "UGX": 1_500_000,
    "HUF": 1_005_000,
    "TWD": 1_005_000,
    "KWD": 1_234_500,
    "JPY": 1_500_000,
    "IDR": 1_005_000,
    "CLP": 1_500_000,
    "GBP": 1_000_001,
}
WRITTEN = {
    "ISK": (7_000_000, b"7"),
    "JPY": (150_000_000, b"150"),
    "KWD": (1_234_000, b"1.234"),
    "HUF": (1_230_000, b"1.23"),
    "IDR": (1_000_000, b"1.00"),
    "GBP": (100_000, b"0.10"),
    # As a float it would be 90071992547.40993 or worse.
    "USD": (90_071_992_547_409_930_000, None),
    "EUR": (9_007_199_254_740_930_000, b"9007199254740.93"),
}


@pytest.mark.parametrize(("currency", "amount_micros"), TOO_FINE.items())
async def test_an_amount_wise_cannot_write_is_refused_and_nothing_is_sent(currency: str, amount_micros: int) -> None:
    async with scripted() as server:
        transfer = msgspec.structs.replace(TRANSFER, amount_micros=amount_micros, currency=currency)
        answer = await wise(server.base).send(transfer, leave())
        assert isinstance(answer, Refused)
        assert answer.code == "amount_not_representable"
        assert server.asked == []


@pytest.mark.parametrize(("currency", "amounts"), WRITTEN.items())
def test_amounts_are_written_to_the_last_digit(currency: str, amounts: tuple[int, bytes | None]) -> None:
    amount_micros, text = amounts
    words = wording(msgspec.structs.replace(TRANSFER, amount_micros=amount_micros, currency=currency), account())
    if text is None:
        assert isinstance(words, Refused)
        assert words.code == "amount_overflow"
        return
    assert isinstance(words, Wording)
    assert b'"targetAmount":' + text + b"," in words.quote


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        (b"150.25", 150_250_000),
        (b"150.250", 150_250_000),
        (b"1.5025E+2", 150_250_000),
        (b"9007199254740.93", 9_007_199_254_740_930_000),
        (b"0.1", 100_000),
        (b'"150.25"', None),
        (b"null", None),
        (b"true", None),
        (b"[1]", None),
        (b"NaN", None),
        (b"1e999", None),
        (b"0.0000001", None),
        (b"99999999999999999999", None),
    ],
)
def test_amounts_are_read_exactly_or_not_at_all(text: bytes, worth: int | None) -> None:
    assert micros(msgspec.Raw(text), "GBP") == worth


@pytest.mark.parametrize(
    ("amount_micros", "currency", "code"),
    [
        (0, "EUR", "amount_not_positive"),
        (-10_000, "EUR", "amount_not_positive"),
        (2**63, "EUR", "amount_overflow"),
        (10_000.0, "EUR", "amount_not_integer"),
        (True, "EUR", "amount_not_integer"),
        (10_000, "eur", "currency_unknown"),
        (10_000, "XXX", "currency_unknown"),
    ],
)
def test_what_is_no_amount_is_refused(amount_micros: int, currency: str, code: str) -> None:
    words = wording(msgspec.structs.replace(TRANSFER, amount_micros=amount_micros, currency=currency), account())
    assert isinstance(words, Refused)
    assert words.code == code


@pytest.mark.parametrize(
    "destination",
    [
        "",
        " ",
        "0",
        "-1",
        "1.5",
        "12a",
        "9" * 19,
        "{}",
        "[]",
        "null",
        '{"type":"iban"',
        msgspec.json.encode(NEW_RECIPIENT | {"details": {}}).decode(),
        msgspec.json.encode(NEW_RECIPIENT | {"accountHolderName": " "}).decode(),
        msgspec.json.encode(NEW_RECIPIENT | {"type": 7}).decode(),
        msgspec.json.encode(NEW_RECIPIENT | {"currency": "USD"}).decode(),
        msgspec.json.encode(NEW_RECIPIENT | {"profile": 101}).decode(),
        '{"type":"iban","accountHolderName":"A","details":' + '{"a":' * 100_000,
    ],
)
async def test_a_destination_that_is_none_is_refused_and_nothing_is_sent(destination: str) -> None:
    async with scripted() as server:
        transfer = msgspec.structs.replace(TRANSFER, destination=destination)
        answer = await wise(server.base).send(transfer, leave())
        assert isinstance(answer, Refused)
        assert answer.code == "destination_invalid"
        assert server.asked == []


@pytest.mark.parametrize("field", ["description", "destination"])
@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "12\r\n"])
async def test_text_with_control_characters_is_refused_and_nothing_is_sent(field: str, text: str) -> None:
    async with scripted() as server:
        answer = await wise(server.base).send(msgspec.structs.replace(TRANSFER, **{field: text}), leave())
        assert isinstance(answer, Refused)
        assert answer.code == "text_invalid"
        assert server.asked == []


async def test_wise_takes_no_payments_and_says_so() -> None:
    async with scripted() as server:
        provider = wise(server.base)
        charged = await provider.send(Charge(key=KEY, amount_micros=10_000, currency="EUR"), leave())
        refunded = await provider.send(Refund(key=KEY, payment_id="1", amount_micros=10_000, currency="EUR"), leave())
        assert isinstance(charged, Refused)
        assert isinstance(refunded, Refused)
        assert (charged.code, refunded.code) == ("cannot_take_money", "cannot_refund")
        assert server.asked == []
