"""How a delivery is made wrong: which deliveries an event gets, and with which secret and time each is signed. Pure.

lost ─ none      doubled ─ two            forged, other_endpoint ─ the good one and a bad one
late, reordered ─ one, at another time    stale, future, two_signatures ─ one, its first attempt signed so
"""

import hashlib
import re
from datetime import datetime, timedelta
from functools import cache
from typing import Final

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tallystick.simulator.dialect import Dialect, Endpoint, Notification
from tallystick.simulator.faults import Strike

# An event that is held back until the next one goes out by itself after this long.
HELD: Final = "reordered"
HELD_SECONDS: Final = 3600.0
# Tricks of a delivery that is sent beside the good one, and never again.
_BESIDE: Final = frozenset({"forged", "other_endpoint"})


class Planned(msgspec.Struct, frozen=True):
    """One delivery of an event."""

    trick: str = ""
    after_seconds: float = 0.0
    state: str = "pending"


def planned(strike: Strike | None) -> tuple[Planned, ...]:
    """The deliveries an event gets."""
    if strike is None:
        return (Planned(),)
    trick = strike.fault.name.removeprefix("webhook_")
    match trick:
        case "lost":
            return (Planned(state="lost"),)
        case "doubled":
            return (Planned(), Planned())
        case "late":
            return (Planned(after_seconds=strike.seconds),)
        case "reordered":
            return (Planned(HELD, HELD_SECONDS),)
        case "forged" | "other_endpoint":
            return (Planned(trick), Planned())
        case "stale" | "future":
            return (Planned(f"{trick}:{strike.argument}"),)
        case "two_signatures":
            return (Planned(trick),)
        case _:
            return (Planned(),)


def is_sent_once(trick: str) -> bool:
    """Whether it is no delivery of the provider's own, which would be tried again."""
    return trick in _BESIDE


def notification(dialect: Dialect, event: bytes, endpoint: Endpoint, *, now: datetime, trick: str) -> Notification:
    """The signed request, made wrong in this way."""
    if not trick:
        return dialect.notification(event, endpoint, now)
    name, _, seconds = trick.partition(":")
    if name in _BESIDE:
        secrets = tuple(foreign_secret(secret, name) for secret in endpoint.secrets[:1])
        return dialect.notification(event, Endpoint(endpoint.url, secrets), now)
    if name == "two_signatures":
        secrets = (foreign_secret(endpoint.secrets[0], name), *endpoint.secrets)
        return dialect.notification(event, Endpoint(endpoint.url, secrets), now)
    if name == "stale":
        return dialect.notification(event, endpoint, now - timedelta(seconds=float(seconds)))
    if name == "future":
        return dialect.notification(event, endpoint, now + timedelta(seconds=float(seconds)))
    return dialect.notification(event, endpoint, now)


@cache
def foreign_secret(secret: str, whose: str) -> str:
    """A secret of the same form that belongs to somebody else."""
    if "PRIVATE KEY" in secret:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    digest = hashlib.sha256(f"{whose}:{secret}".encode()).hexdigest()
    if re.fullmatch(r"[0-9A-Fa-f]+", secret):
        return digest.upper()
    return f"whsec_{digest[:32]}"
