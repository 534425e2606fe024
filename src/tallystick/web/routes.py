"""The route table: every call with its documentation. `/openapi.json` and `/docs` are made from it."""

from typing import Final

from tallystick.core.outcome import Transaction
from tallystick.settings import LIMITS
from tallystick.store.account import AccountView
from tallystick.web import examples
from tallystick.web.access import Need
from tallystick.web.account import AccountPage, AccountRequest, Accounts, EntryPage, PastBalance
from tallystick.web.docs import Documentation
from tallystick.web.health import Health, Vitals
from tallystick.web.operation import BatchOutcomes, Operations
from tallystick.web.parameters import (
    ACCOUNT_ID,
    AT,
    IDEMPOTENCY_KEY,
    LIMIT,
    NUMBERED,
    REPLAYED,
    TRANSACTION_ID,
    VERBOSE,
    cursor,
)
from tallystick.web.route import Answer, Route
from tallystick.web.settlement_routes import KEY_PROBLEMS

_ACCOUNT_PROBLEMS: Final = ("account_invalid", "currency_unknown", "floor_invalid", "limits_invalid")
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


def routes(
    operations: Operations,
    accounts: Accounts,
    flows: tuple[Route, ...],
    vitals: Vitals,
    documentation: Documentation,
) -> tuple[Route, ...]:
    """The table. A path without a parameter stands before one whose parameter it would fit."""
    return (*_operations(operations), *flows, *_accounts(accounts), *_service(vitals, documentation))


def _operations(operations: Operations) -> tuple[Route, ...]:
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


def _accounts(accounts: Accounts) -> tuple[Route, ...]:
    return (
        Route(
            method="PUT",
            path="/v1/accounts/{id}",
            endpoint=accounts.put,
            name="put_account",
            group="Accounts",
            summary="Make or change an account",
            description=(
                "Makes the account, or gives it this floor and these velocity limits; what is left out "
                "returns to its default. The currency never changes. An operator may make accounts with floor 0 and "
                "no limits; what else bounds an account is an administrator's to say."
            ),
            need=Need.WRITE,
            parameters=(ACCOUNT_ID,),
            body=AccountRequest,
            body_examples=examples.ACCOUNTS,
            answers={
                200: Answer(description="It was there; it is now like this.", types=(AccountView,)),
                201: Answer(description="It was made.", types=(AccountView,), example=examples.ACCOUNT),
            },
            own_problems=(
                *_ACCOUNT_PROBLEMS,
                "account_reserved",
                "currency_mismatch",
                "floor_above_balance",
                "in_flight",
                "outcome_unknown",
            ),
        ),
        Route(
            method="GET",
            path="/v1/accounts/{id}",
            endpoint=accounts.read,
            name="read_account",
            group="Accounts",
            summary="Read an account, or its balance at a moment",
            description="With `at`, the balance and the number of entries at the end of that moment.",
            need=Need.READ,
            parameters=(ACCOUNT_ID, AT),
            answers={
                200: Answer(description="The account.", types=(AccountView, PastBalance), example=examples.ACCOUNT)
            },
            own_problems=("account_invalid", "account_unknown"),
        ),
        Route(
            method="GET",
            path="/v1/accounts",
            endpoint=accounts.list,
            name="list_accounts",
            group="Accounts",
            summary="List accounts",
            description="This tenant's accounts, by id.",
            need=Need.READ,
            parameters=(cursor({"$ref": "#/components/schemas/AccountId"}), LIMIT),
            answers={200: Answer(description="A page.", types=(AccountPage,), example=examples.ACCOUNT_PAGE)},
        ),
        Route(
            method="GET",
            path="/v1/accounts/{id}/entries",
            endpoint=accounts.entries,
            name="list_entries",
            group="Accounts",
            summary="List an account's entries",
            description="Newest first, each with the balance after it. Pages do not shift.",
            need=Need.READ,
            parameters=(ACCOUNT_ID, NUMBERED, LIMIT),
            answers={200: Answer(description="A page.", types=(EntryPage,), example=examples.ENTRY_PAGE)},
            own_problems=("account_invalid", "account_unknown"),
        ),
    )


def _service(vitals: Vitals, documentation: Documentation) -> tuple[Route, ...]:
    return (
        Route(
            method="GET",
            path="/livez",
            endpoint=vitals.live,
            name="live",
            group="Service",
            summary="Is the process alive?",
            description="Answers as long as the process turns, whatever the database does.",
            answers={200: Answer(description="Alive.", types=(Health,), example={"status": "alive"})},
        ),
        Route(
            method="GET",
            path="/readyz",
            endpoint=vitals.ready,
            name="ready",
            group="Service",
            summary="Can it serve?",
            description="Names the checks that fail: the database, the queue.",
            parameters=(VERBOSE,),
            answers={
                200: Answer(description="Ready.", types=(Health,), example={"status": "ready"}),
                503: Answer(
                    description="Not ready.",
                    types=(Health,),
                    example={"status": "not ready", "failed": ["database"]},
                ),
            },
        ),
        Route(
            method="GET",
            path="/metrics",
            endpoint=vitals.metrics,
            name="metrics",
            group="Service",
            summary="Counts for Prometheus",
            description="Requests, operations by outcome, the engine's queue and batches, providers, settlements.",
            answers={200: Answer(description="Prometheus's text format.", media_type="text/plain")},
        ),
        Route(
            method="GET",
            path="/openapi.json",
            endpoint=documentation.document,
            name="openapi",
            group="Service",
            summary="This document, for programs",
            description="OpenAPI 3.1.",
            answers={200: Answer(description="The document.", types=(dict,))},
        ),
        Route(
            method="GET",
            path="/docs",
            endpoint=documentation.page,
            name="docs",
            group="Service",
            summary="This document, for people",
            description="One page, nothing loaded from elsewhere.",
            answers={200: Answer(description="The page.", media_type="text/html")},
        ),
    )
