"""What is put on Square's wire for an instruction, or why nothing is. Pure.

The same instruction gives the same bytes, for ever: another body under the same key is an error at Square
(docs/providers.md 1). The key stands in the body; what holds our reference differs:

    POST /v2/payments   reference_id, at most 40 characters: the first 40 of the key's 43
    POST /v2/refunds    there is no field for one: the key opens the reason
"""

from typing import Any, Final

import msgspec

from tallystick.keys.derived import square45
from tallystick.money.amounts import NotRepresentable, amount_fault, is_currency, to_minor
from tallystick.money.currencies import Purpose
from tallystick.providers.square.currencies import WIRE
from tallystick.providers.square.objects import PATHS, Money, is_id
from tallystick.providers.text import is_writable
from tallystick.providers.words import Charge, Instruction, Refund, Refused, Transfer, kind_of

REFERENCE_CHARACTERS: Final = 40  # docs/providers.md 4, Create payment
REASON_CHARACTERS: Final = 192  # the official list of fields
NOTE_CHARACTERS: Final = 500  # the same


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One POST, and what must come back for it."""

    purpose: Purpose
    path: str
    money: Money
    reference: str
    body: bytes
    parent: str = ""


def reference_of(instruction: Instruction) -> str:
    """Our key, as far as Square's object can hold it."""
    key = square45(instruction.key)
    return key if isinstance(instruction, Refund) else key[:REFERENCE_CHARACTERS]


def request_for(instruction: Instruction, location_id: str) -> Request | Refused:
    """The one request for an instruction; Refused: nothing must be sent. First match wins."""
    if isinstance(instruction, Transfer):
        return _refused(
            "cannot_push_money",
            "Square's API cannot pay third parties: its payouts go to the seller's own bank, and can only be read. "
            "Pay this one through Stripe, Adyen or Wise, or by hand.",
        )
    fault = amount_fault(instruction.amount_micros)
    if fault is not None:
        return _refused(fault, "The amount is not one that can move.")
    if not is_currency(instruction.currency):
        return _refused("currency_unknown", "The currency is not an active ISO 4217 code in capitals.")
    purpose = kind_of(instruction)
    minor = to_minor(instruction.amount_micros, instruction.currency, wire=WIRE, purpose=purpose)
    if isinstance(minor, NotRepresentable):
        return _refused(minor.code, f"{minor.message} So it is with Square for a {purpose}.")
    money = Money(minor, instruction.currency)
    if isinstance(instruction, Charge):
        return _payment(instruction, money, location_id)
    return _refund(instruction, money)


def _payment(charge: Charge, money: Money, location_id: str) -> Request | Refused:
    if charge.payment_method is None:
        return _refused(
            "payment_method_required",
            "Square takes a payment only together with its source: a card's token or a stored card's id.",
        )
    if not is_id(charge.payment_method):
        return _refused("payment_method_invalid", "The payment method is no source of Square's.")
    if charge.customer is not None and not is_id(charge.customer):
        return _refused("customer_invalid", "The customer is no id of Square's.")
    if not is_writable(charge.description):
        return _refused("text_invalid", "The description has control characters. Take them out.")
    reference = reference_of(charge)
    body: dict[str, Any] = {
        "idempotency_key": square45(charge.key),
        "source_id": charge.payment_method,
        "amount_money": money,
        "autocomplete": True,
        "location_id": location_id,
        "reference_id": reference,
    }
    if charge.customer is not None:
        body["customer_id"] = charge.customer
    if charge.description:
        body["note"] = charge.description[:NOTE_CHARACTERS]
    return Request(
        purpose="charge", path=PATHS["charge"], money=money, reference=reference, body=msgspec.json.encode(body)
    )


def _refund(refund: Refund, money: Money) -> Request | Refused:
    if not is_id(refund.payment_id):
        return _refused("payment_id_invalid", "The payment is no id of Square's.")
    if not is_writable(refund.reason):
        return _refused("text_invalid", "The reason has control characters. Take them out.")
    reference = reference_of(refund)
    # Cut, not refused: a refund must not fail for the length of its explanation.
    reason = f"{reference} {refund.reason}"[:REASON_CHARACTERS].strip()
    body: dict[str, Any] = {
        "idempotency_key": square45(refund.key),
        "payment_id": refund.payment_id,
        "amount_money": money,
        "reason": reason,
    }
    return Request(
        purpose="refund",
        path=PATHS["refund"],
        money=money,
        reference=reference,
        body=msgspec.json.encode(body),
        parent=refund.payment_id,
    )


def _refused(code: str, message: str) -> Refused:
    return Refused(code=code, message=f"{message} Nothing was sent and no money moved.")
