"""Giving a payment back: what to do next about a refund that is owed. Pure.

From its commit on a refund is the financial sweeper's, until the provider has it or has refused it for good:

    never sent, or known not to have run ──> Send     the same key
    may have run ──────────────────────────> LookUp   the provider's books first, wherever it has any; not there: the
                                                      same key again, while the provider knows it
    an answer known ───────────────────────> recorded
    nobody can tell ───────────────────────> Hold     a person should look; it is asked about again all the same
    a lost life may have made it ──────────> LookUp   wherever there are books; elsewhere Hold, for a person

An outage is not a try: there is no number of tries after which a refund that is owed is given up. Pauses double from a
second to an hour, spread out. A refusal is not believed before the books were asked: "already refunded" may be ours.
"""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from tallystick.checkout.payment.rules import Entry, Hold, Resend, Status
from tallystick.keys.derived import refund_key
from tallystick.movement import steps
from tallystick.movement.steps import (
    KEY_DIFFERS,
    Disputed,
    Failed,
    Happened,
    History,
    LookUp,
    Patience,
    Send,
    Verdict,
    Wait,
    ask_first,
)
from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Facts,
    Looked,
    Lookup,
    Refund,
    Refused,
    Unknown,
)

FIRST_PAUSE: Final = timedelta(seconds=1)
LONGEST_PAUSE: Final = timedelta(hours=1)
# Past this, a pause is the longest anyway.
_MOST_DOUBLINGS: Final = 12
# It is never given up; the pause alone grows with the tries.
_NO_BUDGET: Final = 2**31
# Each is a person's decision about a refund that has failed.
_LATER_GENERATIONS: Final = 3
# Two persons have found that the provider did not give it back, and will not.
NOT_GIVEN_BACK: Final = "not_given_back"


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A refund as the log has it."""

    key: bytes
    tenant: str
    order_id: UUID
    generation: int
    provider: str
    payment_intent_id: str
    amount_micros: int
    currency: str
    status: Status
    refund_id: str | None
    reason: str | None
    claim_number: int
    tries: int
    due_at: datetime
    # When giving it back was first owed, over all its generations.
    since: datetime
    # Of what was asked for; None: all of it, by the saga.
    part: bytes | None = None
    # A life that was lost may have made it: its books are asked before anything of it is sent.
    ask_first: bool = False


class RefundView(msgspec.Struct, frozen=True, kw_only=True):
    """How a refund stands. COMPLETED: the provider has it. `reason`: why it is owed, or why it failed.

    `part`: the key under which its tenant asked for it; null: all of a payment that did not fit. `waits_for_person`:
    why only a person can go on with it (`/refund/decide`); null: nobody needs to.
    """

    status: Status
    payment_intent_id: str
    refund_id: str | None
    amount_micros: int
    currency: str
    reason: str | None
    created_at: datetime
    completed_at: datetime | None
    part: str | None = None
    waits_for_person: str | None = None


def waits_for(status: Status, reason: str | None, *, is_part: bool, is_newest: bool = True) -> str | None:
    """Why a refund waits for a person; None: it does not.

    What the saga could not give back is owed, until a later generation is; a part that failed is its tenant's again.
    """
    if status == "PENDING" or (status == "FAILED" and not is_part and is_newest):
        return reason
    return None


def patience(stuck_after: timedelta) -> Patience:
    """How refunds are tried: for ever."""
    return Patience(stuck_after=stuck_after, budget=_NO_BUDGET)


def pause(tries: int, jitter: float) -> timedelta:
    """Before the next try. `jitter` is from 0 to 1: those that failed together must not come back together."""
    full: timedelta = min(FIRST_PAUSE * 2 ** min(tries, _MOST_DOUBLINGS), LONGEST_PAUSE)
    return max(FIRST_PAUSE, full * (0.5 + jitter / 2))


def next_step(
    owed: Owed,
    history: History,
    *,
    account: str,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
    jitter: float,
) -> Resend | LookUp | Entry:
    """What to do about a refund that is due."""
    if owed.ask_first and owed.key != key_of(owed):
        return Hold(now + LONGEST_PAUSE, owed.tries + 1, KEY_DIFFERS)
    step = steps.next_step(history, tries=0, account=account, lookup=lookup, now=now, facts=facts, patience=patience)
    if owed.ask_first:
        step = ask_first(step, history, lookup=lookup)
    match step:
        case Send():
            return Resend(owed.tries)
        case LookUp():
            return step
        case Failed() if lookup is not Lookup.NONE:
            # A refusal whose claim was lost. The books may know better.
            return LookUp()
        case _:
            return entry_of(step, tries=owed.tries, now=now, jitter=jitter)


def after_look(
    owed: Owed,
    history: History,
    looked: Looked,
    *,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
    jitter: float,
) -> Resend | Entry:
    """What the provider's books make of a refund whose outcome is unknown.

    Absence after a server error proves nothing, and is not taken for a proof: what is sent again is sent under the same
    key while the provider knows it, and no provider gives more of a payment back than it took. A payout has only the
    first of the two, so it waits for a person; a refund that did would be owed for ever after every 503.
    """
    step = steps.after_look(
        msgspec.structs.replace(history, server_error=history.server_error and not isinstance(looked, Absent)),
        looked,
        tries=0,
        amount_micros=owed.amount_micros,
        currency=owed.currency,
        lookup=lookup,
        now=now,
        facts=facts,
        patience=patience,
    )
    if isinstance(step, Send):
        if history.refused_as is not None and not history.may_have_run:
            return Failed(history.refused_as)
        return Resend(owed.tries)
    return entry_of(step, tries=owed.tries, now=now, jitter=jitter)


def after_answer(
    owed: Owed, history: History, answer: Answer, *, now: datetime, patience: Patience, jitter: float
) -> Entry:
    """What an answer makes of the log. `history` is that of the attempts before it."""
    if isinstance(answer, Busy):
        # Known not to have run. It waits as long as it is told to, and longer each time.
        wait = max(pause(owed.tries, jitter), min(timedelta(seconds=answer.after_seconds), LONGEST_PAUSE))
        return Hold(now + wait, owed.tries + 1, answer.code if answer.needs_person else None)
    verdict = steps.after_answer(history, answer, tries=0, now=now, patience=patience)
    return entry_of(verdict, tries=owed.tries, now=now, jitter=jitter)


def after_refusal(refused: Entry, looked_at: Entry | Resend, *, code: str, tries: int, now: datetime) -> Entry:
    """A refusal, once the books were asked about it. They decide where they show the refund, or cannot tell.

    One that may not be believed, because an earlier send may have run, is for a person at once: to send it again alone
    would bring the same refusal.
    """
    if isinstance(refused, Failed):
        return refused if isinstance(looked_at, Resend) else looked_at
    if isinstance(looked_at, Resend):
        return Hold(now + LONGEST_PAUSE, tries + 1, code)
    if isinstance(looked_at, Hold) and looked_at.reason is None:
        return msgspec.structs.replace(looked_at, reason=code)
    return looked_at


def refusal_code(answer: Answer) -> str | None:
    """The code of an answer that refuses, for good or by its words; None where it does not."""
    refuses = isinstance(answer, Refused) or (isinstance(answer, Unknown) and answer.says_refused)
    return answer.code if refuses and not isinstance(answer, Done) else None


def entry_of(verdict: Verdict, *, tries: int, now: datetime, jitter: float) -> Entry:
    """A verdict about a movement, as a refund's log has it."""
    match verdict:
        case Happened() | Failed():
            return verdict
        case Wait(until, _):
            return Hold(max(until, now + pause(tries, jitter)), tries + 1)
        case Disputed("returned"):
            return Failed("returned_at_the_provider")
        case Disputed():
            # Nobody can tell whether it went back. It stays owed, and nothing is sent beside it.
            return Hold(now + LONGEST_PAUSE, tries + 1, verdict.reason)


