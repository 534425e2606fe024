"""What `explain` says: a name, a summary, and steps in the order they happened."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import asyncpg
import msgspec

from tallystick.movement.store import IntentView
from tallystick.providers.words import Exchange


class ExplainedStep(msgspec.Struct, frozen=True):
    """One thing that happened."""

    at: datetime
    what: str


class Explanation(msgspec.Struct, frozen=True):
    """What was found under a name, and its timeline."""

    what: str
    id: str
    summary: str
    timeline: tuple[ExplainedStep, ...]


class Known(msgspec.Struct, frozen=True):
    """All that was found under a name. `unfinished`: what could not be searched to its end in time."""

    found: tuple[Explanation, ...] = ()
    unfinished: tuple[str, ...] = ()


def attempt_steps(found: IntentView) -> Iterator[ExplainedStep]:
    """Every attempt of an intent, with what was answered and the provider's own ids of the requests."""
    yield ExplainedStep(found.first_sent_at, f"first sent: {found.instruction.decode()}")
    for attempt in found.attempts:
        yield ExplainedStep(
            attempt.sent_at, f"attempt {attempt.number} may be written until {attempt.not_after:%H:%M:%S.%f}"
        )
        if attempt.answered_at is None:
            continue
        what = " ".join(filter(None, (attempt.answer, attempt.provider_id, attempt.code)))
        for exchange in msgspec.json.decode(attempt.evidence or b"[]", type=list[Exchange]):
            yield ExplainedStep(attempt.answered_at, f"attempt {attempt.number}: {exchange_text(exchange)}")
        yield ExplainedStep(attempt.answered_at, f"attempt {attempt.number} answered: {what}")


def approval_steps(row: asyncpg.Record) -> Iterator[ExplainedStep]:
    """What was asked of a second person, and what he said."""
    name = f"ap_{row['id'].hex}"
    yield ExplainedStep(
        row["asked_at"],
        f"{name}: {row['asked_by']} asked for {_wanted(row)}: {row['reason']}; evidence {row['evidence'] or 'none'}",
    )
    if row["decision"] is not None:
        yield ExplainedStep(
            row["decided_at"], f"{name}: {row['decision']} by {row['decided_by']}: {row['decided_why']}"
        )


def waiting(approvals: Sequence[asyncpg.Record]) -> str:
    """For a summary: what is not decided."""
    return "".join(
        f"; ap_{row['id'].hex} waits for another person than {row['asked_by']}"
        for row in approvals
        if row["decision"] is None
    )


def _wanted(row: asyncpg.Record) -> str:
    return f"generation {row['generation']}" if row["action"] == "new_generation" else "a second person's consent"


def exchange_text(exchange: Exchange) -> str:
    """One request to a provider, and what came back."""
    answer = exchange.status or "no answer"
    return f"{exchange.asked} -> {answer} {exchange.request_id} {exchange.said}".rstrip()
