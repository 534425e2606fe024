"""What to do next about a refund that is owed: never given up, never sent beside one that may have run."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.payment.rules import Hold, Resend
from tallystick.checkout.refund.rules import (
    Owed,
    after_answer,
    after_look,
    after_refusal,
    instruction_of,
    key_of,
    next_step,
    patience,
    pause,
    refusal_code,
)
from tallystick.movement.steps import KEY_DIFFERS, NOTHING_SENT, UNPROVEN, Failed, Happened, History, LookUp
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import (
    Absent,
    Busy,
    Done,
    Found,
    Lookup,
    Movement,
    Refused,
    Undecided,
    Unknown,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
PATIENCE = patience(timedelta(seconds=15))
OWED = Owed(
    key=b"k" * 32,
    tenant="default",
    order_id=UUID(int=7),
    generation=0,
    provider="stripe",
    payment_intent_id="pi_1",
    amount_micros=25_000_000,
    currency="EUR",
    status="PENDING",
    refund_id=None,
    reason=None,
    claim_number=1,
    tries=0,
    due_at=NOW,
    since=NOW - HOUR,
)
SENT: dict[str, Any] = {"first_sent_at": NOW - HOUR, "not_after": NOW - timedelta(minutes=50), "account": "test"}
UNKNOWN = History(**SENT, may_have_run=True)
BUSY = History(**SENT)
MADE = Movement(
    provider="stripe",
    purpose="refund",
    id="re_1",
    amount_micros=25_000_000,
    currency="EUR",
    state="moved",
    status="succeeded",
)


def step(history: History, lookup: Lookup = Lookup.SCAN, **other: Any) -> Any:
    options = {"account": "test", "now": NOW, "facts": FACTS, "patience": PATIENCE, "jitter": 0.0, **other}
    owed = msgspec.structs.replace(OWED, tries=options.pop("tries", 0))
    return next_step(owed, history, lookup=lookup, **options)


def look(history: History, looked: Any, lookup: Lookup = Lookup.EXACT, **other: Any) -> Any:
    options = {"now": NOW, "facts": FACTS, "patience": PATIENCE, "jitter": 0.0, **other}
    return after_look(OWED, history, looked, lookup=lookup, **options)


def answer(said: Any, history: History = NOTHING_SENT, *, tries: int = 0, jitter: float = 0.0) -> Any:
    owed = msgspec.structs.replace(OWED, tries=tries)
    return after_answer(owed, history, said, now=NOW, patience=PATIENCE, jitter=jitter)


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_a_pause_is_between_a_second_and_an_hour(tries: int, jitter: float) -> None:
    assert SECOND <= pause(tries, jitter) <= HOUR


@given(st.integers(0, 60), st.floats(0, 1))
def test_a_pause_never_shrinks_with_the_tries(tries: int, jitter: float) -> None:
    assert pause(tries, jitter) <= pause(tries + 1, jitter)


def test_pauses_double_from_a_second_and_are_spread_out() -> None:
    assert [pause(tries, 1.0).total_seconds() for tries in range(5)] == [1, 2, 4, 8, 16]
    assert pause(40, 1.0) == HOUR
    assert pause(40, 0.0) == HOUR / 2
    assert len({pause(10, number / 10) for number in range(11)}) == 11


@pytest.mark.parametrize(
    ("history", "lookup", "expected"),
    [
        (NOTHING_SENT, Lookup.SCAN, Resend(0)),
        (BUSY, Lookup.SCAN, Resend(0)),
        (UNKNOWN, Lookup.SCAN, LookUp()),
        (UNKNOWN, Lookup.EXACT, LookUp()),
        (UNKNOWN, Lookup.NONE, Resend(0)),
        (History(**SENT, done_as="re_1", done_state="moved"), Lookup.SCAN, Happened("re_1")),
        # A refusal that was heard under a lost claim is not believed before the books were asked.
        (History(**SENT, refused_as="charge_disputed"), Lookup.SCAN, LookUp()),
        (History(**SENT, refused_as="charge_disputed"), Lookup.NONE, Failed("charge_disputed")),
    ],
)
def test_what_is_due(history: History, lookup: Lookup, expected: Any) -> None:
    assert step(history, lookup) == expected


def test_past_the_horizon_without_books_a_person_is_called_and_nothing_is_sent() -> None:
    old = History(first_sent_at=NOW - timedelta(days=60), not_after=NOW - timedelta(days=60), may_have_run=True)
    found = step(msgspec.structs.replace(old, account="test"), Lookup.NONE)
    assert found == Hold(NOW + HOUR, 1, "past_the_horizon")


@pytest.mark.parametrize(
    ("history", "looked", "expected"),
    [
        (UNKNOWN, Found(movements=(MADE,)), Happened("re_1")),
        (UNKNOWN, Absent(lookup=Lookup.EXACT), Resend(0)),
        (UNKNOWN, Undecided(code="unreachable", message=""), Hold(NOW + timedelta(seconds=15), 1)),
        (UNKNOWN, Found(movements=(MADE, MADE)), Hold(NOW + HOUR, 1, "moved_twice")),
        (
            UNKNOWN,
            Found(movements=(msgspec.structs.replace(MADE, amount_micros=1),)),
            Hold(NOW + HOUR, 1, "amount_differs"),
        ),
        (
            UNKNOWN,
            Found(movements=(msgspec.structs.replace(MADE, state="failed"),)),
            Failed("failed_at_the_provider"),
        ),
        (
            UNKNOWN,
            Found(movements=(msgspec.structs.replace(MADE, state="returned"),)),
            Failed("returned_at_the_provider"),
        ),
        (History(**SENT, refused_as="charge_disputed"), Absent(lookup=Lookup.EXACT), Failed("charge_disputed")),
        (History(**SENT, refused_as="charge_disputed"), Found(movements=(MADE,)), Happened("re_1")),
    ],
)
def test_what_the_books_make_of_it(history: History, looked: Any, expected: Any) -> None:
    assert look(history, looked) == expected


ANSWERS = st.one_of(
    st.builds(Busy, code=st.sampled_from(["rate_limit", "breaker_open", "gate_full", "unreachable"]),
              message=st.just(""), after_seconds=st.floats(0, 10**6)),
    st.builds(Unknown, code=st.just("timeout"), message=st.just(""), server_error=st.booleans()),
)  # fmt: skip


@given(said=ANSWERS, may_have_run=st.booleans(), tries=st.integers(0, 10**6), jitter=st.floats(0, 1))
def test_an_outage_never_gives_a_refund_up(*, said: Any, may_have_run: bool, tries: int, jitter: float) -> None:
    """However long it lasts: it stays owed, and is looked at again within an hour."""
    entry = answer(said, History(may_have_run=may_have_run), tries=tries, jitter=jitter)
    assert isinstance(entry, Hold)
    assert entry.tries == tries + 1
    assert NOW + SECOND <= entry.until <= NOW + HOUR


@given(may_have_run=st.booleans(), error=st.booleans(), tries=st.integers(0, 10**6))
def test_what_is_due_is_never_failed_by_its_tries(*, may_have_run: bool, error: bool, tries: int) -> None:
    history = History(**SENT, may_have_run=may_have_run, server_error=error)
    for lookup in Lookup:
        assert not isinstance(step(history, lookup, tries=tries), Failed)


@given(st.integers(0, 10**6))
def test_a_refund_that_may_have_run_is_never_sent_unasked_where_there_are_books(tries: int) -> None:
    for lookup in (Lookup.EXACT, Lookup.SCAN):
        assert not isinstance(step(UNKNOWN, lookup, tries=tries), Resend)


@pytest.mark.parametrize(
    ("said", "history", "expected"),
    [
        (Done(movement=MADE), NOTHING_SENT, Happened("re_1")),
        (Done(movement=MADE), UNKNOWN, Happened("re_1")),
        (Refused(code="charge_disputed", message=""), NOTHING_SENT, Failed("charge_disputed")),
        (
            Busy(code="forbidden", message="", after_seconds=0, needs_person=True),
            NOTHING_SENT,
            Hold(NOW + SECOND, 1, "forbidden"),
        ),
    ],
)
def test_what_an_answer_makes_of_it(said: Any, history: History, expected: Any) -> None:
    assert answer(said, history) == expected


def test_a_refusal_speaks_of_its_own_request_alone() -> None:
    """The one before it may have been carried out: "already refunded" may be ours."""
    assert isinstance(answer(Refused(code="charge_already_refunded", message=""), UNKNOWN), Hold)


def test_the_books_decide_about_a_refusal() -> None:
    refused = Failed("charge_already_refunded")
    said: Any = {"code": "charge_already_refunded", "tries": 3, "now": NOW}
    assert after_refusal(refused, Happened("re_1"), **said) == Happened("re_1")
    assert after_refusal(refused, Resend(0), **said) == refused
    assert after_refusal(refused, Hold(NOW, 1), **said) == Hold(NOW, 1)


def test_a_refusal_that_may_not_be_believed_is_for_a_person_at_once() -> None:
    """An earlier send may have run. To send it again would only bring the same refusal."""
    waiting = Hold(NOW, 4)
    said: Any = {"code": "invalid_request_error", "tries": 3, "now": NOW}
    assert after_refusal(waiting, Happened("re_1"), **said) == Happened("re_1")
    assert after_refusal(waiting, Resend(0), **said) == Hold(NOW + HOUR, 4, "invalid_request_error")
    assert after_refusal(waiting, Hold(NOW, 4), **said) == Hold(NOW, 4, "invalid_request_error")
    assert after_refusal(waiting, Hold(NOW, 4, "moved_twice"), **said) == Hold(NOW, 4, "moved_twice")


def test_the_code_of_a_refusal_is_told_whether_or_not_it_is_believed() -> None:
    assert refusal_code(Refused(code="charge_disputed", message="")) == "charge_disputed"
    assert refusal_code(Unknown(code="odd", message="", says_refused=True)) == "odd"
    for other in (Unknown(code="odd", message=""), Busy(code="odd", message="", after_seconds=0), Done(movement=MADE)):
        assert refusal_code(other) is None


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20), st.integers(0, 5))
def test_a_payment_and_its_generation_have_one_key(payment: str, reason: str, generation: int) -> None:
    """Whoever finds it owed, and for whatever reason, arrives at the same."""
    given_ = {"tenant": "default", "provider": "stripe", "amount_micros": 1, "currency": "EUR"}
    one = instruction_of(payment_intent_id=payment, reason=reason, generation=generation, **given_)  # type: ignore[arg-type]
    other = instruction_of(payment_intent_id=payment, reason="late", generation=generation, **given_)  # type: ignore[arg-type]
    next_one = instruction_of(payment_intent_id=payment, reason=reason, generation=generation + 1, **given_)  # type: ignore[arg-type]
    assert one.key == other.key != next_one.key


ASKED = msgspec.structs.replace(OWED, key=key_of(OWED), ask_first=True)


@pytest.mark.parametrize(
    ("owed", "history", "lookup", "expected"),
    [
        # As far as is stored it never ran, or it did: either way a lost life may have made it.
        (ASKED, NOTHING_SENT, Lookup.SCAN, LookUp()),
        (ASKED, BUSY, Lookup.EXACT, LookUp()),
        (ASKED, UNKNOWN, Lookup.EXACT, LookUp()),
        (ASKED, NOTHING_SENT, Lookup.NONE, Hold(NOW + HOUR, 1, UNPROVEN)),
        (ASKED, UNKNOWN, Lookup.NONE, Hold(NOW + HOUR, 1, UNPROVEN)),
        (ASKED, History(**SENT, done_as="re_1", done_state="moved"), Lookup.NONE, Happened("re_1")),
        (ASKED, History(**SENT, refused_as="charge_disputed"), Lookup.NONE, Failed("charge_disputed")),
        # Asked for under a key that is not its own, it would look absent.
        (msgspec.structs.replace(OWED, ask_first=True), NOTHING_SENT, Lookup.EXACT, Hold(NOW + HOUR, 1, KEY_DIFFERS)),
        # A part has a key of its own.
        (msgspec.structs.replace(ASKED, part=b"p" * 32), UNKNOWN, Lookup.EXACT, Hold(NOW + HOUR, 1, KEY_DIFFERS)),
    ],
)
def test_what_a_lost_life_may_have_made_is_not_sent_unasked(
    owed: Owed, history: History, lookup: Lookup, expected: Any
) -> None:
    options: dict[str, Any] = {"account": "test", "now": NOW, "facts": FACTS, "patience": PATIENCE, "jitter": 0.0}
    assert next_step(owed, history, lookup=lookup, **options) == expected
