"""Amounts and destinations Adyen cannot take are refused before anything is sent."""

import msgspec
import pytest

from tallystick.providers.adyen.destination import Counterparty, counterparty
from tallystick.providers.adyen.wording import Wording, charge_wording, refund_wording, transfer_wording
from tallystick.providers.words import Charge, Refund, Refused, Transfer
from tests.providers.adyen.examples import CHARGE, INSTRUMENT, KEY, REFUND, TRANSFER, account, adyen
from tests.providers.scripted import leave, scripted

# One micro short of what Adyen can write: ISK and CLP have two decimals there, IDR and CVE none.
TOO_FINE = {
    "ISK": 1_005_000,
    "UGX": 1_500_000,
    "HUF": 1_005_000,
    "TWD": 1_005_000,
    "KWD": 1_234_500,
    "JPY": 1_500_000,
    "IDR": 1_500_000,
    "CVE": 1_500_000,
    "CLP": 1_005_000,
    "EUR": 1_000_001,
}
# What Adyen writes for it, by its own table (docs/providers.md 3, Minor units).
WRITTEN = {
    "ISK": (1_000_000, 100),
    "CLP": (1_000_000, 100),
    "IDR": (1_000_000, 1),
    "CVE": (1_000_000, 1),
    "JPY": (1_000_000, 1),
    "UGX": (1_000_000, 1),
    "KWD": (1_234_000, 1234),
    "HUF": (1_230_000, 123),
    "EUR": (11_300_000, 1130),
}


@pytest.mark.parametrize(("currency", "amount_micros"), TOO_FINE.items())
async def test_an_amount_adyen_cannot_write_is_refused_and_nothing_is_sent(currency: str, amount_micros: int) -> None:
    async with scripted() as server:
        provider = adyen(server.base)
        answers = [
            await provider.send(
                msgspec.structs.replace(CHARGE, amount_micros=amount_micros, currency=currency), leave()
            ),
            await provider.send(
                msgspec.structs.replace(REFUND, amount_micros=amount_micros, currency=currency), leave()
            ),
            await provider.send(
                msgspec.structs.replace(TRANSFER, amount_micros=amount_micros, currency=currency), leave()
            ),
        ]
        await provider.close()
        for answer in answers:
            assert isinstance(answer, Refused)
            assert answer.code == "amount_not_representable"
        assert server.asked == []


@pytest.mark.parametrize(("currency", "amounts"), WRITTEN.items())
def test_amounts_are_written_by_adyens_own_table(currency: str, amounts: tuple[int, int]) -> None:
    """An off-by-a-hundred is a wrong payment."""
    micros, minor = amounts
    written = transfer_wording(msgspec.structs.replace(TRANSFER, amount_micros=micros, currency=currency), account())
    assert isinstance(written, Wording)
    assert msgspec.json.decode(written.body)["amount"] == {"value": minor, "currency": currency}


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
        (10_000, "", "currency_unknown"),
    ],
)
def test_what_is_no_amount_is_refused(amount_micros: int, currency: str, code: str) -> None:
    charge = Charge(key=KEY, amount_micros=amount_micros, currency=currency, payment_method="1")
    refund = Refund(key=KEY, payment_id="P", amount_micros=amount_micros, currency=currency)
    transfer = Transfer(key=KEY, destination=INSTRUMENT, amount_micros=amount_micros, currency=currency)
    for answer in (
        charge_wording(charge, account()),
        refund_wording(refund, account()),
        transfer_wording(transfer, account()),
    ):
        assert isinstance(answer, Refused)
        assert answer.code == code


