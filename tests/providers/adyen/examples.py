"""An account at Adyen, instructions for it, and the replies it would give."""

from typing import Any

import msgspec

from tallystick.keys.derived import hex64
from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.adapter import Adyen
from tallystick.providers.words import Charge, Refund, Transfer
from tallystick.secret import Secret

KEY = bytes(range(32))
REFERENCE = hex64(KEY)
API_KEY = "AQE-not-a-real-key"
HMAC_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
OTHER_HMAC_KEY = "00" * 32
INSTRUMENT = "SE322KH223222F5GXZFNM3BGP"

CHARGE = Charge(key=KEY, amount_micros=11_300_000, currency="EUR", payment_method="8415698462516992")
REFUND = Refund(key=KEY, payment_id="PSP1", amount_micros=11_300_000, currency="EUR", reason="duplicate")
TRANSFER = Transfer(key=KEY, destination=INSTRUMENT, amount_micros=11_300_000, currency="EUR", description="Pay 7")

AMOUNT = {"value": 1130, "currency": "EUR"}
PAYMENT: dict[str, Any] = {
    "pspReference": "PSP1",
    "resultCode": "Authorised",
    "merchantReference": REFERENCE,
    "amount": AMOUNT,
}
REFUNDED: dict[str, Any] = {
    "merchantAccount": "TestMerchant",
    "pspReference": "PSP2",
    "paymentPspReference": "PSP1",
    "reference": REFERENCE,
    "status": "received",
    "amount": AMOUNT,
}
TRANSFERRED: dict[str, Any] = {
    "id": "3JERI6",
    "amount": AMOUNT,
    "reference": REFERENCE,
    "status": "received",
    "direction": "outgoing",
    "balanceAccount": {"id": "BA1"},
    "creationDate": "2026-11-15T12:00:01Z",
    "sequenceNumber": 1,
}


def account(base: str = "http://127.0.0.1:1", *secrets: str) -> AdyenAccount:
    return AdyenAccount(
        api_key=Secret(API_KEY),
        merchant_account="TestMerchant",
        balance_account="BA1",
        api_base=f"{base}/checkout/v72",
        transfer_api_base=f"{base}/btl/v4",
        webhook_secrets=tuple(Secret(secret) for secret in secrets),
        requests_per_second=10_000.0,
    )


def adyen(base: str = "http://127.0.0.1:1", *secrets: str) -> Adyen:
    return Adyen(account(base, *secrets))


def changed(example: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The example with other fields; `None` takes one out."""
    return {name: value for name, value in (example | fields).items() if value is not None}


def encoded(body: object) -> bytes:
    return msgspec.json.encode(body)
