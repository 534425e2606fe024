"""What Wise's replies hold, as far as we read it. Unknown fields pass, wrong types do not.

Amounts are JSON numbers in major units. They are kept as they were written and read as decimals: a float would have
lost them already (docs/providers.md 5, Amounts).
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, TypeVar

import msgspec

from tallystick.money.amounts import from_decimal_text, is_currency
from tallystick.providers.words import Movement, State

# docs/providers.md 5, Statuses and Not final. `bounced_back` came back from the recipient's bank: whether Wise tries
# again or refunds it, somebody must look.
STATES: Final[dict[str, State]] = {
    "incoming_payment_waiting": "waiting",
    "incoming_payment_initiated": "moving",
    "processing": "moving",
    "funds_converted": "moving",
    "outgoing_payment_sent": "moved",
    "bounced_back": "returned",
    "cancelled": "failed",
    "funds_refunded": "returned",
}
# These are not before their funding any more. What was refunded had moved, and came back.
FUNDED: Final = frozenset(
    {
        "incoming_payment_initiated",
        "processing",
        "funds_converted",
        "outgoing_payment_sent",
        "bounced_back",
        "funds_refunded",
    }
)
UNFUNDED: Final = "incoming_payment_waiting"
CANCELLED: Final = "cancelled"

# A JSON number, and not one whose exponent alone fills the memory.
_NUMBER: Final = re.compile(rb"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?")

Read = TypeVar("Read")


class Notice(msgspec.Struct, frozen=True):
    """What Wise wants to be known about a quote. BLOCKED: no transfer may be made of it."""

    type: str | None = None
    text: str | None = None


class Quote(msgspec.Struct, frozen=True, rename="camel"):
    """The reply of POST /v3/profiles/{p}/quotes."""

    id: str
    source_currency: str
    target_currency: str
    target_amount: msgspec.Raw
    notices: list[Notice] | None = None


class Recipient(msgspec.Struct, frozen=True):
    """The reply of POST /v1/accounts."""

    id: int
    currency: str | None = None


class Details(msgspec.Struct, frozen=True):
    """What the payee reads."""

    reference: str | None = None


class Transfer(msgspec.Struct, frozen=True, rename="camel"):
    """A transfer in replies and lists."""

    id: int
    status: str
    target_currency: str
    target_value: msgspec.Raw
    target_account: int | None = None
    quote_uuid: str | None = None
    customer_transaction_id: str | None = None
    created: str | None = None
    details: Details | None = None

    @property
    def about(self) -> str:
        """What was written for the payee; text with control characters is none of ours, and no row can hold it."""
        text = (self.details and self.details.reference) or ""
        return text if text.isprintable() else ""

    @property
    def reference(self) -> str:
        """Our key, where it is one: in the form we write it."""
        return (self.customer_transaction_id or "").lower()


class Funding(msgspec.Struct, frozen=True, rename="camel"):
    """The reply of POST .../payments."""

    type: str
    status: str
    error_code: str | None = None


def read(body: bytes, wanted: type[Read]) -> Read | None:
    """The body as what it should be; None for anything else."""
    try:
        return msgspec.json.decode(body, type=wanted)
    # A body of brackets alone is deeper than the decoder goes.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def micros(amount: msgspec.Raw, currency: str) -> int | None:
    """What an amount of Wise's is worth; None where it cannot be said exactly."""
    text = bytes(amount)
    if not _NUMBER.fullmatch(text) or not is_currency(currency):
        return None
    try:
        worth = from_decimal_text(Decimal(text.decode()), currency)
    except ValueError:
        return None
    return worth if isinstance(worth, int) else None


def moment(text: str | None) -> datetime | None:
    """A time of Wise's; None for text that is none. Without a zone it is UTC."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def movement(transfer: Transfer, *, funded_as: str | None = None) -> Movement | None:
    """What the books say; None where it cannot be read. `funded_as`: the word of a funding that came after."""
    worth = micros(transfer.target_value, transfer.target_currency)
    if worth is None or transfer.id <= 0:
        return None
    return Movement(
        provider="wise",
        purpose="transfer",
        id=str(transfer.id),
        amount_micros=worth,
        currency=transfer.target_currency,
        state="moving" if funded_as else STATES.get(transfer.status, "moving"),
        status=funded_as or transfer.status,
        reference=transfer.reference,
        about=transfer.about,
        created_at=moment(transfer.created),
    )
