"""Intents: one key, one instruction, one writer at a time."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.intent import (
    AlreadyDone,
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
    leave,
)
from tallystick.core.provider import Charge, Instruction, Refund, Transfer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = NOW - timedelta(hours=1)
MINE, OTHER = UUID(int=1), UUID(int=2)
SOON, PAST = NOW + timedelta(seconds=1), NOW


def wanted(*, account: str = "live", remembered: timedelta = timedelta(hours=23)) -> Wanted:
    return Wanted(instruction=b"pay", account=account, token=MINE, remembered=remembered)


def last(number: int = 3, **facts: Any) -> LastAttempt:
    values = {"token": OTHER, "not_after": PAST, "is_answered": True, "may_have_run": False, "done_as": None, **facts}
    return LastAttempt(number=number, **values)


def known(attempt: LastAttempt | None, *, instruction: bytes = b"pay", account: str = "live") -> KnownIntent:
    return KnownIntent(instruction=instruction, account=account, first_sent_at=FIRST, last=attempt)


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
    assert leave(intent, wanted(), now=NOW) == expected


@pytest.mark.parametrize(("may_have_run", "expected"), [(True, PastHorizon(FIRST)), (False, Begin(4))])
def test_past_the_horizon_only_what_never_ran_may_be_sent(may_have_run: bool, expected: object) -> None:  # noqa: FBT001
    """The provider has forgotten the key: what may have run would run again."""
    intent = known(last(may_have_run=may_have_run))
    assert leave(intent, wanted(remembered=timedelta(hours=1)), now=NOW) == expected
    assert leave(intent, wanted(remembered=timedelta(hours=1, seconds=1)), now=NOW) == Begin(4)


@given(st.booleans(), st.integers(-100, 100), st.integers(1, 9))
def test_two_never_write_at_the_same_time(answered: bool, seconds: int, number: int) -> None:  # noqa: FBT001
    """The second would act while the first one's bytes can still leave."""
    attempt = last(number, not_after=NOW + timedelta(seconds=seconds), is_answered=answered)
    found = leave(known(attempt), wanted(), now=NOW)
    assert isinstance(found, Begin) == (answered or seconds <= 0)


KEY = bytes(range(32))
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
