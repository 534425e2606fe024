"""API keys: how they are written. Pure.

    tsk_ + 43 characters + 6 of a checksum     made since; a slip of the finger or a guess shows without a look-up
    tsk_ + 43 characters                       made before: as good as ever
    anything else                              chosen by an operator (TALLY_API_KEY)

The checksum is no secret and proves nothing: it spares the database most of what is not a key at all.
"""

import zlib
from enum import Enum
from typing import Final

MARK: Final = "tsk_"
_SECRET_LENGTH: Final = 43
_CHECK_LENGTH: Final = 6
_LENGTH: Final = len(MARK) + _SECRET_LENGTH + _CHECK_LENGTH
_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Form(Enum):
    """What can be told of a key by looking at it."""

    CHECKED = "its checksum is right"
    WRONG = "its checksum is wrong: nobody was given it"
    UNCHECKED = "it has none"


def with_checksum(secret: str) -> str:
    """The key of 43 random characters."""
    body = MARK + secret
    return body + _checksum(body)


def form(key: str) -> Form:
    """See `Form`."""
    if not key.startswith(MARK) or len(key) != _LENGTH:
        return Form.UNCHECKED
    return Form.CHECKED if _checksum(key[:-_CHECK_LENGTH]) == key[-_CHECK_LENGTH:] else Form.WRONG


def _checksum(body: str) -> str:
    left, digits = zlib.crc32(body.encode("utf-8", "surrogatepass")), ""
    for _ in range(_CHECK_LENGTH):
        left, digit = divmod(left, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
