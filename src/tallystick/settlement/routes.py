"""The part of the route table that is about settlements: creating, looking, reviewing, approving, and the fee."""

from typing import Final

from tallystick.authority.approval_views import Approvals, DecisionRequest, OpenApprovals
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.refund.review.flow import RefundReviewView
from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.idempotency_key import KEY_PROBLEMS
from tallystick.http.parameters import (
    APPROVAL_ID,
    FEE_CURRENCY,
    IDEMPOTENCY_KEY,
    LIMIT,
    NUMBERED,
    REPLAYED,
    SETTLEMENT_ID,
    SQUAD,
    STATUS,
    STUCK,
)
from tallystick.http.route import Answer, Route
from tallystick.settings import LIMITS
from tallystick.settlement.policy_views import FeePolicies, FeePolicy, FeeRequest, SettlementPolicies
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.store import SettlementView
from tallystick.settlement.views import (
    DisputeRequest,
    ResolveRequest,
    SettlementBatch,
    SettlementDetail,
    SettlementOutcomes,
    SettlementPage,
    SettlementRequest,
    Settlements,
)

_CREATE_PROBLEMS: Final = (
    "attribution_invalid",
    "squad_invalid",
    "destination_invalid",
    "amount_not_integer",
    "amount_not_positive",
    "amount_overflow",
    "currency_unknown",
    "account_invalid",
    "account_reserved",
    "account_unknown",
    "provider_not_configured",
    "cannot_push_money",
    "net_not_positive",
    "net_not_payable",
    "settlement_conflict",
    "currency_not_permitted",
    "destination_unknown",
    "destination_waiting",
    "payout_above_ceiling",
    "day_ceiling_reached",
    "second_person_needed",
    "insufficient_funds",
    "currency_mismatch",
    "balance_overflow",
    "velocity_exceeded",
    "key_reused",
    "in_flight",
    "busy",
    "outcome_unknown",
)
_REVIEW_PROBLEMS: Final = (
    *KEY_PROBLEMS,
    "reason_missing",
    "reason_invalid",
    "key_reused",
    "in_flight",
    "outcome_unknown",
)


def settlement_routes(
    settlements: Settlements, approvals: Approvals, policies: SettlementPolicies
) -> tuple[Route, ...]:
    """Those of settlements, of approvals and of the fee."""
    return (
        *_creating(settlements),
        *_looking(settlements),
        *_reviewing(settlements),
        *_approving(approvals),
        *_fees(policies),
    )


def _creating(settlements: Settlements) -> tuple[Route, ...]:
    return (
        Route(
            method="POST",
            path="/v1/settlements",
            endpoint=settlements.create,
            name="create_settlement",
            group="Settlements",
            summary="Promise a payout, exactly once",
            description=(
                "Posts the gross amount from its `source` (without one, `settlement:clearing:CUR`) to the squad's "
                "payable account and, by the tenant's policy, to the fees; a worker then pays it. A source that holds "
                "too little is refused with `insufficient_funds`: nothing was created, and the key is unused. The same "
                "attribution and squad are the same payout: under another key it is answered as it stands, and with "
                "another amount, currency, destination, provider or source it is refused. Beyond the tenant's "
                "authority policy it is refused, or `held` until another person has approved it. What the provider "
                "cannot write stays payable, as `residue_micros`."
            ),
            need=Need.WRITE,
            parameters=(IDEMPOTENCY_KEY,),
            body=SettlementRequest,
            body_examples=examples.SETTLEMENTS,
            answers={
                201: Answer(
                    description="Created now, or earlier under this key: then as it was at that moment.",
                    types=(SettlementView,),
                    example=examples.SETTLEMENT,
                    headers=(REPLAYED,),
                ),
                200: Answer(
                    description="Created earlier under another key: as it stands now. Nothing was moved.",
                    types=(SettlementView,),
                ),
            },
            own_problems=(*KEY_PROBLEMS, *_CREATE_PROBLEMS),
        ),
        Route(
            method="POST",
            path="/v1/settlements/batch",
            endpoint=settlements.create_batch,
            name="create_settlements",
            group="Settlements",
            summary="Promise many payouts",
            description=(
                f"Up to {LIMITS.batch_call} settlements, each with its own `idempotency_key`, on its own: one that is "
                "refused or malformed does not touch the others. A refusal stands in its outcome as the problem that "
                "the single call would have answered."
            ),
            need=Need.WRITE,
            body=SettlementBatch,
            body_examples=examples.SETTLEMENT_BATCH,
            answers={
                200: Answer(
                    description="The outcomes, in order.",
                    types=(SettlementOutcomes,),
                    example=examples.SETTLEMENT_OUTCOMES,
                )
            },
            own_problems=("batch_too_large",),
        ),
    )


