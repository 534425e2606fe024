"""Steps: what to do next about an instruction of which something may have been sent. Of a payout, a charge, a refund.

Pure. The caller passes the time (the database's), the provider's facts, what was sent so far and what came of it.
Recovery asks before it repeats: see `next_step` and `after_look`. "Unknown" below means that an attempt may have run:
it was answered Unknown, or never answered. Only Done, a replayed stored answer or a lookup resolves that.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Facts,
    Found,
    Looked,
    Lookup,
    Refused,
    State,
    Undecided,
    Unknown,
    is_forgotten,
)

BUDGET_EXHAUSTED: Final = "retry_budget_exhausted"
MOVED_UNDER_ANOTHER_KEY: Final = "moved_under_another_key"
# The provider may have forgotten the key, and cannot be asked either.
UNPROVEN: Final = "may_have_been_sent_before_the_restore"
# The key that is stored is not the one that the content gives: asked for under it, whatever was made looks absent.
KEY_DIFFERS: Final = "key_differs"
# Other books would show nothing of it, and that would look like absence.
OTHER_ACCOUNT: Final = "sent_with_another_account"
# Nothing reached the provider: our own breaker, gate or clock, or no connection. An outage is not a try.
NEVER_WRITTEN: Final = frozenset({"breaker_open", "gate_full", "not_after_passed", "unreachable"})
# Nobody answers there: asking every second would only fill the books with attempts.
_AWAY: Final = frozenset({"breaker_open", "unreachable"})
_AWAY_PAUSE: Final = timedelta(seconds=30)
# After a Busy, doubled with each try.
_FIRST_PAUSE: Final = timedelta(seconds=2)
_LONGEST_PAUSE: Final = timedelta(hours=1)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often a provider is tried.

    `stuck_after`: a claim older than this is taken over. `budget`: sends without a final answer before it gives up.
    `undecided_for`: how long after the horizon an unanswerable question is still repeated before a person is called.
    """

    stuck_after: timedelta
    budget: int
    undecided_for: timedelta = timedelta(hours=24)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent for one subject so far, over all attempts of its live key.

    `may_have_run`: an attempt is unknown or was never answered. `is_silent`: the newest one was never answered.
    `server_error`: one ended inside the provider with an error, so it may yet roll forward.
    `not_after`: until when bytes may still be written. `account`: whose books they would be in. `done_as`, `done_state`
    and `refused_as` are final answers that came when their claim was lost already: whoever looks next believes them.
    `moved_as`: a movement that a lost life of the database made for it under another key.
    `since`: when what is paid for was created. The provider's memory of its keys is counted from then
    (`movement.rules`).
    """

    first_sent_at: datetime | None = None
    not_after: datetime | None = None
    may_have_run: bool = False
    is_silent: bool = False
    server_error: bool = False
    done_as: str | None = None
    done_state: State | None = None
    refused_as: str | None = None
    account: str | None = None
    moved_as: str | None = None
    since: datetime | None = None


NOTHING_SENT: Final = History()


class Send(msgspec.Struct, frozen=True):
    """Send it, under the one key it has."""

    tries: int


class LookUp(msgspec.Struct, frozen=True):
    """Ask the provider's books first."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be decided before then."""

    until: datetime
    tries: int


class Happened(msgspec.Struct, frozen=True):
    """The provider has it, under this id."""

    transfer_id: str


class Failed(msgspec.Struct, frozen=True):
    """Known not to have moved money, and it will not."""

    reason: str


class Disputed(msgspec.Struct, frozen=True):
    """A person must decide. `is_double`: the provider moved it more than once."""

    reason: str
    transfer_id: str | None = None
    is_double: bool = False


Verdict = Wait | Happened | Failed | Disputed
Step = Send | LookUp | Verdict


def next_step(
    history: History, *, tries: int, account: str, lookup: Lookup, now: datetime, facts: Facts, patience: Patience
) -> Step:
    """What to do about what was claimed again. `account` is the one this process would send with."""
    if history.done_as is not None and not _is_failure_in_doubt(history):
        return _moved(history.done_as, history.done_state or "moved")
    if history.refused_as is not None and not history.may_have_run:
        return Failed(history.refused_as)
    if not history.may_have_run or history.first_sent_at is None or history.not_after is None:
        return _not_run(history, tries, lookup=lookup, now=now, facts=facts, patience=patience)
    if now < history.not_after:
        return Wait(history.not_after, tries)
    if history.account != account:
        return Disputed(OTHER_ACCOUNT)
    if lookup is not Lookup.NONE:
        return LookUp()
    if history.done_as is not None:
        return Disputed("failed_at_the_provider", history.done_as)
    if _is_forgotten(history, now, facts):
        return Disputed("past_the_horizon")
    return _again(history, tries, patience)


