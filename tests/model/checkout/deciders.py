"""The production deciders, asked in the model's words.

They are imported, not rewritten: what the model explores is what runs. A sensitivity test replaces one of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from tallystick.checkout.order import rules as order
from tallystick.checkout.payment import rules as payment
from tallystick.checkout.payment.rules import Hold, LoggedCharge, Payable, Resend
from tallystick.checkout.refund import rules as refund
from tallystick.checkout.release import rules as release
from tallystick.checkout.saga import rules as saga
from tallystick.checkout.saga.rules import Case, LoggedRefund, Ours, Policy, Receipt
from tallystick.checkout.watermark import rules as watermark
from tallystick.checkout.watermark.rules import Mark
from tallystick.ledger.outcome import Rejected
from tallystick.money.currencies import Wire
from tallystick.movement.rules import Absence, Begin, KnownIntent, LastAttempt, Wanted, permit
from tallystick.movement.steps import NOTHING_SENT, Failed, Happened, History, LookUp, Patience
from tallystick.providers.words import (
    Absent,
    Answer,
    Busy,
    Done,
    Facts,
    Found,
    Looked,
    Lookup,
    Movement,
    Refused,
    Undecided,
    Unknown,
)
from tallystick.webhooks import rules as webhook
from tests.model.checkout.shape import HORIZON, IN_FLIGHT, MARGIN, Asked, Fact, Refund, Slot, World

TICK: Final = timedelta(hours=1)
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
MICROS: Final = 1_000_000
OTHER_MICROS: Final = 999_999
CURRENCY: Final = "EUR"
_MINE, _OTHER = UUID(int=1), UUID(int=2)


@dataclass(frozen=True, slots=True)
class Deciders:
    """The functions under test. Any, because a planted bug takes whatever they take."""

    decide: Callable[..., Any] = saga.decide
    after: Callable[..., Any] = saga.after
    decide_refund: Callable[..., Any] = saga.decide_refund
    next_step: Callable[..., Any] = refund.next_step
    after_look: Callable[..., Any] = refund.after_look
    after_answer: Callable[..., Any] = refund.after_answer
    after_refusal: Callable[..., Any] = refund.after_refusal
    pay: Callable[..., Any] = payment.next_step
    end: Callable[..., Any] = webhook.end
    permit: Callable[..., Any] = permit
    may_be_swept: Callable[..., Any] = order.may_be_swept
    passed: Callable[..., Any] = watermark.passed
    after_cancel: Callable[..., Any] = release.after_cancel
    after_found: Callable[..., Any] = release.after_look


class Decision(NamedTuple):
    """What becomes of a refund, in the model's words."""

    what: str
    id: int = 0
    needs_person: bool = False


