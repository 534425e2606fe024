"""Intents: one key, one instruction, one writer at a time."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.movement.rules import (
    LONGEST_TRUSTED,
    Absence,
    AlreadyDone,
    AskFirst,
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    OtherAccount,
    OtherInstruction,
    PastHorizon,
    StillSending,
    Wanted,
    encode_instruction,
    permit,
)
from tallystick.providers.words import Charge, Instruction, Lookup, Refund, Transfer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = NOW - timedelta(hours=1)
KEY = bytes(range(32))
MINE, OTHER = UUID(int=1), UUID(int=2)
SOON, PAST = NOW + timedelta(seconds=1), NOW


LIFE = NOW - timedelta(days=9)
SETTLES_IN = timedelta(minutes=2)


def wanted(
    *,
    account: str = "live",
    since: datetime = FIRST,
    remembered: timedelta = timedelta(hours=23),
    absence: Absence | None = None,
) -> Wanted:
    return Wanted(
        key=KEY,
        instruction=b"pay",
        account=account,
        token=MINE,
        since=since,
        remembered=remembered,
        settles_in=SETTLES_IN,
        absence=absence,
    )


LONG_AGO = NOW - timedelta(days=2)


def absent(
    read_at: datetime = NOW, lookup: Lookup = Lookup.EXACT, key: bytes | None = None, since: datetime = LONG_AGO
) -> Absence:
    return Absence(key=KEY if key is None else key, read_at=read_at, lookup=lookup, since=since)


def last(number: int = 3, **facts: Any) -> LastAttempt:
    values = {"token": OTHER, "not_after": PAST, "is_answered": True, "may_have_run": False, "done_as": None, **facts}
    return LastAttempt(number=number, **values)


def known(attempt: LastAttempt | None, *, instruction: bytes = b"pay", account: str = "live") -> KnownIntent:
    return KnownIntent(instruction=instruction, account=account, since=None, first_sent_at=FIRST, last=attempt)


SILENT = {"is_answered": False, "may_have_run": True}


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (known(None), Begin(1)),
        (known(last(1, not_after=SOON)), Begin(2)),
        (known(last(**SILENT)), Begin(4)),
        (known(last(not_after=SOON, **SILENT)), StillSending(SOON)),
        (known(last(not_after=SOON, token=MINE, **SILENT)), Begun(3, SOON)),
        (known(last(may_have_run=True)), Begin(4)),
        (known(last(done_as="tr_1")), AlreadyDone("tr_1")),
        (known(last(done_as="tr_1", **SILENT)), AlreadyDone("tr_1")),
        (known(None, account="test"), OtherAccount("test", FIRST)),
        (known(last(done_as="tr_1"), account="test"), OtherAccount("test", FIRST)),
        (known(None, instruction=b"pay more"), OtherInstruction(FIRST)),
        (known(last(token=MINE), instruction=b"pay more"), OtherInstruction(FIRST)),
    ],
)
def test_who_may_write(intent: KnownIntent, expected: object) -> None:
    assert permit(intent, wanted(), life_began=LIFE, now=NOW) == expected


RAN = last(may_have_run=True)
BUSY = last(not_after=NOW - timedelta(minutes=3))


@pytest.mark.parametrize(
    ("attempt", "absence", "expected"),
    [
        # The first send too: a life of this database that was lost may have made it.
        (None, None, AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        (None, absent(), Begin(1)),
        (None, absent(lookup=Lookup.SCAN), Begin(1)),
        (None, absent(lookup=Lookup.EVENTUAL), AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        (None, absent(lookup=Lookup.NONE), AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        (None, absent(key=bytes(32)), AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        (None, absent(LIFE + SETTLES_IN), Begin(1)),
        (None, absent(since=LONG_AGO + timedelta(seconds=1)), AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        (None, absent(LIFE + SETTLES_IN - timedelta(seconds=1)), AskFirst(LIFE + SETTLES_IN, LONG_AGO)),
        # A further one, of which all before are known not to have run.
        (BUSY, None, AskFirst(NOW - timedelta(minutes=1), LONG_AGO)),
        (BUSY, absent(), Begin(4)),
        (BUSY, absent(NOW - timedelta(minutes=2)), AskFirst(NOW - timedelta(minutes=1), LONG_AGO)),
        # What may have run is a person's, whatever the books show.
        (RAN, None, PastHorizon(FIRST)),
        (RAN, absent(), PastHorizon(FIRST)),
    ],
)
def test_past_the_memory_of_its_subject_a_key_needs_proof(
    attempt: LastAttempt | None, absence: Absence | None, expected: object
) -> None:
    found = permit(known(attempt), wanted(since=LONG_AGO, absence=absence), life_began=LIFE, now=NOW)
    assert found == expected


KNOWN_UNTIL = NOW - timedelta(seconds=30)
BEGAN = NOW - timedelta(seconds=10)
SETTLED = BEGAN + SETTLES_IN
A_MOMENT = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("since", "policy_since", "began", "lookup", "expected"),
    [
        # Its row was there before: so were its amount and its key.
        (KNOWN_UNTIL, None, BEGAN, Lookup.EXACT, Begin(1)),
        # Made anew, as it was: within its memory the key protects.
        (KNOWN_UNTIL + A_MOMENT, KNOWN_UNTIL, BEGAN, Lookup.EXACT, Begin(1)),
        # By another policy it has another key, and what is on its way is in no list.
        (KNOWN_UNTIL + A_MOMENT, KNOWN_UNTIL + A_MOMENT, BEGAN, Lookup.EXACT, AskFirst(SETTLED, KNOWN_UNTIL)),
        (KNOWN_UNTIL + A_MOMENT, None, BEGAN, Lookup.EXACT, AskFirst(SETTLED, KNOWN_UNTIL)),
        # The policy may have been another one in all that was lost.
        (
            KNOWN_UNTIL + A_MOMENT,
            LONG_AGO,
            KNOWN_UNTIL + LONGEST_TRUSTED + A_MOMENT,
            Lookup.EXACT,
            AskFirst(KNOWN_UNTIL + LONGEST_TRUSTED + A_MOMENT + SETTLES_IN, KNOWN_UNTIL),
        ),
        # Of a row that was there before another generation may have been begun in all that time.
        (
            LONG_AGO,
            LONG_AGO,
            KNOWN_UNTIL + LONGEST_TRUSTED + A_MOMENT,
            Lookup.EXACT,
            AskFirst(KNOWN_UNTIL + LONGEST_TRUSTED + A_MOMENT + SETTLES_IN, LONG_AGO),
        ),
        # A list that lags shows nothing before that, whatever it is asked for.
        (LONG_AGO, LONG_AGO, BEGAN, Lookup.SCAN, AskFirst(SETTLED, LONG_AGO)),
    ],
)
def test_what_may_be_made_anew_with_another_amount_waits_for_what_is_on_its_way(
    since: datetime, policy_since: datetime | None, began: datetime, lookup: Lookup, expected: object
) -> None:
    read = Absence(key=KEY, read_at=NOW, lookup=lookup, since=min(since, KNOWN_UNTIL), listed_since=KNOWN_UNTIL)
    asked = wanted(since=since, remembered=timedelta(days=9), absence=read)
    asked = msgspec.structs.replace(asked, covers_policy=True, policy_since=policy_since)
    intent = KnownIntent(instruction=b"pay", account="live", since=None, first_sent_at=max(NOW, began), last=None)
    assert permit(intent, asked, life_began=began, known_until=KNOWN_UNTIL, now=NOW) == expected
    settled = msgspec.structs.replace(asked, absence=msgspec.structs.replace(read, read_at=began + SETTLES_IN))
    assert permit(intent, settled, life_began=began, known_until=KNOWN_UNTIL, now=NOW) == Begin(1)


def test_nobody_knows_how_much_was_lost_where_the_newest_step_is_dated_ahead() -> None:
    """By hours: a clock that was ahead. By a second: somebody wrote while the life began."""
    for ahead, expected in ((timedelta(hours=5), AskFirst(SETTLED, FIRST)), (A_MOMENT, Begin(1))):
        until = BEGAN + ahead
        read = Absence(key=KEY, read_at=NOW, lookup=Lookup.EXACT, since=FIRST, listed_since=until)
        asked = msgspec.structs.replace(wanted(remembered=timedelta(days=9), absence=read), covers_policy=True)
        intent = KnownIntent(instruction=b"pay", account="live", since=None, first_sent_at=NOW, last=None)
        assert permit(intent, asked, life_began=BEGAN, known_until=until, now=NOW) == expected


def test_who_begins_a_life_with_each_tick_waits_once() -> None:
    """His server is started for it. What was lost before the payout was first asked about has settled since."""
    began = KNOWN_UNTIL + LONGEST_TRUSTED + A_MOMENT
    read = Absence(key=KEY, read_at=began, lookup=Lookup.EXACT, since=LONG_AGO, listed_since=KNOWN_UNTIL)
    asked = wanted(since=LONG_AGO, remembered=timedelta(days=9), absence=read)
    asked = msgspec.structs.replace(asked, covers_policy=True)
    intent = KnownIntent(instruction=b"pay", account="live", since=None, first_sent_at=began - SETTLES_IN, last=None)
    assert permit(intent, asked, life_began=began, known_until=KNOWN_UNTIL, now=began) == Begin(1)
    later = msgspec.structs.replace(intent, first_sent_at=intent.first_sent_at + A_MOMENT)
    assert isinstance(permit(later, asked, life_began=began, known_until=KNOWN_UNTIL, now=began), AskFirst)


def test_the_memory_counts_from_the_subject_and_not_from_the_first_send() -> None:
    """A new generation or attempt has a first send of its own, and the age of what it pays for."""
    just_made = KnownIntent(instruction=b"pay", account="live", since=None, first_sent_at=NOW, last=None)
    asked = wanted(since=NOW - timedelta(hours=1), remembered=timedelta(hours=1))
    assert isinstance(permit(just_made, asked, life_began=LIFE, now=NOW), AskFirst)
    younger = wanted(since=NOW - timedelta(hours=1), remembered=timedelta(hours=1, seconds=1))
    assert permit(just_made, younger, life_began=LIFE, now=NOW) == Begin(1)


def test_a_later_asker_makes_no_key_younger() -> None:
    """Who made the intent knew of an older subject than who asks now."""
    intent = KnownIntent(instruction=b"pay", account="live", since=LONG_AGO, first_sent_at=NOW, last=None)
    assert isinstance(permit(intent, wanted(since=NOW), life_began=LIFE, now=NOW), AskFirst)


def test_a_clock_that_was_set_back_makes_no_key_younger_than_its_first_send() -> None:
    asked = wanted(since=NOW + timedelta(days=1), remembered=timedelta(hours=1))
    assert isinstance(permit(known(None), asked, life_began=LIFE, now=NOW), AskFirst)


AGES = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3))
SILENT_ATTEMPT = last(is_answered=False, may_have_run=True)


@given(
    ages=st.tuples(AGES, AGES, AGES, AGES),
    lookup=st.none() | st.sampled_from(list(Lookup)),
    attempt=st.none() | st.sampled_from([BUSY, RAN, SILENT_ATTEMPT]),
)
def test_what_is_sent_is_remembered_or_proven_absent(
    ages: tuple[timedelta, timedelta, timedelta, timedelta], lookup: Lookup | None, attempt: LastAttempt | None
) -> None:
    """Whatever is stored of attempts: a life that was lost may have made others."""
    created, first_sent, life, read = ages
    intent = KnownIntent(instruction=b"pay", account="live", since=None, first_sent_at=NOW - first_sent, last=attempt)
    asked = wanted(since=NOW - created, absence=None if lookup is None else absent(NOW - read, lookup))
    if isinstance(permit(intent, asked, life_began=NOW - life, now=NOW), Begin):
        is_remembered = max(created, first_sent) < asked.remembered
        is_proven = lookup in (Lookup.EXACT, Lookup.SCAN) and read <= life - SETTLES_IN
        assert is_remembered or (is_proven and (attempt is None or not attempt.may_have_run))


@given(st.booleans(), st.integers(-100, 100), st.integers(1, 9))
def test_two_never_write_at_the_same_time(answered: bool, seconds: int, number: int) -> None:  # noqa: FBT001
    """The second would act while the first one's bytes can still leave."""
    attempt = last(number, not_after=NOW + timedelta(seconds=seconds), is_answered=answered)
    found = permit(known(attempt), wanted(), life_began=LIFE, now=NOW)
    assert isinstance(found, Begin) == (answered or seconds <= 0)


