"""The fair queue against a model: a plain list per source."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tallystick.commit.fair_queue import FairQueue

SOURCES = st.integers(0, 4)
# What happens to the queue: an item of a source arrives, or so many are taken.
STEPS = st.lists(
    st.one_of(st.tuples(st.just("put"), SOURCES), st.tuples(st.just("take"), st.integers(0, 8))), max_size=80
)
CAPACITIES = st.integers(1, 12)

Item = tuple[int, int]
Model = dict[int, list[Item]]


def play(queue: FairQueue[Item], steps: list[tuple[str, int]]) -> tuple[Model, Model, Model]:
    """Run the steps; per source: what was let in, what was taken, what was refused."""
    let_in: Model = defaultdict(list)
    taken: Model = defaultdict(list)
    refused: Model = defaultdict(list)
    for number, (step, argument) in enumerate(steps):
        if step == "put":
            item = (argument, number)
            (let_in if queue.put(argument, item) else refused)[argument].append(item)
        else:
            for item in queue.take(argument):
                taken[item[0]].append(item)
    return let_in, taken, refused


@given(STEPS)
def test_within_a_source_it_is_first_come_first_served(steps: list[tuple[str, int]]) -> None:
    """A spend that overtakes its own top-up is refused for want of money that was there."""
    let_in, taken, _ = play(FairQueue(1_000, 1_000), steps)
    for source, items in taken.items():
        assert items == let_in[source][: len(items)]


@given(STEPS, CAPACITIES, CAPACITIES)
def test_what_was_let_in_comes_out_exactly_once(steps: list[tuple[str, int]], capacity: int, each: int) -> None:
    """A lost item is a caller who waits for ever; a doubled one is work done twice."""
    queue: FairQueue[Item] = FairQueue(capacity, each)
    let_in, taken, _ = play(queue, steps)
    waiting = len(queue)
    rest = queue.take(10_000)
    assert len(rest) == waiting
    for item in rest:
        taken[item[0]].append(item)
    assert {source: items for source, items in taken.items() if items} == {
        source: items for source, items in let_in.items() if items
    }
    assert len(queue) == 0
    assert queue.take(1) == []


@given(STEPS, CAPACITIES, CAPACITIES)
def test_it_refuses_exactly_when_it_is_full(steps: list[tuple[str, int]], capacity: int, each: int) -> None:
    queue: FairQueue[Item] = FairQueue(capacity, each)
    waiting: Model = defaultdict(list)
    for number, (step, argument) in enumerate(steps):
        if step == "take":
            for item in queue.take(argument):
                waiting[item[0]].remove(item)
            continue
        has_room = len(queue) < capacity and len(waiting[argument]) < each
        assert queue.put(argument, (argument, number)) is has_room
        if has_room:
            waiting[argument].append((argument, number))
        assert len(queue) == sum(map(len, waiting.values())) <= capacity


@given(st.lists(SOURCES, min_size=1, max_size=60), STEPS)
def test_every_source_is_served_within_as_many_takes_as_there_are_sources(
    arrivals: list[int], before: list[tuple[str, int]]
) -> None:
    """A flood from one must not starve the others, whatever happened before."""
    queue: FairQueue[Item] = FairQueue(1_000, 1_000)
    play(queue, before)
    for number, source in enumerate(arrivals):
        queue.put(source, (source, number))
    waiting = set(queue._sources)
    served = {item[0] for _ in range(len(waiting)) for item in queue.take(1)}
    assert served == waiting


@given(st.lists(SOURCES, max_size=30), st.integers(1, 10))
def test_what_is_put_back_stands_last_and_needs_no_room(arrivals: list[int], most: int) -> None:
    """Its caller cannot be told that there is no room; and those who are blocked must not stand before the rest."""
    queue: FairQueue[Item] = FairQueue(len(arrivals), len(arrivals))
    for number, source in enumerate(arrivals):
        queue.put(source, (source, number))
    back = queue.take(most)
    # The room they left is taken by others meanwhile.
    for number in range(len(back)):
        queue.put(9, (9, number))
    for item in back:
        queue.put_back(item[0], item)
    out: Model = defaultdict(list)
    for item in queue.take(10_000):
        out[item[0]].append(item)
    for source in set(arrivals):
        rest = [(source, number) for number, name in enumerate(arrivals) if name == source]
        again = [item for item in back if item[0] == source]
        assert out[source] == [item for item in rest if item not in again] + again


@given(st.lists(SOURCES, max_size=30), st.integers(0, 30))
def test_what_is_dropped_leaves_from_the_head_of_every_line(arrivals: list[int], limit: int) -> None:
    queue: FairQueue[Item] = FairQueue(100, 100)
    for number, source in enumerate(arrivals):
        queue.put(source, (source, number))
    dropped = queue.drop(lambda item: item[1] < limit)
    assert {item[1] for item in dropped} == set(range(min(limit, len(arrivals))))
    assert len(queue) == len(arrivals) - len(dropped)
    assert sorted(item[1] for item in queue.take(10_000)) == list(range(min(limit, len(arrivals)), len(arrivals)))