def _looking(settlements: Settlements) -> tuple[Route, ...]:
    return (
        Route(
            method="GET",
            path="/v1/settlements",
            endpoint=settlements.list,
            name="list_settlements",
            group="Settlements",
            summary="List settlements",
            description="Newest first, by state, by squad, or those that are stuck. Pages do not shift.",
            need=Need.READ,
            parameters=(STATUS, SQUAD, STUCK, NUMBERED, LIMIT),
            answers={200: Answer(description="A page.", types=(SettlementPage,), example=examples.SETTLEMENT_PAGE)},
        ),
        Route(
            method="GET",
            path="/v1/settlements/{id}",
            endpoint=settlements.read,
            name="read_settlement",
            group="Settlements",
            summary="Read a settlement, with everything that was sent and said",
            description=(
                "How it stands, who works on it, every attempt with the provider's request ids, every question that "
                "was asked of the provider, and every decision of a person."
            ),
            need=Need.READ,
            parameters=(SETTLEMENT_ID,),
            answers={
                200: Answer(
                    description="The settlement.", types=(SettlementDetail,), example=examples.SETTLEMENT_DETAIL
                )
            },
            own_problems=("settlement_unknown",),
        ),
    )


def _reviewing(settlements: Settlements) -> tuple[Route, ...]:
    reviewed = {
        200: Answer(
            description="The settlement as the decision left it; for a repeat, as it was then.",
            types=(ReviewView,),
            example=examples.REVIEW,
            headers=(REPLAYED,),
        )
    }
    return (
        Route(
            method="POST",
            path="/v1/settlements/{id}/dispute",
            endpoint=settlements.dispute,
            name="dispute_settlement",
            group="Settlements",
            summary="Doubt a final state",
            description=(
                "A transferred or failed settlement becomes disputed, and its money goes back in transit until "
                "somebody resolves it. Nothing is sent meanwhile."
            ),
            need=Need.WRITE,
            parameters=(SETTLEMENT_ID, IDEMPOTENCY_KEY),
            body=DisputeRequest,
            body_examples=examples.DISPUTES,
            answers=reviewed,
            own_problems=(
                *_REVIEW_PROBLEMS,
                "evidence_invalid",
                "settlement_unknown",
                "not_disputable",
                "insufficient_funds",
            ),
        ),
        Route(
            method="POST",
            path="/v1/settlements/{id}/resolve",
            endpoint=settlements.resolve,
            name="resolve_settlement",
            group="Settlements",
            summary="Decide a disputed settlement",
            description=(
                "`confirm` makes it transferred, `write_off` makes it failed and the money payable again, `retry` asks "
                "and sends again under the same key. `retry` of a failed settlement needs another key, which only a "
                "second person can approve: the answer then holds the approval that waits for him."
            ),
            need=Need.WRITE,
            parameters=(SETTLEMENT_ID, IDEMPOTENCY_KEY),
            body=ResolveRequest,
            body_examples=examples.RESOLUTIONS,
            answers=reviewed,
            own_problems=(
                *_REVIEW_PROBLEMS,
                "evidence_missing",
                "evidence_invalid",
                "transfer_id_missing",
                "transfer_id_taken",
                "settlement_unknown",
                "not_resolvable",
                "not_retryable",
                "insufficient_funds",
            ),
        ),
    )


