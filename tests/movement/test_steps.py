"""What to do next about what may have been sent: every row of the decision, and what must never be decided."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.movement.steps import (
    BUDGET_EXHAUSTED,
    NOTHING_SENT,
    Disputed,
    Failed,
    Happened,
    History,
    LookUp,
    Patience,
    Send,
    Wait,
    after_answer,
    after_first_look,
    after_look,
    believed,
    made_until,
    next_step,
)
from tallystick.providers.stripe.facts import FACTS as STRIPE
from tallystick.providers.wise.facts import FACTS as WISE
from tallystick.providers.words import (
    Absent,
    Busy,
    Done,
    Facts,
    Found,
    Lookup,
    Movement,
    Refused,
    Undecided,
    Unknown,
)

T0 = datetime(2026, 11, 16, tzinfo=UTC)
PATIENCE = Patience(stuck_after=timedelta(minutes=5), budget=8)
SENT = History(
    first_sent_at=T0,
    not_after=T0 + timedelta(seconds=10),
    may_have_run=True,
    is_silent=True,
    account="test",
)
LATER = T0 + timedelta(minutes=10)
PAST = T0 + STRIPE.key_horizon - STRIPE.key_margin


def movement(state: Any = "moved", *, amount: int = 5_000_000, id_: str = "tr_1", currency: str = "EUR") -> Movement:
    return Movement(
        provider="stripe",
        purpose="transfer",
        id=id_,
        amount_micros=amount,
        currency=currency,
        state=state,
        status=state,
    )


def step(history: History, *, now: datetime = LATER, tries: int = 0, lookup: Lookup = Lookup.EXACT) -> Any:
    return next_step(history, tries=tries, account="test", lookup=lookup, now=now, facts=STRIPE, patience=PATIENCE)


def looked(
    found: Any,
    history: History = SENT,
    *,
    now: datetime = LATER,
    tries: int = 0,
    lookup: Lookup = Lookup.EXACT,
    facts: Facts = STRIPE,
) -> Any:
    return after_look(
        history,
        found,
        tries=tries,
        amount_micros=5_000_000,
        currency="EUR",
        lookup=lookup,
        now=now,
        facts=facts,
        patience=PATIENCE,
    )


def answered(answer: Any, history: History = NOTHING_SENT, *, tries: int = 0) -> Any:
    return after_answer(history, answer, tries=tries, now=LATER, patience=PATIENCE)


REFUSED = Refused(code="account_closed", message="closed")
BUSY = Busy(code="rate_limit", message="429", after_seconds=7)
UNKNOWN = Unknown(code="timeout", message="no answer")


def changed(**fields: Any) -> History:
    return msgspec.structs.replace(SENT, **fields)


@pytest.mark.parametrize(
    ("history", "options", "expected"),
    [
        (NOTHING_SENT, {}, Send(0)),
        (NOTHING_SENT, {"tries": 8}, Failed(BUDGET_EXHAUSTED)),
        (changed(may_have_run=False, is_silent=False), {"tries": 3}, Send(3)),
        (changed(done_as="tr_9"), {"tries": 99}, Happened("tr_9")),
        (changed(done_as="tr_9", done_state="returned"), {}, Disputed("returned", "tr_9")),
        (changed(done_as="tr_9", done_state="failed"), {}, LookUp()),
        (
            changed(done_as="tr_9", done_state="failed"),
            {"lookup": Lookup.NONE},
            Disputed("failed_at_the_provider", "tr_9"),
        ),
        (
            changed(done_as="tr_9", done_state="failed", may_have_run=False),
            {},
            Failed("failed_at_the_provider"),
        ),
        (changed(may_have_run=False, refused_as="closed"), {}, Failed("closed")),
        (changed(refused_as="closed"), {}, LookUp()),
        (SENT, {"now": T0 + timedelta(seconds=5)}, Wait(T0 + timedelta(seconds=10), 0)),
        (SENT, {}, LookUp()),
        (SENT, {"now": PAST}, LookUp()),
        (SENT, {"tries": 8}, LookUp()),
        (SENT, {"lookup": Lookup.SCAN}, LookUp()),
        (changed(account="live"), {}, Disputed("sent_with_another_account")),
        (SENT, {"lookup": Lookup.NONE}, Send(1)),
        (SENT, {"lookup": Lookup.NONE, "now": PAST}, Disputed("past_the_horizon")),
        (SENT, {"lookup": Lookup.NONE, "tries": 7}, Disputed(BUDGET_EXHAUSTED)),
    ],
)
def test_what_a_claim_that_is_taken_over_leads_to(history: History, options: dict[str, Any], expected: object) -> None:
    assert step(history, **options) == expected


@pytest.mark.parametrize(
    ("found", "options", "expected"),
    [
        (Found(movements=(movement(),)), {}, Happened("tr_1")),
        (Found(movements=(movement(),)), {"now": PAST, "tries": 99}, Happened("tr_1")),
        (Found(movements=(movement("moving"),)), {}, Happened("tr_1")),
        (Found(movements=(movement("waiting"),)), {}, Happened("tr_1")),
        (Found(movements=(movement("failed"),)), {}, Failed("failed_at_the_provider")),
        (
            Found(movements=(movement("failed"),)),
            {"now": T0 + timedelta(seconds=60)},
            Wait(T0 + timedelta(seconds=10) + STRIPE.longest_in_flight, 0),
        ),
        (
            Found(movements=(movement("failed"),)),
            {"history": changed(not_after=T0 + STRIPE.key_horizon), "now": T0 + STRIPE.key_horizon * 2},
            Disputed("failed_past_the_horizon", "tr_1"),
        ),
        (
            Found(movements=(movement("failed"),)),
            {"history": changed(server_error=True)},
            Disputed("failed_after_a_server_error", "tr_1"),
        ),
        (
            Absent(lookup=Lookup.EXACT),
            {"history": changed(done_as="tr_1", done_state="failed")},
            Disputed("failed_and_not_shown", "tr_1"),
        ),
        (Found(movements=(movement("returned"),)), {}, Disputed("returned", "tr_1")),
        (Found(movements=(movement(amount=1),)), {}, Disputed("amount_differs", "tr_1")),
        (Found(movements=(movement(currency="USD"),)), {}, Disputed("amount_differs", "tr_1")),
        (Found(movements=(movement(), movement(id_="tr_2"))), {}, Disputed("moved_twice", is_double=True)),
        (Absent(lookup=Lookup.EXACT), {}, Send(1)),
        (Absent(lookup=Lookup.EXACT), {"tries": 7}, Disputed(BUDGET_EXHAUSTED)),
        (
            Absent(lookup=Lookup.EXACT),
            {"now": T0 + timedelta(seconds=60)},
            Wait(T0 + timedelta(seconds=10) + STRIPE.longest_in_flight, 0),
        ),
        (Absent(lookup=Lookup.EXACT), {"now": PAST}, Disputed("past_the_horizon")),
        (
            Absent(lookup=Lookup.EXACT),
            {"history": changed(server_error=True)},
            Wait(LATER + PATIENCE.stuck_after, 1),
        ),
        (
            Absent(lookup=Lookup.EXACT),
            {"history": changed(server_error=True), "tries": 7},
            Disputed("server_error_then_absent"),
        ),
        (Absent(lookup=Lookup.SCAN), {"lookup": Lookup.SCAN, "now": T0 + timedelta(seconds=60)}, Send(1)),
        (Absent(lookup=Lookup.SCAN), {"lookup": Lookup.SCAN, "now": PAST}, Disputed("past_the_horizon")),
        (Undecided(code="x", message=""), {}, Wait(LATER + PATIENCE.stuck_after, 0)),
        (Undecided(code="x", message=""), {"now": PAST}, Wait(PAST + PATIENCE.stuck_after, 0)),
        (
            Undecided(code="x", message=""),
            {"now": T0 + STRIPE.key_horizon + PATIENCE.undecided_for},
            Disputed("provider_cannot_be_asked"),
        ),
        (Found(movements=(movement("waiting"),)), {"facts": WISE}, Send(1)),
        (
            Found(movements=(movement("waiting"),)),
            {"facts": WISE, "now": T0 + WISE.key_horizon},
            Disputed("made_but_not_funded", "tr_1"),
        ),
    ],
)
def test_what_the_provider_s_books_make_of_an_unknown(found: Any, options: dict[str, Any], expected: object) -> None:
    assert looked(found, **options) == expected


@pytest.mark.parametrize(
    ("answer", "options", "expected"),
    [
        (Done(movement=movement()), {}, Happened("tr_1")),
        (Done(movement=movement()), {"history": SENT}, Happened("tr_1")),
        (Done(movement=movement("failed")), {}, Failed("failed_at_the_provider")),
        (Done(movement=movement("failed")), {"history": SENT}, Wait(LATER + PATIENCE.stuck_after, 1)),
        (Done(movement=movement("returned")), {}, Disputed("returned", "tr_1")),
        (REFUSED, {}, Failed("account_closed")),
        (REFUSED, {"history": SENT}, Wait(LATER + PATIENCE.stuck_after, 1)),
        (msgspec.structs.replace(REFUSED, replayed=True), {"history": SENT}, Failed("account_closed")),
        (BUSY, {}, Wait(LATER + timedelta(seconds=7), 1)),
        (BUSY, {"tries": 7}, Failed(BUDGET_EXHAUSTED)),
        (BUSY, {"tries": 5}, Wait(LATER + timedelta(seconds=128), 6)),
        (BUSY, {"history": SENT, "tries": 7}, Wait(LATER + timedelta(seconds=256), 7)),
        (msgspec.structs.replace(BUSY, code="breaker_open"), {"tries": 7}, Wait(LATER + timedelta(seconds=30), 7)),
        (msgspec.structs.replace(BUSY, code="gate_full"), {"tries": 7}, Wait(LATER + timedelta(seconds=256), 7)),
        (msgspec.structs.replace(BUSY, needs_person=True), {"tries": 7}, Wait(LATER + PATIENCE.stuck_after, 7)),
        (UNKNOWN, {}, Wait(LATER + PATIENCE.stuck_after, 1)),
        (UNKNOWN, {"tries": 99}, Wait(LATER + PATIENCE.stuck_after, 100)),
    ],
)
def test_what_an_answer_means(answer: Any, options: dict[str, Any], expected: object) -> None:
    assert answered(answer, **options) == expected


@pytest.mark.parametrize(
    ("found", "lookup", "expected"),
    [
        (Found(movements=(movement(),)), Lookup.EXACT, Happened("tr_1")),
        (Absent(lookup=Lookup.EXACT), Lookup.EXACT, Send(0)),
        (Absent(lookup=Lookup.SCAN), Lookup.SCAN, Send(0)),
        (Absent(lookup=Lookup.EVENTUAL), Lookup.EVENTUAL, Disputed("may_have_been_sent_before_the_restore")),
        (Undecided(code="x", message=""), Lookup.EXACT, Wait(LATER + PATIENCE.stuck_after, 0)),
    ],
)
def test_what_a_lost_life_of_the_database_may_have_sent(found: Any, lookup: Lookup, expected: object) -> None:
    given: dict[str, Any] = {
        "amount_micros": 5_000_000,
        "currency": "EUR",
        "lookup": lookup,
        "now": LATER,
        "facts": STRIPE,
        "patience": PATIENCE,
    }
    assert after_first_look(NOTHING_SENT, found, **given) == expected
    # Its name is on a movement under another key: what is not there under its own is not sent either.
    named = after_first_look(History(moved_as="tr_9"), found, **given)
    assert named == (Disputed("moved_under_another_key") if isinstance(found, Absent) else expected)


histories = st.builds(
    History,
    first_sent_at=st.just(T0),
    not_after=st.integers(0, 100).map(lambda n: T0 + timedelta(seconds=n)),
    may_have_run=st.just(True),
    is_silent=st.booleans(),
    server_error=st.booleans(),
    account=st.sampled_from(["test", "live"]),
)
moments = st.integers(0, 3 * 86_400).map(lambda n: T0 + timedelta(seconds=n))
lookups = st.sampled_from(list(Lookup))
absences = st.one_of(lookups.map(lambda one: Absent(lookup=one)), st.just(Undecided(code="x", message="")))
answers = st.sampled_from([REFUSED, BUSY, UNKNOWN, msgspec.structs.replace(BUSY, needs_person=True)])


@given(histories, moments, lookups, st.integers(0, 20))
def test_an_unanswered_payout_is_never_failed(history: History, now: datetime, lookup: Lookup, tries: int) -> None:
    """Calling it failed would release money the provider may have paid."""
    assert not isinstance(step(history, now=now, lookup=lookup, tries=tries), Failed)


@given(histories, absences, moments, lookups, st.integers(0, 20))
def test_absence_never_fails_a_payout(history: History, found: Any, now: datetime, lookup: Lookup, tries: int) -> None:
    assert not isinstance(looked(found, history, now=now, lookup=lookup, tries=tries), Failed)


@given(histories, answers, st.integers(0, 20))
def test_no_later_answer_resolves_an_unknown(history: History, answer: Any, tries: int) -> None:
    """A refusal, a 429 or another silence says nothing of what was sent before."""
    assert isinstance(answered(answer, history, tries=tries), Wait)


@given(histories, st.sampled_from([BUSY, msgspec.structs.replace(BUSY, needs_person=True)]), st.integers(0, 20))
def test_a_busy_after_an_unknown_spends_nothing(history: History, busy: Busy, tries: int) -> None:
    after = answered(busy, history, tries=tries)
    assert isinstance(after, Wait)
    assert after.tries == tries


@given(histories, absences, moments, lookups, st.integers(0, 20))
def test_nothing_is_sent_again_when_the_provider_may_have_forgotten(
    history: History, found: Any, now: datetime, lookup: Lookup, tries: int
) -> None:
    again = [step(history, now=now, lookup=lookup, tries=tries), looked(found, history, now=now, lookup=lookup)]
    if any(isinstance(one, Send) for one in again):
        assert now < PAST


@given(histories, moments, st.integers(0, 20))
def test_an_exact_lookup_is_asked_before_anything_is_sent_again(history: History, now: datetime, tries: int) -> None:
    """Also inside the horizon: it protects when the provider's own idempotency is broken."""
    assert not isinstance(step(history, now=now, tries=tries), Send)


