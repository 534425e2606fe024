"""Adyen's webhooks: two kinds, two signatures (docs/providers.md 3, Standard webhook signature, Platform webhooks).

Payments and refunds are items, each with its own signature over eight of its fields, joined without escaping;
transfers are one body, signed as a whole in a header. Either way the key is hex, and one signature is sent: while
keys are rotated, queued events keep the old one (docs/providers.md 3, Key rotation).
"""

import hmac
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tallystick.simulator.dialect import Endpoint, Notification

_SIGNED: Final = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")
_JSON: Final = ("content-type", "application/json")


def notification(event: bytes, endpoint: Endpoint) -> Notification:
    key = _key(endpoint.secrets[0] if endpoint.secrets else "")
    told = msgspec.json.decode(event)
    if "notificationItems" not in told:
        return Notification((_JSON, ("Protocol", "HmacSHA256"), ("HmacSignature", _signature(key, event))), event)
    items = [_signed(item["NotificationRequestItem"], key) for item in told["notificationItems"]]
    wrapped = [{"NotificationRequestItem": item} for item in items]
    return Notification((_JSON,), msgspec.json.encode({**told, "notificationItems": wrapped}))


def _signed(item: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    fields = [str(item.get(name, "")) for name in _SIGNED]
    fields += [str(item["amount"]["value"]), item["amount"]["currency"], item["eventCode"], item["success"]]
    signature = _signature(key, ":".join(fields).encode())
    return {**item, "additionalData": {**item.get("additionalData", {}), "hmacSignature": signature}}


def _signature(key: bytes, message: bytes) -> str:
    return b64encode(hmac.digest(key, message, "sha256")).decode()


def _key(secret: str) -> bytes:
    # A secret that is no hex belongs to nobody; it still signs, so that a forged webhook looks like one.
    try:
        return bytes.fromhex(secret)
    except ValueError:
        return secret.encode()
