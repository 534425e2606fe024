"""Classification: what a provider's error means for the money. The tables are data, one per provider. Pure.

First match wins; what no row matches is Unknown. So a row is a promise: `refused` and `busy` claim to know that
nothing moved, and must have a source that says so. A row without a code (`says_refused`) claims less: that the provider
means to refuse with this status and type. It counts only where the body is whole, an error of the provider's own, and
even then it is for the flows to believe (`movement.steps.believed`).
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tallystick.providers.http import Reply
from tallystick.providers.line import retry_after_seconds
from tallystick.providers.words import Busy, Exchange, Refused, Unknown

ErrorClass = Literal[
    "refused",  # final, nothing moved
    "says_refused",  # a refusal by its status and type alone: final only where nothing was sent before
    "busy",  # did not run: later, same key
    "needs_person",  # did not run, and waiting alone will not help: credentials, permissions
    "unknown",  # a row that says so has a reason worth reading
]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One error as a provider words it. None matches anything; `header` is (name, value) that must be there."""

    status: int | None = None
    type: str | None = None
    code: str | None = None
    header: tuple[str, str] | None = None
    verdict: ErrorClass
    source: str


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """An error reply, taken apart by its adapter.

    `is_whole`: the body is an error in the provider's own form with nothing missing, and names nothing that was made.
    """

    reply: Reply
    type: str = ""
    code: str = ""
    message: str = ""
    replayed: bool = False
    is_whole: bool = False


_SERVER_ERROR = 500
_DEFAULT_PAUSE_SECONDS = 1.0
_PERSON_PAUSE_SECONDS = 60.0


def row_for(table: Sequence[Row], trouble: Trouble) -> Row | None:
    """The first row that matches, or None."""
    for row in table:
        if (
            (row.status is None or row.status == trouble.reply.status)
            and (row.type is None or row.type == trouble.type)
            and (row.code is None or row.code == trouble.code)
            and (row.header is None or trouble.reply.headers.get(row.header[0], "").lower() == row.header[1])
        ):
            return row
    return None


def classify(table: Sequence[Row], trouble: Trouble, evidence: tuple[Exchange, ...]) -> Refused | Busy | Unknown:
    """What the error means."""
    row = row_for(table, trouble)
    verdict = "unknown" if row is None else row.verdict
    status = f"status_{trouble.reply.status}"
    # A type such as invalid_request_error says nothing to the person who must change the credentials.
    code = trouble.code or (status if verdict == "needs_person" else trouble.type) or status
    match verdict:
        case "refused":
            return Refused(code=code, message=trouble.message, replayed=trouble.replayed, evidence=evidence)
        case "busy" | "needs_person":
            person = verdict == "needs_person"
            pause = retry_after_seconds(trouble.reply) or (_PERSON_PAUSE_SECONDS if person else _DEFAULT_PAUSE_SECONDS)
            return Busy(code=code, message=trouble.message, after_seconds=pause, needs_person=person, evidence=evidence)
        case "unknown" | "says_refused":
            return Unknown(
                code=code,
                message=trouble.message,
                server_error=trouble.reply.status >= _SERVER_ERROR,
                says_refused=verdict == "says_refused" and trouble.is_whole,
                replayed=trouble.replayed,
                evidence=evidence,
            )