@given(histories, moments)
def test_absence_is_believed_only_when_nothing_can_be_on_its_way(history: History, now: datetime) -> None:
    after = looked(Absent(lookup=Lookup.EXACT), history, now=now)
    if isinstance(after, Send):
        assert history.not_after is not None
        assert now >= history.not_after + STRIPE.longest_in_flight
        assert not history.server_error


SAYS_REFUSED = Unknown(code="invalid_request_error", message="No.", says_refused=True)
REPLAYED = msgspec.structs.replace(SAYS_REFUSED, replayed=True)
KNOWN_NOT_TO_HAVE_RUN = History(first_sent_at=T0, not_after=T0 + timedelta(seconds=10), account="test")


def belief(history: History, answer: Any, *, attempt: int = 1, now: datetime = LATER, since: datetime = T0) -> Any:
    return believed(history, answer, attempt=attempt, since=since, now=now, facts=STRIPE)


@pytest.mark.parametrize(
    ("history", "answer", "attempt", "is_refusal"),
    [
        (NOTHING_SENT, SAYS_REFUSED, 1, True),
        (KNOWN_NOT_TO_HAVE_RUN, SAYS_REFUSED, 2, True),
        (SENT, SAYS_REFUSED, 2, False),
        (SENT, REPLAYED, 2, True),
        # Somebody began an attempt of which this history knows nothing.
        (NOTHING_SENT, SAYS_REFUSED, 2, False),
        (NOTHING_SENT, REPLAYED, 2, True),
        # The store contradicts itself: after an error inside, or after it was done, a refusal is no answer to it.
        (msgspec.structs.replace(SENT, server_error=True), REPLAYED, 2, False),
        (msgspec.structs.replace(SENT, done_as="tr_1"), REPLAYED, 2, False),
    ],
)
def test_a_refusal_by_its_words_alone_is_one_where_nothing_else_can_be_behind_it(
    history: History, answer: Unknown, attempt: int, *, is_refusal: bool
) -> None:
    known = belief(history, answer, attempt=attempt)
    if is_refusal:
        assert known == Refused(code=answer.code, message="No.", replayed=answer.replayed)
        assert isinstance(after_answer(history, known, tries=0, now=LATER, patience=PATIENCE), Failed)
    else:
        assert known == answer
        assert isinstance(after_answer(history, known, tries=0, now=LATER, patience=PATIENCE), Wait)


