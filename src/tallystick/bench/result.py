"""What a bench reports."""

import statistics
from collections.abc import Sequence

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beside its baseline. `ratio` is what counts: the machine's mood is in both."""

    bench: str
    value: float
    unit: str
    baseline: float
    ratio: float
    baseline_is: str
    details: dict[str, float | int | str | list[float]] = {}


def median(values: Sequence[float]) -> float:
    """The figure to report of several runs."""
    return float(statistics.median(values))


def ratio(value: float, baseline: float) -> float:
    """How many times the baseline."""
    return round(value / baseline, 2) if baseline else 0.0
