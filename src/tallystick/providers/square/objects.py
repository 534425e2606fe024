"""Square's objects as far as we read them, and what each says in our words. Pure.

Unknown fields are let pass, wrong types are not. Amounts are integers in ISO 4217's minor units.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Final

import msgspec

from tallystick.money.amounts import NotRepresentable, from_minor, is_currency
from tallystick.money.currencies import Purpose
from tallystick.providers.square.currencies import WIRE
from tallystick.providers.words import Movement, State

PAYMENT_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 4, Payment status
        "PENDING": "moving",
        "APPROVED": "moving",
        "COMPLETED": "moved",
        "CANCELED": "failed",
        "FAILED": "failed",
    }
)
REFUND_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 4, Refund
        "PENDING": "moving",
        "COMPLETED": "moved",
        "REJECTED": "failed",
        "FAILED": "failed",
    }
)
PAYOUT_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 4, Payouts
        "SENT": "moving",
        "PAID": "moved",
        "FAILED": "failed",
    }
)

# Whatever decoding a body can raise: one that is nested deeply enough ends in a RecursionError.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_ID: Final = re.compile(r"[A-Za-z0-9_:!.-]{1,255}")
# Our key at the beginning of a refund's reason: 43 characters and a space or the end.
_REASON: Final = re.compile(r"([A-Za-z0-9_-]{43})(?: .*)?", re.DOTALL)


class Unreadable(Exception):
    """A reply or an event that is not what Square's objects look like. The message holds nothing of it."""


class Money(msgspec.Struct, frozen=True):
    """docs/providers.md 1, Amount on the wire."""

    amount: int
    currency: str


class Payment(msgspec.Struct, frozen=True, kw_only=True):
    """A charge, in our words. Its amount is without tips, which nobody asked us for."""

    id: str
    amount_money: Money
    status: str
    created_at: datetime | None = None
    updated_at: str = ""
    reference_id: str | None = None
    version_token: str | None = None
    location_id: str | None = None

    @property
    def reference(self) -> str:
        return self.reference_id or ""

    @property
    def revision(self) -> str:
        return f"{self.status}:{self.version_token or self.updated_at}"

    def movement(self) -> Movement:
        return _movement(self, purpose="charge", state=PAYMENT_STATES.get(self.status, "moving"))


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """Has no field for a reference: ours opens the reason."""

    id: str
    amount_money: Money
    status: str
    payment_id: str | None = None
    created_at: datetime | None = None
    updated_at: str = ""
    reason: str | None = None
    location_id: str | None = None

    @property
    def reference(self) -> str:
        match = _REASON.fullmatch(self.reason or "")
        return match.group(1) if match else ""

    @property
    def revision(self) -> str:
        return f"{self.status}:{self.updated_at}"

    def movement(self) -> Movement:
        state = REFUND_STATES.get(self.status, "moving")
        return _movement(self, purpose="refund", state=state, parent=self.payment_id or "")


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    """Square's own payment to the seller. A negative amount is one it took back."""

    id: str
    amount_money: Money
    status: str
    created_at: datetime | None = None
    updated_at: str = ""
    version: int | None = None
    location_id: str | None = None

    @property
    def reference(self) -> str:
        return ""

    @property
    def revision(self) -> str:
        return f"{self.status}:{self.updated_at if self.version is None else self.version}"

    def movement(self) -> Movement:
        return _movement(self, purpose="payout", state=PAYOUT_STATES.get(self.status, "moving"))


class _Disputed(msgspec.Struct, frozen=True):
    payment_id: str | None = None


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    """A chargeback: the customer's bank has taken a payment back."""

    id: str
    amount_money: Money
    state: str
    created_at: datetime | None = None
    disputed_payment: _Disputed | None = None

    @property
    def reference(self) -> str:
        return ""

    @property
    def status(self) -> str:
        return f"dispute.{self.state}"

    def movement(self) -> Movement | None:
        """The payment it takes back; None where no money is taken (an inquiry, or one that was won).

        Its own id is the parent: a payment can be disputed more than once, each time for a part of it.
        """
        payment_id = self.disputed_payment.payment_id if self.disputed_payment is not None else None
        if payment_id is None or not is_id(payment_id) or self.state not in DISPUTED:
            return None
        told = _movement(self, purpose="charge", state="returned", parent=self.id)
        return msgspec.structs.replace(told, id=payment_id)


# With these Square holds the amount back.
DISPUTED: Final = frozenset({"EVIDENCE_REQUIRED", "PROCESSING", "LOST", "ACCEPTED"})

