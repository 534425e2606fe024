"""Square's webhooks: whether the bytes are Square's, and what they tell. Pure.

The signature is over the registered address and the raw body (docs/providers.md 4, Webhook signature). It holds no
time, so nothing here tells a replay from a late delivery: only the event's id does.
"""

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any, Final

import msgspec

from tallystick.money.currencies import Purpose
from tallystick.providers.square.objects import (
    UNDECODABLE,
    Unreadable,
    fingerprint,
    is_id,
    read_dispute,
    read_object,
)
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret

MOST_BODY_BYTES: Final = 1024 * 1024
_HEADER: Final = "x-square-hmacsha256-signature"
_PURPOSES: Final[dict[str, Purpose]] = {"payment": "charge", "refund": "refund", "payout": "payout"}


class _Data(msgspec.Struct, frozen=True):
    type: str | None = None
    id: str | None = None
    object: dict[str, msgspec.Raw] | None = None


class _Envelope(msgspec.Struct, frozen=True):
    event_id: str
    type: str
    created_at: datetime | None = None
    data: _Data | None = None


class _Loose(msgspec.Struct, frozen=True):
    """An event of which nothing can be relied on."""

    event_id: Any = None
    type: Any = None
    created_at: Any = None
    data: Any = None


_DECODER: Final = msgspec.json.Decoder(_Envelope)
_LOOSE_DECODER: Final = msgspec.json.Decoder(_Loose)


def verify(headers: Sequence[tuple[str, str]], body: bytes, *, secrets: Sequence[Secret], url: str) -> Forged | None:
    """None when one of the secrets signed these bytes for our address."""
    if len(body) > MOST_BODY_BYTES:
        return Forged("too_large", f"The body has more than {MOST_BODY_BYTES} bytes.")
    if not secrets or not url:
        return Forged("no_secret", "No webhook secret of Square's is configured, or not the registered address.")
    values = [value for name, value in headers if name.lower() == _HEADER]
    if not values:
        return Forged("signature_missing", f"There is no {_HEADER} header.")
    if len(values) > 1:
        return Forged("signature_ambiguous", f"There is more than one {_HEADER} header.")
    signature = values[0].strip().encode("utf-8", "replace")
    signed = url.encode() + body
    matches = False
    # Every secret is tried to its end: how long it takes tells nothing about which one came close.
    for secret in secrets:
        expected = b64encode(hmac_digest(secret.reveal().encode(), signed, "sha256"))
        matches |= compare_digest(expected, signature)
    return None if matches else Forged("signature_wrong", "No configured secret made this signature for our address.")


def parse(body: bytes | msgspec.Raw, *, location_id: str = "") -> Event:
    """One event, as a webhook holds it; `location_id` is ours. Raises Unreadable.

    An object of ours that cannot be read makes the whole event unreadable: told so, Square sends it again, and a
    refund that failed is not filed away as something that does not concern us.
    """
    try:
        envelope = _DECODER.decode(body)
    except UNDECODABLE as error:
        raise Unreadable("it is no event as Square writes them") from error
    if not is_id(envelope.event_id) or not envelope.type:
        raise Unreadable("it has no id or no type")
    if envelope.created_at is not None and envelope.created_at.tzinfo is None:
        raise Unreadable("its time has no zone")
    data = envelope.data or _Data()
    holds = data.object or {}
    name = next((name for name in _PURPOSES if name in holds), None)
    if "dispute" in holds:
        dispute = read_dispute(holds["dispute"])
        movement, object_id, revision = dispute.movement(), dispute.id, _revision(envelope, holds)
    elif name is None:
        movement, object_id, revision = None, data.id or "", _revision(envelope, holds)
    else:
        kept = read_object(_PURPOSES[name], holds[name])
        movement, object_id, revision = kept.movement(), kept.id, kept.revision
        if location_id and kept.location_id not in (None, location_id):
            # Another seller's, of the same application: he can write our key beside what he takes himself.
            movement = msgspec.structs.replace(movement, reference="")
    if "\0" in f"{envelope.type}{object_id}{revision}":
        raise Unreadable("a text of it cannot be stored")
    return Event(
        provider="square",
        type=envelope.type,
        dedup_key=envelope.event_id,
        change_key=f"{envelope.type}:{object_id}:{revision}",
        object_id=object_id,
        occurred_at=envelope.created_at,
        movement=movement,
        body=bytes(body),
    )


def parse_listed(body: msgspec.Raw, *, location_id: str = "") -> Event:
    """One event of the search, which has no second delivery: an odd one is told without a movement.

    Were it refused like a webhook, the search would never be read past it.
    """
    try:
        return parse(body, location_id=location_id)
    except Unreadable:
        return _unread(body)


def _unread(body: msgspec.Raw) -> Event:
    try:
        loose = _LOOSE_DECODER.decode(body)
    except UNDECODABLE:
        loose = _Loose()
    object_id = _id_or_empty(loose.data.get("id")) if isinstance(loose.data, dict) else ""
    kind = loose.type if isinstance(loose.type, str) and loose.type and "\0" not in loose.type else "unreadable"
    dedup_key = _id_or_empty(loose.event_id) or f"sha256:{sha256(body).hexdigest()}"
    return Event(
        provider="square",
        type=kind,
        dedup_key=dedup_key,
        # What changed cannot be told, so no other event is held to tell of the same.
        change_key=f"{kind}:{object_id}:{dedup_key}",
        object_id=object_id,
        occurred_at=_moment_or_none(loose.created_at),
        movement=None,
        body=bytes(body),
    )


def _revision(envelope: _Envelope, holds: dict[str, msgspec.Raw]) -> str:
    """What tells two changes apart in a kind we know nothing of: all of it, or the event itself where it holds none."""
    try:
        return fingerprint(holds) if holds else envelope.event_id
    except UNDECODABLE as error:
        raise Unreadable("it is no event as Square writes them") from error


def _id_or_empty(value: object) -> str:
    return value if isinstance(value, str) and is_id(value) else ""


def _moment_or_none(value: object) -> datetime | None:
    try:
        found = msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return None
    return found if found.tzinfo is not None else None
