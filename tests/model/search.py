"""Bounded exhaustive search: every state that can be reached, breadth first, so that the first violation is a shortest.

Knows nothing of what it explores.
"""

import gc
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
S_co = TypeVar("S_co", covariant=True)


class Step(Protocol[S_co]):
    """One thing that can happen."""

    @property
    def kind(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def state(self) -> S_co: ...


@dataclass(frozen=True, slots=True)
class Violation:
    """What broke, and the shortest way there."""

    name: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.name} is broken after {len(self.trace) - 1} steps:", *self.trace]
        return "\n".join(lines)


class TooManyStates(Exception):
    """The bounds do not bound: nothing was proven."""


class Graph(Generic[S]):
    """All reachable states, with every step between them."""

    def __init__(
        self, first: S, after: Callable[[S], Iterable[Step[S]]], ordered: Callable[[S], S] = lambda state: state
    ) -> None:
        """Nothing is explored yet. `ordered` gives, of states that mirror each other, always the same one."""
        self.states = [first]
        self._after = after
        self._ordered = ordered
        self._numbers: dict[S, int] = {first: 0}
        self._parents = array("i", [-1])
        self._starts = array("q", [0])
        self._targets = array("i")
        self._kinds = array("b")
        self._kind_numbers: dict[str, int] = {}

    @property
    def steps(self) -> int:
        return len(self._targets)

    def explore(self, broken: Callable[[S], str | None], *, most: int) -> Violation | None:
        """Visit everything, or stop at the first state that is broken."""
        # Nothing here refers to itself: the collector would only walk over every state again and again.
        gc.disable()
        try:
            return self._explore(broken, most)
        finally:
            gc.enable()

    def _explore(self, broken: Callable[[S], str | None], most: int) -> Violation | None:
        states, numbers, parents = self.states, self._numbers, self._parents
        name = broken(states[0])
        at = 0
        while name is None and at < len(states):
            for step in self._after(states[at]):
                found = self._ordered(step.state)
                number = numbers.get(found)
                if number is None:
                    number = numbers[found] = len(states)
                    states.append(found)
                    parents.append(at)
                    name = broken(found)
                if number == at:
                    continue
                self._targets.append(number)
                self._kinds.append(self._kind_numbers.setdefault(step.kind, len(self._kind_numbers)))
                if name is not None:
                    return Violation(name, tuple(self.trace(number)))
            at += 1
            self._starts.append(len(self._targets))
            if len(states) > most:
                raise TooManyStates(f"more than {most} states")
        return None if name is None else Violation(name, tuple(self.trace(0)))

    def trace(self, number: int) -> Iterator[str]:
        """The way to a state, step by step."""
        way = [number]
        while way[-1]:
            way.append(self._parents[way[-1]])
        way.reverse()
        # Not mirrored: whoever is A at the beginning is A at the end.
        state = self.states[0]
        yield f"   0  {state}"
        for count, after in enumerate(way[1:], start=1):
            wanted = self.states[after]
            step = next(step for step in self._after(state) if self._ordered(step.state) == wanted)
            state = step.state
            yield f"{count:4}  {step.label}\n          {state}"

    def stranded(self, is_goal: Callable[[S], bool], *, without: Collection[str]) -> int | None:
        """The first state from which no goal can be reached by steps of the other kinds; None: there is none."""
        banned = {self._kind_numbers[kind] for kind in without if kind in self._kind_numbers}
        sources: list[list[int]] = [[] for _ in self.states]
        for number in range(len(self.states)):
            for edge in range(self._starts[number], self._starts[number + 1]):
                if self._kinds[edge] not in banned:
                    sources[self._targets[edge]].append(number)
        reaching = bytearray(len(self.states))
        todo = [number for number, state in enumerate(self.states) if is_goal(state)]
        for number in todo:
            reaching[number] = 1
        while todo:
            for source in sources[todo.pop()]:
                if not reaching[source]:
                    reaching[source] = 1
                    todo.append(source)
        found = reaching.find(0)
        return None if found < 0 else found

    def endless(self, is_open: Callable[[S], bool], *, without: Collection[str]) -> int | None:
        """A state on a circle of open states and steps of the other kinds; None: every such run ends.

        What has no way in from the remaining states is taken away until nothing changes (Kahn): a circle remains.
        """
        banned = {self._kind_numbers[kind] for kind in without if kind in self._kind_numbers}
        inside = bytearray(is_open(state) for state in self.states)
        incoming = array("i", bytes(4 * len(self.states)))
        for number, is_inside in enumerate(inside):
            if is_inside:
                for target in self._next(number, banned, inside):
                    incoming[target] += 1
        todo = [number for number, is_inside in enumerate(inside) if is_inside and not incoming[number]]
        while todo:
            number = todo.pop()
            inside[number] = 0
            for target in self._next(number, banned, inside):
                incoming[target] -= 1
                if not incoming[target]:
                    todo.append(target)
        return self._on_circle(inside, banned)

    def _on_circle(self, inside: bytearray, banned: Collection[int]) -> int | None:
        """What is left lies on a circle or behind one: go on until something is met again."""
        number = inside.find(1)
        if number < 0:
            return None
        sources: dict[int, int] = {}
        for one in range(len(inside)):
            if inside[one]:
                for target in self._next(one, banned, inside):
                    sources[target] = one
        met: set[int] = set()
        while number not in met:
            met.add(number)
            number = sources[number]
        return number

    def _next(self, number: int, banned: Collection[int], inside: bytearray) -> Iterator[int]:
        for edge in range(self._starts[number], self._starts[number + 1]):
            if self._kinds[edge] not in banned and inside[self._targets[edge]]:
                yield self._targets[edge]
