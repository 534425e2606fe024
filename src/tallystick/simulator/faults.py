"""Which fault strikes this call: by plan (the third transfer) or by rate and seed.

A rate decides by SHA-256 over (seed, rule, dialect, operation, identity, how often that was sent). The identity of a
call is its key; without one, its method, path and query with the client's reference in place of each id (Wise's fund:
the transfer's customerTransactionId). That of an event is the reference of its object. So the same seed gives the
same faults to the same calls and events, in whatever order they arrive, as long as each has a key or a reference of
its own; those that share one, or have none, share their draws, and which of them is struck depends on their order.
What strikes is kept in memory: a simulator that is started again begins its plan anew.
"""

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from tallystick.simulator.catalogue import CATALOGUE, Fault, Stage
from tallystick.simulator.plan import Rule, parse

# Keys whose sends are counted; beyond it the oldest are forgotten and would meet the fault of their first send.
MOST_COUNTED_KEYS: Final = 500_000
_SCALE: Final = 2.0**48


class Strike(msgspec.Struct, frozen=True):
    """A fault about to happen."""

    fault: Fault
    argument: str

    @property
    def seconds(self) -> float:
        """The argument as a number."""
        return float(self.argument)

    @property
    def words(self) -> str:
        """As a dialect is asked for it."""
        return f"{self.fault.name}:{self.argument}" if self.argument else self.fault.name


class _Active:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.seen = 0
        self.struck = 0


class Faults:
    """The rules in force, and how often each fault struck."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._calls: list[_Active] = []
        self._webhooks: list[_Active] = []
        self._sent: dict[tuple[str, str, str], int] = {}
        self._struck: dict[str, int] = {}

    def add(self, text: str) -> list[Rule]:
        """Put a plan in force, after the rules that are. Raises PlanFault."""
        rules = parse(text)
        for rule in rules:
            (self._webhooks if rule.fault.stage is Stage.WEBHOOK else self._calls).append(_Active(rule))
        return rules

    def clear(self) -> None:
        """No more faults; the counts start again."""
        self._calls.clear()
        self._webhooks.clear()
        self._sent.clear()
        self._struck.clear()

    @property
    def has_calls(self) -> bool:
        """Whether any rule is about calls."""
        return bool(self._calls)

    @property
    def has_webhooks(self) -> bool:
        """Whether any rule is about webhooks."""
        return bool(self._webhooks)

    def strike_call(self, dialect: str, operation: str, identity: str, *, has_key: bool) -> Strike | None:
        """The fault for this call. `identity` is its key, or what stands for it."""

        def fits(rule: Rule, operation: str) -> bool:
            return operation_fits(rule, operation) and (has_key or not rule.fault.needs_key)

        return self._strike(self._calls, dialect, operation, identity, fits)

    def strike_webhook(self, dialect: str, event_type: str, identity: str) -> Strike | None:
        """The fault for the delivery of this event. `identity` is the reference of what it is about."""
        return self._strike(self._webhooks, dialect, event_type, identity, type_fits)

    def _strike(self, rules: Sequence[_Active], dialect: str, what: str, identity: str, fits: Any) -> Strike | None:  # noqa: ANN401
        sends = self._count_send(dialect, what, identity)
        found: Strike | None = None
        for active in rules:
            rule = active.rule
            if rule.dialect not in {"*", dialect} or dialect not in rule.fault.dialects or not fits(rule, what):
                continue
            active.seen += 1
            if found is None and self._is_due(active, (dialect, what, identity), sends):
                active.struck += 1
                self._struck[rule.fault.name] = self._struck.get(rule.fault.name, 0) + 1
                found = Strike(rule.fault, rule.argument)
        return found

    def _count_send(self, *call: str) -> int:
        dialect, what, identity = call
        sends = self._sent.pop((dialect, what, identity), 0)
        self._sent[dialect, what, identity] = sends + 1
        if len(self._sent) > MOST_COUNTED_KEYS:
            del self._sent[next(iter(self._sent))]
        return sends

    def _is_due(self, active: _Active, call: tuple[str, str, str], sends: int) -> bool:
        rule = active.rule
        if rule.rate is None:
            return rule.first <= active.seen <= rule.last
        return draw(self.seed, rule.text, *call, sends) < rule.rate

    def report(self) -> dict[str, Any]:
        """Catalogue, rules in force, and counts, as JSON."""
        rules = [
            {"rule": active.rule.text, "fault": active.rule.fault.name, "seen": active.seen, "struck": active.struck}
            for active in (*self._calls, *self._webhooks)
        ]
        catalogue = [{**msgspec.to_builtins(fault), "stage": fault.stage.value} for fault in CATALOGUE.values()]
        return {"seed": self.seed, "active": rules, "struck": dict(self._struck), "catalogue": catalogue}


def operation_fits(rule: Rule, operation: str) -> bool:
    if "*" not in rule.fault.operations and operation not in rule.fault.operations:
        return False
    return rule.operation in {"*", operation}


def type_fits(rule: Rule, event_type: str) -> bool:
    """`transfer` is in "transfer.created", "balancePlatform.transfer.updated" and "transfers#state-change"."""
    return rule.operation in {"*", "webhook"} or rule.operation in event_type or fnmatchcase(event_type, rule.operation)


def draw(*facts: object) -> float:
    """A number from [0, 1), the same for the same facts. Lengths are part of it: ("ab", "c") is not ("a", "bc")."""
    encoded = b"".join(b"%d:%s" % (len(text), text) for text in (str(fact).encode() for fact in facts))
    return int.from_bytes(hashlib.sha256(encoded).digest()[:6], "big") / _SCALE