@pytest.mark.parametrize(
    ("destination", "category", "body"),
    [
        (INSTRUMENT, "bank", {"transferInstrumentId": INSTRUMENT}),
        ("transferInstrument:SE3550000000054910000003", "bank", {"transferInstrumentId": "SE3550000000054910000003"}),
        ("balanceAccount:BA32272223222B5CTDQPM6W2H", "internal", {"balanceAccountId": "BA32272223222B5CTDQPM6W2H"}),
        (
            "iban:NL91 ABNA 0417 1643 00:A. Klaassen: Zoon",
            "bank",
            {
                "bankAccount": {
                    "accountHolder": {"fullName": "A. Klaassen: Zoon"},
                    "accountIdentification": {"type": "iban", "iban": "NL91ABNA0417164300"},
                }
            },
        ),
    ],
)
def test_destinations_are_read(destination: str, category: str, body: dict[str, object]) -> None:
    assert counterparty(destination) == Counterparty(category, body)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "destination",
    [
        "",
        " ",
        "SE",
        "BA123",
        "SE3550000000054910000003",  # as likely a Swedish IBAN
        "transferInstrument:",
        "transferInstrument:a/b",
        "balanceAccount:",
        "balanceAccount:../x",
        "iban:NL91ABNA0417164301:A. Klaassen",
        "iban:NL91ABNA0417164300",
        "iban:NL91ABNA0417164300: ",
        "iban::A. Klaassen",
        "card:4111",
        "SE1\r\nx: y",
        "iban:NL91ABNA0417164300:A\x00B",
    ],
)
async def test_a_destination_that_is_none_is_refused_and_nothing_is_sent(destination: str) -> None:
    async with scripted() as server:
        provider = adyen(server.base)
        answer = await provider.send(msgspec.structs.replace(TRANSFER, destination=destination), leave())
        assert isinstance(answer, Refused)
        assert answer.code == "destination_invalid"
        assert server.asked == []


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (None, "payment_method_required"),
        ("", "payment_method_invalid"),
        ("{}", "payment_method_invalid"),
        ("[1]", "payment_method_invalid"),
        ('{"type":', "payment_method_invalid"),
        ("two words", "payment_method_invalid"),
        ('{"type":' + '{"a":' * 100_000, "payment_method_invalid"),
        ('{"a":' * 11 + "1" + "}" * 11, "payment_method_invalid"),
        ('{"type":"scheme","number":"4111111111111111"}', "raw_card_data"),
        ('{"type":"scheme","cvc":"737"}', "raw_card_data"),
        ('{"type":"scheme","encryptedCardNumber":"x","expiryMonth":"03"}', "raw_card_data"),
        ('{"type":"scheme","encryptedCardNumber":"x","expiryYear":"2030"}', "raw_card_data"),
        ('{"type":"scheme","card":[{"Card_Number":"4111111111111111"}]}', "raw_card_data"),
    ],
)
async def test_a_charge_without_a_payment_method_is_refused_and_nothing_is_sent(method: str | None, code: str) -> None:
    async with scripted() as server:
        answer = await adyen(server.base).send(msgspec.structs.replace(CHARGE, payment_method=method), leave())
        assert isinstance(answer, Refused)
        assert answer.code == code
        assert "4111" not in repr(answer)
        assert server.asked == []


def test_an_encrypted_card_is_passed_on() -> None:
    names = ("encryptedCardNumber", "encryptedExpiryMonth", "encryptedExpiryYear", "encryptedSecurityCode")
    method = {"type": "scheme", "holderName": "A. Klaassen"} | dict.fromkeys(names, "adyenjs_0_1_25$x")
    charge = msgspec.structs.replace(CHARGE, payment_method=msgspec.json.encode(method).decode())
    written = charge_wording(charge, account())
    assert isinstance(written, Wording)
    assert msgspec.json.decode(written.body)["paymentMethod"] == method


@pytest.mark.parametrize("payment_id", ["", "a/b", "a b", "a?b", "a\r\nb", "x" * 81])
async def test_a_refund_of_no_payment_is_refused_and_nothing_is_sent(payment_id: str) -> None:
    async with scripted() as server:
        answer = await adyen(server.base).send(msgspec.structs.replace(REFUND, payment_id=payment_id), leave())
        assert isinstance(answer, Refused)
        assert answer.code == "payment_id_invalid"
        assert server.asked == []


@pytest.mark.parametrize("text", ["a\nb", "a\x00b", "\x1b[31m"])
async def test_text_with_control_characters_is_refused_and_nothing_is_sent(text: str) -> None:
    async with scripted() as server:
        provider = adyen(server.base)
        answers = [
            await provider.send(msgspec.structs.replace(CHARGE, customer=text), leave()),
            await provider.send(msgspec.structs.replace(REFUND, reason=text), leave()),
            await provider.send(msgspec.structs.replace(TRANSFER, description=text), leave()),
            await provider.send(msgspec.structs.replace(TRANSFER, description="x" * 141), leave()),
        ]
        for answer in answers:
            assert isinstance(answer, Refused)
            assert answer.code == "text_invalid"
        assert server.asked == []
