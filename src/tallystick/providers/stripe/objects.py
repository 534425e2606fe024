"""Stripe's objects as far as we read them, and what each says in our words. Pure.

Unknown fields are let pass, wrong types are not. Amounts are integers in Stripe's own minor units.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from tallystick.money.amounts import from_minor
from tallystick.money.currencies import EXPONENTS, Purpose
from tallystick.providers.stripe.currencies import WIRE
from tallystick.providers.words import Movement, State

# Our key, in the metadata of whatever we make (docs/providers.md 1, Our own reference).
KEY_FIELD: Final = "tally_key"
# Whose it is (`movement.mark`).
MARK_FIELD: Final = "tally_mark"
REASON_FIELD: Final = "tally_reason"

PAYMENT_INTENT_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 2.6
        "requires_payment_method": "waiting",
        "requires_confirmation": "waiting",
        "requires_action": "waiting",
        "processing": "moving",
        "requires_capture": "moving",
        "succeeded": "moved",
        "canceled": "failed",
    }
)
REFUND_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 2.7
        "pending": "moving",
        "requires_action": "waiting",
        "succeeded": "moved",
        "failed": "failed",
        "canceled": "failed",
    }
)
PAYOUT_STATES: Final[Mapping[str, State]] = MappingProxyType(
    {  # docs/providers.md 2.8
        "pending": "moving",
        "in_transit": "moving",
        "paid": "moved",
        "failed": "failed",
        "canceled": "failed",
    }
)

# Whatever decoding a body can raise: one that is nested deeply enough ends in a RecursionError.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# As Stripe writes them, in lower case only: anything else is not from where we think it is.
_CURRENCIES: Final[Mapping[str, str]] = MappingProxyType({currency.lower(): currency for currency in EXPONENTS})

_MOST_ID_CHARACTERS: Final = 255
_ID: Final = re.compile(rf"[A-Za-z0-9_]{{1,{_MOST_ID_CHARACTERS}}}")


class Unreadable(Exception):
    """A reply or an event that is not what Stripe's objects look like. The message holds nothing of it."""


class PaymentIntent(msgspec.Struct, frozen=True, kw_only=True):
    """docs/providers.md 2.6. A charge, in our words."""

    id: str
    object: Literal["payment_intent"]
    amount: int
    currency: str
    status: str
    created: int
    amount_received: int | None = None
    metadata: dict[str, str] | None = None
    client_secret: str | None = None
    latest_charge: str | None = None

    @property
    def reference(self) -> str:
        return (self.metadata or {}).get(KEY_FIELD, "")

    @property
    def version(self) -> str:
        # A second try after a failed one passes the same statuses again, under another charge.
        return f"{self.status}:{self.latest_charge or ''}"

    def movement(self, account: str = "") -> Movement:
        state = PAYMENT_INTENT_STATES.get(self.status, "moving")
        told = self
        if state == "moved" and self.amount_received not in (None, self.amount):
            # What was asked for is not what came, where somebody has captured a part of it.
            told = msgspec.structs.replace(self, amount=self.amount_received)
        return _movement(told, account, purpose="charge", state=state, status=self.status)


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """docs/providers.md 2.7. Stripe leaves the status of some empty: what becomes of those is still open."""

    id: str
    object: Literal["refund"]
    amount: int
    currency: str
    status: str | None
    created: int
    payment_intent: str | None = None
    charge: str | None = None
    metadata: dict[str, str] | None = None
    failure_reason: str | None = None

    @property
    def reference(self) -> str:
        return (self.metadata or {}).get(KEY_FIELD, "")

    @property
    def version(self) -> str:
        return self.status or ""

    def movement(self, account: str = "") -> Movement:
        status = self.status or ""
        state = REFUND_STATES.get(status, "moving")
        parent = self.payment_intent or self.charge or ""
        return _movement(self, account, purpose="refund", state=state, status=status, parent=parent)


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """docs/providers.md 2.5. It has no status: what exists has moved, until it is reversed."""

    id: str
    object: Literal["transfer"]
    amount: int
    currency: str
    created: int
    reversed: bool
    amount_reversed: int = 0
    destination: str | None = None
    transfer_group: str | None = None
    description: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def reference(self) -> str:
        # The group is set once; metadata can be edited in Stripe's dashboard, and then a lookup would not find it.
        return self.transfer_group or (self.metadata or {}).get(KEY_FIELD, "")

    @property
    def version(self) -> str:
        return str(self.amount_reversed)

    def movement(self, account: str = "") -> Movement:
        state: State = "returned" if self.reversed else "moved"
        status = "reversed" if self.reversed else ""
        about = self.description or ""
        return _movement(self, account, purpose="transfer", state=state, status=status, about=about)


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    """docs/providers.md 2.8."""

    id: str
    object: Literal["payout"]
    amount: int
    currency: str
    status: str
    created: int
    destination: str | None = None
    description: str | None = None
    metadata: dict[str, str] | None = None
    failure_code: str | None = None

    @property
    def reference(self) -> str:
        return (self.metadata or {}).get(KEY_FIELD, "")

    @property
    def version(self) -> str:
        return self.status

    def movement(self, account: str = "") -> Movement:
        state = PAYOUT_STATES.get(self.status, "moving")
        about = self.description or ""
        return _movement(self, account, purpose="payout", state=state, status=self.status, about=about)


