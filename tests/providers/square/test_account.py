"""Whose account it is, and what no account has."""

import pytest

from tallystick.errors import Misconfigured
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.adapter import Square
from tallystick.secret import Secret


def test_an_adapter_names_its_location_and_nothing_secret() -> None:
    assert Square(SquareAccount(api_key=Secret("NeverShown"), location_id="LMAIN")).account == "location LMAIN"


@pytest.mark.parametrize("key", ["", " ", "\t\n", "EAAA x", "EAAA\n"])
def test_an_empty_token_is_a_wrong_setting(key: str) -> None:
    with pytest.raises(Misconfigured, match="access token"):
        Square(SquareAccount(api_key=Secret(key), location_id="LMAIN"))
