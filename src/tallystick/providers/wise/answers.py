"""What Wise's errors mean for the money. Data; `classification` reads it. What no row matches is Unknown.

Making a transfer moves nothing; funding does. So an error that tells what is wrong with the request refuses it when it
answers what comes before a transfer is there, and not when it answers the funding: somebody else may fund what is
there. Wise's codes are not listed, so `movement.steps.believed` decides whether that is the end of it.
"""

from typing import Final, Literal

import msgspec

from tallystick.providers.classification import Row, Trouble
from tallystick.providers.http import Reply

# What `Trouble.type` holds: a list of faults of the request; one of them is our own id; the answer to a funding.
FAULTS: Final = "faults"
OWN_ID: Final = "customerTransactionId"
FUNDING: Final = "funding"
SCA_REQUIRED: Final = "sca_required"
_SCA_HEADER: Final = "x-2fa-approval"
_FORBIDDEN: Final = 403
_MESSAGE_CHARACTERS: Final = 300
_BEFORE_FUNDING: Final = "docs/providers.md 5, Flow: nothing is paid before funding"

TABLE: Final[tuple[Row, ...]] = (
    # How Wise answers a repeated id with other data nobody has seen (docs/providers.md 9): an earlier transfer of ours
    # may be there, and may be funded.
    Row(type=OWN_ID, verdict="unknown", source="docs/providers.md 9, Open points"),
    Row(status=401, verdict="needs_person", source="docs/providers.md 5, Hosts"),
    # On funding a transfer is there, unfunded until a person approves: the saga makes an Unknown of it.
    Row(status=403, code=SCA_REQUIRED, verdict="needs_person", source="docs/providers.md 5, SCA"),
    Row(status=403, verdict="needs_person", source="docs/providers.md 5, SCA"),
    # The header X-Rate-Limited-By names the limiter that turned the request away.
    Row(status=429, verdict="busy", source="docs/providers.md 5, Rate limit"),
    # A second funding, or a key in flight: the saga asks; whoever does not, must not guess.
    Row(status=409, verdict="unknown", source="docs/providers.md 5, Duplicate guards"),
    Row(status=400, type=FAULTS, verdict="says_refused", source=_BEFORE_FUNDING),
    Row(status=422, type=FAULTS, verdict="says_refused", source=_BEFORE_FUNDING),
    Row(status=408, verdict="unknown", source="docs/providers.md 5, Funding has no key"),
    Row(status=500, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=502, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=503, verdict="unknown", source="docs/providers.md 1, Differences 1"),
    Row(status=504, verdict="unknown", source="docs/providers.md 1, Differences 1"),
)


class _Fault(msgspec.Struct, frozen=True):
    code: str
    message: str | None = None
    path: str | None = None


class _Faults(msgspec.Struct, frozen=True):
    errors: list[_Fault]


def trouble(reply: Reply, step: Literal["making", "funding"]) -> Trouble:
    """An error reply, taken apart. Errors of a funding are plain text (docs/providers.md 5, Trap)."""
    try:
        faults = msgspec.json.decode(reply.body, type=_Faults).errors
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        faults = []
    code = faults[0].code if faults else f"status_{reply.status}"
    if reply.status == _FORBIDDEN and _SCA_HEADER in reply.headers:
        code = SCA_REQUIRED
    kind = FAULTS if faults else ""
    if any(fault.path == OWN_ID for fault in faults):
        kind = OWN_ID
    if step == "funding":
        kind = FUNDING
    said = "; ".join(f"{fault.path or ''} {fault.message or fault.code}".strip() for fault in faults)
    message = f"Wise answered {reply.status} to the {step}. {said}".strip()
    is_whole = bool(faults) and all(fault.code for fault in faults)
    return Trouble(reply=reply, type=kind, code=code, message=message[:_MESSAGE_CHARACTERS], is_whole=is_whole)