class Dispute(msgspec.Struct, frozen=True, kw_only=True):
    """A chargeback: the customer's bank has taken a payment back. Statuses as in the official package."""

    id: str
    object: Literal["dispute"]
    amount: int
    currency: str
    status: str
    created: int
    payment_intent: str | None = None

    @property
    def reference(self) -> str:
        return ""

    def movement(self, account: str = "") -> Movement | None:
        """The payment it takes back; None where no money is taken (an inquiry, or one that was won).

        Its own id is the parent: a payment can be disputed more than once, each time for a part of it.
        """
        if self.payment_intent is None or not is_id(self.payment_intent) or self.status not in DISPUTED:
            return None
        status = f"dispute.{self.status}"
        told = _movement(self, account, purpose="charge", state="returned", status=status, parent=self.id)
        return msgspec.structs.replace(told, id=full_id(self.payment_intent, account))


# With these the amount has left the account.
DISPUTED: Final = frozenset({"needs_response", "under_review", "lost"})

Kept = PaymentIntent | Refund | Transfer | Payout

KINDS: Final[Mapping[Purpose, type[Kept]]] = MappingProxyType(
    {"charge": PaymentIntent, "refund": Refund, "transfer": Transfer, "payout": Payout}
)
PATHS: Final[Mapping[Purpose, str]] = MappingProxyType(
    {
        "charge": "/v1/payment_intents",
        "refund": "/v1/refunds",
        "transfer": "/v1/transfers",
        "payout": "/v1/payouts",
    }
)
_DECODERS: Final[Mapping[Purpose, msgspec.json.Decoder[Kept]]] = MappingProxyType(
    {purpose: msgspec.json.Decoder(kind) for purpose, kind in KINDS.items()}
)


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """docs/providers.md 2.1, list envelope. Newest first."""

    object: Literal["list"]
    data: list[msgspec.Raw]
    has_more: bool


_PAGE_DECODER: Final = msgspec.json.Decoder(Page)


def read_object(purpose: Purpose, body: bytes | msgspec.Raw) -> Kept:
    """One object of the kind that is expected. Raises Unreadable."""
    try:
        kept = _DECODERS[purpose].decode(body)
    except UNDECODABLE as error:
        raise Unreadable(f"it is no {purpose} as Stripe writes them") from error
    if not is_id(kept.id):
        raise Unreadable("it has no id")
    return kept


def read_dispute(body: bytes | msgspec.Raw) -> Dispute:
    """A dispute. Raises Unreadable."""
    try:
        return _DISPUTE_DECODER.decode(body)
    except UNDECODABLE as error:
        raise Unreadable("it is no dispute as Stripe writes them") from error


_DISPUTE_DECODER: Final = msgspec.json.Decoder(Dispute)


def read_page(body: bytes) -> Page:
    """One page of a list. Raises Unreadable."""
    try:
        page = _PAGE_DECODER.decode(body)
    except UNDECODABLE as error:
        raise Unreadable("it is no list as Stripe writes them") from error
    if page.has_more and not page.data:
        raise Unreadable("the list goes on after nothing")
    return page


def is_id(text: str) -> bool:
    """Whether it can be an id of Stripe's, and so part of a path."""
    # Most begin with a letter, and are then what Python calls an identifier: told without the pattern's machinery.
    if text.isidentifier() and text.isascii() and len(text) <= _MOST_ID_CHARACTERS:
        return True
    return _ID.fullmatch(text) is not None


# Whole seconds: of the events of one moment many have the same.
@lru_cache(maxsize=256)
def moment(seconds: int) -> datetime:
    """A time as Stripe writes it. Raises Unreadable."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise Unreadable("its time is none") from error


def fingerprint(body: msgspec.Raw) -> str:
    """The same for the same content, however it is spaced and ordered. Raises what `UNDECODABLE` names."""
    return sha256(msgspec.json.encode(msgspec.json.decode(body), order="sorted")).hexdigest()[:32]


def full_id(object_id: str, account: str) -> str:
    """How we name an object: one of a connected account's carries the account, without which none can be asked."""
    return f"{account}/{object_id}" if account else object_id


def _movement(
    kept: Kept | Dispute,
    account: str,
    *,
    purpose: Purpose,
    state: State,
    status: str,
    parent: str = "",
    about: str = "",
) -> Movement:
    currency = _CURRENCIES.get(kept.currency)
    if currency is None:
        raise Unreadable("its currency is none that we know")
    reference = kept.reference
    amount = from_minor(kept.amount, currency, wire=WIRE)
    # Asked so: whether something is a struct, a metaclass written in Python answers.
    if not isinstance(amount, int):
        raise Unreadable("its amount cannot be held")
    # A dispute has metadata of its own, which is not ours to write.
    mark = "" if isinstance(kept, Dispute) else (kept.metadata or {}).get(MARK_FIELD, "")
    if account and purpose != "payout":
        # We make none there. Whoever owns the account could write our key beside money that he moves himself.
        reference = mark = about = ""
    if "\0" in status or "\0" in reference or "\0" in parent or "\0" in about:
        raise Unreadable("a text of it cannot be stored")
    return Movement(
        provider="stripe",
        purpose=purpose,
        id=full_id(kept.id, account),
        amount_micros=amount,
        currency=currency,
        state=state,
        status=status,
        reference=reference,
        parent=parent,
        about=about,
        mark=mark,
        created_at=moment(kept.created),
    )
