"""Columns as array literals: asyncpg takes several times longer over an array of numbers or texts, element by element.

PostgreSQL takes hardly longer to read these. It takes longer over bytea, uuid and timestamptz than is saved here: large
columns of those stay arrays.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID


def numbers(values: Iterable[float | None]) -> str:
    """For `$1::text::integer[]`, and the like of bigint and float8."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def booleans(values: Iterable[bool]) -> str:
    """For `$1::text::boolean[]`."""
    return f"{{{','.join(['t' if value else 'f' for value in values])}}}"


def uuids(values: Iterable[UUID]) -> str:
    """For `$1::text::uuid[]`."""
    return f"{{{','.join([value.hex for value in values])}}}"


def texts(values: Sequence[str | None]) -> str:
    """For `$1::text::text[]`. Whatever is in them: in quotes, only a quote and a backslash mean something."""
    there = [value for value in values if value is not None]
    joined = '","'.join(there)
    # Nearly always: nothing absent, and no quote but those between the elements.
    if there and len(there) == len(values) and "\\" not in joined and joined.count('"') == 2 * (len(there) - 1):
        return f'{{"{joined}"}}'
    return f"{{{','.join(['NULL' if value is None else _quoted(value) for value in values])}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
