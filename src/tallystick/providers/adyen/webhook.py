"""Adyen's webhooks: what must be signed, and what they say (docs/providers.md 3).

Two schemes. The platform's signs the raw body, in the header HmacSignature. The standard one signs eight fields of
every item; a POST may hold several, and each must be right. Nothing else of an item is signed: `reason` and
`eventDate` are hearsay. Neither scheme signs a time, so a replay is stopped by the dedup key alone.

The eight fields are joined by ":" without escaping, so two different items can have one signature when a field holds
a ":". Six of the eight are Adyen's own words and never hold one. That leaves where the merchant account ends and the
merchant's reference begins: with exactly our own merchant account (which holds none) there is one way to split, with
any other and a ":" in the reference there are several, and the item is not believed.
"""

import hmac
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.objects import (
    INCOMING,
    Amount,
    Transfer,
    is_id,
    micros,
    moment,
    read,
    transfer_movement,
)
from tallystick.providers.port import Headers
from tallystick.providers.words import Event, Forged, Movement, State
from tallystick.secret import Secret

MOST_BYTES: Final = 1024 * 1024
# Adyen sends one as JSON, and six at most in its older forms. Each costs a signature to check, before anybody has
# proven to be Adyen.
MOST_ITEMS: Final = 100
MOST_STANDARD_BYTES: Final = 128 * 1024
_ITEM: Final = b'"NotificationRequestItem"'
_HEADER: Final = "hmacsignature"
_TRANSFER: Final = "balancePlatform.transfer."

# docs/providers.md 3, Refund and Payments: what an event code says of the money, when it succeeded and when not.
_STATES: Final[dict[str, tuple[State, State | None]]] = {
    "AUTHORISATION": ("moved", "failed"),
    "REFUND": ("moved", "failed"),
    "REFUND_FAILED": ("failed", None),
    "REFUNDED_REVERSED": ("returned", None),
    # The customer's bank has taken a payment back; the item is the chargeback's, its original is the payment.
    "CHARGEBACK": ("returned", None),
    "SECOND_CHARGEBACK": ("returned", None),
    # Authorised, and then not taken after all: the scheme rejected the capture, or somebody cancelled the payment.
    "CAPTURE_FAILED": ("returned", None),
    "CANCELLATION": ("returned", None),
    "TECHNICAL_CANCEL": ("returned", None),
}
# Items about a payment whose own reference is not the payment's: the original is.
_ABOUT_A_PAYMENT: Final = frozenset(
    {"CHARGEBACK", "SECOND_CHARGEBACK", "CAPTURE_FAILED", "CANCELLATION", "TECHNICAL_CANCEL"}
)


class _Additional(msgspec.Struct, frozen=True):
    hmac_signature: str = msgspec.field(name="hmacSignature")


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    event_code: str
    # A string on the wire; a boolean would give another signature.
    success: str
    psp_reference: str
    merchant_account_code: str
    additional_data: _Additional
    amount: Amount | None = None
    merchant_reference: str = ""
    original_reference: str = ""
    event_date: str | None = None

    @property
    def signed(self) -> tuple[str, ...]:
        return (
            self.psp_reference,
            self.original_reference,
            self.merchant_account_code,
            self.merchant_reference,
            "" if self.amount is None else str(self.amount.value),
            "" if self.amount is None else self.amount.currency,
            self.event_code,
            self.success,
        )


class _Wrapped(msgspec.Struct, frozen=True):
    item: msgspec.Raw = msgspec.field(name="NotificationRequestItem")


class _Standard(msgspec.Struct, frozen=True, rename="camel"):
    notification_items: list[_Wrapped]


class _Platform(msgspec.Struct, frozen=True):
    type: str
    data: msgspec.Raw
    timestamp: str | None = None


class _Named(msgspec.Struct, frozen=True):
    id: str | None = None


def receive(account: AdyenAccount, headers: Headers, body: bytes) -> tuple[Event, ...] | Forged:
    """Verify on the raw bytes, then read. One forged item forges the whole."""
    if len(body) > MOST_BYTES:
        return Forged("too_large", "The body is larger than 1 MB.")
    if not account.webhook_secrets:
        return Forged("no_secret", "No webhook secret is configured for Adyen.")
    signatures = [value for name, value in headers if name.lower() == _HEADER]
    if len(signatures) > 1:
        return Forged("signature_ambiguous", "There is more than one HmacSignature.")
    if signatures:
        if not is_signed(body, signatures[0], account.webhook_secrets):
            return Forged("signature_wrong", "The signature is not of any key we know.")
        return _platform_events(account, body)
    return _standard_events(account, body)


def is_signed(message: bytes, signature: str, secrets: Sequence[Secret]) -> bool:
    """Whether one of the keys made the signature. All are tried, whatever the first says."""
    claimed = signature.encode("utf-8", "surrogatepass")
    matches = [
        hmac.compare_digest(b64encode(hmac.digest(bytes.fromhex(secret.reveal()), message, sha256)), claimed)
        for secret in secrets
    ]
    return any(matches)


