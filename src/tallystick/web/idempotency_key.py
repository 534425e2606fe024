"""The Idempotency-Key header: bare, or a quoted string as the IETF draft has it. Both spell the same key."""

import re

from tallystick.core.outcome import Rejected

# RFC 9651, section 3.3.3: printable ASCII in quotes; only a quote and a backslash are escaped.
_QUOTED = re.compile(rb'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(rb"\\(.)")
_REMEDY = 'Send it once, as `abc` or `"abc"`, and send the same when you repeat the request.'


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
