"""A model that cannot fail proves nothing: each planted bug is found, and breaks the invariant it should.

Bugs of the deciders replace one of them; bugs of the flow around them are flaws of the world.
"""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from tallystick.checkout.order import rules as order
from tallystick.checkout.payment.rules import Hold, Resend
from tallystick.checkout.refund import rules as refund
from tallystick.checkout.release import rules as release
from tallystick.checkout.saga import rules as saga
from tallystick.checkout.saga.rules import Break, Complete, FailRefund, GiveBack, Ignore, Pay, ToldBefore
from tallystick.movement import rules as intent
from tallystick.movement.rules import Begin
from tallystick.movement.steps import Failed, Happened, LookUp
from tallystick.providers.words import Lookup, Refused, Unknown
from tallystick.webhooks import rules as webhooks
from tallystick.webhooks.rules import Compensated, Ok, Postponed
from tests.model.checkout.constitution import (
    COMPLETED_MEANS_REFUNDED,
    CONSERVATION,
    ENDED_FIRST,
    EVENTS_END,
    FAILED_MEANS_OWED,
    IN_TIME,
    INTENT_FIRST,
    NOTHING_LOST,
    ONE_PAYER,
    ONE_RECEIPT,
    ONE_REFUND,
    OVERSOLD,
)
from tests.model.checkout.deciders import Deciders
from tests.model.checkout.proof import explore, stranded
from tests.model.checkout.shape import Flaw, World

GHOST = World(swept_at_once=True, copies=1, workers=1)
TOLD_TWICE = World(swept_at_once=True, workers=1, is_calm=True)
PAID = World(workers=1, is_calm=True, crashes=False)
FORGETFUL = World(Lookup.NONE, swept_at_once=True, copies=1, workers=1, ages=True)
COMES_BACK = World(
    swept_at_once=True, copies=1, crashes=False, is_calm=True, refunds_fail=True, persons=1, generations=2
)


def told_again_counts_again(movement: Any, ours: Any, case: Any) -> Any:
    return saga.decide(movement, ours, None if case is None else changed(case, receipts=()))


def late_payment_pays(movement: Any, ours: Any, case: Any) -> Any:
    decision = saga.decide(movement, ours, case)
    return Pay() if decision == GiveBack(saga.LATE) else decision


def second_payment_pays(movement: Any, ours: Any, case: Any) -> Any:
    decision = saga.decide(movement, ours, case)
    return Pay() if decision == GiveBack(saga.SECOND) else decision


def late_payment_is_ignored(movement: Any, ours: Any, case: Any) -> Any:
    decision = saga.decide(movement, ours, case)
    return Ignore("late") if decision == GiveBack(saga.LATE) else decision


def paid_is_given_back(movement: Any, ours: Any, case: Any) -> Any:
    decision = saga.decide(movement, ours, case)
    return GiveBack(saga.SECOND) if isinstance(decision, ToldBefore) and decision.receipt.fate == "PAID" else decision


def batch_is_blind(case: Any, _movement: Any, _decision: Any, **_facts: Any) -> Any:
    return case


def any_failure_is_believed(movement: Any, logged: Any, **facts: Any) -> Any:
    decision = saga.decide_refund(movement, logged, **facts)
    return Complete() if isinstance(decision, FailRefund) else decision


def deaf_to_failures(movement: Any, logged: Any, **facts: Any) -> Any:
    decision = saga.decide_refund(movement, logged, **facts)
    return Ignore("told before") if isinstance(decision, FailRefund) else decision


def arrival_outweighs_failure(movement: Any, logged: Any, **facts: Any) -> Any:
    decision = saga.decide_refund(movement, logged, **facts)
    return Complete() if decision == Break("contradicted") else decision


def silence_is_failure(owed: Any, history: Any, answer: Any, **facts: Any) -> Any:
    if isinstance(answer, Unknown):
        return Failed(answer.code)
    return refund.after_answer(owed, history, answer, **facts)


