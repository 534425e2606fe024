"""Whether webhooks can be sent to an endpoint at all: checked when it is set, where somebody hears of it. Pure.

A secret that cannot sign would fail at each attempt, and be seen only by whoever reads the list of deliveries.
"""

import re
from typing import Final
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tallystick.simulator.dialect import Endpoint
from tallystick.simulator.wise import webhook as wise_webhook
from tallystick.simulator.wise.answer import DIALECT as WISE

_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")


class EndpointFault(ValueError):
    """Why an endpoint is refused, as a sentence that shows no secret."""


def checked(dialect: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint as it can be used: Wise gets a key pair if it has none. Raises EndpointFault."""
    if not endpoint.secrets and dialect == WISE:
        endpoint = Endpoint(endpoint.url, (wise_webhook.make_secret(),))
    if not all(endpoint.secrets) or not endpoint.secrets:
        raise EndpointFault(f"Webhooks of {dialect} are signed: give the secret your receiver checks them with.")
    if not _is_address(endpoint.url):
        raise EndpointFault(
            f"{endpoint.url!r} is no address for webhooks. One begins with http:// or https:// and has no spaces."
        )
    if dialect == "adyen" and not all(_HEX.fullmatch(secret) for secret in endpoint.secrets):
        raise EndpointFault("A secret of adyen is an HMAC key in hexadecimal: an even number of digits 0-9 and A-F.")
    if dialect == WISE and not all(_is_rsa(secret) for secret in endpoint.secrets):
        raise EndpointFault(
            "A secret of wise is a private RSA key as PEM, without a passphrase. Without any, one is made."
        )
    return endpoint


def _is_rsa(secret: str) -> bool:
    try:
        # A passphrase that is missing is a TypeError.
        return isinstance(serialization.load_pem_private_key(secret.encode(), None), rsa.RSAPrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        return (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and url.isascii()
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        return False
