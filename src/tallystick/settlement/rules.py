"""Settlement: what to do next about a payout.

Pure. The caller passes the time (the database's), the provider's facts, what was sent so far and what came of it.

    held ─────> pending                      a second person agreed; until then nobody claims it
    pending ──> processing ──> transferred   the provider has it
       ^            │     ──> failed         the provider refused it for good, or the budget ran out in a known state
       │            │     ──> processing     no answer yet, or busy: asked again, same key
       │            └───────> disputed       nobody can tell, or it came back: a person decides
       └─ failed, by a new generation: a recorded final failure and a second person's approval

    transferred, failed ──> disputed         by a person, or because the provider says otherwise later
    disputed ──> transferred | failed | processing (same key)

What was sent, and what to do next about it, is `movement.steps`'.
"""

from collections.abc import Mapping
from typing import Final, Literal

from tallystick.movement.steps import Disputed, Failed, Happened, Verdict, Wait
from tallystick.providers.words import Movement

Status = Literal["held", "pending", "processing", "transferred", "failed", "disputed"]
STATUSES: Final[tuple[Status, ...]] = ("held", "pending", "processing", "transferred", "failed", "disputed")

# News that is a person's whatever state the movement is in, by the event's type (docs/providers.md 5, Event).
ALARMS: Final[Mapping[str, str]] = {"transfers#payout-failure": "payout_failed_at_the_provider"}


def status_after(verdict: Verdict) -> Status:
    """How a settlement stands by what became of its instruction."""
    match verdict:
        case Wait():
            return "processing"
        case Happened():
            return "transferred"
        case Failed():
            return "failed"
        case Disputed():
            return "disputed"


def after_movement(
    status: Status,
    transfer_id: str | None,
    movement: Movement,
    *,
    is_live_key: bool,
    amount_micros: int,
    currency: str,
    alarm: str | None = None,
) -> Disputed | None:
    """What news from the provider's books (a webhook, a list) means for a row. None: nothing new.

    Only news that contradicts what we believe changes a row, and never towards a state in which the money could be
    sent again. `is_live_key` False: it moved under the key of an earlier generation, which was believed to have failed
    (unless a person confirmed that very movement). `alarm`: the provider says that something went wrong with it
    (`ALARMS`), whatever its books call its state so far.
    """
    has_moved = movement.state in ("waiting", "moving", "moved")
    if status == "disputed":
        return None
    if not is_live_key and movement.id != transfer_id:
        return (
            Disputed("earlier_generation_moved", movement.id, is_double=status == "transferred") if has_moved else None
        )
    match status:
        case "processing":
            # Recovery asks by itself, and decides with all that was sent before it.
            return None
        case "held" | "pending":
            return Disputed("moved_before_it_was_sent", movement.id) if has_moved else None
        case "failed":
            return Disputed("moved_after_failed", movement.id) if has_moved else None
        case "transferred":
            if transfer_id is not None and movement.id != transfer_id:
                return Disputed("moved_twice", is_double=True) if has_moved else None
            if not has_moved:
                return Disputed(f"{movement.state}_after_transferred", transfer_id)
            if (movement.amount_micros, movement.currency) != (amount_micros, currency):
                return Disputed("amount_differs", transfer_id)
            return None if alarm is None else Disputed(alarm, transfer_id)


def fee_micros(gross_micros: int, *, percent_ppm: int, fixed_micros: int, minimum_micros: int) -> int:
    """The platform's part: a share in parts per million, rounded down to the micro, and a fixed part."""
    return max(minimum_micros, fixed_micros + gross_micros * percent_ppm // 1_000_000)
