"""What a person may decide about money that waits for him, and when. Pure.

    a payment in REVIEW ────────────────> refund    it goes back, by a refund of its own
                                          keep      it stays with the tenant
                                          confirm   it went back already
    a refund PENDING, with a reason ────> refund    now and not in an hour, under the key it has
                                          confirm   it went back: COMPLETED
                                          failed    it did not, and will not: FAILED
    the saga's refund, FAILED ──────────> refund    the next generation: it is still owed
                                          confirm   it went back in another way
    a part that was asked for, FAILED ──> nothing   it is the tenant's again, and asked for again under a new key

`failed` is not believed of what the provider's books show, or what may still be on its way there: the amount of a part
is free again from then on, and a saga's refund is made anew under another key. `keep` is not believed of a payment that
the provider does not show as taken, to the amount that was told of: it would be sold, and nobody would look again.
"""

from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from tallystick.checkout.payment.rules import Status
from tallystick.checkout.refund.rules import waits_for
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import format_amount
from tallystick.movement.steps import History
from tallystick.providers.words import Absent, Looked, Movement, Undecided

Decision = Literal["refund", "keep", "confirm", "failed"]
# These need a second person.
Wanted = Literal["keep", "confirm", "failed"]
# Of what shows it: enough for a paragraph.
MOST_WORDS: Final = 2_000
# An adapter whose provider shows no refunds says so with this code.
_GONE: Final = ("failed", "returned")
IN_FLIGHT: Final = Rejected(
    "refund_in_flight",
    "The refund may still be on its way to the provider: what is seen there now proves nothing.",
    "Look again, and send the same request, in a few minutes. Nothing was changed.",
)


class RefundStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A payment and the newest refund of it, or of the part that is meant. `status` None: there is none."""

    fate: str
    is_part: bool
    status: Status | None
    reason: str | None


def permitted(standing: RefundStanding) -> tuple[Decision, ...]:
    """What may be decided about it as it stands."""
    if standing.fate == "REVIEW" and not standing.is_part:
        return ("refund", "keep", "confirm")
    waits = standing.status is not None and waits_for(standing.status, standing.reason, is_part=standing.is_part)
    if not waits:
        return ()
    return ("refund", "confirm", "failed") if standing.status == "PENDING" else ("refund", "confirm")


def is_next_generation(standing: RefundStanding) -> bool:
    """Whether to give it back needs another key: only what is known to have failed for good has one."""
    return standing.status == "FAILED"


def on_its_way(history: History, *, now: datetime, in_flight: timedelta) -> Rejected | None:
    """Why it cannot be called failed yet: of what was sent, something may still arrive at the provider."""
    if history.done_as is not None:
        return _contradicted(f"it answered that it has it, as {history.done_as}")
    if history.not_after is not None and now < history.not_after + in_flight:
        return IN_FLIGHT
    return None


def books_on_failure(looked: Looked, history: History, *, account: str, can_be_asked: bool) -> str | Rejected:
    """What the provider's books say to it that a refund did not happen: their word, or why it is not believed."""
    if not can_be_asked:
        return "nothing: it shows no refunds"
    if history.account not in (None, account):
        return _contradicted("it was sent with another account, whose books cannot be asked here")
    match looked:
        case Absent():
            return "its books do not show it"
        case Undecided(code=code):
            return _contradicted(f"its books could not be asked: {code}")
        case _:
            there = [one for one in looked.movements if one.state not in _GONE]
            if there:
                return _contradicted(f"its books show it, as {there[0].id}")
            return f"its books show that it {looked.movements[0].state}"


def doubt(movement: Movement, *, payment_intent_id: str, amount_micros: int, currency: str) -> str | None:
    """Why a refund in the provider's books is not the one that is meant."""
    if movement.state in _GONE:
        return f"the provider says that it {movement.state}"
    if (movement.parent, movement.amount_micros, movement.currency) != (payment_intent_id, amount_micros, currency):
        return "it gave back another payment, or another amount"
    return None


def doubt_on_keeping(movement: Movement, *, amount_micros: int, currency: str) -> str | None:
    """Why a payment in the provider's books is not one that can stay: what it shows is not what was told of."""
    if movement.state != "moved":
        return f"it says that the payment is {movement.status} ({movement.state})"
    if (movement.amount_micros, movement.currency) != (amount_micros, currency):
        shown = format_amount(movement.amount_micros, movement.currency)
        return f"it took {shown}, and {format_amount(amount_micros, currency)} was told of"
    return None


def evidence_fault(wanted: Wanted, evidence: str | None) -> Rejected | None:
    """Why what shows it cannot be kept. That something did not happen, only a person's own look shows."""
    if wanted == "failed" and not (evidence or "").strip():
        return Rejected(
            "evidence_missing",
            "The refund would be called failed without a word on what shows it.",
            "Say what you looked at and what it showed: the provider's dashboard, a statement, a reply of theirs.",
            ("evidence",),
        )
    if evidence is not None and (len(evidence) > MOST_WORDS or not _is_storable(evidence)):
        return Rejected(
            "evidence_invalid",
            "The evidence is not text that can be kept.",
            f"Send up to {MOST_WORDS} characters.",
            ("evidence",),
        )
    return None


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _contradicted(why: str) -> Rejected:
    return Rejected(
        "refund_not_confirmed",
        f"That this refund did not happen the provider does not bear out: {why}.",
        "Where it has the refund, confirm it by its id; where it could not be asked, send the same request when it "
        "answers again. Nothing was changed.",
    )
