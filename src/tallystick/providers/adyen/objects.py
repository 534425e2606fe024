"""What Adyen's replies hold, as far as we read it. Unknown fields pass, wrong types do not."""

import re
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from tallystick.money.amounts import from_minor, is_currency
from tallystick.providers.adyen.currencies import WIRE
from tallystick.providers.words import Movement, State

# docs/providers.md 3, Payments. Captured as authorised, which is the merchant account's default.
PAYMENT_STATES: Final[dict[str, State]] = {
    "Authorised": "moved",
    "Refused": "failed",
    "Error": "failed",
    "Cancelled": "failed",
    "Pending": "moving",
    "Received": "moving",
    "RedirectShopper": "waiting",
    "IdentifyShopper": "waiting",
    "ChallengeShopper": "waiting",
    "PresentToShopper": "waiting",
}
# docs/providers.md 3, Transfer statuses; some 60 more exist and are all "moving" to us.
TRANSFER_STATES: Final[dict[str, State]] = {
    "received": "waiting",
    "approvalPending": "waiting",
    "pendingExecution": "waiting",
    "authorised": "moving",
    "booked": "moved",
    "refused": "failed",
    "failed": "failed",
    "cancelled": "failed",
    "returned": "returned",
}
INCOMING: Final = "incoming"
# Ids and names of Adyen's. They go into paths and rows, so nothing else may.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")

Read = TypeVar("Read")


class Amount(msgspec.Struct, frozen=True):
    """Minor units by Adyen's own table."""

    value: int
    currency: str


class Payment(msgspec.Struct, frozen=True, rename="camel"):
    """The reply of POST /payments. `action` is what the customer's side needs to go on; empty without."""

    result_code: str
    psp_reference: str | None = None
    merchant_reference: str | None = None
    amount: Amount | None = None
    refusal_reason: str | None = None
    refusal_reason_code: str | None = None
    action: msgspec.Raw = msgspec.Raw()


class RefundReceived(msgspec.Struct, frozen=True, rename="camel"):
    """The reply of POST /payments/{psp}/refunds."""

    psp_reference: str
    payment_psp_reference: str
    status: str
    amount: Amount
    reference: str | None = None


class Account(msgspec.Struct, frozen=True):
    """A balance account, by its id."""

    id: str


class Transfer(msgspec.Struct, frozen=True, rename="camel"):
    """A transfer in replies, lists and webhooks."""

    id: str
    amount: Amount
    status: str
    reference: str | None = None
    description: str | None = None
    reason: str | None = None
    direction: str | None = None
    balance_account: Account | None = None
    creation_date: str | None = None
    created_at: str | None = None
    sequence_number: int | None = None
    updated_at: str | None = None


class Link(msgspec.Struct, frozen=True):
    """Where the next page is."""

    href: str


class Links(msgspec.Struct, frozen=True):
    """The last page has no `next`."""

    next: Link | None = None


class Page(msgspec.Struct, frozen=True):
    """A page of transfers. `data` must be there: nothing at all is no empty list."""

    data: list[Transfer]
    links: Links = msgspec.field(name="_links", default_factory=Links)


def is_id(text: str) -> bool:
    """Whether it can be an id or a name at Adyen."""
    return _ID.fullmatch(text) is not None


def read(body: bytes, wanted: type[Read]) -> Read | None:
    """The body as what it should be; None for anything else."""
    try:
        return msgspec.json.decode(body, type=wanted)
    # A body of brackets alone is deeper than the decoder goes.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def micros(amount: Amount) -> int | None:
    """What an amount of Adyen's is worth; None where it cannot be said."""
    if not is_currency(amount.currency):
        return None
    worth = from_minor(amount.value, amount.currency, wire=WIRE)
    return worth if isinstance(worth, int) else None


def moment(text: str | None) -> datetime | None:
    """A time of Adyen's; None for text that is none. Without a zone it is UTC."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def transfer_movement(transfer: Transfer) -> Movement | None:
    """What the books say; None where it cannot be read."""
    worth = micros(transfer.amount)
    reference, about = transfer.reference or "", transfer.description or ""
    if worth is None or not is_id(transfer.id) or not transfer.status.isprintable():
        return None
    return Movement(
        provider="adyen",
        purpose="transfer",
        id=transfer.id,
        amount_micros=worth,
        currency=transfer.amount.currency,
        state=TRANSFER_STATES.get(transfer.status, "moving"),
        status=transfer.status,
        # One with control characters is none of ours, and no row can hold it.
        reference=reference if reference.isprintable() else "",
        about=about if about.isprintable() else "",
        created_at=moment(transfer.creation_date or transfer.created_at),
    )
