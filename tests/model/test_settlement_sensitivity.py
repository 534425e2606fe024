"""A model that cannot fail proves nothing: each planted bug is found, and breaks the invariant it should.

Bugs of the deciders replace one of them; bugs of the flow around them are flaws of the world.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace as changed

from tallystick.movement import rules as intent
from tallystick.movement import steps
from tallystick.movement.rules import Begin, OtherAccount, PastHorizon
from tallystick.movement.steps import NOTHING_SENT, Disputed, Failed, Send, Wait
from tallystick.providers.words import Busy, Lookup, Refused, Unknown
from tests.model.settlement.constitution import (
    CONSERVATION,
    FAILED_MEANS_UNPAID,
    INTENT_FIRST,
    ONE_MOVEMENT,
    ONE_PAYMENT,
    SECOND_PERSON,
)
from tests.model.settlement.deciders import Deciders
from tests.model.settlement.proof import endless, explore, stranded
from tests.model.settlement.shape import Book, Database, Flaw, Intent, Row, World

EXACT = World(Lookup.EXACT, workers=1)
NONE = World(Lookup.NONE, workers=1)
# Nothing but the rule under test stands between a second send and a second payment.
KEYS_NOT_KEPT = World(Lookup.EXACT, keeps_keys=False, rolls="never")
RESTORED = World(Lookup.NONE, restores=True, rolls="never", workers=1, crashes=False)


def error_is_failed(history: Any, answer: Any, **facts: Any) -> Any:
    if isinstance(answer, Unknown) and answer.server_error:
        return Failed(answer.code)
    return steps.after_answer(history, answer, **facts)


def busy_resolves(history: Any, answer: Any, **facts: Any) -> Any:
    return steps.after_answer(NOTHING_SENT if isinstance(answer, Busy) else history, answer, **facts)


def refusal_speaks_for_all(history: Any, answer: Any, **facts: Any) -> Any:
    return steps.after_answer(NOTHING_SENT if isinstance(answer, Refused) else history, answer, **facts)


def busy_costs_nothing(history: Any, answer: Any, *, tries: int, **facts: Any) -> Any:
    step = steps.after_answer(history, answer, tries=0, **facts)
    return Wait(step.until, tries) if isinstance(answer, Busy) and isinstance(step, Wait) else step


def resend_past_the_horizon(history: Any, *, tries: int, **facts: Any) -> Any:
    step = steps.next_step(history, tries=tries, **facts)
    return Send(tries) if isinstance(step, Disputed) and step.reason == "past_the_horizon" else step


def leave_past_the_horizon(known: Any, wanted: Any, **facts: Any) -> Any:
    given = intent.permit(known, wanted, **facts)
    return Begin(2) if isinstance(given, PastHorizon) else given


def absence_at_once(history: Any, looked: Any, *, facts: Any, **others: Any) -> Any:
    return steps.after_look(history, looked, facts=changed(facts, longest_in_flight=timedelta()), **others)


def absence_after_an_error(history: Any, looked: Any, **facts: Any) -> Any:
    return steps.after_look(changed(history, server_error=False), looked, **facts)


def any_account(history: Any, *, account: str, **facts: Any) -> Any:
    return steps.next_step(changed(history, account=account), account=account, **facts)


def leave_to_any_account(known: Any, wanted: Any, **facts: Any) -> Any:
    given = intent.permit(known, wanted, **facts)
    if isinstance(given, OtherAccount):
        return intent.permit(changed(known, account=wanted.account), wanted, **facts)
    return given


def deaf_to_news(*_given: Any, **_facts: Any) -> None:
    return None


BUGS: dict[str, tuple[World, Deciders, str]] = {
    "a 500 is taken for failed": (EXACT, Deciders(after_answer=error_is_failed), FAILED_MEANS_UNPAID),
    "Busy resolves an Unknown": (NONE, Deciders(after_answer=busy_resolves), FAILED_MEANS_UNPAID),
    "a refusal speaks for earlier sends": (NONE, Deciders(after_answer=refusal_speaks_for_all), FAILED_MEANS_UNPAID),
    "sent again past the horizon": (
        NONE,
        Deciders(next_step=resend_past_the_horizon, permit=leave_past_the_horizon),
        ONE_MOVEMENT,
    ),
    "sent again past the horizon, decided before it": (NONE, Deciders(permit=leave_past_the_horizon), ONE_MOVEMENT),
    "absence is believed too early": (KEYS_NOT_KEPT, Deciders(after_look=absence_at_once), ONE_MOVEMENT),
    "absence is believed after a 500": (
        replace(KEYS_NOT_KEPT, rolls="in_horizon", workers=1),
        Deciders(after_look=absence_after_an_error),
        ONE_MOVEMENT,
    ),
    "sent again with another account": (
        replace(NONE, accounts=2),
        Deciders(next_step=any_account, permit=leave_to_any_account),
        ONE_MOVEMENT,
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
    "no_fence": (replace(World(Lookup.EXACT), crashes=False), CONSERVATION, FAILED_MEANS_UNPAID),
    "new_key_on_retry": (replace(NONE, generations=2), ONE_PAYMENT),
    "send_before_commit": (NONE, INTENT_FIRST, FAILED_MEANS_UNPAID, ONE_MOVEMENT),
    "absence_dated_late": (KEYS_NOT_KEPT, ONE_MOVEMENT),
    "history_of_the_newest_only": (NONE, FAILED_MEANS_UNPAID),
    "not_after_unchecked": (NONE, ONE_MOVEMENT),
    "new_key_from_disputed": (replace(EXACT, persons=1, generations=2), ONE_PAYMENT),
    "restore_asks_nothing": (RESTORED, FAILED_MEANS_UNPAID),
    "restore_forgets_the_held": (RESTORED, FAILED_MEANS_UNPAID),
    "restore_asks_too_early": (replace(RESTORED, lookup=Lookup.EXACT, keeps_keys=False, rolls="never"), ONE_MOVEMENT),
    "held_is_claimed": (NONE, SECOND_PERSON),
    "retry_without_a_second_person": (replace(EXACT, persons=2), SECOND_PERSON),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_bug_of_the_flow_is_found(flaw: Flaw) -> None:
    world, *wanted = FLAWS[flaw]
    for name in wanted:
        _, violation = explore(world.with_flaws(flaw), asked=frozenset({name}))
        assert violation is not None, name
        assert violation.name == name


@pytest.mark.parametrize(("lookup", "persons"), [(Lookup.NONE, 1), (Lookup.EXACT, 2)], ids=["disputed", "transferred"])
@pytest.mark.parametrize("flaw", ["verdict_forgets_the_question", "retry_forgets_the_question"])
def test_a_question_that_is_forgotten_is_found(flaw: Flaw, lookup: Lookup, persons: int) -> None:
    """The lost life paid. What was found, or could not be asked, is disputed; tried again when the key is forgotten."""
    world = replace(RESTORED, lookup=lookup)
    paid = Book(("moved",), "done", age=2)
    first = world.first_state()._replace(books=(paid,), restored=0, persons=persons)
    first = first._replace(database=first.database._replace(row=Row(ask_first=True)))
    assert explore(world, first=first)[1] is None
    # Without the two guards behind it: a retry that asks by itself, and the permit.
    bare: tuple[Flaw, ...] = ("retry_adds_no_question", "memory_counts_from_the_first_send")
    assert explore(world.with_flaws(*bare), first=first)[1] is None
    _, violation = explore(world.with_flaws(flaw, *bare), first=first)
    assert violation is not None
    assert violation.name == ONE_MOVEMENT


def test_a_restore_that_nobody_notices_pays_once_because_memory_counts_from_the_creation() -> None:
    """The permit alone stands there. Counted from the first send that is stored, a key looks young for ever."""
    unnoticed = RESTORED.with_flaws("restore_asks_nothing")
    _, violation = explore(unnoticed, asked=frozenset({ONE_MOVEMENT}))
    assert violation is None, str(violation)
    both = RESTORED.with_flaws("restore_asks_nothing", "memory_counts_from_the_first_send")
    _, violation = explore(both, asked=frozenset({ONE_MOVEMENT}))
    assert violation is not None
    assert violation.name == ONE_MOVEMENT


def test_a_disputed_payout_that_is_not_asked_about_after_a_restore_is_found() -> None:
    """It was refused; in the lost life a person had it tried again, and it was paid."""
    refused = Intent(0, 0, 0, answered=True)
    first = RESTORED.first_state()._replace(persons=2, database=Database(Row("disputed"), (0, 1, 0), (refused,)))
    only_unfinished: Flaw = "restore_asks_about_the_unfinished_only"
    assert explore(RESTORED.with_flaws(only_unfinished), first=first)[1] is None, "a retry asks by itself"
    _, violation = explore(RESTORED.with_flaws(only_unfinished, "retry_adds_no_question"), first=first)
    assert violation is not None
    assert violation.name == FAILED_MEANS_UNPAID


def test_the_leave_to_send_guards_the_horizon_alone() -> None:
    """It is asked in the transaction that begins the attempt; `next_step` was asked before, perhaps long before."""
    _, violation = explore(NONE, Deciders(next_step=resend_past_the_horizon))
    assert violation is None, str(violation)


def test_a_flow_that_is_deaf_to_news_is_found() -> None:
    """A payout that came back stays transferred for ever."""
    graph, violation = explore(replace(EXACT, bounces=True), Deciders(after_movement=deaf_to_news))
    assert violation is None, str(violation)
    assert stranded(graph) is not None


def test_a_budget_that_is_never_spent_is_found() -> None:
    graph, violation = explore(EXACT, Deciders(after_answer=busy_costs_nothing))
    assert violation is None, str(violation)
    assert endless(graph) is not None
