"""Wise, as the whole knows it."""

from typing import TYPE_CHECKING, Final

from tallystick.providers.declared import Declared, ProviderSettings, Setting
from tallystick.providers.wise.account import WiseAccount
from tallystick.providers.wise.facts import FACTS

if TYPE_CHECKING:
    from tallystick.providers.port import Provider


def _make(of: ProviderSettings) -> "Provider":
    from tallystick.providers.wise.adapter import Wise  # noqa: PLC0415 - it reads the settings, which read this

    return Wise(
        WiseAccount(
            api_key=of.api_key,
            api_base=of.api_base,
            profile_id=of.more["profile_id"],
            source_currency=of.more.get("source_currency", ""),
            webhook_keys=tuple(key.reveal() for key in of.webhook_secrets),
            requests_per_second=of.requests_per_second,
        )
    )


WISE: Final = Declared(
    name="wise",
    facts=FACTS,
    api_key="API token",
    webhook_secret="public keys, PEM or base64",  # noqa: S106 - words about it
    api_base="https://api.wise.com",
    settings=(
        Setting("PROFILE_ID", "the profile that pays", is_needed=True),
        Setting("SOURCE_CURRENCY", "the balance to pay from; absent: the currency paid"),
    ),
    make=_make,
)
