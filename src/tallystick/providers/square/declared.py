"""Square, as the whole knows it."""

from typing import TYPE_CHECKING, Final

from tallystick.providers.declared import Declared, ProviderSettings, Setting
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.facts import FACTS

if TYPE_CHECKING:
    from tallystick.providers.port import Provider


def _make(of: ProviderSettings) -> "Provider":
    from tallystick.providers.square.adapter import Square  # noqa: PLC0415 - it reads the settings, which read this

    return Square(
        SquareAccount(
            api_key=of.api_key,
            api_base=of.api_base,
            location_id=of.more["location_id"],
            webhook_url=of.more.get("webhook_url", ""),
            webhook_secrets=of.webhook_secrets,
            requests_per_second=of.requests_per_second,
        )
    )


SQUARE: Final = Declared(
    name="square",
    facts=FACTS,
    api_key="access token",
    webhook_secret="signature keys",  # noqa: S106 - words about it
    api_base="https://connect.squareup.com",
    settings=(
        Setting("LOCATION_ID", "the location charges belong to", is_needed=True),
        Setting("WEBHOOK_URL", "the webhook address exactly as registered; it is signed"),
    ),
    make=_make,
)
