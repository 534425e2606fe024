"""The production deciders, asked in the model's ages.

They are imported, not rewritten: what the model explores is what runs. A sensitivity test replaces one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from tallystick.money.currencies import Wire
from tallystick.movement import steps
from tallystick.movement.rules import (
    Absence,
    AlreadyDone,
    AskFirst,
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    OtherAccount,
    OtherInstruction,
    OtherKey,
    PastHorizon,
    StillSending,
    Wanted,
    permit,
)
from tallystick.movement.steps import Disputed, Failed, Happened, History, LookUp, Patience, Send, Step, Wait
from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Facts,
    Found,
    Looked,
    Movement,
    Refused,
    State,
    Undecided,
    Unknown,
)
from tallystick.settlement import rules as settlement
from tallystick.settlement.rules import Status
from tests.model.settlement.shape import (
    HORIZON,
    IN_FLIGHT,
    OLDEST_FIRST,
    SETTLED,
    STUCK,
    UNDECIDED,
    Asked,
    Fate,
    Intent,
    World,
)

# The longest pause of the deciders: a Busy that asks for as much is waited for exactly that long.
TICK: Final = timedelta(hours=1)
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
AMOUNT: Final = {"amount_micros": 1_000_000, "currency": "USD"}
_STATES: Final[dict[Fate, State]] = {
    "waiting": "waiting",
    "moved": "moved",
    "failed": "failed",
    "bounced": "failed",
    "returned": "returned",
}
_MINE, _OTHER = UUID(int=1), UUID(int=2)


@dataclass(frozen=True, slots=True)
class Deciders:
    """The functions under test. Any, because a planted bug takes whatever they take."""

    next_step: Callable[..., Step] = steps.next_step
    after_look: Callable[..., Any] = steps.after_look
    after_first_look: Callable[..., Any] = steps.after_first_look
    after_answer: Callable[..., Any] = steps.after_answer
    after_movement: Callable[..., Disputed | None] = settlement.after_movement
    permit: Callable[..., Any] = permit


class Decision(NamedTuple):
    """A step in the model's words. `age` is that of a Wait's end, counted from the `now` that was passed."""

    what: Literal["send", "look", "wait", "transferred", "failed", "disputed", "begin"]
    tries: int = 0
    age: int = 0
    transfer: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what}, {self.why}" if self.why else self.what


class Rules:
    """The deciders for one world. Pure functions of few arguments: each question is asked once."""

    def __init__(self, world: World, deciders: Deciders) -> None:
        """The world gives the provider's facts."""
        self._deciders = deciders
        self._lookup = world.lookup
        self._counts_from_the_send = "memory_counts_from_the_first_send" in world.flaws
        self._facts = Facts(
            name="stripe",
            wire=Wire(name="model"),
            key_form="hex64",
            key_characters=64,
            key_horizon=HORIZON * TICK,
            key_margin=world.margin * TICK,
            horizon_is_published=True,
            lookup={"transfer": world.lookup},
            pushes_money=True,
            answer_seconds=20.0,
            longest_in_flight=IN_FLIGHT * TICK,
            bounces={},
            lists=frozenset(),
            events_reach=None,
            webhook_tolerance=None,
            requests_per_second=1.0,
            concurrency=1,
            waits_for_us=world.waits_for_us,
        )
        self._patience = Patience(stuck_after=STUCK * TICK, budget=world.budget, undecided_for=UNDECIDED * TICK)
        self.next_step = cache(self._next_step)
        self.after_look = cache(self._after_look)
        self.after_answer = cache(self._after_answer)
        self.after_movement = cache(self._after_movement)
        self.leave = cache(self._leave)

    def _next_step(self, asked: Asked, tries: int, account: int) -> Decision:
        step = self._deciders.next_step(
            _history(asked),
            tries=tries,
            account=str(account),
            lookup=self._lookup,
            now=NOW,
            facts=self._facts,
            patience=self._patience,
        )
        return _decision(step, tries)

    def _after_look(self, asked: Asked, found: tuple[tuple[str, Fate], ...] | str, tries: int, later: int) -> Decision:
        """`found`: what the books show, or that they could not be asked. `later`: how much the clock went on."""
        looked: Looked
        if isinstance(found, str):
            looked = Undecided(code="unreachable", message="")
        elif found:
            looked = Found(movements=tuple(_movement(*one) for one in found))
        else:
            looked = Absent(lookup=self._lookup)
        given: dict[str, Any] = {
            **AMOUNT,
            "lookup": self._lookup,
            "now": NOW + later * TICK,
            "facts": self._facts,
            "patience": self._patience,
        }
        if asked.first is None:
            return _decision(self._deciders.after_first_look(_history(asked), looked, **given), tries)
        return _decision(self._deciders.after_look(_history(asked), looked, tries=tries, **given), tries)

    def _after_answer(self, before: bool, said: str, tries: int) -> Decision:  # noqa: FBT001 - cached by position
        history = History(may_have_run=before)
        step = self._deciders.after_answer(history, _answer(said), tries=tries, now=NOW, patience=self._patience)
        return _decision(step, tries)

    def _after_movement(
        self,
        status: Status,
        transfer: str,
        movement: tuple[str, Fate],
        is_live_key: bool,  # noqa: FBT001 - cached by position
    ) -> Decision | None:
        news = _movement(*movement)
        found = self._deciders.after_movement(status, transfer or None, news, is_live_key=is_live_key, **AMOUNT)
        return None if found is None else _decision(found, 0)

    def _leave(self, intent: Intent | None, account: int, proof: int | None, created: int, life: int) -> Decision:
        """Whether an attempt may begin. What is withheld becomes what the flow makes of it.

        `created` and `life`: how long ago the settlement was made, and this life of the database began. `proof` is of
        the same attempts: under its claim nobody else began one.
        """
        last = None
        if intent is not None:
            last = LastAttempt(
                number=1,
                token=_OTHER,
                not_after=_at(intent.not_after),
                is_answered=intent.answered,
                may_have_run=intent.may_have_run,
                done_as=intent.done or None,
            )
        known = KnownIntent(
            instruction=b"pay",
            account=str(account if intent is None else intent.account),
            since=None,
            first_sent_at=_at(0 if intent is None else intent.first),
            last=last,
        )
        settles_in = SETTLED * TICK
        settled_at = _at(life if intent is None else min(life, intent.not_after)) + settles_in
        absence = None
        if proof is not None:
            absence = Absence(
                key=b"key",
                read_at=settled_at + (proof - SETTLED) * TICK,
                lookup=self._lookup,
                since=min(known.first_sent_at, _at(created)),
            )
        remembered = self._facts.key_horizon - self._facts.key_margin
        wanted = Wanted(
            key=b"key",
            instruction=b"pay",
            account=str(account),
            token=_MINE,
            since=known.first_sent_at if self._counts_from_the_send else _at(created),
            remembered=remembered,
            settles_in=settles_in,
            absence=absence,
        )
        match self._deciders.permit(known, wanted, life_began=_at(life), now=NOW):
            case Begin():
                return Decision("begin")
            case StillSending(until):
                return Decision("wait", age=_age(until), why="still sending")
            case AskFirst(from_):
                return Decision("wait", age=_age(from_), why="ask first")
            case PastHorizon():
                return Decision("wait", why="past the horizon")
            case AlreadyDone():
                return Decision("wait", why="already done")
            case OtherAccount():
                return Decision("disputed", why="sent with another account")
            case Begun() | OtherKey() | OtherInstruction() as odd:
                raise AssertionError(odd)
            case other:
                raise AssertionError(other)


