"""A paid order is given back, whole or in parts: whether a part may be, and how much it is. Pure.

    key used by the same request ──> what became of it
    key used by another request  ──> key_reused, naming the fields that differ
    key free ──> Give(amount)        its intent committed with the key, the ledger and the stock, then one call

Refusals, in order of precedence; each leaves the key unused:

    amount_not_positive, reason_missing, reason_invalid        can it be understood
    order_unknown, order_not_paid                              is there anything to give back
    refund_too_large                                           all parts that are not known to have failed, together
    already_restocked, order_backordered                       are its pieces there to be sold again
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.checkout.order.rules import Status as OrderStatus
from tallystick.checkout.payment.rules import Status
from tallystick.checkout.refund.rules import NOT_GIVEN_BACK
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import format_amount

# Of a reason: enough for a sentence or a paragraph.
MOST_WORDS: Final = 2_000
# What the provider is told. The caller's own words stay here: a customer may read the provider's.
PROVIDER_REASON: Final = "requested_by_customer"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants given back under his key. `amount_micros` None: all that is left."""

    key: str
    order_id: UUID
    amount_micros: int | None
    reason: str
    restock: bool


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is stored, and how its refund stands.

    `was_given`: the provider had it, whatever became of it since. `failure`: why it never did.
    """

    order_id: UUID
    asked_micros: int | None
    amount_micros: int
    currency: str
    reason: str
    restock: bool
    provider: str
    payment_intent_id: str
    created_at: datetime
    status: Status
    refund_id: str | None
    failure: str | None
    was_given: bool


class Sold(msgspec.Struct, frozen=True, kw_only=True):
    """A paid order, and the payment that pays it. `refunding_micros`: asked for, and not known to have failed.

    `since`: when its payment came. Nothing of it can have been given back before.
    """

    name: str
    status: OrderStatus
    is_backordered: bool
    is_restocked: bool
    provider: str | None
    payment_intent_id: str | None
    amount_micros: int
    currency: str
    refunding_micros: int
    since: datetime


class Give(msgspec.Struct, frozen=True):
    """Give so much back."""

    amount_micros: int


class RefundMade(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a payment that the provider has given back, or is giving back.

    It never changes: what became of it later, the order tells.
    """

    order_id: str
    status: Literal["COMPLETED"]
    payment_intent_id: str
    refund_id: str
    amount_micros: int
    currency: str
    reason: str
    restock: bool
    created_at: datetime


class RefundGiven(msgspec.Struct, frozen=True):
    """The provider has it. `is_replayed`: it had it before this call."""

    refund: RefundMade
    is_replayed: bool


@dataclass(frozen=True, slots=True)
class RefundRefused(Rejected):
    """The provider's final no. Unlike other refusals it is recorded: its key has no other answer, a new one has."""

    is_replayed: bool = False


class RefundPending(msgspec.Struct, frozen=True, kw_only=True):
    """It will be given back: it is committed, and tried for as long as it takes. Never recorded for replay."""

    order_id: str
    payment_intent_id: str
    amount_micros: int
    currency: str
    reason: str
    restock: bool
    created_at: datetime
    retry_after_seconds: int


def asked_fault(asked: Asked) -> Rejected | None:
    """Why it cannot be asked for, whatever the order."""
    if asked.amount_micros is not None and asked.amount_micros <= 0:
        return Rejected(
            "amount_not_positive",
            "The amount to give back is not positive.",
            "Send a positive amount_micros, or none for all that is left.",
            ("amount_micros",),
        )
    if not asked.reason.strip():
        return Rejected(
            "reason_missing", "There is no reason.", "Say why, for whoever reads it in a year.", ("reason",)
        )
    if len(asked.reason) > MOST_WORDS or not _is_storable(asked.reason):
        return Rejected(
            "reason_invalid",
            "The reason is not text that can be kept.",
            f"Send up to {MOST_WORDS} characters.",
            ("reason",),
        )
    return None