@given(answer=st.sampled_from([SAYS_REFUSED, REPLAYED]), late=st.timedeltas(timedelta(0), timedelta(days=400)))
def test_past_its_keys_memory_no_refusal_is_believed_by_its_words(answer: Unknown, late: timedelta) -> None:
    """A life of the database that was lost may have paid it: the memory counts from what is paid, not from the send."""
    assert belief(NOTHING_SENT, answer, now=PAST + late) == answer
    assert isinstance(belief(NOTHING_SENT, answer, now=PAST - timedelta(microseconds=1)), Refused)


@given(
    answer=st.sampled_from(
        [
            Unknown(code="timeout", message=""),
            Unknown(code="status_500", message="", server_error=True),
            Busy(code="rate_limit", message="", after_seconds=1),
            Refused(code="account_closed", message=""),
            Done(movement=movement()),
        ]
    ),
    may_have_run=st.booleans(),
)
def test_every_other_answer_is_what_it_is(answer: Any, *, may_have_run: bool) -> None:
    assert belief(History(may_have_run=may_have_run), answer) is answer


def test_what_was_sent_was_made_before_it_could_no_longer_be_on_its_way() -> None:
    def until(history: History, now: datetime = LATER) -> datetime | None:
        return made_until(history, since=T0, now=now, facts=STRIPE)

    assert until(SENT) == T0 + timedelta(seconds=10) + STRIPE.longest_in_flight
    # An error inside the provider may be rolled forward at any time.
    assert until(msgspec.structs.replace(SENT, server_error=True)) is None
    # A lost life may have sent it at any time, too: absence must then be that of the whole span.
    assert until(NOTHING_SENT) is None
    assert until(KNOWN_NOT_TO_HAVE_RUN) is None
    assert until(SENT, PAST) is None


@pytest.mark.parametrize(
    ("tries", "expected"), [(7, Send(7)), (8, Disputed(BUDGET_EXHAUSTED)), (9, Disputed(BUDGET_EXHAUSTED))]
)
def test_a_restore_gives_nobody_another_try(tries: int, expected: object) -> None:
    """What was refused often enough is asked about, as a lost life may have sent it, and then a person's."""
    refused_before = History(first_sent_at=T0, not_after=T0 + timedelta(seconds=10), account="test")
    found = after_look(
        refused_before,
        Absent(lookup=Lookup.EXACT),
        tries=tries,
        amount_micros=5_000_000,
        currency="EUR",
        lookup=Lookup.EXACT,
        now=LATER,
        facts=STRIPE,
        patience=PATIENCE,
    )
    assert found == expected
