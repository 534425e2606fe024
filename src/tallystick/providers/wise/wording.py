"""How a transfer is worded for Wise: its four bodies, or why nothing is sent. Pure.

A destination is the number of a recipient that exists at Wise, or the JSON of one to be made: `type`,
`accountHolderName` and `details`, as Wise asks for them by currency and country.
"""

import re
from decimal import Decimal
from typing import Any, Final

import msgspec

from tallystick.keys.derived import uuid_form
from tallystick.money.amounts import NotRepresentable, amount_fault, is_currency, to_decimal_text
from tallystick.providers.wise.account import WiseAccount
from tallystick.providers.words import Refused, Transfer

_RECIPIENT_ID: Final = re.compile(r"[1-9][0-9]{0,17}")
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


class _Recipient(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    account_holder_name: str
    details: dict[str, Any]
    currency: str | None = None
    profile: int | None = None


class Wording(msgspec.Struct, frozen=True):
    """What goes out. `recipient_id` None: `recipient` is to be made first."""

    reference: str
    amount_micros: int
    currency: str
    source_currency: str
    quote: bytes
    recipient_id: int | None
    recipient: bytes
    description: str

    def transfer(self, quote_id: str, recipient_id: int) -> bytes:
        """The body that makes the transfer."""
        return msgspec.json.encode(
            {
                "targetAccount": recipient_id,
                "quoteUuid": quote_id,
                "customerTransactionId": self.reference,
                "details": {"reference": self.description} if self.description else {},
            }
        )


def wording(transfer: Transfer, account: WiseAccount) -> Wording | Refused:
    """All that is sent for a transfer, or why it cannot be."""
    fault = amount_fault(transfer.amount_micros)
    if fault is not None:
        return refused(fault, "The amount is not a positive number of micros that can be held.")
    if not is_currency(transfer.currency):
        return refused("currency_unknown", f"{transfer.currency[:8]!r} is not an active currency.")
    amount = to_decimal_text(transfer.amount_micros, transfer.currency)
    if isinstance(amount, NotRepresentable):
        return refused(amount.code, amount.message)
    if not transfer.description.isprintable() or not transfer.destination.isprintable():
        return refused("text_invalid", "A text has control characters.")
    recipient_id = int(transfer.destination) if _RECIPIENT_ID.fullmatch(transfer.destination) else None
    recipient = b"" if recipient_id is not None else _recipient(transfer, account)
    if isinstance(recipient, str):
        return refused("destination_invalid", recipient)
    source_currency = account.source_currency or transfer.currency
    quote: dict[str, Any] = {
        "sourceCurrency": source_currency,
        "targetCurrency": transfer.currency,
        "targetAmount": Decimal(amount),
        "preferredPayIn": "BALANCE",
    }
    if recipient_id is not None:
        quote["targetAccount"] = recipient_id
    return Wording(
        reference=uuid_form(transfer.key),
        amount_micros=transfer.amount_micros,
        currency=transfer.currency,
        source_currency=source_currency,
        quote=_ENCODER.encode(quote),
        recipient_id=recipient_id,
        recipient=recipient,
        description=transfer.description,
    )


def refused(code: str, message: str) -> Refused:
    """A refusal of our own."""
    return Refused(code=code, message=f"{message} Nothing was sent.")


def _recipient(transfer: Transfer, account: WiseAccount) -> bytes | str:
    try:
        asked = msgspec.json.decode(transfer.destination, type=_Recipient)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return "The destination is neither a recipient's number nor the JSON of a recipient."
    if not asked.type or not asked.account_holder_name.strip() or not asked.details:
        return "The recipient has no type, no name or no details."
    if asked.currency not in {None, transfer.currency}:
        return "The recipient's currency is not the transfer's."
    if asked.profile not in {None, int(account.profile_id)}:
        return "The recipient belongs to another profile."
    return msgspec.json.encode(
        {
            "type": asked.type,
            "accountHolderName": asked.account_holder_name,
            "currency": transfer.currency,
            "profile": int(account.profile_id),
            "details": asked.details,
        }
    )