def _standard_events(account: AdyenAccount, body: bytes) -> tuple[Event, ...] | Forged:
    # Before anything is made of them. Names may be escaped, so the size is bounded too.
    if len(body) > MOST_STANDARD_BYTES:
        return Forged("too_large", "The body is larger than 128 KB, and nothing signs it as a whole.")
    if body.count(_ITEM) > MOST_ITEMS:
        return _too_many()
    notification = read(body, _Standard)
    if notification is None or not notification.notification_items:
        return Forged("unsigned", "There is no HmacSignature, and the body is no list of signed items.")
    if len(notification.notification_items) > MOST_ITEMS:
        return _too_many()
    events: list[Event] = []
    for wrapped in notification.notification_items:
        raw = bytes(wrapped.item)
        item = read(raw, _Item)
        # The first bad one forges the whole: whoever signs nothing is not worth the work for the others.
        if item is None:
            return Forged("unsigned", "An item cannot be read, or has no signature.")
        fault = _item_fault(account, item)
        if fault is not None:
            return fault
        events.append(_item_event(account, item, raw))
    return tuple(events)


def _too_many() -> Forged:
    return Forged("too_many_items", f"There are more than {MOST_ITEMS} items in one webhook.")


def _item_fault(account: AdyenAccount, item: _Item) -> Forged | None:
    if not is_signed(":".join(item.signed).encode(), item.additional_data.hmac_signature, account.webhook_secrets):
        return Forged("signature_wrong", "The signature of an item is not of any key we know.")
    colons = sum(field.count(":") for field in item.signed)
    in_reference = item.merchant_reference.count(":")
    if colons and (colons > in_reference or item.merchant_account_code != account.merchant_account):
        return Forged("ambiguous_fields", "A signed field holds a colon: the signature fits other items as well.")
    # What is about no money of ours may name anything, such as the file of a report.
    named = is_id(item.psp_reference) if item.event_code in _STATES else item.psp_reference.isprintable()
    if not named or not item.event_code.isprintable() or not item.success.isprintable():
        return Forged("unreadable", "The signature is right, and a field has characters that no such field has.")
    return None


def _item_event(account: AdyenAccount, item: _Item, raw: bytes) -> Event:
    key = f"{item.event_code}:{item.psp_reference}:{item.success}"
    return Event(
        provider="adyen",
        type=item.event_code,
        dedup_key=key,
        change_key=key,
        object_id=item.psp_reference,
        occurred_at=moment(item.event_date),
        movement=_item_movement(account, item),
        body=raw,
    )


def _item_movement(account: AdyenAccount, item: _Item) -> Movement | None:
    succeeded, otherwise = _STATES.get(item.event_code, (None, None))
    state = {"true": succeeded, "false": otherwise}.get(item.success)
    worth = None if item.amount is None else micros(item.amount)
    if state is None or worth is None or item.amount is None or item.merchant_account_code != account.merchant_account:
        return None
    is_about = item.event_code in _ABOUT_A_PAYMENT
    if is_about and not is_id(item.original_reference):
        return None
    original = item.original_reference if is_id(item.original_reference) else ""
    return Movement(
        provider="adyen",
        purpose="charge" if is_about or item.event_code == "AUTHORISATION" else "refund",
        id=original if is_about else item.psp_reference,
        amount_micros=worth,
        currency=item.amount.currency,
        state=state,
        status=f"{item.event_code}:{item.success}",
        # The merchant's other systems may write what no row can hold; it is none of ours then.
        reference=item.merchant_reference if item.merchant_reference.isprintable() else "",
        # A payment can be taken back more than once, each time for a part of it.
        parent=item.psp_reference if is_about else original,
    )


def _platform_events(account: AdyenAccount, body: bytes) -> tuple[Event, ...] | Forged:
    notification = read(body, _Platform)
    if notification is None or not notification.type.isprintable():
        return Forged("unreadable", "The signature is right, and the body cannot be read.")
    if notification.type.startswith(_TRANSFER):
        transfer = read(bytes(notification.data), Transfer)
        if transfer is None or not is_id(transfer.id):
            return Forged("unreadable", "The signature is right, and the transfer in it cannot be read.")
        return (_transfer_event(account, notification, transfer, body),)
    named = read(bytes(notification.data), _Named)
    named_id = (named.id if named is not None else None) or ""
    object_id = named_id if is_id(named_id) else ""
    # Of what we do not know we cannot tell two changes apart, except by all it says.
    key = f"{notification.type}:{object_id}:{sha256(bytes(notification.data)).hexdigest()}"
    event = Event(
        provider="adyen",
        type=notification.type,
        dedup_key=key,
        change_key=key,
        object_id=object_id,
        occurred_at=moment(notification.timestamp),
        movement=None,
        body=body,
    )
    return (event,)


def _transfer_event(account: AdyenAccount, notification: _Platform, transfer: Transfer, body: bytes) -> Event:
    if transfer.sequence_number is not None:
        step = str(transfer.sequence_number)
    else:
        step = transfer.updated_at or sha256(bytes(notification.data)).hexdigest()
    elsewhere = transfer.balance_account is not None and transfer.balance_account.id != account.balance_account
    return Event(
        provider="adyen",
        type=notification.type,
        dedup_key=f"{notification.type}:{transfer.id}:{step}",
        change_key=f"transfer:{transfer.id}:{transfer.status}:{step}",
        object_id=transfer.id,
        occurred_at=moment(notification.timestamp),
        movement=None if elsewhere or transfer.direction == INCOMING else transfer_movement(transfer),
        body=body,
    )
