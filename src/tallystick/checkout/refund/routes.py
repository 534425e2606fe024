"""The part of the route table that is about refunds, and money that did not fit."""

from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.refund.request.rules import RefundMade
from tallystick.checkout.refund.views import (
    CheckoutPolicy,
    CheckoutPolicyRequest,
    RefundAnswer,
    RefundDecision,
    RefundRequest,
    Refunds,
)
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.parameters import IDEMPOTENCY_KEY, ORDER_ID, REPLAYED, RETRY_AFTER
from tallystick.http.route import Answer, Route


def refund_routes(refunds: Refunds) -> tuple[Route, ...]:
    """Those of refunds and of the checkout policy."""
    return (
        Route(
            method="POST",
            path="/v1/orders/{id}/refund",
            endpoint=refunds.refund,
            name="refund_order",
            group="Orders",
            summary="Give a paid order back, all or in part",
            description=(
                "Any number of parts, each under its key, up to what was paid: what is given back and what is being "
                "given back count together, and a part that the provider refused for good counts no longer. It is "
                "committed with its ledger entries (sales to owed, then to what the provider has taken) before the "
                "provider is asked, and then tried for as long as it takes. 201: the provider has it, and every repeat "
                "of the key has the same answer to the byte. 202: not yet; the same request again tells how it stands, "
                "and the order lists it in `refunds`. With `restock` the order's pieces are for sale again from this "
                "commit on, once for an order. What a late or a second payment took is given back by itself; where a "
                "person must decide about that, see `/refund/decide`."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID, IDEMPOTENCY_KEY),
            body=RefundRequest,
            body_examples=examples.REFUNDS,
            answers={
                201: Answer(
                    description="The provider has it: now, or since an earlier call with this key.",
                    types=(RefundMade,),
                    example=examples.REFUND,
                    headers=(REPLAYED,),
                ),
                202: Answer(
                    description="It is committed, and the provider has not said that it has it.",
                    types=(RefundAnswer,),
                    example=examples.PENDING_REFUND,
                    headers=(RETRY_AFTER,),
                ),
            },
            own_problems=(
                "idempotency_key_missing",
                "idempotency_key_invalid",
                "idempotency_key_too_long",
                "key_reused",
                "amount_not_integer",
                "amount_not_positive",
                "reason_missing",
                "reason_invalid",
                "order_unknown",
                "order_not_paid",
                "refund_too_large",
                "refund_not_possible",
                "refund_refused",
                "already_restocked",
                "order_backordered",
                "insufficient_funds",
                "provider_not_configured",
                "database_restored",
                "in_flight",
                "outcome_unknown",
            ),
        ),
        Route(
            method="POST",
            path="/v1/orders/{id}/refund/decide",
            endpoint=refunds.decide,
            name="decide_refund",
            group="Orders",
            summary="Decide about a payment or a refund that waits for a person",
            description=(
                "Late and second payments are given back by themselves. This is for one with another amount, where "
                "the tenant's policy is `review`: `refund` gives it back, `keep` leaves it in the tenant's sales, "
                "and is refused where the provider does not show it as taken, to that amount. And "
                "for each refund that the order shows with `waits_for_person`, by its `part` where it has one. "
                "`confirm` tells that it went back, as `refund_id` of the provider's, whose books are asked where they "
                "can be. `failed` tells that it did not and will not, as `evidence` shows: refused while those books "
                "show it, or while it may be on its way; a part is then `FAILED`, in the tenant's sales again, and its "
                "amount may be asked for under a new key; all of a payment is still owed. `refund` has one that waits "
                "sent again at once, under the same key, also where nobody can be asked about it after a restore "
                "(`may_have_been_sent_before_the_restore`); of a payment whose refund has `FAILED` it begins the next, "
                "under a key of its own. `keep`, `confirm` and `failed` send nothing and need a second person: they "
                "answer 202 with the approval that waits for him (POST /v1/approvals/{id}). Safe to repeat: what is "
                "decided is refused, and nothing is given back twice."
            ),
            need=Need.WRITE,
            parameters=(ORDER_ID,),
            body=RefundDecision,
            body_examples=examples.REFUND_DECISIONS,
            answers={
                200: Answer(
                    description="The order, with its refund.", types=(OrderView,), example=examples.REFUNDED_ORDER
                ),
                202: Answer(
                    description="`keep`, `confirm` and `failed`: it is so once another person has approved it.",
                    types=(ApprovalView,),
                    example=examples.REFUND_APPROVAL,
                ),
            },
            own_problems=(
                "order_unknown",
                "payment_unknown",
                "refund_part_unknown",
                "payment_decided",
                "refund_not_confirmed",
                "refund_in_flight",
                "evidence_missing",
                "evidence_invalid",
                "second_person_needed",
                "approval_open",
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
