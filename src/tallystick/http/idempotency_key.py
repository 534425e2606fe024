"""The Idempotency-Key header: bare, or a quoted string as the IETF draft has it. Both spell the same key."""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from tallystick.http.call import Call
from tallystick.http.http1.protocol import Header
from tallystick.http.reading import read
from tallystick.ledger.outcome import Rejected

T = TypeVar("T")

# What may be wrong with the header itself.
KEY_PROBLEMS: Final = ("idempotency_key_missing", "idempotency_key_invalid", "idempotency_key_too_long")
# Tells a replay from the first answer, which is otherwise the same.
REPLAYED: Final[tuple[Header, ...]] = ((b"idempotent-replayed", b"true"),)
# RFC 9651, section 3.3.3: printable ASCII in quotes; only a quote and a backslash are escaped.
_QUOTED = re.compile(rb'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(rb"\\(.)")
_REMEDY = 'Send it once, as `abc` or `"abc"`, and send the same when you repeat the request.'


async def read_keyed(call: Call, decode: Callable[[bytes], T]) -> tuple[T, str] | Rejected:
    """The body of a call and the key it comes under."""
    key = read_key(call.headers(b"idempotency-key"))
    if isinstance(key, Rejected):
        return key
    body = await call.body()
    if isinstance(body, Rejected):
        return body
    asked = read(decode, body)
    return asked if isinstance(asked, Rejected) else (asked, key)


def read_key(values: list[bytes]) -> str | Rejected:
    """The key that the header's values spell. The engine refuses what cannot be a key."""
    if not values:
        return Rejected("idempotency_key_missing", "There is no Idempotency-Key header.", _REMEDY)
    if len(values) > 1:
        # Also when they are equal: a proxy that doubles headers may as well join them another day.
        return Rejected("idempotency_key_invalid", "There are several Idempotency-Key headers.", _REMEDY)
    value = values[0]
    if value[:1] == b'"':
        quoted = _QUOTED.fullmatch(value)
        if quoted is None:
            return Rejected("idempotency_key_invalid", "The quotes of the Idempotency-Key do not match.", _REMEDY)
        value = _ESCAPED.sub(rb"\1", quoted[1])
    return value.decode("latin-1")
