"""What becomes of an event: outages never kill it, failures always end, and keys stay equal when they are shortened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.words import Absent, Done, Fetched, Lookup, Movement, NotShown, Undecided
from tallystick.webhooks.rules import (
    Compensated,
    End,
    Ended,
    Failed,
    Ok,
    Postponed,
    after_fetch,
    end,
    kept_key,
    kept_object,
    kept_type,
)

HOW = {"most_tries": 8, "first_pause_seconds": 1.0, "longest_pause_seconds": 3_600.0}


@pytest.mark.parametrize(
    ("outcome", "tries", "expected"),
    [
        (Ok(), 3, End("PROCESSED_OK", 3)),
        (Ok("not there"), 3, End("PROCESSED_OK", 3, "not there")),
        (Compensated(), 0, End("PROCESSED_COMPENSATED", 0)),
        (Failed("x"), 0, End("UNPROCESSED", 1, "x", 1.0)),
        (Failed("x"), 3, End("UNPROCESSED", 4, "x", 8.0)),
        (Failed("x"), 7, End("DEAD_LETTER", 8, "x")),
        (Failed(""), 7, End("DEAD_LETTER", 8, "no reason was given")),
        (Postponed("down", 5.0), 7, End("UNPROCESSED", 7, "down", 5.0)),
    ],
)
def test_how_a_row_stands_after_an_outcome(outcome: Ok, tries: int, expected: End) -> None:
    assert end(outcome, tries=tries, **HOW) == expected  # type: ignore[arg-type]


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_an_outage_never_makes_a_dead_letter(tries: int, most: int) -> None:
    written = end(
        Postponed("down", 5.0), tries=tries, most_tries=most, first_pause_seconds=1.0, longest_pause_seconds=60.0
    )
    assert (written.status, written.tries) == ("UNPROCESSED", tries)


@given(st.integers(1, 100))
def test_failures_end_after_a_bounded_number(most: int) -> None:
    tries = 0
    for _ in range(most):
        written = end(Failed("x"), tries=tries, most_tries=most, first_pause_seconds=1.0, longest_pause_seconds=60.0)
        assert written.after_seconds <= 60.0
        tries = written.tries
    assert written.status == "DEAD_LETTER"


@given(st.text(max_size=2_000).filter(lambda text: text.isprintable()), st.text(max_size=2_000))
def test_keys_stay_equal_and_different(one: str, other: str) -> None:
    if not other.isprintable():
        other = one
    assert (kept_key(one) == kept_key(other)) == (one == other)
    assert len(kept_key(one).encode()) <= 500


def test_what_cannot_be_stored_as_text_is_left_out_of_a_reason() -> None:
    written = end(Failed("a\0b\ud800" + "c" * 5_000), tries=0, **HOW)  # type: ignore[arg-type]
    assert written.reason is not None
    written.reason.encode()
    assert "\0" not in written.reason
    assert len(written.reason) == 1_000


def test_a_type_is_cut_to_a_label() -> None:
    assert kept_type("payment_intent.succeeded") == "payment_intent.succeeded"
    assert len(kept_type("x" * 9_999)) == 200


SHOWN = Movement(
    provider="wise",
    purpose="transfer",
    id="7",
    amount_micros=1,
    currency="EUR",
    state="returned",
    status="bounced_back",
)


@pytest.mark.parametrize(
    ("answer", "becomes"),
    [
        (Done(movement=SHOWN), SHOWN),
        (Absent(lookup=Lookup.EXACT), Ok("the provider has nothing of that id")),
        (NotShown(message="Wise shows no charge by its id."), Ok("Wise shows no charge by its id.")),
        (Undecided(code="status_403", message="said", may_pass=False), Failed("status_403: said")),
        (Undecided(code="unanswered", message="said"), Postponed("unanswered: said", 5.0)),
    ],
)
def test_what_becomes_of_an_event_that_only_names_its_movement(answer: Fetched, becomes: Movement | Ended) -> None:
    """An outage must not lose news of money, and what is nobody's must not be asked for for ever."""
    assert after_fetch(answer, outage_seconds=5.0) == becomes


@pytest.mark.parametrize(
    ("object_id", "kept"), [("7", "7"), ("", None), ("a\0b", None), ("x" * 501, None), ("é" * 251, None)]
)
def test_an_object_is_kept_only_under_an_id_that_can_be_asked_for(object_id: str, kept: str | None) -> None:
    assert kept_object(object_id) == kept
