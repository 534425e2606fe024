"""Paying orders over HTTP. The order is the identity, and a key has one answer: the provider's final one."""

from typing import Annotated, Literal

import msgspec

from tallystick.app import Service
from tallystick.checkout.payment.review.flow import PaymentReviews
from tallystick.checkout.payment.rules import Paying, PaymentPending, PaymentRefused, PaymentStatus
from tallystick.http.call import Call, Reply, json_reply, problem_reply
from tallystick.http.idempotency_key import REPLAYED, read_keyed
from tallystick.http.problem import refused
from tallystick.ledger.outcome import Rejected
from tallystick.settlement.views import reviewed


class PaymentRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose reservation is paid. `payment_method`: for providers that take it with the charge; a token, never a card.

    It counts for an attempt that begins with this call.
    """

    reservation_token: str
    payment_method: str | None = None


class ResolvePaymentRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person has seen at the provider of a charge that nobody answered for.

    `charged` needs the provider's id of the payment; `evidence` is what shows it, for whoever reads it in a year.
    """

    outcome: Literal["never_charged", "charged"]
    evidence: str
    payment_intent_id: Annotated[str, msgspec.Meta(pattern="^[!-~]*$", max_length=200)] | None = None


class PaymentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A payment. AWAITING_CUSTOMER: he finishes it with `client_secret`. COMPLETED: the provider has all it needs."""

    order_id: str
    status: PaymentStatus
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
        self._decode_resolve = msgspec.json.Decoder(ResolvePaymentRequest).decode
        self._reviews = PaymentReviews(service.database, service.providers, changed=service.announcer.changed)

    async def resolve(self, call: Call) -> Reply | Rejected:
        """Close a charge that nobody answered for."""
        keyed = await read_keyed(call, self._decode_resolve)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        return reviewed(
            await self._reviews.resolve(
                call.access.tenant,
                call.path("id"),
                outcome=asked.outcome,
                evidence=asked.evidence,
                payment_intent_id=asked.payment_intent_id,
                by=call.access.author,
                idempotency_key=key,
            )
        )

    async def pay(self, call: Call) -> Reply | Rejected:
        """Charge an order, once."""
        keyed = await read_keyed(call, self._decode)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        paid = await self._payments.pay(
            call.access.tenant,
            call.path("id"),
            asked.reservation_token,
            idempotency_key=key,
            payment_method=asked.payment_method,
        )
        match paid:
            case PaymentRefused():
                return problem_reply(refused(paid), *(REPLAYED if paid.is_replayed else ()))
            case Rejected():
                return paid
            case Paying():
                # Written out here and nowhere else: it opens the payment for the customer.
                secret = None if paid.client_secret is None else paid.client_secret.reveal()
                reply = json_reply(201, _answer(paid, secret))
                return msgspec.structs.replace(reply, headers=REPLAYED) if paid.is_replayed else reply
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