INSTRUCTIONS: list[Instruction] = [
    Charge(key=KEY, amount_micros=1_000_000, currency="USD"),
    Refund(key=KEY, payment_id="pi_1", amount_micros=1_000_000, currency="USD"),
    Transfer(key=KEY, destination="acct_1", amount_micros=1_000_000, currency="USD"),
]


def test_the_bytes_of_an_instruction_stay_the_same_from_release_to_release() -> None:
    """They are compared with what an earlier version stored: another spelling would stop every retry."""
    assert encode_instruction(INSTRUCTIONS[2]) == (
        b'{"amount_micros":1000000,"currency":"USD","description":"","destination":"acct_1",'
        b'"instruction":"transfer","key":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"}'
    )


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda instruction: type(instruction).__name__)
def test_another_value_in_any_field_gives_other_bytes(instruction: Instruction) -> None:
    for field in msgspec.structs.fields(instruction):
        value = getattr(instruction, field.name)
        other = {"key": bytes(32), "amount_micros": 1}.get(field.name, f"{value}x")
        changed = msgspec.structs.replace(instruction, **{field.name: other})
        assert encode_instruction(changed) != encode_instruction(instruction), field.name


def test_kinds_of_instructions_never_share_bytes() -> None:
    assert len({encode_instruction(instruction) for instruction in INSTRUCTIONS}) == len(INSTRUCTIONS)
