"""What must hold in every state: the parts of the constitution that checkout can break."""

from typing import Final

from tests.model.checkout.rows import stock
from tests.model.checkout.shape import Event, Refund, Slot, State, World

OVERSOLD: Final = "Never oversold"
ONE_PAYER: Final = "An order is paid by one payment"
ONE_RECEIPT: Final = "A payment counts once"
NOT_BOTH: Final = "What pays is not given back"
ONE_REFUND: Final = "At most one refund for a payment"
INTENT_FIRST: Final = "Intent before effect"
NOTHING_LOST: Final = "Every payment is PAID, refunded, owed or still to be told"
COMPLETED_MEANS_REFUNDED: Final = "Completed means refunded"
FAILED_MEANS_OWED: Final = "Failed means not refunded"
EVENTS_END: Final = "An event ends as its payment does"
CONSERVATION: Final = "Conservation"
# Broken by the step that sweeps, and told by it (`State.breach`).
IN_TIME: Final = "What was received before is decided before its order is swept"
ENDED_FIRST: Final = "Nothing stands at the provider for an order that is swept on its word"
EVERYTHING: Final = frozenset(
    {
        OVERSOLD,
        ONE_PAYER,
        ONE_RECEIPT,
        NOT_BOTH,
        ONE_REFUND,
        INTENT_FIRST,
        NOTHING_LOST,
        COMPLETED_MEANS_REFUNDED,
        FAILED_MEANS_OWED,
        EVENTS_END,
        CONSERVATION,
        IN_TIME,
        ENDED_FIRST,
    }
)
_OPEN: Final = frozenset({"UNPROCESSED", "IN_PROCESSING", "DEAD_LETTER"})


def broken(world: World, state: State, asked: frozenset[str] = EVERYTHING) -> str | None:
    """The first of the asked invariants that this state breaks."""
    return next((name for name in _broken(world, state) if name in asked), None)


def _broken(world: World, state: State) -> list[str]:
    found = [state.breach] if state.breach else []
    sku = stock(world, state)
    if sku.available < 0:
        found.append(OVERSOLD)
    for number, order in enumerate(state.orders):
        slots = state.slots[number * world.attempts : (number + 1) * world.attempts]
        if sum(slot.receipt == "PAID" for slot in slots) != (order.status == "PAID"):
            found.append(ONE_PAYER)
    for number, slot in enumerate(state.slots):
        found += _slot(state, number, slot)
    for event in state.events:
        if not _ends_well(world, state, event):
            found.append(EVENTS_END)
    if state.money != _expected(state):
        found.append(CONSERVATION)
    return found


def _slot(state: State, number: int, slot: Slot) -> list[str]:
    found = []
    standing = sum(row.movements.count("moved") for row in slot.refunds)
    if standing > 1 or any(len(row.movements) > 1 for row in slot.refunds):
        found.append(ONE_REFUND)
    if slot.receipt in ("PAID", "KEPT") and any(row.status or row.movements for row in slot.refunds):
        found.append(NOT_BOTH)
    if any(row.movements and not row.status for row in slot.refunds):
        found.append(INTENT_FIRST)
    if slot.payment == "moved" and not slot.receipt and not _is_to_come(state, number):
        found.append(NOTHING_LOST)
    if slot.receipt == "REFUND" and not any(row.status for row in slot.refunds):
        found.append(NOTHING_LOST)
    for generation, row in enumerate(slot.refunds):
        if row.status == "COMPLETED" and not _is_refunded(state, number, generation, row):
            found.append(COMPLETED_MEANS_REFUNDED)
        if row.status == "FAILED" and "moved" in row.movements:
            found.append(FAILED_MEANS_OWED)
    return found


def _is_to_come(state: State, number: int) -> bool:
    """Its event is still to be delivered, or to be processed."""
    told = [event for event in state.events if event.fact[:3] == (number, "charge", "moved")]
    return not told or any(event.status in _OPEN for event in told)


def _is_refunded(state: State, slot: int, generation: int, row: Refund) -> bool:
    """The provider has it under that very id; or it came back, which is still to be told or processed."""
    if not 1 <= row.id <= len(row.movements):
        return False
    if row.movements[row.id - 1] == "moved":
        return True
    news = (slot, "refund", "failed", generation, row.id)
    told = [event for event in state.events if event.fact[:5] == news]
    return not told or any(event.status in _OPEN for event in told)


def _ends_well(world: World, state: State, event: Event) -> bool:
    """Compensated: a refund of its payment was completed. OK: not the one that a refund waits to finish."""
    slot = state.slots[event.fact.slot]
    if event.status == "PROCESSED_COMPENSATED":
        return slot.teller == event.fact and any(row.id for row in slot.refunds)
    if event.status == "PROCESSED_OK" and event.fact == slot.teller and slot.receipt == "REFUND":
        # A person decided about it after it had ended.
        return world.other_amount == "review"
    return True


def _expected(state: State) -> tuple[int, int, int]:
    taken = sales = owed = 0
    for slot in state.slots:
        if slot.receipt:
            taken -= 1
            sales += slot.receipt in ("PAID", "KEPT")
            owed += slot.receipt in ("REFUND", "REVIEW")
        for row in slot.refunds:
            if row.status == "COMPLETED":
                taken += 1
                owed -= 1
    return taken, sales, owed


def is_healed(state: State) -> bool:
    """Nothing is pending: what was charged is PAID or refunded, to the last one; or a person was called."""
    if state.tasks:
        return False
    if any(event.status == "DEAD_LETTER" for event in state.events):
        return True
    waiting = [event for event in state.events if event.status in ("UNPROCESSED", "IN_PROCESSING")]
    if not all(_needs_person(state, event) for event in waiting):
        return False
    told = {event.fact._replace(copy=0) for event in state.events}
    if not set(state.facts) <= told:
        return False
    return all(_is_healed(slot) for slot in state.slots)


def _is_healed(slot: Slot) -> bool:
    if slot.payment != "moved" or slot.receipt in ("PAID", "KEPT", "REVIEW"):
        return True
    newest = next((row for row in reversed(slot.refunds) if row.status), None)
    if newest is None:
        return False
    if newest.status == "PENDING":
        return newest.needs_person
    return newest.status == "FAILED" or "moved" in newest.movements


def _needs_person(state: State, event: Event) -> bool:
    """It waits for a refund that only a person can bring on."""
    slot = state.slots[event.fact.slot]
    newest = next((row for row in reversed(slot.refunds) if row.status), None)
    return slot.teller == event.fact and newest is not None and (newest.status == "FAILED" or newest.needs_person)
