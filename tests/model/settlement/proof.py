"""One world explored to its end, and everything that is asked of it."""

from tests.model.search import Graph, Violation
from tests.model.settlement.constitution import EVERYTHING, broken, is_settled
from tests.model.settlement.deciders import Deciders
from tests.model.settlement.machine import Machine
from tests.model.settlement.shape import State, World

# No bound of the model: more means that something counts without end.
MOST_STATES = 5_000_000


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
    """The way to a state from which nothing is decided or disputed any more, unless somebody helps."""
    found = graph.stranded(is_settled, without={"crash", "restore", "person"})
    return None if found is None else "\n".join(graph.trace(found))


def endless(graph: Graph[State]) -> str | None:
    """The way to a circle: work that goes on for ever though the provider answers and nobody is paused or killed."""
    found = graph.endless(
        lambda state: state.database.row.status == "processing",
        without={"crash", "restore", "person", "pause", "outage"},
    )
    return None if found is None else "\n".join(graph.trace(found))
