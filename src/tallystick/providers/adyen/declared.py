"""Adyen, as the whole knows it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.facts import FACTS
from tallystick.providers.declared import Declared, ProviderSettings, Setting

if TYPE_CHECKING:
    from tallystick.providers.port import Provider


def _make(of: ProviderSettings) -> "Provider":
    from tallystick.providers.adyen.adapter import Adyen  # noqa: PLC0415 - it reads the settings, which read this

    return Adyen(
        AdyenAccount(
            api_key=of.api_key,
            api_base=of.api_base,
            transfer_api_base=of.more["transfer_api_base"],
            merchant_account=of.more["merchant_account"],
            balance_account=of.more["balance_account"],
            return_url=of.more.get("return_url", ""),
            webhook_secrets=of.webhook_secrets,
            requests_per_second=of.requests_per_second,
        )
    )


def _fault(own: Mapping[str, str]) -> str | None:
    if _is_test(own["api_base"]) == _is_test(own["transfer_api_base"]):
        return None
    return "TALLY_ADYEN_API_BASE and TALLY_ADYEN_TRANSFER_API_BASE: one is Adyen's test platform, the other is not"


def _is_test(address: str) -> bool:
    return "-test." in address and "adyen.com" in address


ADYEN: Final = Declared(
    name="adyen",
    facts=FACTS,
    api_key="API key",
    webhook_secret="HMAC keys, hexadecimal",  # noqa: S106 - words about it
    api_base="https://checkout-test.adyen.com/v72",
    settings=(
        Setting(
            "TRANSFER_API_BASE",
            "address of the transfers API",
            default="https://balanceplatform-api-test.adyen.com/btl/v4",
            is_needed=True,
        ),
        Setting("MERCHANT_ACCOUNT", "merchant account of charges and refunds", is_needed=True),
        Setting("BALANCE_ACCOUNT", "balance account that transfers draw on", is_needed=True),
        Setting("RETURN_URL", "where a customer who had to be redirected comes back to"),
    ),
    make=_make,
    fault=_fault,
)
