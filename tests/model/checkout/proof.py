"""One world explored to its end, and everything that is asked of it."""

from collections.abc import Iterator
from typing import Any, Final

from tests.model.checkout.batches import Batches
from tests.model.checkout.constitution import EVERYTHING, broken, is_healed
from tests.model.checkout.deciders import Deciders, Rules
from tests.model.checkout.outside import Outside
from tests.model.checkout.refunds import Refunds
from tests.model.checkout.rows import with_refund
from tests.model.checkout.shape import Next, State, Task, World
from tests.model.search import Graph, Violation

# No bound of the model: more means that something counts without end.
MOST_STATES = 3_000_000


class Machine:
    """All steps of one world."""

    def __init__(self, world: World, deciders: Deciders | None = None) -> None:
        """Without deciders of its own it takes those of production."""
        self.world = world
        rules = Rules(world, deciders or Deciders())
        self._refunds = Refunds(world, rules)
        self._batches = Batches(world, rules, self._refunds)
        self._outside = Outside(world, rules, self._refunds)
        self._numbers: dict[Task, int] = {}

    def after(self, state: State) -> Iterator[Next]:
        """Everything that can happen next."""
        yield from self._outside.steps(state)
        for number, task in enumerate(state.tasks):
            if task in state.tasks[:number]:
                continue
            yield from (self._batches if task.stage == "batch" else self._refunds).steps(state, number)
            if self.world.crashes:
                yield Next("crash", f"whoever is {task.stage} is killed", self._killed(state, number))
        if len(state.tasks) < self.world.workers:
            yield from self._batches.claims(state)
            yield from self._refunds.sweeps(state)

    def _killed(self, state: State, number: int) -> State:
        """What is on the wire stays there, and what was claimed stays claimed until somebody takes it over."""
        task = state.tasks[number]
        state = state._replace(tasks=state.tasks[:number] + state.tasks[number + 1 :])
        return self._refunds.left_on_the_wire(state, task) if task.stage == "waiting" else state

    def ordered(self, state: State) -> State:
        """Tasks are alike; who has lost his claim and has nothing outside is done; some facts are spent."""
        tasks = [_plain(task) for task in state.tasks if not self._is_over(task)]
        state = self._without_spent(state, tasks)
        if not state.tasks:
            return state
        numbers = self._numbers
        for task in tasks:
            numbers.setdefault(task, len(numbers))
        tasks.sort(key=numbers.__getitem__)
        return state._replace(tasks=tuple(tasks))

    def _without_spent(self, state: State, tasks: list[Task]) -> State:
        """Of a refund that is final nobody reads what was sent, unless something of it is still outside."""
        if self.world.flaws:
            return state
        for number, slot in enumerate(state.slots):
            for generation, row in enumerate(slot.refunds):
                if row.status in ("COMPLETED", "FAILED") and not row.wire:
                    plain = row._replace(**_SPENT)
                    if plain != row and not any(_is_of(task, number, generation) for task in tasks):
                        state = with_refund(state, number, generation, plain)
        return state

    def _is_over(self, task: Task) -> bool:
        if task.stage == "batch":
            return not any(is_mine for _, is_mine in task.held) and "claims_unchecked" not in self.world.flaws
        is_inside = task.stage in ("asking", "to_send") and "no_refund_fence" not in self.world.flaws
        return is_inside and not task.is_mine and not task.has_event


# Not the books' own part of it.
_SPENT: Final[dict[str, Any]] = {
    "first": 0,
    "not_after": 0,
    "is_answered": True,
    "unknown": False,
    "error": False,
    "done": 0,
    "refused": False,
}


def _is_of(task: Task, slot: int, generation: int) -> bool:
    return task.stage != "batch" and (task.slot, task.generation) == (slot, generation)


def _plain(task: Task) -> Task:
    """What was sent before decides nothing for one who may not write."""
    return task if task.is_mine or not task.before else task._replace(before=False)


def explore(
    world: World,
    deciders: Deciders | None = None,
    *,
    asked: frozenset[str] = EVERYTHING,
    first: State | None = None,
) -> tuple[Graph[State], Violation | None]:
    """Every reachable state, or the shortest way to a broken one. `asked`: which invariants count."""
    machine = Machine(world, deciders)
    graph = Graph(first or world.first_state(), machine.after, machine.ordered)
    return graph, graph.explore(lambda state: broken(world, state, asked), most=MOST_STATES)


def stranded(graph: Graph[State]) -> str | None:
    """The way to a state from which nothing heals any more, though the provider answers and nobody is killed."""
    found = graph.stranded(is_healed, without={"crash", "pause", "outage", "trouble"})
    return None if found is None else "\n".join(graph.trace(found))
