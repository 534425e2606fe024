"""How our instructions are worded for Adyen: the body to send, or why nothing is sent. Pure."""

import re
from typing import Any, Final

import msgspec

from tallystick.core.currencies import Purpose
from tallystick.core.keys import hex64
from tallystick.core.money import NotRepresentable, amount_fault, is_currency, to_minor
from tallystick.core.provider import Charge, Refund, Refused, Transfer
from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.destination import counterparty
from tallystick.providers.adyen.objects import Amount

# docs/providers.md 3, Outbound transfer.
_DESCRIPTION_CHARACTERS: Final = 140
# Ids and names of Adyen's. They go into paths, so nothing else may.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
# Adyen takes these words alone; any other reason is kept on our side.
_REFUND_REASONS: Final = frozenset({"FRAUD", "CUSTOMER REQUEST", "RETURN", "DUPLICATE", "OTHER"})
_METHOD: Final = msgspec.json.Decoder(dict[str, Any])


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


def is_id(text: str) -> bool:
    """Whether it can be an id or a name at Adyen."""
    return _ID.fullmatch(text) is not None


def _amount(amount_micros: int, currency: str, purpose: Purpose) -> Amount | Refused:
    fault = amount_fault(amount_micros)
    if fault is not None:
        return _refused(fault, "The amount is not a positive number of micros that can be held.")
    if not is_currency(currency):
        return _refused("currency_unknown", f"{currency[:8]!r} is not an active currency.")
    minor = to_minor(amount_micros, currency, provider="adyen", purpose=purpose)
    if isinstance(minor, NotRepresentable):
        return _refused(minor.code, minor.message)
    return Amount(minor, currency)


def _method(text: str) -> dict[str, Any] | None:
    if is_id(text):
        return {"type": "scheme", "storedPaymentMethodId": text}
    try:
        return _METHOD.decode(text) or None
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _is_text(text: str) -> bool:
    return text.isprintable()


def _refused(code: str, message: str) -> Refused:
    return Refused(code=code, message=f"{message} Nothing was sent.")
