"""What Adyen's errors mean for the money. Data; `classification` reads it.

The retry rule (docs/providers.md 3) speaks of the same request under the same key: that is what an Unknown does
anyway, so a transient error is no proof that nothing ran. What no row matches is Unknown: also an error without
`transient-error` (docs/providers.md 1, Differences 1), unless Adyen says that the request itself was wrong. It says so
by status and type; its codes are thousands, and none of them is listed here. So each such refusal is for
`movement.steps.believed` to believe.
"""

from typing import Final

import msgspec

from tallystick.providers.classification import Row, Trouble
from tallystick.providers.http import Reply

# Two houses, two envelopes. Checkout names an `errorType`; the balance platform speaks RFC 7807, which has none.
PLATFORM: Final = "platform"
# An error that speaks of the key, whatever its number: it is about an earlier request.
ABOUT_THE_KEY: Final = "idempotency"

TABLE: Final[tuple[Row, ...]] = (
    # The first request under the key may be running, or may have run.
    Row(code="704", verdict="unknown", source="docs/providers.md 3, In flight / race"),
    # How Adyen answers another body under a used key nobody has seen (docs/providers.md 9): the first may have run.
    Row(type=ABOUT_THE_KEY, verdict="unknown", source="docs/providers.md 9, Open points"),
    # Adyen offers to send again without a key, which tells that this one was turned away. But it does not say how
    # far it had come, and the store of keys is what failed: to send again under the key costs nothing.
    Row(code="703", verdict="unknown", source="docs/providers.md 3, Idempotency store down"),
    # Turned away for its rate, before anything was looked at: that is what 429 means (RFC 6585).
    Row(status=429, verdict="busy", source="RFC 6585, section 4"),
    Row(header=("transient-error", "true"), verdict="unknown", source="docs/providers.md 3, Retry rule"),
    Row(status=401, verdict="needs_person", source="docs/providers.md 3, Auth"),
    Row(status=403, verdict="needs_person", source="docs/providers.md 3, Auth"),
    # The request itself is wrong: 400 could not be read, 422 did not pass validation (POST /payments, /refunds).
    Row(
        status=400, type="validation", verdict="says_refused", source="docs/providers.md 3, Payments, the specification"
    ),
    Row(
        status=422, type="validation", verdict="says_refused", source="docs/providers.md 3, Payments, the specification"
    ),
    Row(status=400, type=PLATFORM, verdict="says_refused", source="docs/providers.md 3, Outbound transfer"),
    Row(status=422, type=PLATFORM, verdict="says_refused", source="docs/providers.md 3, Outbound transfer"),
    Row(status=500, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=502, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=503, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=504, verdict="unknown", source="docs/providers.md 1, Differences 1"),
)


class _Problem(msgspec.Struct, frozen=True, rename="camel"):
    error_code: str
    error_type: str | None = None
    message: str | None = None
    title: str | None = None
    detail: str | None = None
    status: int | None = None


def trouble(reply: Reply) -> Trouble:
    """An error reply, taken apart. A body that is no error of Adyen's has neither type nor code."""
    try:
        problem = msgspec.json.decode(reply.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Trouble(reply=reply, message=f"Adyen answered {reply.status} without an error of its own.")
    message = problem.message or problem.detail or problem.title or ""
    kind = problem.error_type or (PLATFORM if problem.title is not None else "")
    # Any of the three may be the one that says it.
    if any(ABOUT_THE_KEY in (said or "").lower() for said in (problem.message, problem.detail, problem.title)):
        kind = ABOUT_THE_KEY
    is_whole = bool(problem.error_code and message) and problem.status in {None, reply.status}
    return Trouble(reply=reply, type=kind, code=problem.error_code, message=message, is_whole=is_whole)
