"""Keys: which name an effect carries, so that doing it twice is seen to be the same.

Pure. A key is a SHA-256 over an encoding of named fields. The encoding is injective: every name and value
carries its length, every value its type, so ("ab", "c") and ("a", "bc") differ, and so do 1 and "1". It is
versioned: a key must come out the same on another host and in a later release, or a retry would pay again.

    digest ── hex64 ─────> Stripe, Adyen   64 characters
           ── square45 ──> Square          43 of at most 45
           ── uuid_form ─> Wise            36, a UUID
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final
from uuid import UUID

MAX_IDEMPOTENCY_KEY_CHARACTERS: Final = 255

_VERSION: Final = b"tallystick/key/1"
OPERATION_VERSION: Final = "tallystick/operation/1"
_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 32
_OPERATION_ID_BYTES: Final = 16
_CURRENCY_CHARACTERS: Final = 3


def digest(purpose: str, /, **fields: str | int) -> bytes:
    """32 bytes that stand for the purpose and the fields, whatever the order they were passed in.

    Text counts by its exact UTF-8 bytes: nothing is normalised, so what looks alike may still differ.
    """
    # Without fields every payment of that purpose would share one key, and only the first would be made.
    if not fields:
        raise ValueError(f"a {purpose!r} key must cover at least one field")
    hashed = sha256(_VERSION + _sized(_utf8(purpose, "purpose")))
    for name in sorted(fields):
        hashed.update(_sized(_utf8(name, "a field's name")) + _typed(fields[name], name))
    return hashed.digest()


def hex64(key: bytes) -> str:
    """All 256 bits in 64 lowercase characters: within Stripe's 255 and exactly Adyen's 64."""
    return _checked(key).hex()


def square45(key: bytes) -> str:
    """All 256 bits in 43 URL-safe characters. Square allows 45, so hex would not fit."""
    return urlsafe_b64encode(_checked(key)).rstrip(b"=").decode("ascii")


def uuid_form(key: bytes) -> str:
    """122 bits of the digest as a lowercase UUID.

    By RFC 9562 a hash belongs into version 8. Whether Wise takes anything but version 4 is not known, and a
    refused transfer is worse than a wrong label: the version and variant bits are those of version 4.
    """
    return str(UUID(bytes=_checked(key)[:16], version=4))


# By the name that a provider's facts give its form.
FORMS: Final[Mapping[str, Callable[[bytes], str]]] = {"hex64": hex64, "square45": square45, "uuid": uuid_form}


def forms_of(key: bytes) -> tuple[str, ...]:
    """Every way in which some provider may have written the key."""
    return tuple(form(key) for form in FORMS.values())


# How many bytes of a key come through whole in each form, by the form's length: hexadecimal, a UUID without its
# hyphens (version and variant bits are its own), Square's key, and the part of it that a Square payment holds.
_HEX_CHARACTERS: Final = 64
_UUID_CHARACTERS: Final = 36
# As somebody may write a UUID: kept as what could be ours, though we never write it so.
_BARE_UUID_CHARACTERS: Final = 32
_UUID_BYTES: Final = 6
_SQUARE_CHARACTERS: Final = 43
_SQUARE_PAYMENT_CHARACTERS: Final = 40


def reference_bounds(reference: str) -> tuple[bytes, bytes] | None:
    """Between which keys the one lies that a provider wrote as `reference`; None: it is no form of any key of ours."""
    try:
        if len(reference) == _HEX_CHARACTERS:
            whole, bytes_ = bytes.fromhex(reference), _DIGEST_BYTES
        elif len(reference) in (_UUID_CHARACTERS, _BARE_UUID_CHARACTERS):
            whole, bytes_ = UUID(reference).bytes[:_UUID_BYTES], _UUID_BYTES
        elif len(reference) in (_SQUARE_CHARACTERS, _SQUARE_PAYMENT_CHARACTERS):
            padded = reference + "=" * (-len(reference) % 4)
            whole, bytes_ = urlsafe_b64decode(padded), len(reference) * 3 // 4
        else:
            return None
    except ValueError:
        return None
    # The decoders pass over characters that are none of theirs: what is left could lie between very many keys.
    if len(whole) != bytes_:
        return None
    return whole.ljust(_DIGEST_BYTES, b"\0"), whole.ljust(_DIGEST_BYTES, b"\xff")


def is_reference(key: bytes, reference: str) -> bool:
    """Whether a provider wrote this very key as `reference`."""
    return reference in forms_of(key) or reference == square45(key)[:_SQUARE_PAYMENT_CHARACTERS]


def settlement_key(
    *,
    tenant: str,
    currency: str,
    provider: str,
    attribution_id: str,
    squad_id: str,
    net_micros: int,
    generation: int = 0,
) -> bytes:
    """One payout. A new `generation` only after a final, known failure: with an unknown one it pays twice."""
    return digest(
        "settlement",
        tenant=tenant,
        currency=_capitals(currency),
        provider=provider,
        attribution_id=attribution_id,
        squad_id=squad_id,
        net_micros=net_micros,
        generation=generation,
    )


def charge_key(
    *,
    tenant: str,
    currency: str,
    provider: str,
    order_id: str,
    reservation_token: str,
    attempt: int,
    amount_micros: int,
) -> bytes:
    """One charge. `attempt` counts the customer's new tries after a known refusal, never our retries."""
    return digest(
        "charge",
        tenant=tenant,
        currency=_capitals(currency),
        provider=provider,
        order_id=order_id,
        reservation_token=reservation_token,
        attempt=attempt,
        amount_micros=amount_micros,
    )


