"""The part of the route table that is about operations."""

from typing import Final

from tallystick.http import examples
from tallystick.http.access import Need
from tallystick.http.idempotency_key import KEY_PROBLEMS
from tallystick.http.parameters import IDEMPOTENCY_KEY, REPLAYED, TRANSACTION_ID
from tallystick.http.route import Answer, Route
from tallystick.ledger.outcome import Transaction
from tallystick.ledger.views import BatchOutcomes, Operations
from tallystick.settings import LIMITS

_OPERATION_PROBLEMS: Final = (
    "kind_unknown",
    "amount_not_integer",
    "amount_not_positive",
    "amount_overflow",
    "currency_unknown",
    "account_invalid",
    "memo_invalid",
    "same_account",
    "leg_invalid",
    "legs_missing",
    "legs_unbalanced",
    "release_invalid",
    "insufficient_funds",
    "account_unknown",
    "transaction_unknown",
    "currency_mismatch",
    "already_closed",
    "not_a_boundary",
    "not_refundable",
    "release_too_large",
    "balance_overflow",
    "account_reserved",
    "in_flight",
    "key_reused",
    "velocity_exceeded",
    "handler_failed",
    "busy",
    "outcome_unknown",
)


def operation_routes(operations: Operations) -> tuple[Route, ...]:
    """Those of operations."""
    return (
        Route(
            method="POST",
            path="/v1/operations",
            endpoint=operations.submit,
            name="submit_operation",
            group="Operations",
            summary="Move money, exactly once",
            description=(
                "Runs the operation and answers when it is durable. A refused one leaves no trace and its "
                "key unused. After any failure, the same request with the same key is safe."
            ),
            need=Need.WRITE,
            parameters=(IDEMPOTENCY_KEY,),
            body=operations.request,
            body_examples=examples.OPERATIONS,
            answers={
                201: Answer(
                    description="The transaction: committed now, or earlier under this key.",
                    types=(Transaction,),
                    example=examples.TRANSACTION,
                    headers=(REPLAYED,),
                )
            },
            own_problems=(*KEY_PROBLEMS, *_OPERATION_PROBLEMS),
        ),
        Route(
            method="POST",
            path="/v1/operations/batch",
            endpoint=operations.submit_batch,
            name="submit_batch",
            group="Operations",
            summary="Move money many times",
            description=(
                f"Up to {LIMITS.batch_call} operations, each with its own `idempotency_key`, on its own: "
                "one that is refused or malformed does not touch the others. A refusal stands in its outcome "
                "as the problem that the single call would have answered."
            ),
            need=Need.WRITE,
            body=operations.batch_request,
            body_examples=examples.BATCH,
            answers={
                200: Answer(
                    description="The outcomes, in order.",
                    types=(BatchOutcomes,),
                    example=examples.BATCH_OUTCOMES,
                )
            },
            own_problems=("batch_too_large",),
        ),
        Route(
            method="GET",
            path="/v1/operations/{id}",
            endpoint=operations.read,
            name="read_operation",
            group="Operations",
            summary="Read a transaction",
            description="The transaction as its first caller was answered, to the byte.",
            need=Need.READ,
            parameters=(TRANSACTION_ID,),
            answers={200: Answer(description="The transaction.", types=(Transaction,), example=examples.TRANSACTION)},
            own_problems=("transaction_unknown",),
        ),
    )