def ask_first(step: Step, history: History, *, lookup: Lookup) -> Step:
    """The step of `next_step`, for what a lost life may have sent since: nothing is sent, nor given up, unasked.

    Final answers that are stored here stand: the lost life began with them too.
    """
    match step:
        case Happened() | Wait():
            return step
        case Failed() if history.refused_as is not None or history.done_as is not None:
            return step
        case Disputed(reason) if reason in ("returned", OTHER_ACCOUNT):
            return step
        case _:
            return Disputed(UNPROVEN) if lookup is Lookup.NONE else LookUp()


def after_look(
    history: History,
    looked: Looked,
    *,
    tries: int,
    amount_micros: int,
    currency: str,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
) -> Send | Verdict:
    """What the provider's books make of an unknown outcome. Never Failed, unless they show the failure itself."""
    match looked:
        case Found():
            return _found(
                history, looked, amount_micros, currency, tries=tries, now=now, facts=facts, patience=patience
            )
        case Undecided():
            if (
                history.may_have_run
                and history.first_sent_at is not None
                and now >= (history.first_sent_at + facts.key_horizon + patience.undecided_for)
            ):
                return Disputed("provider_cannot_be_asked")
            return Wait(now + patience.stuck_after, tries)
        case Absent():
            return _absent(history, tries, lookup=lookup, now=now, facts=facts, patience=patience)


def after_first_look(
    history: History,
    looked: Looked,
    *,
    amount_micros: int,
    currency: str,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
) -> Send | Verdict:
    """The same for what nothing is stored of, but which a lost life of the database may have sent.

    Whether it was asked late enough, so that nothing of that life can still be on its way, the permit tells.
    """
    match looked:
        case Found():
            return _found(history, looked, amount_micros, currency, tries=0, now=now, facts=facts, patience=patience)
        case Undecided():
            return Wait(now + patience.stuck_after, 0)
        case Absent():
            return _never_sent(history, 0, lookup)


def made_until(history: History, *, since: datetime, now: datetime, facts: Facts) -> datetime | None:
    """Until when something of it can have been made at the provider. None: no end is known.

    That is so when an error may be rolled forward, and where a life of the database that was lost may have sent it:
    nothing is known to have run here, or the memory of its key, which counts from its creation (`since`), is over.
    """
    is_over = is_forgotten(since, facts.remembered, now)
    if not history.may_have_run or history.not_after is None or history.server_error or is_over:
        return None
    return history.not_after + facts.longest_in_flight


def believed(history: History, answer: Answer, *, attempt: int, since: datetime, now: datetime, facts: Facts) -> Answer:
    """The answer to attempt number `attempt`, as far as it goes here; `history` is that of the attempts before it.

    A provider's own words that refuse a request, under no code that is known to be final, are a refusal only where
    nothing else can be behind them: no attempt here may have run (a replayed answer speaks for all of them), and the
    key is remembered since the creation of what it pays for (`since`), so that a life of the database which was lost
    has nothing under it either. Otherwise it stays unknown.
    """
    if not isinstance(answer, Unknown) or not answer.says_refused:
        return answer
    # A further attempt of which no earlier one is known here: somebody else's, and nobody asked what became of it.
    is_first = attempt == 1 or history.first_sent_at is not None
    in_doubt = history.may_have_run or not is_first
    contradicted = history.server_error or history.done_as is not None
    if contradicted or (in_doubt and not answer.replayed) or is_forgotten(since, facts.remembered, now):
        return answer
    return Refused(code=answer.code, message=answer.message, replayed=answer.replayed, evidence=answer.evidence)


def after_answer(history: History, answer: Answer, *, tries: int, now: datetime, patience: Patience) -> Verdict:
    """What an answer to an attempt means. `history` is that of the attempts before it."""
    match answer:
        case Done():
            if answer.movement.state == "failed" and history.may_have_run:
                # It speaks of one movement; what was sent before may be another.
                return Wait(now + patience.stuck_after, tries + 1)
            return _moved(answer.movement.id, answer.movement.state)
        case Refused():
            if history.may_have_run and not answer.replayed:
                # It speaks of this request alone: the earlier one may still have been paid.
                return Wait(now + patience.stuck_after, tries + 1)
            return Failed(answer.code)
        case Busy():
            spent = tries if history.may_have_run or answer.needs_person or answer.code in NEVER_WRITTEN else tries + 1
            if spent >= patience.budget and not history.may_have_run:
                return Failed(BUDGET_EXHAUSTED)
            return Wait(now + _pause(answer, spent, patience), spent)
        case Unknown():
            return Wait(now + patience.stuck_after, tries + 1)