def refusal_is_done(owed: Any, history: Any, answer: Any, **facts: Any) -> Any:
    """Whoever refuses because it was refunded already is taken to mean our refund."""
    if isinstance(answer, Refused):
        return Happened("1")
    return refund.after_answer(owed, history, answer, **facts)


def sent_again_unasked(owed: Any, history: Any, **facts: Any) -> Any:
    step = refund.next_step(owed, history, **facts)
    return Resend(0) if isinstance(step, LookUp | Hold) else step


def leave_at_any_time(known: Any, wanted: Any, **facts: Any) -> Any:
    given = intent.permit(known, wanted, **facts)
    return given if isinstance(given, Begin) else Begin(2)


def given_up(owed: Any, history: Any, answer: Any, **facts: Any) -> Any:
    entry = refund.after_answer(owed, history, answer, **facts)
    return Failed("too many tries") if isinstance(entry, Hold) else entry


def absence_is_failure(owed: Any, history: Any, looked: Any, **facts: Any) -> Any:
    step = refund.after_look(owed, history, looked, **facts)
    return Failed("absent") if isinstance(step, Resend) else step


def postponed_is_compensated(outcome: Any, **facts: Any) -> Any:
    return webhooks.end(Compensated() if isinstance(outcome, Postponed) else outcome, **facts)


def postponed_is_ok(outcome: Any, **facts: Any) -> Any:
    return webhooks.end(Ok() if isinstance(outcome, Postponed) else outcome, **facts)


BUGS: dict[str, tuple[World, Deciders, str]] = {
    "a payment told again counts again": (PAID, Deciders(decide=told_again_counts_again), ONE_RECEIPT),
    "a late payment told again is refunded again": (
        TOLD_TWICE,
        Deciders(decide=told_again_counts_again),
        ONE_RECEIPT,
    ),
    "a payment that is PAID is given back when it is told again": (
        PAID,
        Deciders(decide=paid_is_given_back),
        ONE_RECEIPT,
    ),
    "a late payment takes stock that is sold": (
        replace(PAID, orders=2, copies=1),
        Deciders(decide=late_payment_pays),
        OVERSOLD,
    ),
    "a second payment pays as well": (
        replace(PAID, attempts=2, copies=1, contradicts=True),
        Deciders(decide=second_payment_pays),
        ONE_PAYER,
    ),
    "a late payment is forgotten": (GHOST, Deciders(decide=late_payment_is_ignored), NOTHING_LOST),
    "a batch does not see its own decisions": (TOLD_TWICE, Deciders(after=batch_is_blind), ONE_RECEIPT),
    "a refund that failed is called completed": (
        COMES_BACK,
        Deciders(decide_refund=any_failure_is_believed),
        COMPLETED_MEANS_REFUNDED,
    ),
    "a refund that came back is not heard of": (
        COMES_BACK,
        Deciders(decide_refund=deaf_to_failures),
        COMPLETED_MEANS_REFUNDED,
    ),
    "a refund's arrival outweighs its failure": (
        COMES_BACK,
        Deciders(decide_refund=arrival_outweighs_failure),
        COMPLETED_MEANS_REFUNDED,
    ),
    "silence is taken for failed": (GHOST, Deciders(after_answer=silence_is_failure), FAILED_MEANS_OWED),
    "a refusal is taken for done": (
        replace(GHOST, refuses=True),
        Deciders(after_answer=refusal_is_done),
        COMPLETED_MEANS_REFUNDED,
    ),
    "sent again past the horizon, unasked": (
        FORGETFUL,
        Deciders(next_step=sent_again_unasked, permit=leave_at_any_time),
        ONE_REFUND,
    ),
    "outages are counted until it is given up": (GHOST, Deciders(after_answer=given_up), FAILED_MEANS_OWED),
    "absence is taken for failed": (
        replace(GHOST, lookup=Lookup.SCAN),
        Deciders(after_look=absence_is_failure),
        FAILED_MEANS_OWED,
    ),
    "an event is compensated before its refund": (GHOST, Deciders(end=postponed_is_compensated), EVENTS_END),
    "an event is done with before its refund": (GHOST, Deciders(end=postponed_is_ok), EVENTS_END),
}


