"""Velocity: how often and how much an account may be debited within a sliding window. Pure.

The caller reads from the books what the window already holds; a limit here carries that use with it, and
every debit of the same batch adds to it.
"""

import msgspec

from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import MAX_MICROS, format_amount

# A year: a longer window is a budget, and belongs to the product that uses the ledger.
MAX_WINDOW_SECONDS = 366 * 24 * 3600
# Each limit is one more range of entries to read under the account's lock.
MAX_LIMITS = 5


class VelocityLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most `max_count` debits and `max_sum_micros` in any `window_seconds`; null: no such bound."""

    window_seconds: int
    max_count: int | None = None
    max_sum_micros: int | None = None


class Limit(msgspec.Struct, frozen=True):
    """A limit with what its window holds already."""

    window_seconds: int
    max_count: int | None = None
    max_sum_micros: int | None = None
    used_count: int = 0
    used_micros: int = 0


def exceeded(limits: tuple[Limit, ...], amount_micros: int) -> Limit | None:
    """The first limit that a debit of this amount would break."""
    for limit in limits:
        if limit.max_count is not None and limit.used_count + 1 > limit.max_count:
            return limit
        if limit.max_sum_micros is not None and limit.used_micros + amount_micros > limit.max_sum_micros:
            return limit
    return None


def used(limits: tuple[Limit, ...], amount_micros: int) -> tuple[Limit, ...]:
    """The limits after one more debit."""
    return tuple(
        Limit(
            limit.window_seconds,
            limit.max_count,
            limit.max_sum_micros,
            limit.used_count + 1,
            limit.used_micros + amount_micros,
        )
        for limit in limits
    )


def describe(limit: Limit, currency: str) -> str:
    """For a person: the bound, and how much of it is used."""
    bounds = []
    if limit.max_count is not None:
        bounds.append(f"{limit.max_count} times ({limit.used_count} used)")
    if limit.max_sum_micros is not None:
        bounds.append(
            f"{format_amount(limit.max_sum_micros, currency)} ({format_amount(limit.used_micros, currency)} used)"
        )
    return f"{' and '.join(bounds)} in {limit.window_seconds} s"


def limits_fault(limits: tuple[VelocityLimit, ...]) -> Rejected | None:
    """Refuses limits that could not be kept, or would never let anything pass by mistake."""
    if len(limits) > MAX_LIMITS or len({limit.window_seconds for limit in limits}) != len(limits):
        return _limits_refused(f"An account has at most {MAX_LIMITS} limits, each with another window.")
    for limit in limits:
        if not (_whole(limit.window_seconds) and 0 < limit.window_seconds <= MAX_WINDOW_SECONDS):
            return _limits_refused(f"A window is 1 to {MAX_WINDOW_SECONDS} seconds.")
        bounds = [bound for bound in (limit.max_count, limit.max_sum_micros) if bound is not None]
        if not bounds or not all(_whole(bound) and 0 <= bound <= MAX_MICROS for bound in bounds):
            return _limits_refused("A limit has a max_count, a max_sum_micros or both, whole and not negative.")
    return None


def _whole(value: object) -> bool:
    return type(value) is int


def _limits_refused(why: str) -> Rejected:
    return Rejected("limits_invalid", "The velocity limits cannot be kept.", why)
