"""The part of the route table that is about payments."""

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment.views import PaymentAnswer, PaymentRequest, Payments, ResolvePaymentRequest
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.parameters import IDEMPOTENCY_KEY, ORDER_ID, REPLAYED, RETRY_AFTER
from tallystick.http.route import Answer, Route


def payment_routes(payments: Payments) -> tuple[Route, ...]:
    """Those of payments."""
    return (
        Route(
            method="POST",
            path="/v1/orders/{id}/pay",
            endpoint=payments.pay,
            name="pay_order",
            group="Orders",
            summary="Charge an order, exactly once",
            description=(
                "Asks the provider for the whole amount of the order. However often it is called, from however many "
                "places, there is one charge. The key is bound to the order, the body and the attempt: a repeat has "
                "the same answer to the byte, `payment_refused` too, and only `client_secret` is fetched from the "
                "provider each time and stored nowhere (null where the provider shows it once, or is away: repeat the "
                "call to have it). With another body or order it is `key_reused`. A new key returns the payment as it "
                "stands, joins an attempt that nobody has an answer to, and after `payment_refused` begins a new one. "
                "Refusals before anything was asked of "
                "the provider leave the key unused. While the provider is silent the answer is 202 and `PENDING`: "
                "nobody knows yet, nothing is recorded, and calling again asks. `AWAITING_CUSTOMER`: the customer "
                "finishes it with `client_secret`. The order is `PAID` when the provider says that its money has come."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID, IDEMPOTENCY_KEY),
            body=PaymentRequest,
            body_examples=examples.PAYMENTS,
            answers={
                201: Answer(
                    description="The provider has the payment: asked for now, or earlier.",
                    types=(PaymentAnswer,),
                    example=examples.PAYMENT,
                    headers=(REPLAYED,),
                ),
                202: Answer(
                    description="Nobody knows yet. Send it again after the seconds in Retry-After, or read the order.",
                    types=(PaymentAnswer,),
                    example=examples.PENDING_PAYMENT,
                    headers=(RETRY_AFTER,),
                ),
            },
            own_problems=(
                "idempotency_key_missing",
                "idempotency_key_invalid",
                "idempotency_key_too_long",
                "key_reused",
                "order_unknown",
                "reservation_token_wrong",
                "order_cancelled",
                "order_expired",
                "order_paid",
                "payment_attempts_exhausted",
                "payment_refused",
                "payment_not_possible",
                "provider_not_configured",
                "database_restored",
                "busy",
                "in_flight",
                "outcome_unknown",
            ),
        ),
        Route(
            method="POST",
            path="/v1/orders/{id}/payment/resolve",
            endpoint=payments.resolve,
            name="resolve_payment",
            group="Orders",
            summary="Close a charge that nobody answered for",
            description=(
                "For a charge that stays `PENDING`: its request or its answer was lost. `never_charged`: you have seen "
                "at the provider that it was never made; it is `FAILED`, and whatever turns up all the same is given "
                "back. `charged`: it was made, as `payment_intent_id`; where the provider can be asked it is, and "
                "believed only if that payment is this charge. The order is then `PAID`, or the money given back if "
                "the order has ended. Journaled with whoever decides."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID, IDEMPOTENCY_KEY),
            body=ResolvePaymentRequest,
            body_examples=examples.PAYMENT_RESOLUTIONS,
            answers={
                200: Answer(
                    description="The order, with its payment.",
                    types=(OrderView,),
                    example=examples.REFUNDED_ORDER,
                    headers=(REPLAYED,),
                )
            },
            own_problems=(
                "idempotency_key_missing",
                "idempotency_key_invalid",
                "idempotency_key_too_long",
                "key_reused",
                "order_unknown",
                "payment_unknown",
                "payment_decided",
                "payment_in_flight",
                "payment_not_confirmed",
                "payment_intent_id_missing",
                "payment_intent_id_unwanted",
                "evidence_missing",
                "evidence_invalid",
                "in_flight",
                "outcome_unknown",
            ),
        ),
    )