BUGS |= {
    "swept without a watermark": (
        PAID,
        Deciders(passed=lambda mark, **_events: mark.at),
        IN_TIME,
    ),
    "swept before the payment is cancelled": (
        PAID,
        Deciders(may_be_swept=lambda *given, **facts: order.may_be_swept(*given, **{**facts, "is_live": False})),
        ENDED_FIRST,
    ),
    "no answer is taken for cancelled": (
        replace(PAID, loses_answers=True),
        Deciders(after_cancel=lambda _answer: release.Release("cancelled")),
        ENDED_FIRST,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_deciders_is_found(bug: str) -> None:
    world, deciders, wanted = BUGS[bug]
    _, violation = explore(world, deciders, asked=frozenset({wanted}))
    assert violation is not None
    assert violation.name == wanted


# By flaw, where it shows, and every invariant that it must break.
FLAWS: dict[Flaw, tuple[World, *tuple[str, ...]]] = {
    "no_refund_fence": (World(swept_at_once=True, copies=1), CONSERVATION),
    "send_before_commit": (GHOST, INTENT_FIRST),
    "new_key_on_retry": (replace(GHOST, lookup=Lookup.NONE, generations=2), ONE_REFUND),
    "ended_with_the_intent": (GHOST, EVENTS_END),
    "receipt_by_event": (PAID, ONE_RECEIPT),
    "stock_not_read": (replace(PAID, orders=2, copies=1, late="backorder"), OVERSOLD),
    "swept_twice": (PAID, ONE_PAYER),
    "refund_without_its_money": (COMES_BACK, CONSERVATION),
    "failed_refund_without_its_name": (replace(COMES_BACK, has_names=False), COMPLETED_MEANS_REFUNDED),
    "person_asks_nothing": (replace(GHOST, persons=1, generations=2), ONE_REFUND),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_bug_of_the_flow_is_found(flaw: Flaw) -> None:
    world, *wanted = FLAWS[flaw]
    for name in wanted:
        _, violation = explore(world.with_flaws(flaw), asked=frozenset({name}))
        assert violation is not None, name
        assert violation.name == name


def given_up_in_silence(owed: Any, history: Any, **facts: Any) -> Any:
    """Never asked about, never sent again."""
    step = refund.next_step(owed, history, **facts)
    return Hold(facts["now"], 0) if isinstance(step, Resend | LookUp) else step


@pytest.mark.parametrize(
    "deciders",
    [
        Deciders(next_step=given_up_in_silence),
        Deciders(end=lambda _outcome, **facts: webhooks.End("IN_PROCESSING", facts["tries"])),
    ],
    ids=["a refund that nobody sends again", "an event that is never finished"],
)
def test_a_shop_that_does_not_heal_is_found(deciders: Deciders) -> None:
    graph, violation = explore(GHOST, deciders, asked=frozenset())
    assert violation is None, str(violation)
    assert stranded(graph) is not None


def test_the_receipt_guards_the_money_even_where_claims_do_not() -> None:
    """A worker that was paused past its lease settles its batch all the same: one payment still counts once.

    The claim is the event's guard: that nobody writes an end over another's is shown on the database itself.
    """
    world = World(swept_at_once=True, copies=1, is_calm=True).with_flaws("claims_unchecked")
    _, violation = explore(world)
    assert violation is None, str(violation)


def test_exact_books_protect_a_payment_even_from_a_new_key() -> None:
    """Proven absent and never on its way again: what is sent under another key is the first all the same."""
    _, violation = explore(replace(GHOST, generations=2).with_flaws("new_key_on_retry"), asked=frozenset({ONE_REFUND}))
    assert violation is None, str(violation)
