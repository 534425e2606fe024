"""Small changes of a state."""

from typing import Final, TypeVar

from tallystick.checkout.order.rules import Stock
from tallystick.checkout.postings import MOVES, Move, PaymentAccount
from tests.model.checkout.shape import Refund, Slot, State, World

T = TypeVar("T")
_PLACES: Final[tuple[PaymentAccount, ...]] = ("taken", "sales", "owed")


def replaced(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def with_slot(state: State, number: int, slot: Slot) -> State:
    return state._replace(slots=replaced(state.slots, number, slot))


def with_refund(state: State, slot: int, generation: int, row: Refund) -> State:
    found = state.slots[slot]
    return with_slot(state, slot, found._replace(refunds=replaced(found.refunds, generation, row)))


def moved(money: tuple[int, int, int], move: Move) -> tuple[int, int, int]:
    """One payment goes the way that the ledger's table says."""
    source, target = MOVES[move]
    left = list(money)
    left[_PLACES.index(source)] -= 1
    left[_PLACES.index(target)] += 1
    return left[0], left[1], left[2]


def stock(world: World, state: State) -> Stock:
    """The SKU as its orders make it."""
    return Stock(
        world.stock,
        sum(order.status == "PENDING" for order in state.orders),
        sum(order.status == "PAID" and not order.is_backordered for order in state.orders),
    )


def available(world: World, state: State) -> int:
    return stock(world, state).available


def ended(state: State, place: int, status: str, *, tries: int | None = None) -> State:
    """How an event stands. Whoever holds it does so no longer, unless he was only told to wait."""
    event = state.events[place]
    written = event._replace(status=status, tries=event.tries if tries is None else tries)  # type: ignore[arg-type]
    return state._replace(events=replaced(state.events, place, written))


def refund_lost(state: State, slot: int, generation: int) -> State:
    """The claim of whoever is at this refund is over."""
    tasks = tuple(
        task._replace(is_mine=False)
        if task.stage != "batch" and (task.slot, task.generation) == (slot, generation)
        else task
        for task in state.tasks
    )
    return state._replace(tasks=tasks)
