"""Wise's webhooks: an RSA signature over the raw body, and what it says (docs/providers.md 5, Webhook signature).

The signature covers no time of its own, so a replay is stopped by the dedup key alone. That is made of what happened:
the delivery's own id changes when Wise delivers again. A state change names no amount, so an event carries no
movement: it says that the transfer is to be fetched, which also heals the order (docs/providers.md 5, Event).

One key signs the webhooks of all of Wise's customers, so a genuine one may be about a profile that is not ours: it is
not believed. Headers are not signed: none of them, nor X-Test-Notification, changes what a signed body means.
"""

import binascii
from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from tallystick.errors import Misconfigured
from tallystick.providers.port import Headers
from tallystick.providers.wise.objects import moment, read
from tallystick.providers.words import Event, Forged

MOST_BYTES: Final = 1024 * 1024
_HEADER: Final = "x-signature-sha256"
# Events about transfers: a change of state, a payout that failed, a refund.
_ABOUT_TRANSFERS: Final = "transfers#"
# A resource that is a profile itself.
_PROFILE: Final = "profile"


class _Resource(msgspec.Struct, frozen=True):
    type: str | None = None
    id: int | str | None = None
    profile_id: int | str | None = None


class _Data(msgspec.Struct, frozen=True):
    """Most name what they are about by `resource`; a payout's failure names its transfer and profile beside it."""

    resource: _Resource | None = None
    transfer_id: int | str | None = None
    profile_id: int | str | None = None
    current_state: str | None = None
    occurred_at: str | None = None

    @property
    def about(self) -> str:
        """The id of what it is about, or nothing."""
        named = None if self.resource is None else self.resource.id
        named = self.transfer_id if named is None else named
        return "" if named is None else str(named)

    @property
    def profiles(self) -> set[str]:
        """Whose it says it is, wherever it says so."""
        named = {self.profile_id}
        if self.resource is not None:
            named.add(self.resource.profile_id)
            if self.resource.type == _PROFILE:
                named.add(self.resource.id)
        return {str(profile) for profile in named if profile is not None}


class _Notification(msgspec.Struct, frozen=True):
    event_type: str
    data: msgspec.Raw
    sent_at: str | None = None


def public_keys(texts: Sequence[str]) -> tuple[RSAPublicKey, ...]:
    """Wise's public keys, PEM or base64 DER. Raises Misconfigured for anything else."""
    keys = []
    for text in texts:
        try:
            if text.lstrip().startswith("-----BEGIN"):
                key = load_pem_public_key(text.strip().encode())
            else:
                key = load_der_public_key(b64decode("".join(text.split()), validate=True))
        except ValueError:
            raise Misconfigured("wise: a webhook key is neither PEM nor base64 DER of a public key") from None
        if not isinstance(key, RSAPublicKey):
            raise Misconfigured("wise: a webhook key is no RSA key")
        keys.append(key)
    return tuple(keys)


def receive(keys: Sequence[RSAPublicKey], profile_id: str, headers: Headers, body: bytes) -> tuple[Event, ...] | Forged:
    """Verify on the raw bytes, then read. `profile_id` is ours."""
    if len(body) > MOST_BYTES:
        return Forged("too_large", "The body is larger than 1 MB.")
    if not keys:
        return Forged("no_secret", "No webhook key is configured for Wise.")
    signatures = [value for name, value in headers if name.lower() == _HEADER]
    if not signatures:
        return Forged("signature_missing", "There is no X-Signature-SHA256.")
    if len(signatures) > 1:
        return Forged("signature_ambiguous", "There is more than one X-Signature-SHA256.")
    if not is_signed(body, signatures[0], keys):
        return Forged("signature_wrong", "The signature is not of any key we know.")
    notification = read(body, _Notification)
    data = None if notification is None else read(bytes(notification.data), _Data)
    if notification is None or data is None:
        return Forged("unreadable", "The signature is right, and the body cannot be read.")
    if not data.profiles <= {profile_id}:
        return Forged("other_account", "The signature is right, and it is about another profile than ours.")
    return (_event(notification, data, body),)


def is_signed(body: bytes, signature: str, keys: Sequence[RSAPublicKey]) -> bool:
    """Whether one of the keys made the signature. All are tried, whatever the first says."""
    try:
        claimed = b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    matches = [_is_of(key, claimed, body) for key in keys]
    return any(matches)


def _is_of(key: RSAPublicKey, signature: bytes, body: bytes) -> bool:
    try:
        key.verify(signature, body, PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


def _event(notification: _Notification, data: _Data, body: bytes) -> Event:
    resource = data.about
    if resource and data.current_state and data.occurred_at:
        key = f"{notification.event_type}:{resource}:{data.current_state}:{data.occurred_at}"
    else:
        # Without a state two changes of one second are told apart by all they say, and by nothing less.
        key = f"{notification.event_type}:{resource}:{sha256(bytes(notification.data)).hexdigest()}"
    return Event(
        provider="wise",
        type=notification.event_type,
        dedup_key=key,
        change_key=key,
        object_id=resource,
        occurred_at=moment(data.occurred_at or notification.sent_at),
        movement=None,
        body=body,
        object_purpose="transfer" if resource and notification.event_type.startswith(_ABOUT_TRANSFERS) else None,
    )
