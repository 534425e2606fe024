"""Whose Stripe account it is: credentials, addresses and limits."""

from typing import Final

import msgspec

from tallystick.secret import Secret

LIVE_BASE: Final = "https://api.stripe.com"


class StripeAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One platform account.

    `connected_accounts`: those whose payouts we order ("acct_.../ba_..."). Stripe lists the payouts of a connected
    account only to who names it: of one that is missing here none could be found after a restore, so none is sent.
    `account_id`: our own acct_..., where a person should see which of several accounts it is.
    """

    api_key: Secret
    api_base: str = LIVE_BASE
    account_id: str = ""
    webhook_secrets: tuple[Secret, ...] = ()
    connected_accounts: tuple[str, ...] = ()
    requests_per_second: float | None = None
    concurrency: int | None = None
