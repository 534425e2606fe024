"""Buyers, the provider, sweepers of reservations, people and time: everything that happens around the saga."""

from collections.abc import Iterator

from tallystick.checkout.order import rules as orders
from tests.model.checkout.constitution import ENDED_FIRST, IN_TIME
from tests.model.checkout.deciders import Rules
from tests.model.checkout.refunds import Refunds
from tests.model.checkout.rows import available, moved, replaced, with_refund, with_slot
from tests.model.checkout.shape import (
    HORIZON,
    IN_FLIGHT,
    SEND,
    Event,
    Fact,
    Kind,
    Next,
    Order,
    Refund,
    Slot,
    State,
    Task,
    World,
)


class Outside:
    """What can happen without any worker of ours."""

    def __init__(self, world: World, rules: Rules, refunds: Refunds) -> None:
        """The refunds know what the provider does with a request."""
        self._world = world
        self._rules = rules
        self._refunds = refunds

    def steps(self, state: State) -> Iterator[Next]:
        """In no order."""
        for number, order in enumerate(state.orders):
            yield from self._buyer(state, number, order)
        for number, slot in enumerate(state.slots):
            yield from self._payment(state, number, slot)
            for generation, row in enumerate(slot.refunds):
                yield from self._books(state, number, generation, row)
        yield from self._deliveries(state)
        yield from self._persons(state)
        if self._world.crashes or not self._world.is_calm:
            # Else everything is answered at once, and nothing has to become old.
            yield Next("time", "an hour passes", self._later(state))

    # --- orders and charges

    def _buyer(self, state: State, number: int, order: Order) -> Iterator[Next]:
        if not order.status:
            if available(self._world, state) > 0:
                yield Next("step", f"order {number} is reserved", _order(state, number, Order("PENDING")))
            return
        yield from self._click(state, number, order)
        if order.status == "PENDING":
            yield from self._sweep(state, number)
            if self._world.cancels and orders.cancel("or", "PENDING") == "CANCELLED":
                yield Next("step", f"order {number} is cancelled", _order(state, number, Order("CANCELLED")))
        if order.is_backordered and available(self._world, state) > 0:
            filled = order._replace(is_backordered=False)
            yield Next("step", f"order {number} is filled", _order(state, number, filled))
        if "swept_twice" in self._world.flaws and order.status == "PAID":
            swept = Order("CANCELLED_BY_SWEEPER")
            yield Next("step", f"order {number} is swept though it is paid", _order(state, number, swept))

    def _sweep(self, state: State, number: int) -> Iterator[Next]:
        """Its time is over, whenever: what was told of before that was received in time."""
        places = range(number * self._world.attempts, (number + 1) * self._world.attempts)
        begun = [place for place in places if state.slots[place].charge]
        live = next((place for place in begun if state.slots[place].charge in ("PENDING", "COMPLETED")), None)
        if live is None:
            yield from self._swept(state, number, begun, is_live=False, is_released=False)
            return
        yield from self._swept(state, number, begun, is_live=True, is_released=False)
        slot = state.slots[live]
        # For as long as it is held nobody answers: the ghost payment.
        yield from self._swept(state, number, begun, is_live=True, is_released=True, is_given_up=True)
        if slot.is_sent:
            return
        cancelled = slot._replace(payment="failed") if slot.payment == "waiting" else slot
        if self._world.loses_answers and self._rules.released(slot, is_answered=False) == "release":
            yield from self._swept(state, number, begun, is_live=True, is_released=True)
        if self._world.loses_answers and cancelled != slot:
            label = f"the payment of slot {live} is cancelled, the answer lost"
            yield Next("outage", label, with_slot(state, live, cancelled))
        what = self._rules.released(slot, is_answered=True)
        if what == "release":
            after = with_slot(state, live, cancelled._replace(charge="FAILED") if slot.is_known else cancelled)
            yield from self._swept(after, number, begun, is_live=True, is_released=True)
        told = Fact(live, "charge", "moved")
        if what == "tell" and told not in {event.fact for event in state.events}:
            known = state._replace(events=(*state.events, Event(told)))
            yield Next("step", f"the sweeper finds the payment of slot {live}", known)

    def _swept(
        self,
        state: State,
        number: int,
        begun: list[int],
        *,
        is_live: bool,
        is_released: bool,
        is_given_up: bool = False,
    ) -> Iterator[Next]:
        waiting = [
            event
            for event in state.events
            if event.status in ("UNPROCESSED", "IN_PROCESSING")
            and event.tries == 0
            and event.fact[1:3] == ("charge", "moved")
            and not state.slots[event.fact.slot].receipt
            and state.orders[self._world.order_of(event.fact.slot)].status == "PENDING"
        ]
        if not self._rules.may_be_swept(
            is_charged=bool(begun), is_live=is_live, is_released=is_released, is_undecided=bool(waiting)
        ):
            return
        breach = ""
        if any(event.fact.slot in begun for event in waiting):
            breach = IN_TIME
        elif not is_given_up and any(
            # One that has failed by the provider's own word is not asked about: it may contradict itself later.
            state.slots[place].charge != "FAILED" and state.slots[place].payment in ("waiting", "moved")
            for place in begun
        ):
            breach = ENDED_FIRST
        swept = _order(state, number, Order("CANCELLED_BY_SWEEPER"))._replace(breach=state.breach or breach)
        kind: Kind = "outage" if is_given_up else "step"
        yield Next(kind, f"order {number} is swept{', given up' if is_given_up else ''}", swept)

    def _click(self, state: State, number: int, order: Order) -> Iterator[Next]:
        first = number * self._world.attempts
        begun = [slot for slot in range(first, first + self._world.attempts) if state.slots[slot].charge]
        newest = begun[-1] if begun else None
        charge = "" if newest is None else state.slots[newest].charge
        what = self._rules.pay(order.status, charge, len(begun), self._world.attempts)
        if what.startswith("begin"):
            place = first + int(what.split()[1]) - 1
            fresh = state.slots[place]._replace(charge="PENDING", is_sent=True)
            yield Next("step", f"the buyer pays, {what}", with_slot(state, place, fresh))
        elif what == "ask" and newest is not None and not state.slots[newest].is_sent:
            # Found: it is the log's. Absent: sent again, under the same key.
            slot = state.slots[newest]
            known = slot._replace(charge="COMPLETED", is_known=True) if slot.payment else slot._replace(is_sent=True)
            yield Next("step", "the buyer pays again: the books are asked", with_slot(state, newest, known))

    def _payment(self, state: State, number: int, slot: Slot) -> Iterator[Next]:
        if slot.is_sent:
            made = slot._replace(is_sent=False, payment=slot.payment or "waiting")
            answered = made._replace(charge="COMPLETED", is_known=True) if made.charge == "PENDING" else made
            yield Next("step", "the charge is made", with_slot(state, number, answered))
            if self._world.loses_answers:
                yield Next("outage", "the charge is made, the answer lost", with_slot(state, number, made))
                lost = with_slot(state, number, slot._replace(is_sent=False))
                yield Next("outage", "the charge is lost", lost)
            if self._world.attempts > 1 and slot.charge == "PENDING":
                refused = slot._replace(is_sent=False, charge="FAILED")
                yield Next("trouble", "the charge is refused", with_slot(state, number, refused))
        if slot.payment == "waiting" or (slot.payment == "failed" and self._world.contradicts):
            paid = with_slot(state, number, slot._replace(payment="moved"))
            yield Next("step", f"the payment of slot {number} succeeds", _fact(paid, Fact(number, "charge", "moved")))
        if slot.payment == "waiting" and self._world.attempts > 1:
            failed = with_slot(state, number, slot._replace(payment="failed"))
            yield Next(
                "trouble", f"the payment of slot {number} fails", _fact(failed, Fact(number, "charge", "failed"))
            )

    # --- refunds and events

    def _books(self, state: State, number: int, generation: int, row: Refund) -> Iterator[Next]:
        for age in sorted(set(row.wire)):
            wire = list(row.wire)
            wire.remove(age)
            left = with_refund(state, number, generation, row._replace(wire=tuple(wire)))
            after, said = self._refunds.executed(left, number, generation)
            yield Next("step", f"a late request is carried out: {said}", after)
        if self._world.refunds_fail:
            for place, fate in enumerate(row.movements):
                if fate == "moved":
                    failed = row._replace(movements=replaced(row.movements, place, "failed"))
                    after = with_refund(state, number, generation, failed)
                    fact = Fact(number, "refund", "failed", generation, place + 1)
                    yield Next("trouble", "a refund comes back", _fact(after, fact))

    def _deliveries(self, state: State) -> Iterator[Next]:
        told = {event.fact for event in state.events}
        for fact in state.facts:
            for copy in range(self._world.copies):
                if fact._replace(copy=copy) not in told:
                    event = Event(fact._replace(copy=copy))
                    # The same id again is known to the guard; lost, it comes later, from the provider's list.
                    label = f"told of slot {fact.slot}: {fact.purpose} {fact.state}, id {copy}"
                    yield Next("step", label, state._replace(events=(*state.events, event)))
                    break

    # --- people and time

    def _persons(self, state: State) -> Iterator[Next]:
        if not state.persons:
            return
        left = state._replace(persons=state.persons - 1)
        for place, event in enumerate(state.events):
            if event.status == "DEAD_LETTER":
                again = event._replace(status="UNPROCESSED", tries=0)
                events = replaced(state.events, place, again)
                yield Next("person", f"event {place} is tried again", left._replace(events=events))
        for number, slot in enumerate(state.slots):
            if slot.receipt == "REVIEW":
                kept = with_slot(left, number, slot._replace(receipt="KEPT"))
                yield Next("person", "the payment is kept", kept._replace(money=moved(left.money, "kept")))
                yield Next("person", "the payment goes back", _begun(left, number, slot._replace(receipt="REFUND"), 0))
            newest = max((n for n, row in enumerate(slot.refunds) if row.status), default=None)
            if slot.receipt == "REFUND" and newest is not None and newest + 1 < self._world.generations:
                is_failed = slot.refunds[newest].status == "FAILED"
                if is_failed or "person_asks_nothing" in self._world.flaws:
                    yield Next("person", "the refund is begun again", _begun(left, number, slot, newest + 1))

    def _later(self, state: State) -> State:
        slots = tuple(
            slot._replace(refunds=tuple(self._older(row) for row in slot.refunds)) if slot.refunds else slot
            for slot in state.slots
        )
        tasks = []
        for task in state.tasks:
            match task.stage:
                case "sending":
                    task = task._replace(not_after=min(task.not_after + 1, 0))  # noqa: PLW2901
                case "waiting" if task.not_after + 1 >= IN_FLIGHT:
                    task = task._replace(stage="answered", not_after=0, said="unknown")  # noqa: PLW2901
                case "waiting":
                    task = task._replace(not_after=task.not_after + 1)  # noqa: PLW2901
                case _:
                    pass
            tasks.append(task)
        return state._replace(slots=slots, tasks=tuple(tasks))

    def _older(self, row: Refund) -> Refund:
        if not row.status and not row.movements:
            return row
        first = min(row.first + 1, HORIZON + 2) if self._world.ages else row.first
        wire = tuple(age + 1 for age in row.wire if age + 1 < IN_FLIGHT)
        return row._replace(first=first, not_after=min(row.not_after + 1, IN_FLIGHT), wire=wire)


def _order(state: State, number: int, order: Order) -> State:
    return state._replace(orders=replaced(state.orders, number, order))


def _fact(state: State, fact: Fact) -> State:
    return state._replace(facts=tuple(sorted({*state.facts, fact})))


def _begun(state: State, number: int, slot: Slot, generation: int) -> State:
    """A person's decision, the intent and its attempt in one commit."""
    row = slot.refunds[generation]._replace(status="PENDING", first=0, not_after=-SEND, is_answered=False)
    state = with_slot(state, number, slot._replace(refunds=replaced(slot.refunds, generation, row)))
    return state._replace(tasks=(*state.tasks, Task("sending", number, generation, not_after=-SEND)))