class Rules:
    """The deciders for one world."""

    def __init__(self, world: World, deciders: Deciders) -> None:
        """The world gives the provider's facts and the tenant's policy."""
        self.deciders = deciders
        self._lookup = world.lookup
        self._facts = Facts(
            name="stripe",
            wire=Wire(name="model"),
            key_form="hex64",
            key_characters=64,
            key_horizon=HORIZON * TICK,
            key_margin=MARGIN * TICK,
            horizon_is_published=True,
            lookup={"refund": world.lookup},
            pushes_money=False,
            answer_seconds=20.0,
            longest_in_flight=IN_FLIGHT * TICK,
            bounces={},
            lists=frozenset(),
            events_reach=None,
            webhook_tolerance=None,
            requests_per_second=1.0,
            concurrency=1,
        )
        self._patience = refund.patience(TICK)
        self.policy = Policy(late=world.late, other_amount=world.other_amount or "refund")
        self._micros = OTHER_MICROS if world.other_amount else MICROS
        self.next_step = cache(self._next_step)
        self.after_look = cache(self._after_look)
        self.after_refusal = cache(self._after_refusal)
        self.after_answer = cache(self._after_answer)
        self.permit = cache(self._permit)
        self.pay = cache(self._pay)

    # --- events

    def may_be_swept(self, *, is_charged: bool, is_live: bool, is_released: bool, is_undecided: bool) -> bool:
        """Long after its deadline. `is_undecided`: an event lies there that was received before it."""
        mark = Mark(at=NOW, writing=frozenset())
        oldest = NOW - 3 * TICK if is_undecided else None
        return bool(
            self.deciders.may_be_swept(
                NOW - 2 * TICK,
                now=NOW,
                grace=timedelta(),
                is_charged=is_charged,
                is_live=is_live,
                is_released=is_released,
                watermark=self.deciders.passed(mark, stored_at=NOW, oldest=oldest, before=None),
            )
        )

    def released(self, slot: Slot, *, is_answered: bool) -> str:
        """What the provider's word makes of a wish to cancel, or of a question: release, tell or wait."""
        state = "failed" if slot.payment == "waiting" else slot.payment
        made = () if not state else (_made(state),)
        if slot.is_known:
            answer = Done(movement=made[0]) if is_answered and made else Unknown(code="silence", message="")
            found = self.deciders.after_cancel(answer)
        else:
            books = Found(movements=made) if made else Absent(lookup=Lookup.EXACT)
            looked = books if is_answered else Undecided(code="silence", message="")
            found = self.deciders.after_found(looked, can_cancel=True)
        return type(found).__name__.lower()

    def movement(self, fact: Fact, *, has_names: bool = True) -> Movement:
        is_refund = fact.purpose == "refund"
        return Movement(
            provider="stripe",
            purpose=fact.purpose,
            id=refund_id(fact.slot, fact.generation, fact.number) if is_refund else payment_id(fact.slot),
            amount_micros=self._micros,
            currency=CURRENCY,
            state=fact.state,
            status=fact.state,
            reference="ours" if has_names else "",
            parent=payment_id(fact.slot) if is_refund else "",
        )

    def decide(self, fact: Fact, ours: Ours | None, case: Case) -> Any:
        return self.deciders.decide(self.movement(fact), ours, None if ours is None else case)

    def after(self, case: Case, fact: Fact, decision: Any, number: int) -> Case:
        found: Case = self.deciders.after(case, self.movement(fact), decision, event_number=number)
        return found

    def decide_refund(self, fact: Fact, row: Refund | None, generation: int, *, is_payment_ours: bool) -> Any:
        logged = None
        if row is not None:
            name = refund_id(fact.slot, generation, row.id) if row.id else None
            logged = LoggedRefund(status=row.status, refund_id=name)  # type: ignore[arg-type]
        return self.deciders.decide_refund(self.movement(fact), logged, is_payment_ours=is_payment_ours)

    def end(self, outcome: Any, tries: int) -> webhook.End:
        found: webhook.End = self.deciders.end(
            outcome, tries=tries, most_tries=2, first_pause_seconds=1, longest_pause_seconds=1
        )
        return found

    # --- refunds

    def _next_step(self, asked: Asked) -> Decision:
        step = self.deciders.next_step(
            _OWED, _history(asked), account="test", lookup=self._lookup, now=NOW, facts=self._facts,
            patience=self._patience, jitter=0.0,
        )  # fmt: skip
        return _decision(step)

    def _after_look(self, asked: Asked, found: tuple[tuple[int, str], ...] | str) -> Decision:
        return _decision(self._look(_history(asked), found))

    def _after_refusal(self, found: tuple[tuple[int, str], ...] | str) -> Decision:
        """Of a refusal the flow asks the books at once, and as if nothing had been sent."""
        refused = Failed("refused")
        if found == ():
            return _decision(refused)
        looked = self._look(NOTHING_SENT, found)
        return _decision(self.deciders.after_refusal(refused, looked, code="refused", tries=0, now=NOW))

    def _look(self, history: History, found: tuple[tuple[int, str], ...] | str) -> Any:
        looked: Looked
        if isinstance(found, str):
            looked = Undecided(code="unreachable", message="")
        elif found:
            looked = Found(movements=tuple(_refunded(number, state, self._micros) for number, state in found))
        else:
            looked = Absent(lookup=self._lookup)
        return self.deciders.after_look(
            _OWED if self._micros == MICROS else _ODD, history, looked, lookup=self._lookup, now=NOW,
            facts=self._facts, patience=self._patience, jitter=0.0,
        )  # fmt: skip

    def _after_answer(self, before: bool, said: str) -> Decision:  # noqa: FBT001 - cached by position
        answer = _answer(said, self._micros)
        history = History(may_have_run=before)
        return _decision(
            self.deciders.after_answer(_OWED, history, answer, now=NOW, patience=self._patience, jitter=0.0)
        )

    def _permit(self, row: Refund, is_proven: bool) -> bool:  # noqa: FBT001 - cached by position
        """Whether a further attempt may begin."""
        last = LastAttempt(
            number=1,
            token=_OTHER,
            not_after=_at(row.not_after),
            is_answered=row.is_answered,
            may_have_run=row.may_have_run,
            done_as=str(row.done) if row.done else None,
        )
        known = KnownIntent(instruction=b"refund", account="test", since=None, first_sent_at=_at(row.first), last=last)
        remembered = self._facts.key_horizon - self._facts.key_margin
        proof = Absence(key=b"key", read_at=NOW, lookup=self._lookup, since=known.first_sent_at)
        wanted = Wanted(
            key=b"key",
            instruction=b"refund",
            account="test",
            token=_MINE,
            since=known.first_sent_at,
            remembered=remembered,
            settles_in=timedelta(),
            absence=proof if is_proven else None,
        )
        return isinstance(self.deciders.permit(known, wanted, life_began=known.first_sent_at, now=NOW), Begin)

    # --- charges

    def _pay(self, status: str, charge: str, attempt: int, most: int) -> str:
        """What a click comes to: begin, ask, again, or no."""
        payable = Payable(
            tenant="default",
            id=UUID(int=7),
            status=status,  # type: ignore[arg-type]
            reservation_token=UUID(int=9),
            amount_micros=MICROS,
            currency=CURRENCY,
            created_at=NOW - TICK,
            expires_at=NOW + TICK,
        )
        if payment.pay_refusal(payable, order.token_name(payable.reservation_token), now=NOW) is not None:
            return "no"
        logged = None
        if charge:
            logged = LoggedCharge(
                key=b"k" * 32,
                attempt=attempt,
                provider="stripe",
                status=charge,  # type: ignore[arg-type]
                payment_intent_id="pi" if charge == "COMPLETED" else None,
                reason="failed" if charge == "FAILED" else None,
                claim_number=1,
                tries=0,
                due_at=NOW,
            )
        sent = History(
            first_sent_at=NOW - 2 * TICK, not_after=NOW - TICK, may_have_run=True, is_silent=True, account="test"
        )
        step = self.deciders.pay(
            payable, logged, sent if charge == "PENDING" else NOTHING_SENT, account="test", lookup=Lookup.EXACT,
            now=NOW, facts=self._facts, holder=self._facts, patience=Patience(stuck_after=TICK, budget=8),
            most_attempts=most,
        )  # fmt: skip
        match step:
            case Rejected():
                return "no"
            case payment.Begin(begun):
                return f"begin {begun}"
            case other:
                return type(other).__name__.lower()


