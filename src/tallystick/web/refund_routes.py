"""The part of the route table that is about money that did not fit."""

from tallystick.store.order import OrderView
from tallystick.web import examples
from tallystick.web.access import Need
from tallystick.web.parameters import ORDER_ID
from tallystick.web.refund import CheckoutPolicy, CheckoutPolicyRequest, RefundRequest, Refunds
from tallystick.web.route import Answer, Route


def refund_routes(refunds: Refunds) -> tuple[Route, ...]:
    """Those of refunds and of the checkout policy."""
    return (
        Route(
            method="POST",
            path="/v1/orders/{id}/refund",
            endpoint=refunds.decide,
            name="decide_refund",
            group="Orders",
            summary="Decide about a payment that waits for a person",
            description=(
                "Late and second payments are given back by themselves. This is for one with another amount, where "
                "the tenant's policy is `review`: `refund` gives it back, `keep` leaves it in the tenant's sales. And "
                "for one whose refund has `FAILED` for good: `refund` begins the next, under a key of its own. "
                "`confirm` tells that it went back already, as `refund_id` of the provider's, whose books are asked "
                "where they can be; nothing is sent. Safe to repeat: what is decided is refused, and nothing is given "
                "back twice."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID,),
            body=RefundRequest,
            body_examples=examples.REFUND_DECISIONS,
            answers={
                200: Answer(
                    description="The order, with its refund.", types=(OrderView,), example=examples.REFUNDED_ORDER
                )
            },
            own_problems=(
                "order_unknown",
                "payment_unknown",
                "payment_decided",
                "refund_not_confirmed",
                "provider_not_configured",
                "database_restored",
                "in_flight",
                "outcome_unknown",
            ),
        ),
        Route(
            method="GET",
            path="/v1/checkout-policy",
            endpoint=refunds.policy,
            name="read_checkout_policy",
            group="Orders",
            summary="Read what is done with money that does not fit",
            description="The tenant's choice, or the default: give it back.",
            need=Need.READ,
            answers={200: Answer(description="The policy.", types=(CheckoutPolicy,), example=examples.CHECKOUT_POLICY)},
        ),
        Route(
            method="PUT",
            path="/v1/checkout-policy",
            endpoint=refunds.put_policy,
            name="put_checkout_policy",
            group="Orders",
            summary="Choose what is done with money that does not fit",
            description=(
                "For payments that are decided from now on. `late`, after the sweeper has cancelled: `refund`, or "
                "`backorder`, which makes the order `PAID` and delivers when there is stock. `other_amount`, than the "
                "order's: `refund`, or `review` by a person. What is left out is `refund`. Needs a key of the role "
                "admin, and is journaled with it."
            ),
            need=Need.ADMIN,
            body=CheckoutPolicyRequest,
            body_examples=examples.CHECKOUT_POLICIES,
            answers={
                200: Answer(
                    description="It is now like this.", types=(CheckoutPolicy,), example=examples.CHECKOUT_POLICY
                )
            },
            own_problems=("in_flight", "outcome_unknown"),
        ),
    )