def refund_key(
    *,
    tenant: str,
    currency: str,
    provider: str,
    payment_intent_id: str,
    generation: int = 0,
    part: bytes | None = None,
) -> bytes:
    """The refund of a payment: whoever finds it owed, sweeper or worker, arrives at the same key.

    `part` None: the saga's, of all of it, whose key has the bytes that it always had. Otherwise of what a caller asked
    for under his key (`refund_part`).
    """
    asked = {} if part is None else {"part": _checked(part).hex()}
    return digest(
        "refund",
        tenant=tenant,
        currency=_capitals(currency),
        provider=provider,
        payment_intent_id=payment_intent_id,
        operation="REFUND",
        generation=generation,
        **asked,
    )


def refund_part(idempotency_key: str) -> bytes:
    """The part of a payment that a caller wants given back under this key: from what he sent, and nothing else."""
    return digest("refund part", idempotency_key=idempotency_key)


def task_key(
    *,
    tenant: str,
    currency: str,
    provider: str,
    task_id: str,
    operation: str,
    round_number: int = 0,
    generation: int = 0,
) -> bytes:
    """One step of an escrow task or a wallet request. `round_number` tells its milestones or rounds apart."""
    return digest(
        "task",
        tenant=tenant,
        currency=_capitals(currency),
        provider=provider,
        task_id=task_id,
        operation=operation,
        round_number=round_number,
        generation=generation,
    )


def operation_id(tenant: str, idempotency_key: str) -> bytes:
    """16 bytes for a tenant's key in the ledger: the first 128 bits of a SHA-256.

    Every operation passes here, so the encoding is one string: each length (in code points) before its text.
    """
    text = f"{OPERATION_VERSION}:{len(tenant)}:{tenant}:{len(idempotency_key)}:{idempotency_key}"
    return sha256(text.encode()).digest()[:_OPERATION_ID_BYTES]


def idempotency_key_fault(key: object) -> str | None:
    """Why `key` cannot be a caller's idempotency key; None if it can. First match wins.

    idempotency_key_missing, idempotency_key_invalid, idempotency_key_too_long

    Visible ASCII only (0x21 to 0x7e). No spaces, not even inner ones: proxies trim and fold them in headers,
    and a key that changes on its way makes a retry a second payment.
    """
    if type(key) is str:
        if key.isascii() and key.isprintable() and " " not in key:
            if 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARACTERS:
                return None
            return "idempotency_key_too_long" if key else "idempotency_key_missing"
        return "idempotency_key_invalid"
    return "idempotency_key_missing" if key is None else "idempotency_key_invalid"


def _typed(value: object, name: str) -> bytes:
    # bool is an int to isinstance: True and 1 would share a key.
    if type(value) is int:
        return b"i" + _sized(str(value).encode("ascii"))
    if type(value) is str:
        return b"s" + _sized(_utf8(value, name))
    raise TypeError(f"{name} of a key is str or int, not {type(value).__name__}")


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        # Replacing it would give two texts one key.
        raise ValueError(f"{name} of a key has a lone surrogate at {error.start}: not valid Unicode") from error


def _capitals(currency: str) -> str:
    # Providers differ in case, and "usd" would be another key for the same payment. Withdrawn codes pass:
    # the keys of old payments must still be computable.
    if len(currency) == _CURRENCY_CHARACTERS and currency.isascii() and currency.isalpha() and currency.isupper():
        return currency
    raise ValueError(f"{currency!r} is not a currency code in capitals")


def _checked(key: bytes) -> bytes:
    if len(key) != _DIGEST_BYTES:
        raise ValueError(f"a digest has {_DIGEST_BYTES} bytes, not {len(key)}")
    return key
