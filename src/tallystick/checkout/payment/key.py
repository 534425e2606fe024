"""The caller's key of a payment: what it is bound to, and whether a repeat asks for the same. Pure."""

from hashlib import sha256
from hmac import compare_digest
from uuid import UUID

import msgspec

from tallystick.checkout.payment.rules import Told
from tallystick.ledger.outcome import Rejected


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants under his key: the request that the key is bound to."""

    key: str
    order_id: UUID
    reservation_token: str
    payment_method: str | None

    @property
    def method_digest(self) -> bytes | None:
        """What is kept of the payment method."""
        return method_digest(self.payment_method)


def method_digest(payment_method: str | None) -> bytes | None:
    """What is kept of a payment method, which may be the encrypted data of a card."""
    return None if payment_method is None else sha256(payment_method.encode("utf-8", "replace")).digest()


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What a key was used for. `told`: of a payment that was there already when the key came."""

    order_id: UUID
    reservation_token: str
    method_digest: bytes | None
    attempt: int
    told: Told | None


def key_fault(bound: Bound, asked: Asked) -> Rejected | None:
    """Why a key that was used cannot be used for this; None: it is the same request again."""
    token = bound.reservation_token.encode(), asked.reservation_token.encode("utf-8", "replace")
    is_same = {
        "order_id": bound.order_id == asked.order_id,
        "payment_method": bound.method_digest == asked.method_digest,
        "reservation_token": compare_digest(*token),
    }
    fields = tuple(name for name, same in is_same.items() if not same)
    if not fields:
        return None
    return Rejected(
        "key_reused",
        f"The idempotency key {asked.key!r} was used for another payment; they differ in {', '.join(fields)}.",
        "Use a new key for a new payment, or repeat the first one unchanged.",
        fields,
    )
