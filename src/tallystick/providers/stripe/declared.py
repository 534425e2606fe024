"""Stripe, as the whole knows it."""

from typing import TYPE_CHECKING, Final

from tallystick.providers.declared import Declared, ProviderSettings, Setting
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.facts import FACTS

if TYPE_CHECKING:
    from tallystick.providers.port import Provider


def _make(of: ProviderSettings) -> "Provider":
    from tallystick.providers.stripe.adapter import Stripe  # noqa: PLC0415 - it reads the settings, which read this

    return Stripe(
        StripeAccount(
            api_key=of.api_key,
            api_base=of.api_base,
            webhook_secrets=of.webhook_secrets,
            account_id=of.more.get("account_id", ""),
            connected_accounts=tuple(filter(None, of.more.get("connected_accounts", "").replace(" ", "").split(","))),
            requests_per_second=of.requests_per_second,
        )
    )


STRIPE: Final = Declared(
    name="stripe",
    facts=FACTS,
    api_key="secret key, sk_...",
    webhook_secret="endpoint secrets, whsec_...",  # noqa: S106 - words about it
    api_base="https://api.stripe.com",
    settings=(
        Setting("ACCOUNT_ID", "your own acct_...; binds what is sent to this account"),
        Setting("CONNECTED_ACCOUNTS", "acct_... whose own payouts (acct_.../ba_...) you order, by comma"),
    ),
    make=_make,
)
