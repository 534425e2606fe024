"""Whose Square account it is: credentials, addresses and limits."""

from typing import Final

import msgspec

from tallystick.secret import Secret

LIVE_BASE: Final = "https://connect.squareup.com"


class SquareAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One location of one seller. Without a location Square lists the main one's only (docs/providers.md 4).

    `webhook_url` is part of what Square signs: exactly as it was registered, to the last slash.
    """

    api_key: Secret
    location_id: str
    api_base: str = LIVE_BASE
    webhook_secrets: tuple[Secret, ...] = ()
    webhook_url: str = ""
    requests_per_second: float | None = None
    concurrency: int | None = None