def _approving(approvals: Approvals) -> tuple[Route, ...]:
    return (
        Route(
            method="GET",
            path="/v1/approvals",
            endpoint=approvals.list,
            name="list_approvals",
            group="Approvals",
            summary="List what waits for a second person",
            description="Oldest first. What is decided is no longer here; it is read by its id.",
            need=Need.READ,
            parameters=(LIMIT,),
            answers={
                200: Answer(description="Those that wait.", types=(OpenApprovals,), example=examples.OPEN_APPROVALS)
            },
        ),
        Route(
            method="GET",
            path="/v1/approvals/{id}",
            endpoint=approvals.read,
            name="read_approval",
            group="Approvals",
            summary="Read an approval",
            description="What was asked, by whom and why; and the decision, once there is one.",
            need=Need.READ,
            parameters=(APPROVAL_ID,),
            answers={200: Answer(description="The approval.", types=(ApprovalView,), example=examples.APPROVAL)},
            own_problems=("approval_unknown",),
        ),
        Route(
            method="POST",
            path="/v1/approvals/{id}",
            endpoint=approvals.decide,
            name="decide_approval",
            group="Approvals",
            summary="Approve or reject, as another person",
            description=(
                "Approved, a payout that was held is pending, and a failed one is pending again under a new key; "
                "rejected, a held payout is failed and its money payable. Needs a key of the role admin or approver, "
                "and of another person than asked: another key of the same is none."
            ),
            need=Need.APPROVE,
            parameters=(APPROVAL_ID, IDEMPOTENCY_KEY),
            body=DecisionRequest,
            body_examples=examples.DECISIONS,
            answers={
                200: Answer(
                    description="The settlement, where it is about one, and the approval as the decision left them.",
                    types=(ReviewView, RefundReviewView),
                    headers=(REPLAYED,),
                )
            },
            own_problems=(
                *_REVIEW_PROBLEMS,
                "approval_unknown",
                "already_decided",
                "second_person_needed",
                "not_resolvable",
                "payment_unknown",
                "payment_decided",
                "refund_not_confirmed",
                "provider_not_configured",
                "database_restored",
                "currency_not_permitted",
                "destination_unknown",
                "destination_waiting",
                "payout_above_ceiling",
                "day_ceiling_reached",
            ),
        ),
    )


def _fees(policies: SettlementPolicies) -> tuple[Route, ...]:
    return (
        Route(
            method="GET",
            path="/v1/settlement-policies",
            endpoint=policies.list,
            name="list_settlement_policies",
            group="Settlements",
            summary="List the tenant's fees",
            description="What the platform keeps of a settlement, by currency.",
            need=Need.READ,
            answers={200: Answer(description="The fees.", types=(FeePolicies,), example=examples.FEE_POLICIES)},
        ),
        Route(
            method="PUT",
            path="/v1/settlement-policies/{currency}",
            endpoint=policies.put,
            name="put_settlement_policy",
            group="Settlements",
            summary="Change the tenant's fee",
            description=(
                "For settlements created from now on; those that exist keep theirs. What is left out is 0. The default "
                "takes `percent_ppm` alone: a fixed amount would be another value in every currency. Needs a key of "
                "the role admin, and is journaled with it."
            ),
            need=Need.ADMIN,
            parameters=(FEE_CURRENCY,),
            body=FeeRequest,
            body_examples=examples.FEES,
            answers={200: Answer(description="It is now like this.", types=(FeePolicy,), example=examples.FEE_POLICY)},
            own_problems=(
                "currency_unknown",
                "fee_invalid",
                "amount_not_integer",
                "amount_overflow",
                "in_flight",
                "outcome_unknown",
            ),
        ),
    )