def key_fault(request: Request, asked: Asked) -> Rejected | None:
    """Why a key that was used cannot be used for this; None: it is the same request again."""
    is_same = {
        "amount_micros": request.asked_micros == asked.amount_micros,
        "order_id": request.order_id == asked.order_id,
        "reason": request.reason == asked.reason,
        "restock": request.restock == asked.restock,
    }
    fields = tuple(name for name, same in is_same.items() if not same)
    if not fields:
        return None
    return Rejected(
        "key_reused",
        f"The idempotency key {asked.key!r} was used for another refund; they differ in {', '.join(fields)}.",
        "Use a new key for a new refund, or repeat the first one unchanged.",
        fields,
    )


def decide(sold: Sold, asked: Asked) -> Give | Rejected:
    """Whether so much of this order may be given back now. First match wins."""
    if sold.status != "PAID" or sold.payment_intent_id is None:
        return Rejected(
            "order_not_paid",
            f"{sold.name} is {sold.status}: no payment has paid it.",
            "Cancel it instead, if it is PENDING. What a late or a second payment took is given back by itself; GET "
            "/v1/orders/{id} shows it.",
        )
    left = sold.amount_micros - sold.refunding_micros
    wanted = left if asked.amount_micros is None else asked.amount_micros
    if wanted > left or left == 0:
        return Rejected(
            "refund_too_large",
            f"Of the {format_amount(sold.amount_micros, sold.currency)} that paid {sold.name}, "
            f"{format_amount(sold.refunding_micros, sold.currency)} is given back or being given back already: "
            f"{format_amount(left, sold.currency)} is left, and {format_amount(wanted, sold.currency)} was asked for.",
            "Ask for what is left, or for less.",
            ("amount_micros",),
        )
    if asked.restock and sold.is_restocked:
        return Rejected(
            "already_restocked",
            f"The pieces of {sold.name} are for sale again already.",
            "Send restock: false.",
            ("restock",),
        )
    if asked.restock and sold.is_backordered:
        return Rejected(
            "order_backordered",
            f"{sold.name} was paid late and has no stock yet: there are no pieces to sell again.",
            "Send restock: false.",
            ("restock",),
        )
    return Give(wanted)


def made(name: str, request: Request) -> RefundMade:
    """What a caller is told of a part that the provider has: the same for ever."""
    return RefundMade(
        order_id=name,
        status="COMPLETED",
        payment_intent_id=request.payment_intent_id,
        refund_id=request.refund_id or "",
        amount_micros=request.amount_micros,
        currency=request.currency,
        reason=request.reason,
        restock=request.restock,
        created_at=request.created_at,
    )


def pending(name: str, request: Request, *, retry_after_seconds: int) -> RefundPending:
    """What a caller is told while the provider has not said that it has it."""
    return RefundPending(
        order_id=name,
        payment_intent_id=request.payment_intent_id,
        amount_micros=request.amount_micros,
        currency=request.currency,
        reason=request.reason,
        restock=request.restock,
        created_at=request.created_at,
        retry_after_seconds=retry_after_seconds,
    )


def refusal_of(name: str, request: Request, *, is_replayed: bool) -> RefundRefused:
    """What is told of a part that was not given back: the provider refused it, or two persons have found so."""
    amount = format_amount(request.amount_micros, request.currency)
    if request.failure == NOT_GIVEN_BACK:
        return RefundRefused(
            "refund_refused",
            f"{request.provider} did not give {amount} of {name} back, and will not: two persons have decided so.",
            "`tally explain` tells who. If it is to be given back, ask for it again under a new key.",
            is_replayed=is_replayed,
        )
    return RefundRefused(
        "refund_refused",
        f"{request.provider} refused to give {amount} of {name} back: {request.failure}.",
        "Look at it with `tally explain`. Once what it names is mended, ask for it again under a new key.",
        is_replayed=is_replayed,
    )


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
