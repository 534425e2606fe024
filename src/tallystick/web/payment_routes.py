"""The part of the route table that is about payments."""

from dataclasses import replace
from typing import Final

from tallystick.web import examples
from tallystick.web.access import Need
from tallystick.web.parameters import IDEMPOTENCY_KEY, ORDER_ID, REPLAYED
from tallystick.web.payment import PaymentAnswer, PaymentRequest, Payments
from tallystick.web.route import Answer, Parameter, Route

_OPTIONAL_KEY: Final = replace(
    IDEMPOTENCY_KEY,
    required=False,
    description="Not needed: the order is the identity. One that is sent must be 1 to 255 visible ASCII characters.",
)
_RETRY_AFTER: Final = Parameter(
    name="Retry-After",
    place="header",
    description="Seconds after which it is worth asking again.",
    schema={"type": "string", "pattern": "^[1-9][0-9]*$"},
)


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
                "places, there is one charge, and every repeat has the same answer: `client_secret` is fetched from "
                "the provider each time and stored nowhere. While the provider is silent the answer is 202 and "
                "`PENDING`: nobody knows yet, and calling again asks. After `payment_refused` the next call is a new "
                "attempt. The order is `PAID` when the provider says that its money has come."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID, _OPTIONAL_KEY),
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
                    headers=(_RETRY_AFTER,),
                ),
            },
            own_problems=(
                "idempotency_key_missing",
                "idempotency_key_invalid",
                "idempotency_key_too_long",
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
    )
