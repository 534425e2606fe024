"""How API keys are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.access.api_key import Form, form, with_checksum
from tallystick.access.store import new_key

SECRET = "a" * 43
MADE = with_checksum(SECRET)


def test_the_form_of_a_key_never_changes() -> None:
    """Keys that were given out must be known for ever."""
    assert with_checksum("0123456789" * 4 + "abc") == "tsk_0123456789012345678901234567890123456789abc1PK69U"


def test_a_new_key_has_a_checksum() -> None:
    assert form(new_key()) is Form.CHECKED


@pytest.mark.parametrize("key", [f"tsk_{SECRET}", "tsk_bench", "chosen-by-somebody-with-30-letters", "", MADE + "x"])
def test_keys_of_before_and_chosen_ones_are_told_from_it(key: str) -> None:
    assert form(key) is Form.UNCHECKED


@given(st.integers(4, len(MADE) - 1), st.characters(codec="latin-1"))
def test_one_wrong_letter_shows(place: int, letter: str) -> None:
    changed = MADE[:place] + letter + MADE[place + 1 :]
    assert form(changed) is (Form.CHECKED if changed == MADE else Form.WRONG)


@given(st.text(st.characters(codec="latin-1"), max_size=200))
def test_whatever_comes_has_a_form(key: str) -> None:
    assert form(key) in Form