def later_refund_keys(owed: Owed) -> tuple[bytes, ...]:
    """The keys that its next generations would have. A part has none: it is asked for again under another key."""
    if owed.part is not None:
        return ()
    return tuple(key_of(owed, ahead=ahead) for ahead in range(1, _LATER_GENERATIONS + 1))


def key_of(owed: Owed, *, ahead: int = 0) -> bytes:
    """The key that the content of a refund gives, in this generation or so many ahead of it."""
    return refund_key(
        tenant=owed.tenant,
        currency=owed.currency,
        provider=owed.provider,
        payment_intent_id=owed.payment_intent_id,
        generation=owed.generation + ahead,
        part=owed.part,
    )


def instruction_of(
    *,
    tenant: str,
    provider: str,
    payment_intent_id: str,
    amount_micros: int,
    currency: str,
    generation: int,
    reason: str,
    part: bytes | None = None,
) -> Refund:
    """What is asked of the provider. Whoever finds it owed, and however often, arrives at the same key."""
    return Refund(
        key=refund_key(
            tenant=tenant,
            currency=currency,
            provider=provider,
            payment_intent_id=payment_intent_id,
            generation=generation,
            part=part,
        ),
        payment_id=payment_intent_id,
        amount_micros=amount_micros,
        currency=currency,
        reason=reason,
    )
