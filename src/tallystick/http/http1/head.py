"""The head of an ordinary request, read without a parser's callbacks.

As strict as can be: what is written otherwise may be right too, and is the server's own parser's to judge. None is
returned for it, and not one byte of it counts as read.
"""

import re
from typing import Final

END: Final = b"\r\n\r\n"
# Heads have about one kilobyte; a longer one is not looked for here.
MOST_BYTES: Final = 8 * 1024

_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+): ?([!-~](?:[ -~]*[!-~])?)")
_DIGITS: Final = re.compile(rb"[0-9]{1,9}")
LENGTH: Final = b"content-length"
# They change what a request is, or what becomes of its connection; but for the one below.
_FRAMING: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# What many clients say, and what holds in HTTP/1.1 without a word.
_KEPT: Final = b"connection", b"keep-alive"

Field = tuple[bytes, bytes]


def read_field(line: bytes) -> Field | None:
    """A line of a head: its name in lower case, and its value."""
    match = _FIELD.fullmatch(line)
    if match is None:
        return None
    name, value = match[1].lower(), match[2]
    if name in _FRAMING and (name, value.lower()) != _KEPT:
        return None
    if name == LENGTH and not _DIGITS.fullmatch(value):
        return None
    return name, value
