"""Every refusal has a status, and every failure says where the money is."""

import ast
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tallystick.database.pool import Database
from tallystick.errors import (
    Busy,
    Faulted,
    InFlight,
    InvariantBroken,
    OutcomeUnknown,
    RateExceeded,
    ShareUsed,
    TooManyGuesses,
    Unreachable,
)
from tallystick.http.access import Doorkeeper
from tallystick.http.call import Call, Reply
from tallystick.http.metrics import Metrics
from tallystick.http.problem import PROBLEMS, failed, refused, retry_after_seconds
from tallystick.http.resource import Resource
from tallystick.http.route import Answer, Route
from tallystick.ledger.outcome import Rejected

SOURCE = Path(__file__).parents[2] / "src" / "tallystick"
# A refusal and its own kinds; the code is what each is given first.
REFUSALS = {"Rejected", "PaymentRefused", "RefundRefused"}
# Makes one, in rules. The providers' functions of that name make an answer of a provider instead.
MAKES_REFUSALS = "_refused"
# Given by a variable where they are raised.
COMPUTED = {
    "day_ceiling_reached",
    "amount_not_integer",
    "amount_not_positive",
    "amount_overflow",
    "idempotency_key_missing",
    "idempotency_key_invalid",
    "idempotency_key_too_long",
    "quantity_not_integer",
    "quantity_not_positive",
    "quantity_too_large",
    "attribution_invalid",
    "squad_invalid",
    "destination_invalid",
    "reason_invalid",
    "evidence_invalid",
    # A provider's own word, told as it is.
    "cannot_push_money",
    # Said by the webhook receiver, by way of a function of its own.
    "webhook_forged",
    "webhook_not_stored",
    "webhook_provider_unknown",
    "webhook_stale",
    "webhook_too_large",
    "webhook_unreadable",
}


def _codes() -> set[str]:
    found = set(COMPUTED)
    for file in SOURCE.rglob("*.py"):
        said_by = REFUSALS | {MAKES_REFUSALS} if file.name == "rules.py" else REFUSALS
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in said_by and node.args:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    found.add(str(code.value))
    return found


def test_every_code_in_the_source_has_a_row() -> None:
    """A code without a row would be answered with 422 by accident."""
    assert _codes() <= PROBLEMS.keys()


def test_the_table_has_no_row_too_many() -> None:
    failures = {failed(error).code for error in _ERRORS}
    assert PROBLEMS.keys() - failures == _codes()


def test_a_users_own_code_is_422() -> None:
    problem = refused(Rejected("too_purple", "It is purple.", "Choose another colour."))
    assert (problem.status, problem.title) == (422, "Too purple")


_ERRORS = (
    Busy(1.5),
    InFlight(10),
    OutcomeUnknown(),
    Unreachable("secret-host:5432"),
    Faulted("secret-kind"),
    InvariantBroken("secret"),
    ShareUsed(0.2),
    TooManyGuesses(3),
    RateExceeded(0.3),
)


@pytest.mark.parametrize(
    ("error", "status", "code", "after"),
    [
        (_ERRORS[0], 503, "busy", 2),
        (_ERRORS[1], 409, "in_flight", 1),
        (_ERRORS[2], 503, "outcome_unknown", 1),
        (_ERRORS[3], 503, "database_unreachable", 1),
        (_ERRORS[4], 500, "handler_failed", None),
        (_ERRORS[5], 500, "internal_error", None),
        (_ERRORS[6], 429, "share_used", 1),
        (_ERRORS[7], 429, "too_many_guesses", 3),
        (_ERRORS[8], 429, "rate_exceeded", 1),
    ],
)
def test_a_failure_says_what_to_do_and_nothing_of_our_inside(
    error: Exception, status: int, code: str, after: int | None
) -> None:
    problem = failed(error)
    assert (problem.status, problem.code, retry_after_seconds(error)) == (status, code, after)
    assert "secret" not in repr(problem)


def test_what_may_have_moved_is_never_said_not_to_have() -> None:
    assert failed(OutcomeUnknown()).money != "No money moved."
    assert failed(RuntimeError()).money != "No money moved."


async def test_a_bug_is_answered_without_its_words() -> None:
    async def broken(_call: Call) -> Reply | Rejected:
        raise RuntimeError("secret")

    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    route = Route(
        method="GET",
        path="/",
        endpoint=broken,
        name="broken",
        group="",
        summary="",
        description="",
        answers={200: Answer(description="")},
    )
    # Never asked: the call needs no key and fails before it reads anything.
    database = Database.__new__(Database)
    metrics = Metrics()
    resource = Resource("/", {"GET": route}, Doorkeeper(database), metrics)
    await resource({"method": "GET", "headers": []}, receive, send)
    problem = json.loads(sent[1]["body"])
    assert (sent[0]["status"], problem["code"]) == (500, "internal_error")
    assert "secret" not in str(problem)


def test_a_full_disk_is_called_one() -> None:
    """Who is on call reads the answer and /readyz, which say the same: make room, instead of looking at the network."""
    error = Unreachable("secret")
    error.__cause__ = asyncpg.DiskFullError("could not extend file secret")
    assert failed(error).detail == "The database has no room left on its disk."
