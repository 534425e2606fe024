"""Intents: one key, one instruction, one writer at a time."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.intent import (
    Begin,
    Begun,
    KnownIntent,
    LastAttempt,
    OtherInstruction,
    StillSending,
    encode_instruction,
    leave,
)
from tallystick.core.provider import Charge, Instruction, Refund, Transfer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE, OTHER = UUID(int=1), UUID(int=2)
SOON, PAST = NOW + timedelta(seconds=1), NOW


def known(last: LastAttempt | None) -> KnownIntent:
    return KnownIntent(b"pay", NOW - timedelta(hours=1), last)


@pytest.mark.parametrize(
    ("intent", "expected"),
    [
        (known(None), Begin(1)),
        (known(LastAttempt(1, OTHER, SOON, is_answered=True)), Begin(2)),
        (known(LastAttempt(3, OTHER, PAST, is_answered=False)), Begin(4)),
        (known(LastAttempt(3, OTHER, SOON, is_answered=False)), StillSending(SOON)),
        (known(LastAttempt(3, MINE, SOON, is_answered=False)), Begun(3, SOON)),
        (KnownIntent(b"pay more", NOW, None), OtherInstruction(NOW)),
        (KnownIntent(b"pay more", NOW, LastAttempt(1, MINE, PAST, is_answered=True)), OtherInstruction(NOW)),
    ],
)
def test_who_may_write(intent: KnownIntent, expected: object) -> None:
    assert leave(intent, b"pay", MINE, now=NOW) == expected


@given(st.booleans(), st.integers(-100, 100), st.integers(1, 9))
def test_two_never_write_at_the_same_time(answered: bool, seconds: int, number: int) -> None:  # noqa: FBT001
    """The second would act while the first one's bytes can still leave."""
    last = LastAttempt(number, OTHER, NOW + timedelta(seconds=seconds), is_answered=answered)
    found = leave(known(last), b"pay", MINE, now=NOW)
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
