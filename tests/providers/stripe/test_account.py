"""Whose account it is, and what no account has."""

import pytest

from tallystick.errors import Misconfigured
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.secret import Secret


@pytest.mark.parametrize(
    ("key", "account_id", "account"),
    [
        ("sk_live_NeverShown", "", "live"),
        ("rk_live_NeverShown", "acct_1", "live acct_1"),
        ("sk_test_NeverShown", "", "test"),
        ("rk_test_NeverShown", "acct_1", "test acct_1"),
        ("NeverShown", "", "test"),
    ],
)
def test_an_adapter_names_its_account_and_nothing_secret(key: str, account_id: str, account: str) -> None:
    assert Stripe(StripeAccount(api_key=Secret(key), account_id=account_id)).account == account


@pytest.mark.parametrize("account_id", ["1", "acct_", "acct 1", "acct_1/ba_1", "acct_1\n"])
def test_an_account_id_that_is_none_is_a_wrong_setting(account_id: str) -> None:
    with pytest.raises(Misconfigured, match="acct_"):
        Stripe(StripeAccount(api_key=Secret("sk_test_1"), account_id=account_id))


@pytest.mark.parametrize("key", ["", " ", "\t\n", "sk test", "sk_test_1\n"])
def test_an_empty_key_is_a_wrong_setting(key: str) -> None:
    with pytest.raises(Misconfigured, match="API key"):
        Stripe(StripeAccount(api_key=Secret(key)))
