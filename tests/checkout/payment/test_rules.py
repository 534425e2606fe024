"""What a click comes to: every row of the table, and that an attempt's number grows after a known failure alone."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.payment.rules import (
    REVIEW_PAUSE,
    Again,
    Ask,
    Begin,
    Close,
    Hold,
    LoggedCharge,
    Payable,
    Resend,
    Settle,
    after_answer,
    after_look,
    charge_of,
    entry_of,
    next_step,
    pay_refusal,
)
from tallystick.keys.derived import charge_key
from tallystick.ledger.outcome import Rejected
from tallystick.movement.rules import decode_charge, encode_instruction
from tallystick.movement.steps import (
    KEY_DIFFERS,
    NOTHING_SENT,
    UNPROVEN,
    Disputed,
    Failed,
    Happened,
    History,
    Patience,
    Wait,
)
from tallystick.providers.stripe.facts import FACTS
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

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PATIENCE = Patience(stuck_after=timedelta(seconds=15), budget=8)
ORDER = Payable(
    tenant="default",
    id=UUID(int=7),
    status="PENDING",
    reservation_token=UUID(int=9),
    amount_micros=25_000_000,
    currency="EUR",
    created_at=NOW - timedelta(minutes=5),
    expires_at=NOW + timedelta(minutes=5),
)
TOKEN = "rt_" + UUID(int=9).hex
CHARGE = LoggedCharge(
    key=b"k" * 32,
    attempt=1,
    provider="stripe",
    status="PENDING",
    payment_intent_id=None,
    reason=None,
    claim_number=1,
    tries=0,
    due_at=NOW - timedelta(seconds=1),
)
SENT: dict[str, Any] = {
    "first_sent_at": NOW - timedelta(minutes=4),
    "not_after": NOW - timedelta(minutes=3),
    "account": "test",
}
UNKNOWN = History(**SENT, may_have_run=True)
BUSY = History(**SENT)
SILENT = History(**SENT, may_have_run=True, is_silent=True)
MOVED = Movement(
    provider="stripe",
    purpose="charge",
    id="pi_1",
    amount_micros=25_000_000,
    currency="EUR",
    state="waiting",
    status="requires_payment_method",
)


def step(
    order: Payable = ORDER, charge: LoggedCharge | None = CHARGE, history: History = NOTHING_SENT, **more: Any
) -> Any:
    options = {
        "account": "test", "lookup": Lookup.SCAN, "now": NOW, "facts": FACTS, "holder": FACTS, "patience": PATIENCE,
    }  # fmt: skip
    return next_step(order, charge, history, **{**options, "most_attempts": 3, **more})


def order(**fields: Any) -> Payable:
    return msgspec.structs.replace(ORDER, **fields)


def charge(**fields: Any) -> LoggedCharge:
    return msgspec.structs.replace(CHARGE, **fields)


@pytest.mark.parametrize(
    ("token", "fields", "code"),
    [
        ("rt_" + UUID(int=8).hex, {}, "reservation_token_wrong"),
        ("", {}, "reservation_token_wrong"),
        ("ü\ud800", {}, "reservation_token_wrong"),
        # A wrong token learns nothing of how the order stands.
        ("rt_", {"status": "CANCELLED"}, "reservation_token_wrong"),
        (TOKEN, {"status": "CANCELLED"}, "order_cancelled"),
        (TOKEN, {"status": "CANCELLED_BY_SWEEPER"}, "order_expired"),
        (TOKEN, {"expires_at": NOW}, "order_expired"),
        (TOKEN, {"expires_at": NOW + timedelta(microseconds=1)}, None),
        (TOKEN, {"status": "PAID", "expires_at": NOW - timedelta(days=1)}, None),
        (TOKEN, {}, None),
    ],
)
def test_who_may_pay(token: str, fields: dict[str, Any], code: str | None) -> None:
    found = pay_refusal(order(**fields), token, now=NOW)
    assert (found and found.code) == code


@pytest.mark.parametrize(
    ("of", "logged", "history", "expected"),
    [
        (ORDER, None, NOTHING_SENT, Begin(1)),
        (ORDER, charge(status="COMPLETED", payment_intent_id="pi_1"), NOTHING_SENT, Again()),
        (order(status="PAID"), charge(status="COMPLETED", payment_intent_id="pi_1"), NOTHING_SENT, Again()),
        (ORDER, charge(status="FAILED", reason="declined"), NOTHING_SENT, Begin(2)),
        (ORDER, CHARGE, History(**SENT, done_as="pi_1", done_state="waiting"), Settle(Happened("pi_1"))),
        (ORDER, CHARGE, History(**SENT, refused_as="declined"), Settle(Failed("declined"))),
        (ORDER, CHARGE, UNKNOWN, Ask()),
        (ORDER, CHARGE, SILENT, Ask()),
        (ORDER, CHARGE, BUSY, Resend(0)),
        # Somebody may be writing at this moment.
        (
            ORDER,
            charge(due_at=NOW + timedelta(seconds=9)),
            msgspec.structs.replace(SILENT, not_after=NOW + timedelta(seconds=5)),
            Hold(NOW + timedelta(seconds=9), 0),
        ),
        # Somebody has claimed it.
        (ORDER, charge(due_at=NOW + timedelta(seconds=9)), UNKNOWN, Hold(NOW + timedelta(seconds=9), 0)),
        (ORDER, charge(due_at=NOW + timedelta(seconds=9)), BUSY, Hold(NOW + timedelta(seconds=9), 0)),
        # Nothing is sent for an order that has ended.
        (order(status="PAID"), CHARGE, BUSY, Settle(Failed("order_no_longer_pending"))),
        (order(expires_at=NOW), CHARGE, BUSY, Settle(Failed("order_no_longer_pending"))),
    ],
)
def test_what_a_click_comes_to(of: Payable, logged: LoggedCharge | None, history: History, expected: object) -> None:
    assert step(of, logged, history) == expected


def test_without_a_lookup_the_same_key_is_sent_again_inside_the_horizon_and_never_past_it() -> None:
    assert step(history=UNKNOWN, lookup=Lookup.NONE) == Resend(0)
    old = msgspec.structs.replace(UNKNOWN, first_sent_at=NOW - FACTS.key_horizon)
    assert step(history=old, lookup=Lookup.NONE) == Hold(NOW + timedelta(hours=1), 0, "past_the_horizon")


@pytest.mark.parametrize(
    ("of", "logged", "code"),
    [
        (order(status="PAID"), None, "order_paid"),
        (order(status="PAID"), charge(status="FAILED", reason="declined"), "order_paid"),
        (ORDER, charge(status="FAILED", reason="declined", attempt=3), "payment_attempts_exhausted"),
    ],
)
def test_refusals(of: Payable, logged: LoggedCharge | None, code: str) -> None:
    found = step(of, logged)
    assert isinstance(found, Rejected)
    assert found.code == code


histories = st.builds(
    History,
    first_sent_at=st.sampled_from([NOW - timedelta(minutes=4), NOW - timedelta(days=2)]),
    not_after=st.sampled_from([NOW - timedelta(minutes=3), NOW + timedelta(seconds=5)]),
    may_have_run=st.booleans(),
    is_silent=st.booleans(),
    server_error=st.booleans(),
    done_as=st.sampled_from([None, "pi_1"]),
    done_state=st.sampled_from([None, "waiting", "moved", "failed", "returned"]),
    refused_as=st.sampled_from([None, "declined"]),
    account=st.sampled_from(["test", "live"]),
)
lookups = st.sampled_from(list(Lookup))
answers = st.sampled_from(
    [
        Done(movement=MOVED),
        Done(movement=msgspec.structs.replace(MOVED, state="failed")),
        Refused(code="declined", message=""),
        Refused(code="declined", message="", replayed=True),
        Busy(code="rate_limit", message="", after_seconds=1),
        Busy(code="breaker_open", message="", after_seconds=1),
        Unknown(code="unanswered", message=""),
        Unknown(code="status_500", message="", server_error=True),
    ]
)
lookeds = st.sampled_from(
    [
        Found(movements=(MOVED,)),
        Found(movements=(MOVED, MOVED)),
        Found(movements=(msgspec.structs.replace(MOVED, amount_micros=1),)),
        Found(movements=(msgspec.structs.replace(MOVED, state="failed"),)),
        Absent(lookup=Lookup.SCAN),
        Undecided(code="x", message=""),
    ]
)


@given(histories, lookups)
def test_a_pending_charge_is_never_followed_by_another_attempt(history: History, lookup: Lookup) -> None:
    """Another key beside one whose outcome is unknown would be a second charge."""
    assert not isinstance(step(history=history, lookup=lookup), Begin)


@given(histories, lookups)
def test_a_charge_that_may_have_run_is_never_failed_unread(history: History, lookup: Lookup) -> None:
    found = step(history=history, lookup=lookup)
    if isinstance(found, Settle) and isinstance(found.verdict, Failed):
        assert not history.may_have_run


@given(histories, answers, st.integers(0, 9))
def test_an_unknown_answer_keeps_it_pending(history: History, answer: Any, tries: int) -> None:
    entry = after_answer(history, answer, tries=tries, now=NOW, patience=PATIENCE)
    if isinstance(answer, Unknown):
        assert isinstance(entry, Hold)
    if isinstance(answer, Busy | Refused) and isinstance(entry, Failed) and history.may_have_run:
        assert isinstance(answer, Refused)
        assert answer.replayed
    if isinstance(entry, Happened):
        assert isinstance(answer, Done)


@given(
    histories.filter(lambda h: h.may_have_run),
    lookeds,
    lookups,
    st.sampled_from([ORDER, order(status="CANCELLED"), order(expires_at=NOW)]),
)
def test_the_books_decide_and_an_ended_order_is_never_sent_for(
    history: History, looked: Any, lookup: Lookup, of: Payable
) -> None:
    found = after_look(of, CHARGE, history, looked, lookup=lookup, now=NOW, facts=FACTS, patience=PATIENCE)
    if isinstance(found, Resend):
        assert of == ORDER
        assert isinstance(looked, Absent)
    if isinstance(found, Failed):
        assert isinstance(looked, Found)
        assert looked.movements[0].state == "failed"
    if isinstance(found, Happened):
        assert isinstance(looked, Found)
        assert looked.movements == (MOVED,)


UNABLE = msgspec.structs.replace(FACTS, cancels_charges=False)
LEFT_OPEN: dict[str, Any] = {"status": "FAILED", "reason": "card_declined", "is_confirmable": True}


@pytest.mark.parametrize(("taker", "holder"), list(itertools.product([FACTS, UNABLE], [None, FACTS, UNABLE])))
def test_what_a_decline_left_is_ended_by_whoever_has_it_or_nothing_begins(taker: Facts, holder: Facts | None) -> None:
    """Not by the one who takes the next attempt: he has never heard of it."""
    found = step(charge=charge(**LEFT_OPEN), facts=taker, holder=holder)
    if holder is FACTS:
        assert found == Close()
    else:
        assert isinstance(found, Rejected)
        assert found.code == "provider_not_configured"
    over = charge(**{**LEFT_OPEN, "is_confirmable": False})
    assert step(charge=over, facts=taker, holder=holder) == Begin(2)


# A charge whose key is forgotten, which nothing can bring about any more, and whose order is over.
LONG_AGO: dict[str, Any] = {"first_sent_at": NOW - timedelta(days=3), "not_after": NOW - timedelta(days=2)}


@pytest.mark.parametrize(
    ("of", "history", "earlier", "expected"),
    [
        (order(status="CANCELLED"), {}, None, "noted"),
        (order(status="CANCELLED"), {}, NOW - REVIEW_PAUSE, "closed"),
        (order(status="CANCELLED"), {}, NOW - REVIEW_PAUSE + timedelta(microseconds=1), "noted"),
        (ORDER, {}, NOW - REVIEW_PAUSE, "open"),
        (order(status="CANCELLED"), {"server_error": True}, NOW - REVIEW_PAUSE, "open"),
        (order(status="CANCELLED"), {"first_sent_at": NOW - FACTS.key_horizon / 2}, NOW - REVIEW_PAUSE, "open"),
        # Written late, and still on its way: an absence of now says nothing of it.
        (order(status="CANCELLED"), {"not_after": NOW - FACTS.longest_in_flight / 2}, NOW - REVIEW_PAUSE, "open"),
        (order(status="CANCELLED"), {"not_after": NOW - FACTS.longest_in_flight}, NOW - REVIEW_PAUSE, "closed"),
    ],
)
def test_what_was_never_there_is_closed_when_nothing_can_bring_it_any_more(
    of: Payable, history: dict[str, Any], earlier: datetime | None, expected: str
) -> None:
    found = after_look(
        of,
        charge(absent_at=earlier),
        History(account="test", may_have_run=True, **{**LONG_AGO, **history}),
        Absent(lookup=Lookup.SCAN),
        lookup=Lookup.SCAN,
        now=NOW,
        facts=FACTS,
        patience=PATIENCE,
    )
    closed = isinstance(found, Failed)
    noted = isinstance(found, Hold) and found.absent_at is not None
    assert (closed, noted) == (expected == "closed", expected == "noted"), found


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Happened("pi_1"), Happened("pi_1")),
        (Failed("declined"), Failed("declined")),
        (Wait(NOW, 3), Hold(NOW, 3)),
        (Disputed("returned", "pi_1"), Happened("pi_1")),
        (Disputed("moved_twice", is_double=True), Hold(NOW + timedelta(hours=1), 2, "moved_twice")),
    ],
)
def test_a_verdict_in_the_log(verdict: Any, expected: object) -> None:
    assert entry_of(verdict, tries=2, now=NOW) == expected


def test_each_attempt_has_its_own_key_and_its_instruction_is_read_back() -> None:
    first, second = (charge_of(ORDER, attempt=n, provider="stripe", payment_method="pm_x") for n in (1, 2))
    assert first.key != second.key
    assert first.key == charge_key(
        tenant="default",
        currency="EUR",
        provider="stripe",
        order_id="or_" + UUID(int=7).hex,
        reservation_token=TOKEN,
        attempt=1,
        amount_micros=25_000_000,
    )
    assert decode_charge(encode_instruction(first)) == first


ASKED = charge(key=charge_of(ORDER, attempt=1, provider="stripe", payment_method=None).key, ask_first=True)


@pytest.mark.parametrize(
    ("logged", "history", "lookup", "expected"),
    [
        # As far as is stored it never ran, or it did: either way a lost life may have made it.
        (ASKED, NOTHING_SENT, Lookup.SCAN, Ask()),
        (ASKED, BUSY, Lookup.SCAN, Ask()),
        (ASKED, SILENT, Lookup.EXACT, Ask()),
        (ASKED, NOTHING_SENT, Lookup.NONE, Hold(NOW + REVIEW_PAUSE, 0, UNPROVEN)),
        (ASKED, SILENT, Lookup.NONE, Hold(NOW + REVIEW_PAUSE, 0, UNPROVEN)),
        # Given up here it may have been made there.
        (msgspec.structs.replace(ASKED, tries=8), BUSY, Lookup.SCAN, Ask()),
        # What the provider has said is known, in every life that came after it.
        (ASKED, History(**SENT, done_as="pi_1"), Lookup.NONE, Settle(Happened("pi_1"))),
        (ASKED, History(**SENT, refused_as="declined"), Lookup.NONE, Settle(Failed("declined"))),
        # Asked for under a key that is not its own, it would look absent.
        (charge(ask_first=True), NOTHING_SENT, Lookup.EXACT, Hold(NOW + REVIEW_PAUSE, 0, KEY_DIFFERS)),
        (
            charge(ask_first=True),
            History(**SENT, done_as="pi_1"),
            Lookup.NONE,
            Hold(NOW + REVIEW_PAUSE, 0, KEY_DIFFERS),
        ),
        # Too early.
        (
            msgspec.structs.replace(ASKED, due_at=NOW + timedelta(seconds=9)),
            NOTHING_SENT,
            Lookup.SCAN,
            Hold(NOW + timedelta(seconds=9), 0, None),
        ),
    ],
)
def test_what_a_lost_life_may_have_made_is_not_sent_unasked(
    logged: LoggedCharge, history: History, lookup: Lookup, expected: Any
) -> None:
    assert step(charge=logged, history=history, lookup=lookup) == expected
