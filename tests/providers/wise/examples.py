"""A profile at Wise, a transfer for it, and the replies it would give."""

from typing import Any

import msgspec

from tallystick.keys.derived import uuid_form
from tallystick.providers.wise.account import WiseAccount
from tallystick.providers.wise.adapter import Wise
from tallystick.providers.words import Transfer
from tallystick.secret import Secret
from tests.providers.scripted import Canned

KEY = bytes(range(32))
REFERENCE = uuid_form(KEY)
API_KEY = "not-a-real-token"
QUOTE_ID = "11144c35-9fe8-4c32-b7fd-d05c2a7734bf"
TRANSFER = Transfer(key=KEY, destination="8692237", amount_micros=150_250_000, currency="GBP", description="Pay 7")
NEW_RECIPIENT = {
    "type": "sort_code",
    "accountHolderName": "Ann Example",
    "details": {"legalType": "PRIVATE", "sortCode": "040075", "accountNumber": "37778842"},
}

QUOTE: dict[str, Any] = {
    "id": QUOTE_ID,
    "sourceCurrency": "GBP",
    "targetCurrency": "GBP",
    "targetAmount": msgspec.Raw(b"150.25"),
    "payOut": "BANK_TRANSFER",
    "notices": [],
}
RECIPIENT: dict[str, Any] = {"id": 40000000, "currency": "GBP", "active": True}
MADE: dict[str, Any] = {
    "id": 16521632,
    "targetAccount": 8692237,
    "quoteUuid": QUOTE_ID,
    "status": "incoming_payment_waiting",
    "created": "2026-11-15 12:00:01",
    "sourceCurrency": "GBP",
    "sourceValue": 0,
    "targetCurrency": "GBP",
    "targetValue": msgspec.Raw(b"150.250"),
    "customerTransactionId": REFERENCE,
}
FUNDED: dict[str, Any] = {"type": "BALANCE", "status": "COMPLETED", "errorCode": None, "balanceTransactionId": 7}
REJECTED = FUNDED | {"status": "REJECTED", "errorCode": "balance.insufficient-funds"}


def account(base: str = "http://127.0.0.1:1", *keys: str) -> WiseAccount:
    return WiseAccount(
        api_key=Secret(API_KEY), profile_id="102", api_base=base, webhook_keys=keys, requests_per_second=10_000.0
    )


def wise(base: str = "http://127.0.0.1:1", *keys: str) -> Wise:
    return Wise(account(base, *keys))


def changed(example: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The example with other fields; `...` takes one out."""
    return {name: value for name, value in (example | fields).items() if value is not ...}


def made(**fields: Any) -> Canned:
    return Canned(200, changed(MADE, **fields))


QUOTED = Canned(200, QUOTE)
COMPLETED = Canned(201, FUNDED)
