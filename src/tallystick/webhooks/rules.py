"""Webhooks: what becomes of an event that a provider told us. Pure.

UNPROCESSED ──> IN_PROCESSING ──> PROCESSED_OK            nothing more to do
     ^               │       ──> PROCESSED_COMPENSATED   it came too late, and was made good
     ├───────────────┤       ──> DEAD_LETTER             it failed by itself, too often: a person looks
     │               └── outage, or a failure that may pass: later
     └── a lease that ran out is taken over; a dead letter is tried again by a person
"""

from hashlib import sha256
from typing import Final, Literal

import msgspec

from tallystick.providers.words import Absent, Done, Fetched, Movement, NotShown, Undecided

Status = Literal["UNPROCESSED", "IN_PROCESSING", "PROCESSED_OK", "PROCESSED_COMPENSATED", "DEAD_LETTER"]
STATUSES: Final[tuple[Status, ...]] = (
    "UNPROCESSED",
    "IN_PROCESSING",
    "PROCESSED_OK",
    "PROCESSED_COMPENSATED",
    "DEAD_LETTER",
)

# Bytes that an index entry and a column hold without trouble. Providers' ids are far shorter.
_MOST_KEY_BYTES: Final = 500
_MOST_TYPE_CHARACTERS: Final = 200
_MOST_REASON_CHARACTERS: Final = 1_000


class Ok(msgspec.Struct, frozen=True):
    """Done with it; nothing more to do. `reason`: why nothing was done, where somebody may wonder."""

    reason: str = ""


class Compensated(msgspec.Struct, frozen=True):
    """Done with it: it came too late, and what it told of was undone."""


class Recorded(msgspec.Struct, frozen=True):
    """The handler wrote the event's end itself, in the commit of what it did; or found that the claim was lost."""


class Failed(msgspec.Struct, frozen=True):
    """The event itself is the trouble. Counted; after so many it is a dead letter."""

    reason: str


class Postponed(msgspec.Struct, frozen=True):
    """Something else is the trouble: an outage. Not counted, however long it lasts."""

    reason: str
    after_seconds: float


# What the flow writes on the row; and what it must not write again.
Ended = Ok | Compensated | Failed | Postponed
EventOutcome = Ended | Recorded


class End(msgspec.Struct, frozen=True):
    """What to write on the row. `after_seconds` is when an UNPROCESSED one is due again."""

    status: Status
    tries: int
    reason: str | None = None
    after_seconds: float = 0.0


def end(
    outcome: Ended,
    *,
    tries: int,
    most_tries: int,
    first_pause_seconds: float,
    longest_pause_seconds: float,
) -> End:
    """How the row stands after an outcome. `tries` are the failures before it."""
    match outcome:
        case Ok(reason=reason):
            return End("PROCESSED_OK", tries, _short(reason) or None)
        case Compensated():
            return End("PROCESSED_COMPENSATED", tries)
        case Postponed(reason=reason, after_seconds=after_seconds):
            return End("UNPROCESSED", tries, _short(reason), after_seconds)
        case Failed(reason=reason):
            if tries + 1 >= most_tries:
                return End("DEAD_LETTER", tries + 1, _short(reason) or "no reason was given")
            # Doubled each time: what passes by itself passes soon, and what does not must not be tried all day.
            pause = min(first_pause_seconds * (1 << min(tries, 30)), longest_pause_seconds)
            return End("UNPROCESSED", tries + 1, _short(reason), pause)


def after_fetch(answer: Fetched, *, outage_seconds: float) -> Movement | Ended:
    """The movement that an event only named, or what becomes of the event without it."""
    match answer:
        case Done(movement=movement):
            return movement
        case Absent():
            # The provider says so itself: to ask again would change nothing.
            return Ok("the provider has nothing of that id")
        case NotShown(message=message):
            return Ok(message)
        case Undecided(code=code, message=message, may_pass=False):
            # Not shown to us, or not to be read: somebody else's, perhaps. Without an end it would be asked for ever.
            return Failed(f"{code}: {message}")
        case Undecided(code=code, message=message):
            # No answer, an error of the provider's, credentials that it does not take: none of it the event's fault.
            return Postponed(f"{code}: {message}", outage_seconds)


def kept_object(object_id: str) -> str | None:
    """What an event names, as far as it can be kept and asked for; None: nothing."""
    is_kept = object_id != "" and object_id.isprintable() and len(object_id.encode()) <= _MOST_KEY_BYTES
    return object_id if is_kept else None


def kept_key(dedup_key: str) -> str:
    """The key in a form that can be kept: itself, or a digest of one that is too long or odd. Equal keys stay equal."""
    # No character takes more than four bytes: most keys need no encoding to be known as short.
    if dedup_key.isprintable() and len(dedup_key) * 4 <= _MOST_KEY_BYTES:
        return dedup_key
    encoded = dedup_key.encode("utf-8", "surrogatepass")
    if dedup_key.isprintable() and len(encoded) <= _MOST_KEY_BYTES:
        return dedup_key
    return f"sha256:{sha256(encoded).hexdigest()}"


def kept_type(kind: str) -> str:
    """The event's type as a label. One that is too long is cut; the body has it whole."""
    return kind if len(kind) <= _MOST_TYPE_CHARACTERS else kind[:_MOST_TYPE_CHARACTERS]


def _short(reason: str) -> str:
    # What cannot be stored as text must not keep the rest from being stored.
    return reason.replace("\0", "").encode("utf-8", "replace").decode()[:_MOST_REASON_CHARACTERS]
