"""What must hold in every state: the parts of the constitution that a settlement can break.

`failed` is checked without looking ahead: if the money could still move under the key, a later state in which it has
moved and the row is still failed is explored too.
"""

from collections.abc import Mapping
from typing import Final

from tests.model.settlement.provider import LEFT
from tests.model.settlement.shape import State, World

ONE_MOVEMENT: Final = "At most one movement"
ONE_PAYMENT: Final = "At most one payment"
FAILED_MEANS_UNPAID: Final = "Failed means unpaid"
TRANSFERRED_MEANS_PAID: Final = "Transferred means paid"
CONSERVATION: Final = "Conservation"
INTENT_FIRST: Final = "Intent before effect"
BUDGET: Final = "Budgets are finite"
SECOND_PERSON: Final = "Nothing is sent without its second person"
EVERYTHING: Final = frozenset(
    {
        ONE_MOVEMENT,
        ONE_PAYMENT,
        FAILED_MEANS_UNPAID,
        TRANSFERRED_MEANS_PAID,
        CONSERVATION,
        INTENT_FIRST,
        BUDGET,
        SECOND_PERSON,
    }
)
_MADE: Final = LEFT | {"waiting"}
_WHERE: Final[Mapping[str, tuple[int, int, int]]] = {
    "held": (1, 0, 0),
    "pending": (1, 0, 0),
    "processing": (0, 1, 0),
    "transferred": (0, 0, 1),
    "failed": (1, 0, 0),
    "disputed": (0, 1, 0),
}


def broken(world: World, state: State, asked: frozenset[str] = EVERYTHING) -> str | None:
    """The first of the asked invariants that this state breaks."""
    found = _broken(world, state)
    return next((name for name in found if name in asked), None) if found else None


def _broken(world: World, state: State) -> list[str]:
    found = [state.breach] if state.breach else []
    row, money, intents, _ = state.database
    if money != _WHERE[row.status]:
        found.append(CONSERVATION)
    standing, most = _moved(world, state)
    if most > 1:
        found.append(ONE_MOVEMENT)
    # A person who wrote it off while it could still move took that risk, and was told of it.
    if standing > 1 and not state.gambled:
        found.append(ONE_PAYMENT)
    if row.status == "failed" and standing and not state.gambled:
        found.append(FAILED_MEANS_UNPAID)
    if row.status == "transferred" and not _has_it(world, state):
        found.append(TRANSFERRED_MEANS_PAID)
    if row.tries > world.budget:
        found.append(BUDGET)
    if not row.approved and any(intents):
        found.append(SECOND_PERSON)
    return found


def _moved(world: World, state: State) -> tuple[int, int]:
    """How many movements stand, under whatever key; and how many there ever were under the same key, at most."""
    standing = most = 0
    for generation in range(world.generations):
        ever = 0
        for book in state.books[generation * world.accounts : (generation + 1) * world.accounts]:
            for fate in book.movements:
                ever += fate in LEFT
                standing += fate == "moved"
        most = max(most, ever)
    return standing, most


def is_settled(state: State) -> bool:
    """Decided as the provider has it, or a person's to decide."""
    row = state.database.row
    if row.status == "transferred":
        return any(fate in ("moved", "waiting") for book in state.books for fate in book.movements)
    return row.status in ("held", "failed", "disputed")


def _has_it(world: World, state: State) -> bool:
    """The provider has it under that very id, or had: that it came back is news, which `after_movement` takes."""
    name, _, number = state.database.row.transfer.rpartition(".")
    key, _, account = name.removeprefix("po").partition("@")
    movements = state.books[world.book(int(key) - 1, int(account))].movements
    return int(number) <= len(movements) and movements[int(number) - 1] in _MADE
