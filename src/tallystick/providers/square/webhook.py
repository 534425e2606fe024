"""Square's webhooks: whether the bytes are Square's, and what they tell. Pure.

The signature is over the registered address and the raw body (docs/providers.md 4, Webhook signature). It holds no
time, so nothing here tells a replay from a late delivery: only the event's id does.
"""

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Final

import msgspec

from tallystick.core.currencies import Purpose
from tallystick.core.provider import Event, Forged
from tallystick.core.secret import Secret
from tallystick.providers.square.objects import Unreadable, is_id, read_object

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


_DECODER: Final = msgspec.json.Decoder(_Envelope)


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


def parse(body: bytes | msgspec.Raw) -> Event:
    """One event, from a webhook or from the search. Raises Unreadable.

    An object of ours that cannot be read makes the whole event unreadable: told so, Square sends it again, and a
    refund that failed is not filed away as something that does not concern us.
    """
    try:
        envelope = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable("it is no event as Square writes them") from error
    if not is_id(envelope.event_id) or not envelope.type:
        raise Unreadable("it has no id or no type")
    if envelope.created_at is not None and envelope.created_at.tzinfo is None:
        raise Unreadable("its time has no zone")
    data = envelope.data or _Data()
    holds = data.object or {}
    name = next((name for name in _PURPOSES if name in holds), None)
    if name is None:
        movement, object_id, revision = None, data.id or "", ""
    else:
        kept = read_object(_PURPOSES[name], holds[name])
        movement, object_id, revision = kept.movement(), kept.id, kept.revision
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
