"""Text on its way to a provider. Pure."""

import unicodedata
from typing import Final

# Controls, lone surrogates, and the two separators that some readers take for a line break.
_UNWRITABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


def is_writable(text: str) -> bool:
    """Whether a text can be sent as it is."""
    return (text.isascii() and text.isprintable()) or not any(unicodedata.category(c) in _UNWRITABLE for c in text)