def _found(
    history: History,
    found: Found,
    amount_micros: int,
    currency: str,
    *,
    tries: int,
    now: datetime,
    facts: Facts,
    patience: Patience,
) -> Send | Verdict:
    if len(found.movements) != 1:
        return Disputed("moved_twice", is_double=True)
    (movement,) = found.movements
    if (movement.amount_micros, movement.currency) != (amount_micros, currency):
        return Disputed("amount_differs", movement.id)
    if movement.state == "waiting" and facts.waits_for_us:
        # Made, and not yet funded: the same send goes on where it stopped, while the provider knows its key.
        if _is_forgotten(history, now, facts):
            return Disputed("made_but_not_funded", movement.id)
        return _again(history, tries, patience)
    if movement.state == "failed" and history.not_after is not None:
        # It speaks of what was sent before it. Something sent later may be on its way, or roll forward after an error.
        settled_at = history.not_after + facts.longest_in_flight
        if now < settled_at:
            return Wait(settled_at, tries)
        if history.server_error:
            return Disputed("failed_after_a_server_error", movement.id)
        if history.first_sent_at is not None and settled_at > history.first_sent_at + facts.key_horizon:
            # The last send may have come when the key was forgotten, and be another movement.
            return Disputed("failed_past_the_horizon", movement.id)
    return _moved(movement.id, movement.state)


def _is_failure_in_doubt(history: History) -> bool:
    return history.done_state == "failed" and history.may_have_run


def _moved(id_: str, state: State) -> Happened | Failed | Disputed:
    match state:
        case "failed":
            return Failed("failed_at_the_provider")
        case "returned":
            return Disputed("returned", id_)
        case _:
            return Happened(id_)


def _absent(
    history: History, tries: int, *, lookup: Lookup, now: datetime, facts: Facts, patience: Patience
) -> Send | Wait | Disputed:
    if history.done_as is not None:
        # Once made and failed, now not shown: the books contradict the answer.
        return Disputed("failed_and_not_shown", history.done_as)
    if not history.may_have_run:
        # Asked because a lost life may have sent it. That it was tried often enough is as true as before the question.
        return Disputed(BUDGET_EXHAUSTED) if tries >= patience.budget else _never_sent(history, tries, lookup)
    if lookup is Lookup.EXACT and history.not_after is not None:
        settled_at = history.not_after + facts.longest_in_flight
        if now < settled_at:
            # Something of ours may still be on its way: absence proves nothing yet.
            return Wait(settled_at, tries)
    if _is_forgotten(history, now, facts):
        return Disputed("past_the_horizon")
    if lookup is Lookup.EXACT and history.server_error:
        # The provider may roll it forward later. Asked again a few times; then a person looks.
        if tries + 1 >= patience.budget:
            return Disputed("server_error_then_absent")
        return Wait(now + patience.stuck_after, tries + 1)
    return _again(history, tries, patience)


def _not_run(
    history: History, tries: int, *, lookup: Lookup, now: datetime, facts: Facts, patience: Patience
) -> Send | LookUp | Failed | Disputed:
    if tries >= patience.budget:
        return Failed(BUDGET_EXHAUSTED)
    if not _is_forgotten(history, now, facts):
        return Send(tries)
    # As far as is stored it never ran. A life of the database that was lost may have sent it all the same.
    return LookUp() if lookup is not Lookup.NONE else Disputed(UNPROVEN)


def _never_sent(history: History, tries: int, lookup: Lookup) -> Send | Disputed:
    """Nothing that is stored has run, and the books do not show it either."""
    if history.moved_as is not None:
        return Disputed(MOVED_UNDER_ANOTHER_KEY)
    # A search that lags shows what is there, and never that nothing is.
    return Send(tries) if lookup in (Lookup.EXACT, Lookup.SCAN) else Disputed(UNPROVEN)


def _again(history: History, tries: int, patience: Patience) -> Send | Disputed:
    """Once more under the same key, unless that was tried often enough. A silent attempt is a try nobody counted."""
    spent = tries + history.is_silent
    return Disputed(BUDGET_EXHAUSTED) if spent >= patience.budget else Send(spent)


def _is_forgotten(history: History, now: datetime, facts: Facts) -> bool:
    counted = [at for at in (history.since, history.first_sent_at) if at is not None]
    return bool(counted) and is_forgotten(min(counted), facts.remembered, now)


def _pause(busy: Busy, tries: int, patience: Patience) -> timedelta:
    if busy.code in _AWAY:
        return min(max(_AWAY_PAUSE, timedelta(seconds=busy.after_seconds)), _LONGEST_PAUSE)
    backoff = patience.stuck_after if busy.needs_person else _FIRST_PAUSE * 2 ** min(tries, 16)
    return min(max(backoff, timedelta(seconds=busy.after_seconds)), _LONGEST_PAUSE)
