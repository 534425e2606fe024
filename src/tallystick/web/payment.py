"""Paying orders over HTTP. The order is the identity: every repeat, under any key or none, is the same payment."""

import msgspec

from tallystick.app import Service
from tallystick.core.keys import idempotency_key_fault
from tallystick.core.outcome import Rejected
from tallystick.core.payment import Paying, PaymentPending, Status
from tallystick.web.call import Call, Reply, json_reply
from tallystick.web.idempotency_key import REPLAYED, read_key
from tallystick.web.reading import read


class PaymentRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose reservation is paid. `payment_method`: for providers that take it with the charge; a token, never a card.

    It counts for an attempt that begins with this call.
    """

    reservation_token: str
    payment_method: str | None = None


class PaymentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A payment. COMPLETED: the provider has it; the customer finishes it with `client_secret` where there is one."""

    order_id: str
    status: Status
    payment_intent_id: str | None
    client_secret: str | None
    attempts: int
    reason: str | None


class Payments:
    """The endpoint that charges."""

    def __init__(self, service: Service) -> None:
        """Charges go through the service's own flow."""
        self._payments = service.payments
        self._decode = msgspec.json.Decoder(PaymentRequest).decode

    async def pay(self, call: Call) -> Reply | Rejected:
        """Charge an order, once."""
        refusal = _key_refusal(call)
        if refusal is not None:
            return refusal
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode, body)
        if isinstance(asked, Rejected):
            return asked
        paid = await self._payments.pay(
            call.access.tenant, call.path("id"), asked.reservation_token, payment_method=asked.payment_method
        )
        match paid:
            case Rejected():
                return paid
            case Paying():
                # Written out here and nowhere else: it opens the payment for the customer.
                secret = None if paid.client_secret is None else paid.client_secret.reveal()
                reply = json_reply(201, _answer(paid, secret))
                return msgspec.structs.replace(reply, headers=REPLAYED) if paid.is_repeat else reply
            case PaymentPending():
                reply = json_reply(202, _answer(paid, None))
                return msgspec.structs.replace(reply, headers=((b"retry-after", b"%d" % paid.retry_after_seconds),))


def _answer(paid: Paying | PaymentPending, client_secret: str | None) -> PaymentAnswer:
    return PaymentAnswer(
        order_id=paid.order_id,
        status=paid.payment.status,
        payment_intent_id=paid.payment.payment_intent_id,
        client_secret=client_secret,
        attempts=paid.payment.attempts,
        reason=paid.payment.reason,
    )


def _key_refusal(call: Call) -> Rejected | None:
    """A key is not needed. One that is sent must be one: whoever sends it relies on it."""
    values = call.headers(b"idempotency-key")
    if not values:
        return None
    key = read_key(values)
    if isinstance(key, Rejected):
        return key
    fault = idempotency_key_fault(key)
    return None if fault is None else Rejected(fault, "The Idempotency-Key cannot be used.", "Send another, or none.")