def history_of(intent: Intent | None, created: int, life: int) -> Asked:
    """What the store reads for a key."""
    if intent is None:
        return Asked(created, None, None, False, False, False, "", None, False, None, life)
    return Asked(
        created,
        min(intent.first, OLDEST_FIRST),
        intent.not_after,
        intent.may_have_run,
        not intent.answered,
        intent.error,
        intent.done,
        intent.fate,
        intent.refused,
        intent.account,
        life,
    )


def _history(asked: Asked) -> History:
    return History(
        first_sent_at=None if asked.first is None else _at(asked.first),
        not_after=None if asked.not_after is None else _at(asked.not_after),
        may_have_run=asked.may_have_run,
        is_silent=asked.is_silent,
        server_error=asked.error,
        done_as=asked.done or None,
        done_state=None if asked.fate is None else _STATES[asked.fate],
        refused_as="account_closed" if asked.refused else None,
        account=None if asked.account is None else str(asked.account),
        since=_at(asked.created),
    )


def _answer(said: str) -> Answer:
    match said.split():
        case ["done", id_, fate]:
            return Done(movement=_movement(id_, fate))  # type: ignore[arg-type]
        case ["refused"]:
            return Refused(code="account_closed", message="")
        case ["refused", "replayed"]:
            return Refused(code="account_closed", message="", replayed=True)
        case ["busy"]:
            return Busy(code="rate_limit", message="", after_seconds=TICK.total_seconds())
        case ["forbidden"]:
            return Busy(code="forbidden", message="", after_seconds=0.0, needs_person=True)
        case ["breaker"]:
            return Busy(code="breaker_open", message="", after_seconds=TICK.total_seconds())
        case ["too_late"]:
            return Busy(code="not_after_passed", message="", after_seconds=TICK.total_seconds())
        case ["unknown"]:
            return Unknown(code="timeout", message="")
        case ["error"]:
            return Unknown(code="api_error", message="", server_error=True)
        case other:
            raise AssertionError(other)


def _movement(id_: str, fate: Fate) -> Movement:
    return Movement(provider="stripe", purpose="transfer", id=id_, state=_STATES[fate], status=fate, **AMOUNT)  # type: ignore[arg-type]


def _decision(step: Step, tries: int) -> Decision:
    match step:
        case Send():
            return Decision("send", tries=step.tries)
        case LookUp():
            return Decision("look", tries=tries)
        case Wait():
            return Decision("wait", tries=step.tries, age=_age(step.until))
        case Happened():
            return Decision("transferred", transfer=step.transfer_id)
        case Failed():
            return Decision("failed", why=step.reason)
        case Disputed():
            return Decision("disputed", transfer=step.transfer_id or "", why=step.reason)


def _at(age: int) -> datetime:
    return NOW - age * TICK


def _age(at: datetime) -> int:
    """Rounded towards the future: a Wait is never shorter here than it is there."""
    return (NOW - at) // TICK