Kept = Payment | Refund | Payout

NAMES: Final[Mapping[Purpose, str]] = MappingProxyType({"charge": "payment", "refund": "refund", "payout": "payout"})
PATHS: Final[Mapping[Purpose, str]] = MappingProxyType(
    {"charge": "/v2/payments", "refund": "/v2/refunds", "payout": "/v2/payouts"}
)
_DECODERS: Final[Mapping[Purpose, msgspec.json.Decoder[Kept]]] = MappingProxyType(
    {
        "charge": msgspec.json.Decoder(Payment),
        "refund": msgspec.json.Decoder(Refund),
        "payout": msgspec.json.Decoder(Payout),
    }
)
_ENVELOPE_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT_DECODER: Final = msgspec.json.Decoder(str)
_EMPTY: Final = frozenset({b"", b"[]", b"null"})


class Page(msgspec.Struct, frozen=True):
    """One page of a list. An empty cursor: the last."""

    items: list[msgspec.Raw]
    cursor: str


def read_reply(purpose: Purpose, body: bytes) -> Kept:
    """The one object of a reply, in its envelope. Raises Unreadable."""
    envelope = _envelope(body)
    name = NAMES[purpose]
    if name not in envelope:
        raise Unreadable(f"it holds no {name}")
    return read_object(purpose, envelope[name])


def read_object(purpose: Purpose, body: bytes | msgspec.Raw) -> Kept:
    """One object of the kind that is expected. Raises Unreadable."""
    try:
        kept = _DECODERS[purpose].decode(body)
    except UNDECODABLE as error:
        raise Unreadable(f"it is no {NAMES[purpose]} as Square writes them") from error
    if not is_id(kept.id):
        raise Unreadable("it has no id")
    return kept


def read_dispute(body: bytes | msgspec.Raw) -> Dispute:
    """A dispute. Raises Unreadable."""
    try:
        dispute = _DISPUTE_DECODER.decode(body)
    except UNDECODABLE as error:
        raise Unreadable("it is no dispute as Square writes them") from error
    if not is_id(dispute.id):
        raise Unreadable("it has no id")
    return dispute


_DISPUTE_DECODER: Final = msgspec.json.Decoder(Dispute)


def read_page(name: str, body: bytes) -> Page:
    """One page of a list. Raises Unreadable.

    Square leaves an empty list out altogether, so `{}` is one. That is no proof of absence: by a list Square
    proves none.
    """
    envelope = _envelope(body)
    try:
        items = _ITEMS_DECODER.decode(envelope[name]) if name in envelope else []
        cursor = _TEXT_DECODER.decode(envelope["cursor"]) if _is_there(envelope, "cursor") else ""
    except UNDECODABLE as error:
        raise Unreadable("it is no list as Square writes them") from error
    return Page(items, cursor)


def fingerprint(holds: Mapping[str, msgspec.Raw]) -> str:
    """The same for the same content, however it is spaced and ordered. Raises what `UNDECODABLE` names."""
    content = {name: msgspec.json.decode(value) for name, value in holds.items()}
    return sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:32]


def is_id(text: str) -> bool:
    """Whether it can be an id of Square's."""
    return _ID.fullmatch(text) is not None


def _envelope(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        envelope = _ENVELOPE_DECODER.decode(body)
    except UNDECODABLE as error:
        raise Unreadable("it is no reply as Square writes them") from error
    if _is_there(envelope, "errors"):
        raise Unreadable("it holds errors")
    return envelope


def _is_there(envelope: Mapping[str, msgspec.Raw], name: str) -> bool:
    return name in envelope and bytes(envelope[name]) not in _EMPTY


def _movement(kept: Kept | Dispute, *, purpose: Purpose, state: State, parent: str = "") -> Movement:
    money = kept.amount_money
    if not is_currency(money.currency):
        raise Unreadable("its currency is none that we know")
    amount = from_minor(money.amount, money.currency, wire=WIRE)
    if isinstance(amount, NotRepresentable):
        raise Unreadable("its amount cannot be held")
    if kept.created_at is not None and kept.created_at.tzinfo is None:
        raise Unreadable("its time has no zone")
    if "\0" in f"{kept.status}{kept.reference}{parent}":
        raise Unreadable("a text of it cannot be stored")
    return Movement(
        provider="square",
        purpose=purpose,
        id=kept.id,
        amount_micros=amount,
        currency=money.currency,
        state=state,
        status=kept.status,
        reference=kept.reference,
        parent=parent,
        created_at=kept.created_at,
    )
