"""Who gives way when something is full."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.http.share import shed


@dataclass(frozen=True)
class Held:
    name: str
    address: str
    since: float
    weight: int = 1


def held(*names: str) -> list[Held]:
    """`a1`: of address a, idle since 1."""
    return [Held(name, name[0], float(name[1:])) for name in names]


@pytest.mark.parametrize(
    ("holders", "excess", "gone"),
    [
        (held("a3", "a1", "a2"), 1, ["a1"]),
        # Who holds little is not touched, however idle.
        (held("b1", "a5", "a6", "a7"), 2, ["a5", "a6"]),
        (held("b1", "a5", "a6", "a7"), 3, ["a5", "a6", "a7"]),
        # Among equals, by turns.
        (held("a1", "a2", "b3", "b4"), 2, ["a1", "b3"]),
        # Each holds one, as behind a proxy that is trusted: the idlest.
        (held("a5", "b1", "c3"), 2, ["b1", "c3"]),
        (held("a1"), 5, ["a1"]),
        ([], 5, []),
        (held("a1", "b2"), 0, []),
    ],
)
def test_the_largest_holder_gives_way_first_and_of_his_the_idlest(
    holders: list[Held], excess: int, gone: list[str]
) -> None:
    assert [one.name for one in shed(holders, excess, lambda one: one.weight)] == gone


@given(
    st.lists(st.builds(Held, st.uuids().map(str), st.sampled_from("abcd"), st.floats(0, 9), st.integers(1, 5))),
    st.integers(0, 60),
)
def test_enough_comes_free_and_nobody_goes_for_nothing(holders: list[Held], excess: int) -> None:
    gone = shed(holders, excess, lambda one: one.weight)
    assert len({one.name for one in gone}) == len(gone)
    freed = sum(one.weight for one in gone)
    assert freed >= min(excess, sum(one.weight for one in holders))
    assert not gone or freed - gone[-1].weight < excess
