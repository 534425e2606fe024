"""How our instructions are worded for Adyen: the body to send, or why nothing is sent. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tallystick.keys.derived import hex64
from tallystick.money.amounts import NotRepresentable, amount_fault, is_currency, to_minor
from tallystick.money.currencies import Purpose
from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.currencies import WIRE
from tallystick.providers.adyen.destination import counterparty
from tallystick.providers.adyen.objects import Amount, is_id
from tallystick.providers.words import Charge, Refund, Refused, Transfer

# docs/providers.md 3, Outbound transfer.
_DESCRIPTION_CHARACTERS: Final = 140
# Adyen takes these words alone; any other reason is kept on our side.
_REFUND_REASONS: Final = frozenset({"FRAUD", "CUSTOMER REQUEST", "RETURN", "DUPLICATE", "OTHER"})
_METHOD: Final = msgspec.json.Decoder(dict[str, Any])
# No payment method of Adyen's is nested deeper.
_DEEPEST: Final = 10
# What a card says about itself, in the clear. The encrypted fields have other names, such as encryptedCardNumber.
_RAW_CARD: Final = frozenset(
    {
        "number",
        "cardnumber",
        "cvc",
        "cvv",
        "cvc2",
        "cvv2",
        "securitycode",
        "expirymonth",
        "expiryyear",
        "expirydate",
        "pan",
        "track",
        "trackdata",
    }
)


class Wording(msgspec.Struct, frozen=True):
    """What goes out, and what must come back."""

    path: str
    body: bytes
    reference: str
    amount: Amount


def charge_wording(charge: Charge, account: AdyenAccount) -> Wording | Refused:
    """POST /payments."""
    amount = _amount(charge.amount_micros, charge.currency, "charge")
    if isinstance(amount, Refused):
        return amount
    if charge.payment_method is None:
        return _refused("payment_method_required", "Adyen takes a payment only together with its payment method.")
    method = _method(charge.payment_method)
    if method is None:
        return _refused("payment_method_invalid", "The payment method is neither JSON of Adyen's nor a stored id.")
    if _has_raw_card(method):
        # Who passes a card on must be fit to hold it, and we are not: the instruction is in our rows and backups.
        return _refused("raw_card_data", "The payment method holds a card in the clear: send Adyen's encrypted fields.")
    if not _is_text(charge.description) or (charge.customer is not None and not _is_text(charge.customer)):
        return _refused("text_invalid", "A text has control characters.")
    reference = hex64(charge.key)
    body: dict[str, Any] = {
        "amount": amount,
        "merchantAccount": account.merchant_account,
        "reference": reference,
        "paymentMethod": method,
    }
    if charge.customer:
        body["shopperReference"] = charge.customer
    if account.return_url:
        body["returnUrl"] = account.return_url
    return Wording("/payments", msgspec.json.encode(body), reference, amount)


def refund_wording(refund: Refund, account: AdyenAccount) -> Wording | Refused:
    """POST /payments/{psp}/refunds."""
    amount = _amount(refund.amount_micros, refund.currency, "refund")
    if isinstance(amount, Refused):
        return amount
    if not is_id(refund.payment_id):
        return _refused("payment_id_invalid", "The id of the payment is empty or has characters no id has.")
    if not _is_text(refund.reason):
        return _refused("text_invalid", "A text has control characters.")
    reference = hex64(refund.key)
    body: dict[str, Any] = {"amount": amount, "merchantAccount": account.merchant_account, "reference": reference}
    if refund.reason.upper() in _REFUND_REASONS:
        body["merchantRefundReason"] = refund.reason.upper()
    return Wording(f"/payments/{refund.payment_id}/refunds", msgspec.json.encode(body), reference, amount)


def transfer_wording(transfer: Transfer, account: AdyenAccount) -> Wording | Refused:
    """POST /transfers."""
    amount = _amount(transfer.amount_micros, transfer.currency, "transfer")
    if isinstance(amount, Refused):
        return amount
    whom = counterparty(transfer.destination) if _is_text(transfer.destination) else "It has control characters."
    if isinstance(whom, str):
        return _refused("destination_invalid", whom)
    if not _is_text(transfer.description) or len(transfer.description) > _DESCRIPTION_CHARACTERS:
        return _refused("text_invalid", "The description has control characters or more than 140 characters.")
    reference = hex64(transfer.key)
    body: dict[str, Any] = {
        "amount": amount,
        "balanceAccountId": account.balance_account,
        "category": whom.category,
        "counterparty": whom.body,
        "reference": reference,
    }
    if transfer.description:
        body["description"] = transfer.description
    if whom.category == "bank":
        body["priorities"] = ["regular"]
    return Wording("/transfers", msgspec.json.encode(body), reference, amount)


def _amount(amount_micros: int, currency: str, purpose: Purpose) -> Amount | Refused:
    fault = amount_fault(amount_micros)
    if fault is not None:
        return _refused(fault, "The amount is not a positive number of micros that can be held.")
    if not is_currency(currency):
        return _refused("currency_unknown", f"{currency[:8]!r} is not an active currency.")
    minor = to_minor(amount_micros, currency, wire=WIRE, purpose=purpose)
    if isinstance(minor, NotRepresentable):
        return _refused(minor.code, minor.message)
    return Amount(minor, currency)


def _method(text: str) -> dict[str, Any] | None:
    if is_id(text):
        return {"type": "scheme", "storedPaymentMethodId": text}
    try:
        method = _METHOD.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return method if method and sum(1 for _ in _levels(method)) <= _DEEPEST else None


def _has_raw_card(method: dict[str, Any]) -> bool:
    names = (name for level in _levels(method) for value in level if isinstance(value, dict) for name in value)
    return any(name.replace("_", "").lower() in _RAW_CARD for name in names)


def _levels(value: object) -> Iterator[list[object]]:
    """All the values of a JSON text, level by level."""
    level = [value]
    while level:
        yield level
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        level = inner


def _is_text(text: str) -> bool:
    return text.isprintable()


def _refused(code: str, message: str) -> Refused:
    return Refused(code=code, message=f"{message} Nothing was sent.")
