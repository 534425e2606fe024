"""Columns as array literals: asyncpg takes several times longer over an array of numbers or ids, element by element."""

from collections.abc import Iterable
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
