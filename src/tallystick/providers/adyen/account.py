"""The account at Adyen: whose it is, where it lives, what proves that we may use it."""

import msgspec

from tallystick.secret import Secret


class AdyenAccount(msgspec.Struct, frozen=True, kw_only=True):
    """`api_base` has no default: the live Checkout host carries the merchant's own prefix (docs/providers.md 3, Hosts).

    `webhook_secrets` are the hexadecimal HMAC keys of the standard and of the platform webhooks alike.
    `return_url`: where Adyen sends a customer back who had to be redirected; "" leaves it out.
    """

    api_key: Secret
    merchant_account: str
    balance_account: str
    api_base: str
    transfer_api_base: str = "https://balanceplatform-api-live.adyen.com/btl/v4"
    webhook_secrets: tuple[Secret, ...] = ()
    return_url: str = ""
    requests_per_second: float | None = None
    concurrency: int | None = None
