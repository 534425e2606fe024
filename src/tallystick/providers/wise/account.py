"""The account at Wise: which profile pays, from which balance, and who signs its webhooks."""

import msgspec

from tallystick.secret import Secret


class WiseAccount(msgspec.Struct, frozen=True, kw_only=True):
    """`source_currency`: the balance that pays; "" is the balance in the currency that is paid.

    `webhook_keys` are public keys of Wise's, PEM or base64 DER: nothing to hide, and no secrets.
    """

    api_key: Secret
    profile_id: str
    api_base: str = "https://api.wise.com"
    source_currency: str = ""
    webhook_keys: tuple[str, ...] = ()
    requests_per_second: float | None = None
    concurrency: int | None = None
