"""What is put on Stripe's wire for an instruction, or why nothing is. Pure.

The same instruction gives the same bytes, for ever: a re-send under the same key with other bytes is an error at
Stripe (docs/providers.md 2.2).

    Charge                     POST /v1/payment_intents
    Refund                     POST /v1/refunds
    Transfer to acct_1         POST /v1/transfers        the connected account's balance
    Transfer to ba_1, card_1   POST /v1/payouts          our own bank account or card
    Transfer to acct_1/ba_1    POST /v1/payouts          the connected account's bank, in its name
"""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from tallystick.keys.derived import hex64
from tallystick.money.amounts import NotRepresentable, amount_fault, is_currency, to_minor
from tallystick.money.currencies import Purpose
from tallystick.providers.stripe.currencies import WIRE
from tallystick.providers.stripe.objects import KEY_FIELD, MARK_FIELD, PATHS, REASON_FIELD, is_id
from tallystick.providers.text import is_writable
from tallystick.providers.words import Charge, Instruction, Refund, Refused, Transfer

Pairs = tuple[tuple[str, str], ...]

# The limit of a metadata value (docs/providers.md 1). No source gives one for descriptions: they are cut here too,
# because a text that Stripe finds too long would leave the payment Unknown for nothing.
MOST_TEXT_CHARACTERS: Final = 500
_KEY_NAME: Final = f"metadata[{KEY_FIELD}]"
_MARK_NAME: Final = f"metadata[{MARK_FIELD}]"
_REASON_NAME: Final = f"metadata[{REASON_FIELD}]"
_REASONS: Final = frozenset({"duplicate", "fraudulent", "requested_by_customer"})
_CONNECTED: Final = re.compile(r"acct_[A-Za-z0-9]+")
_BANK: Final = re.compile(r"(?:(acct_[A-Za-z0-9]+)/)?((?:ba|card)_[A-Za-z0-9]+)")
_PAYMENT: Final = re.compile(r"(pi|ch|py)_[A-Za-z0-9_]+")
# What stands for itself in a form, beside letters and digits (RFC 3986, 2.3).
_UNRESERVED_MARKS: Final = b"-._~"
_QUOTED_BYTES: Final = tuple(quote(bytes([byte]), safe="") for byte in range(256))


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One POST, and what must come back for it. `account` is the connected account it is made in the name of."""

    purpose: Purpose
    path: str
    key: str
    minor: int
    currency: str
    pairs: Pairs
    account: str = ""
    parent: str = ""
    destination: str = ""

    @property
    def headers(self) -> Pairs:
        named = (("stripe-account", self.account),) if self.account else ()
        return (("idempotency-key", self.key), ("content-type", "application/x-www-form-urlencoded"), *named)

    @property
    def body(self) -> bytes:
        return form(self.pairs).encode("ascii")


def purpose_of(instruction: Instruction) -> Purpose:
    """What Stripe calls it. A destination that is none of Stripe's counts as a transfer's, and is refused later."""
    match instruction:
        case Charge():
            return "charge"
        case Refund():
            return "refund"
        case Transfer():
            return "payout" if _BANK.fullmatch(instruction.destination) else "transfer"


def is_account(text: str) -> bool:
    """Whether it can be the id of an account."""
    return _CONNECTED.fullmatch(text) is not None


def account_of(instruction: Instruction) -> str:
    """The connected account whose payout it is; empty for everything that is the platform's own."""
    match = _BANK.fullmatch(instruction.destination) if isinstance(instruction, Transfer) else None
    return (match.group(1) or "") if match else ""


def request_for(instruction: Instruction, mark: str = "") -> Request | Refused:
    """The one request for an instruction, with its intent's mark; Refused: nothing must be sent. First match wins."""
    purpose = purpose_of(instruction)
    fault = amount_fault(instruction.amount_micros)
    if fault is not None:
        return _refused(fault, "The amount is not one that can move.")
    if not is_currency(instruction.currency):
        return _refused("currency_unknown", "The currency is not an active ISO 4217 code in capitals.")
    minor = to_minor(instruction.amount_micros, instruction.currency, wire=WIRE, purpose=purpose)
    if isinstance(minor, NotRepresentable):
        return _refused(minor.code, f"{minor.message} So it is with Stripe for a {purpose}.")
    request: Request | Refused
    match instruction:
        case Charge():
            request = _charge(instruction, minor)
        case Refund():
            request = _refund(instruction, minor)
        case Transfer():
            request = _transfer(instruction, minor, purpose)
    if not mark or isinstance(request, Refused):
        return request
    return msgspec.structs.replace(request, pairs=(*request.pairs, (_MARK_NAME, mark)))


def payment_filter(payment_id: str) -> tuple[str, str] | None:
    """How Stripe names the payment of a refund; None when it is no payment's id."""
    match = _PAYMENT.fullmatch(payment_id)
    if match is None:
        return None
    return ("payment_intent" if match.group(1) == "pi" else "charge", payment_id)


