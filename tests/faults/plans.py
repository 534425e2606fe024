"""Fault plans, as the long runs read their own."""

import re
from collections.abc import Iterable
from typing import Any


def certain(plan: str) -> dict[str, set[str]]:
    """The faults that have their turn for certain, by the operation whose calls they strike."""
    return _by_operation((rule, _fault(rule)) for rule in plan.split("\n") if "@" in rule)


def struck_by(report: dict[str, Any]) -> dict[str, set[str]]:
    """Which faults struck, by operation, as the simulator counts its rules: one that struck payouts struck no list."""
    return _by_operation((row["rule"], row["fault"]) for row in report["active"] if row["struck"])


def not_struck(plan: str, struck: dict[str, set[str]], least: dict[str, int]) -> dict[str, set[str]]:
    """By operation, the faults that should have struck and did not. `least`: of these operations, so many will do."""
    lacking = {operation: faults - struck.get(operation, set()) for operation, faults in certain(plan).items()}
    return {
        operation: missing
        for operation, missing in lacking.items()
        if missing and len(struck.get(operation, ())) < least.get(operation, len(certain(plan)[operation]))
    }


def _by_operation(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule, fault in pairs:
        found.setdefault(rule.split(":", 1)[0].split(".", 1)[1], set()).add(fault)
    return found


def _fault(rule: str) -> str:
    return re.split("[(@=]", rule.split(":", 1)[1])[0]
