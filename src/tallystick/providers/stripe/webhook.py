"""Stripe's webhooks: whether the bytes are Stripe's, and what they tell. Pure.

The signature is over the time and the raw body (docs/providers.md 2.10). The time is checked in both directions:
the official package lets a time in the future pass, and with it a replay for as long as somebody likes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tallystick.money.currencies import Purpose
from tallystick.providers.stripe.objects import (
    UNDECODABLE,
    PaymentIntent,
    Unreadable,
    fingerprint,
    full_id,
    is_id,
    moment,
    read_dispute,
    read_object,
)
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret

if TYPE_CHECKING:
    from _hashlib import HASH

MOST_BODY_BYTES: Final = 1024 * 1024
# One for each active secret of the endpoint; a header of thousands is not from Stripe.
MOST_SIGNATURES: Final = 16
_MOST_TIME_DIGITS: Final = 12
# With as many signatures of other schemes besides. Nobody needs a key to have us read a longer one.
_MOST_HEADER_LENGTH: Final = 4_096
_HEADER: Final = "stripe-signature"
_HEADER_LENGTH: Final = len(_HEADER)
# As Stripe writes it while one secret is active: t=1700000000,v1= and 64 characters.
_ORDINARY_LENGTH: Final = 80
_BLOCK_BYTES: Final = 64
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))

# What an event about a payment has among its first bytes, as Stripe writes it: in one line, and in many.
_PAYMENT_KIND: Final = b'"payment_intent",'
_KIND_WITHIN: Final = 400
_PURPOSES: Final[dict[str, Purpose]] = {
    "payment_intent": "charge",
    "refund": "refund",
    "transfer": "transfer",
    "payout": "payout",
}


class _PaymentData(msgspec.Struct, frozen=True):
    object: PaymentIntent


class _PaymentEnvelope(msgspec.Struct, frozen=True):
    """What most events are: read in one go. Whatever is otherwise in any way is read step by step (`_Envelope`)."""

    id: str
    type: str
    created: int
    data: _PaymentData
    account: str | None = None


class _Data(msgspec.Struct, frozen=True):
    object: msgspec.Raw


class _Envelope(msgspec.Struct, frozen=True):
    id: str
    type: str
    created: int
    data: _Data
    account: str | None = None


class _Any(msgspec.Struct, frozen=True):
    """What can be told of an object that is none of ours."""

    kind: str = msgspec.field(name="object", default="")
    id: str | None = None


class _Loose(msgspec.Struct, frozen=True):
    """An event of which nothing can be relied on."""

    id: Any = None
    type: Any = None
    created: Any = None
    data: Any = None
    account: Any = None


_PAYMENT_DECODER: Final = msgspec.json.Decoder(_PaymentEnvelope)
_ENVELOPE_DECODER: Final = msgspec.json.Decoder(_Envelope)
_ANY_DECODER: Final = msgspec.json.Decoder(_Any)
_LOOSE_DECODER: Final = msgspec.json.Decoder(_Loose)


def verify(
    headers: Sequence[tuple[str, str]],
    body: bytes,
    *,
    secrets: Sequence[Secret],
    now: datetime,
    tolerance: timedelta,
) -> Forged | None:
    """None when one of the secrets signed these bytes lately."""
    if len(body) > MOST_BODY_BYTES:
        return Forged("too_large", f"The body has more than {MOST_BODY_BYTES} bytes.")
    if not secrets:
        return Forged("no_secret", "No webhook secret of Stripe's is configured.")
    # Comparing lengths first spares most names the copy in lower case.
    values = [value for name, value in headers if len(name) == _HEADER_LENGTH and name.lower() == _HEADER]
    if not values:
        return Forged("signature_missing", "There is no Stripe-Signature header.")
    if len(values) > 1:
        return Forged("signature_ambiguous", "There is more than one Stripe-Signature header.")
    parsed = _parsed(values[0])
    if parsed is None:
        return Forged("signature_malformed", "The Stripe-Signature header is not t=...,v1=...")
    time, signatures = parsed
    matches = False
    # Every pair is compared to its end: how long it takes tells nothing about which one came close.
    for secret in secrets:
        expected = _signature(secret, time, body)
        for signature in signatures:
            matches |= compare_digest(expected, signature)
    if not matches:
        return Forged("signature_wrong", "No configured secret made this signature.")
    return _untimely(now.timestamp() - int(time), tolerance.total_seconds())


def parse(body: bytes | msgspec.Raw) -> Event:
    """One event, as a webhook holds it. Raises Unreadable.

    An object of ours that cannot be read makes the whole event unreadable: told so, Stripe sends it again for
    days, and a payout that failed is not filed away as something that does not concern us.
    """
    # A guess, so that what is no payment does not have to fail at the decoder first. A wrong one costs time only.
    if bytes(body).find(_PAYMENT_KIND, 0, _KIND_WITHIN) < 0:
        return _parse_any(body)
    try:
        whole = _PAYMENT_DECODER.decode(body)
    except UNDECODABLE:
        return _parse_any(body)
    account = whole.account or ""
    if not is_id(whole.id) or not whole.type or (account and not is_id(account)) or "\0" in whole.type:
        return _parse_any(body)
    payment = whole.data.object
    if not is_id(payment.id):
        return _parse_any(body)
    movement = payment.movement(account)
    return Event(
        provider="stripe",
        type=whole.type,
        dedup_key=whole.id,
        change_key=f"{whole.type}:{movement.id}:{payment.version}",
        object_id=movement.id,
        occurred_at=moment(whole.created),
        movement=movement,
        body=bytes(body),
    )


def _parse_any(body: bytes | msgspec.Raw) -> Event:
    try:
        envelope = _ENVELOPE_DECODER.decode(body)
        thing = _ANY_DECODER.decode(envelope.data.object)
        purpose = _PURPOSES.get(thing.kind)
        version = "" if purpose else fingerprint(envelope.data.object)
    except UNDECODABLE as error:
        raise Unreadable("it is no event as Stripe writes them") from error
    account = envelope.account or ""
    if not is_id(envelope.id) or not envelope.type or (account and not is_id(account)):
        raise Unreadable("it has no id, no type or an odd account")
    if "\0" in envelope.type or "\0" in (thing.id or ""):
        raise Unreadable("a text of it cannot be stored")
    movement = None
    if purpose is not None:
        kept = read_object(purpose, envelope.data.object)
        movement, version = kept.movement(account), kept.version
    elif thing.kind == "dispute":
        movement = read_dispute(envelope.data.object).movement(account)
    object_id = full_id(thing.id or "", account)
    return Event(
        provider="stripe",
        type=envelope.type,
        dedup_key=envelope.id,
        # 2.10: sometimes two events tell of one change; object and type are equal, and so is what it has become.
        # Of a kind we know that is its version; of another only the whole tells two changes apart.
        change_key=f"{envelope.type}:{object_id}:{version}",
        object_id=object_id,
        occurred_at=moment(envelope.created),
        movement=movement,
        body=bytes(body),
    )


def parse_listed(body: msgspec.Raw) -> Event:
    """One event of the list, which has no second delivery: an odd one is told without a movement.

    Were it refused like a webhook, the list would never be read past it.
    """
    try:
        return parse(body)
    except Unreadable:
        return _unread(body)


def _unread(body: msgspec.Raw) -> Event:
    try:
        loose = _LOOSE_DECODER.decode(body)
    except UNDECODABLE:
        loose = _Loose()
    thing = loose.data.get("object") if isinstance(loose.data, dict) else None
    named = _id_or_empty(thing.get("id")) if isinstance(thing, dict) else ""
    object_id = full_id(named, _id_or_empty(loose.account)) if named else ""
    kind = loose.type if isinstance(loose.type, str) and loose.type and "\0" not in loose.type else "unreadable"
    dedup_key = _id_or_empty(loose.id) or f"sha256:{sha256(body).hexdigest()}"
    return Event(
        provider="stripe",
        type=kind,
        dedup_key=dedup_key,
        # What changed cannot be told, so no other event is held to tell of the same.
        change_key=f"{kind}:{object_id}:{dedup_key}",
        object_id=object_id,
        occurred_at=_moment_or_none(loose.created),
        movement=None,
        body=bytes(body),
    )


def _id_or_empty(value: object) -> str:
    return value if isinstance(value, str) and is_id(value) else ""


def _moment_or_none(value: object) -> datetime | None:
    try:
        return moment(value) if isinstance(value, int) else None
    except Unreadable:
        return None


def _untimely(age_seconds: float, tolerance_seconds: float) -> Forged | None:
    if age_seconds > tolerance_seconds:
        return Forged("timestamp_stale", "It was signed too long ago.")
    if age_seconds < -tolerance_seconds:
        return Forged("timestamp_future", "It was signed in the future.")
    return None


def _signature(secret: Secret, time: str, body: bytes) -> str:
    """What the secret makes of it: HMAC-SHA-256 in hexadecimal."""
    inner, outer = _begun(secret)
    inner, outer = inner.copy(), outer.copy()
    inner.update(f"{time}.".encode("ascii"))
    inner.update(body)
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=64)
def _begun(secret: Secret) -> "tuple[HASH, HASH]":
    """The two hashes of HMAC (RFC 2104) with the key already in them: setting these up takes longer than a kilobyte."""
    key = secret.reveal().encode()
    if len(key) > _BLOCK_BYTES:
        key = sha256(key).digest()
    key = key.ljust(_BLOCK_BYTES, b"\0")
    return sha256(key.translate(_INNER)), sha256(key.translate(_OUTER))


def _parsed(header: str) -> tuple[str, list[str]] | None:
    """The time and the v1 signatures; other schemes are passed over."""
    if (
        len(header) == _ORDINARY_LENGTH
        and header.startswith("t=")
        and header.startswith(",v1=", 12)
        and header.isascii()
    ):
        time, signature = header[2:12], header[16:]
        # Asked of bytes, which take a fifth of the time: text may be of any alphabet.
        if time.isdigit() and signature.encode().isalnum():
            return time, [signature]
    if len(header) > _MOST_HEADER_LENGTH:
        return None
    times: list[str] = []
    signatures: list[str] = []
    for item in header.split(","):
        name, _, value = item.strip().partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1":
            # What is not ASCII is no signature, and would be none to compare with.
            signatures.append(value.encode("ascii", "replace").decode("ascii"))
    if len(times) != 1 or not 0 < len(signatures) <= MOST_SIGNATURES:
        return None
    time = times[0]
    if not (time.isascii() and time.isdigit() and len(time) <= _MOST_TIME_DIGITS):
        return None
    return time, signatures