def form(pairs: Pairs) -> str:
    """Flat pairs, form-encoded. Names keep their brackets, as the official package sends them."""
    # Most have nothing to quote in any value, which is asked once for all of them.
    if _is_plain("".join([value for _, value in pairs])):
        return "&".join([f"{_quoted_name(name)}={value}" for name, value in pairs])
    return "&".join([f"{_quoted_name(name)}={_quoted(value)}" for name, value in pairs])


# Names are the same in each request.
@lru_cache(maxsize=64)
def _quoted_name(name: str) -> str:
    return quote(name, safe="[]")


def _quoted(value: str) -> str:
    """The same as `quote(value, safe="")`, without its machinery."""
    return value if _is_plain(value) else "".join([_QUOTED_BYTES[byte] for byte in value.encode()])


def _is_plain(text: str) -> bool:
    # Asked of bytes: there it is a look into a table for each, and what is not ASCII is no letter.
    return text.encode().translate(None, _UNRESERVED_MARKS).isalnum()


def _charge(charge: Charge, minor: int) -> Request | Refused:
    if not is_writable(charge.description):
        return _unwritable("description")
    if charge.payment_method is not None and not is_id(charge.payment_method):
        return _refused("payment_method_invalid", "The payment method is no id of Stripe's.")
    if charge.customer is not None and not is_id(charge.customer):
        return _refused("customer_invalid", "The customer is no id of Stripe's.")
    key = hex64(charge.key)
    pairs = [*_amount(minor, charge.currency), ("automatic_payment_methods[enabled]", "true")]
    if charge.payment_method is not None:
        # Confirmed on the spot, by us: nobody is there whom a redirect could lead anywhere.
        pairs += [
            ("automatic_payment_methods[allow_redirects]", "never"),
            ("confirm", "true"),
            ("payment_method", charge.payment_method),
        ]
    if charge.customer is not None:
        pairs.append(("customer", charge.customer))
    pairs += [*_described(charge.description), (_KEY_NAME, key)]
    return Request(
        purpose="charge",
        path=PATHS["charge"],
        key=key,
        minor=minor,
        currency=charge.currency.lower(),
        pairs=tuple(pairs),
    )


def _refund(refund: Refund, minor: int) -> Request | Refused:
    payment = payment_filter(refund.payment_id)
    if payment is None:
        return _refused("payment_id_invalid", "The payment is no id of Stripe's: pi_..., ch_... or py_...")
    if not is_writable(refund.reason):
        return _unwritable("reason")
    key = hex64(refund.key)
    # Stripe's refunds take no currency: the amount is in that of the charge, and the reply is held against ours.
    pairs = [("amount", str(minor)), payment]
    if refund.reason in _REASONS:
        pairs.append(("reason", refund.reason))
    elif refund.reason:
        pairs.append((_REASON_NAME, refund.reason[:MOST_TEXT_CHARACTERS]))
    pairs.append((_KEY_NAME, key))
    return Request(
        purpose="refund",
        path=PATHS["refund"],
        key=key,
        minor=minor,
        currency=refund.currency.lower(),
        pairs=tuple(pairs),
        parent=refund.payment_id,
    )


def _transfer(transfer: Transfer, minor: int, purpose: Purpose) -> Request | Refused:
    bank = _BANK.fullmatch(transfer.destination)
    if bank is None and not is_account(transfer.destination):
        return _refused(
            "destination_invalid",
            "The destination is none of Stripe's: acct_... for a connected account, ba_... or card_... for our own "
            "bank account or card, acct_.../ba_... for that of a connected account.",
        )
    if not is_writable(transfer.description):
        return _unwritable("description")
    key = hex64(transfer.key)
    destination = transfer.destination if bank is None else bank.group(2)
    pairs = [*_amount(minor, transfer.currency), ("destination", destination), *_described(transfer.description)]
    if bank is None:
        pairs.append(("transfer_group", key))
    pairs.append((_KEY_NAME, key))
    return Request(
        purpose=purpose,
        path=PATHS[purpose],
        key=key,
        minor=minor,
        currency=transfer.currency.lower(),
        pairs=tuple(pairs),
        account=account_of(transfer),
        destination=destination,
    )


def _amount(minor: int, currency: str) -> Pairs:
    return (("amount", str(minor)), ("currency", currency.lower()))


def _described(text: str) -> Pairs:
    return (("description", text[:MOST_TEXT_CHARACTERS]),) if text else ()


def _unwritable(what: str) -> Refused:
    return _refused("text_invalid", f"The {what} has control characters. Take them out.")


def _refused(code: str, message: str) -> Refused:
    return Refused(code=code, message=f"{message} Nothing was sent and no money moved.")
