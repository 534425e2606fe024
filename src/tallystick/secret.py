"""Secret: text that cannot be shown by accident. Pure."""

from hmac import compare_digest
from typing import Final

HIDDEN: Final = "(hidden)"


class Secret:
    """Text whose str, repr and format say nothing. No encoder knows it, so it cannot slip into JSON or a row."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """`text` is kept in memory only."""
        self._text = text

    def reveal(self) -> str:
        """The text itself. Each use of this is a place to look at."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, specification: str) -> str:
        return format(HIDDEN, specification)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        # A pickle would carry the text into a file, a queue or another process.
        raise TypeError("a secret is not pickled")
