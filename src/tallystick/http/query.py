"""Query parameters that several lists share: how many rows, and from where on."""

from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS

_DEFAULT_PAGE = 100
_MAX_NUMBER_DIGITS = 18


def number(text: str) -> int | None:
    """A whole number as a query spells it; None when it is none, or longer than any of ours."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_NUMBER_DIGITS else None


def page_size(query: dict[str, str]) -> int | Rejected:
    """How many rows `limit` asks for."""
    if "limit" not in query:
        return _DEFAULT_PAGE
    size = number(query["limit"])
    if size is None or not 1 <= size <= LIMITS.page:
        return query_refused("limit", f"Send a number from 1 to {LIMITS.page}.")
    return size


def numbered_cursor(query: dict[str, str]) -> int | Rejected | None:
    """Where the page before ended; None: at the beginning."""
    if "cursor" not in query:
        return None
    return number(query["cursor"]) or query_refused("cursor", "Use the `next` of the page before.")


def query_refused(name: str, remedy: str) -> Rejected:
    """The refusal that names the parameter."""
    return Rejected("query_invalid", f"The query parameter {name} cannot be used.", remedy, (name,))