def payment_id(slot: int) -> str:
    return f"pi{slot}"


def refund_id(slot: int, generation: int, number: int) -> str:
    return f"re{slot}.{generation}.{number}"


def case_of(status: str, receipts: tuple[Receipt, ...], policy: Policy, available: int | None) -> Case:
    return Case(
        status=status,  # type: ignore[arg-type]
        quantity=1,
        amount_micros=MICROS,
        currency=CURRENCY,
        policy=policy,
        receipts=receipts,
        available=available,
    )


def asked_of(row: Refund) -> Asked:
    """What the store reads of what was sent."""
    return Asked(row.first, row.not_after, row.may_have_run, row.error, row.done, row.refused)


_OWED: Final = refund.Owed(
    key=b"k" * 32,
    tenant="default",
    order_id=UUID(int=7),
    generation=0,
    provider="stripe",
    payment_intent_id="pi",
    amount_micros=MICROS,
    currency=CURRENCY,
    status="PENDING",
    refund_id=None,
    reason=None,
    claim_number=1,
    tries=0,
    due_at=NOW,
    since=NOW,
)
_ODD: Final = refund.Owed(
    **{name: getattr(_OWED, name) for name in _OWED.__struct_fields__} | {"amount_micros": OTHER_MICROS}
)


def _refunded(number: int, state: str, micros: int) -> Movement:
    return Movement(
        provider="stripe",
        purpose="refund",
        id=str(number),
        amount_micros=micros,
        currency=CURRENCY,
        state=state,  # type: ignore[arg-type]
        status=state,
    )


def _answer(said: str, micros: int) -> Answer:
    match said.split():
        case ["done", number]:
            return Done(movement=_refunded(int(number), "moved", micros))
        case ["refused"]:
            return Refused(code="charge_already_refunded", message="")
        case ["busy"]:
            return Busy(code="rate_limit", message="", after_seconds=1.0)
        case ["breaker"]:
            return Busy(code="breaker_open", message="", after_seconds=1.0)
        case ["too_late"]:
            return Busy(code="not_after_passed", message="", after_seconds=1.0)
        case ["error"]:
            return Unknown(code="http_500", message="", server_error=True)
        case ["unknown"]:
            return Unknown(code="timeout", message="")
        case _:
            raise AssertionError(said)


def _history(asked: Asked) -> History:
    return History(
        first_sent_at=_at(asked.first),
        not_after=_at(asked.not_after),
        may_have_run=asked.may_have_run,
        server_error=asked.error,
        done_as=str(asked.done) if asked.done else None,
        done_state="moved" if asked.done else None,
        refused_as="charge_already_refunded" if asked.refused else None,
        account="test",
    )


def _at(age: int) -> datetime:
    return NOW - age * TICK


def _decision(step: Any) -> Decision:
    match step:
        case Resend():
            return Decision("send")
        case LookUp():
            return Decision("look")
        case Happened(number):
            return Decision("completed", int(number))
        case Failed():
            return Decision("failed")
        case Hold(_, _, reason):
            return Decision("hold", needs_person=reason is not None)
        case _:
            raise AssertionError(step)


def _made(state: Any) -> Movement:
    return Movement(
        provider="stripe", purpose="charge", id="p", amount_micros=MICROS, currency=CURRENCY, state=state, status=state
    )
