"""Event workers: a batch in one transaction, decided by `checkout.saga.rules`, as `checkout.saga.store` does it."""

from collections.abc import Iterator

from tallystick.checkout.saga.rules import (
    Break,
    Case,
    Complete,
    FailCharge,
    FailRefund,
    GiveBack,
    Ignore,
    Ours,
    Pay,
    Receipt,
    Review,
    ToldBefore,
)
from tallystick.webhooks.rules import Compensated, Failed, Ok, Postponed
from tests.model.checkout.constitution import ONE_RECEIPT
from tests.model.checkout.deciders import Rules, case_of, payment_id
from tests.model.checkout.refunds import Refunds
from tests.model.checkout.rows import available, ended, moved, refund_lost, replaced, with_refund, with_slot
from tests.model.checkout.shape import SEND, Event, Kind, Next, Refund, Slot, State, Task, World

LATER = Postponed("its refund is not completed", 1.0)


class Batches:
    """What can be done about events."""

    def __init__(self, world: World, rules: Rules, refunds: Refunds) -> None:
        """The flaws are the world's. The refunds know what the provider does with a request."""
        self._world = world
        self._rules = rules
        self._refunds = refunds
        self._flaws = world.flaws

    def claims(self, state: State) -> Iterator[Next]:
        """A worker takes all that is due, or one of them. What a dead or a slow worker holds is due as well."""
        held = {place for task in state.tasks for place, is_mine in _held(task) if is_mine}
        due = [place for place, event in enumerate(state.events) if self._is_due(event, is_held=place in held)]
        for wanted in {(place,) for place in due} | {tuple(due)}:
            if wanted:
                kind: Kind = "pause" if any(place in held for place in wanted) else "step"
                yield Next(kind, f"a worker claims the events {wanted}", self._claimed(state, wanted))

    def _is_due(self, event: Event, *, is_held: bool) -> bool:
        if event.status == "IN_PROCESSING":
            return not is_held or self._world.pauses
        return event.status == "UNPROCESSED"

    def _claimed(self, state: State, wanted: tuple[int, ...]) -> State:
        events = list(state.events)
        for place in wanted:
            events[place] = events[place]._replace(status="IN_PROCESSING")
        tasks = tuple(_robbed(task, wanted) for task in state.tasks)
        mine = Task("batch", held=tuple((place, True) for place in wanted))
        return state._replace(events=tuple(events), tasks=(*tasks, mine))

    def steps(self, state: State, number: int) -> Iterator[Next]:
        """The batch is settled; or its handler fails by itself."""
        task = state.tasks[number]
        state = state._replace(tasks=state.tasks[:number] + state.tasks[number + 1 :])
        mine = [place for place, is_mine in task.held if is_mine or "claims_unchecked" in self._flaws]
        if mine:
            yield Next(
                "step", f"the events {tuple(mine)} are settled", _Settling(self._rules, self._world, state, mine).done()
            )
        else:
            yield Next("step", "a worker finds its claims lost", state)
        if "send_before_commit" in self._flaws and mine:
            # Sent while the transaction was open, which then is rolled back.
            sent, _ = self._refunds.executed(state, state.events[mine[0]].fact.slot, 0)
            yield Next("crash", "a refund is sent, and the worker is killed before its commit", sent)
        if self._world.poison and mine:
            failed = state
            for place in mine:
                written = self._rules.end(Failed("it broke"), state.events[place].tries)
                failed = ended(failed, place, written.status, tries=written.tries)
            yield Next("trouble", f"the events {tuple(mine)} fail", failed)


class _Settling:
    """As `checkout.saga.store._Batch`, one transaction: refunds first, then charges, each after the one before."""

    def __init__(self, rules: Rules, world: World, state: State, places: list[int]) -> None:
        self._rules = rules
        self._world = world
        self._flaws = world.flaws
        self._state = state
        self._places = places
        self._outcomes: dict[int, object] = {}
        self._given_back: set[int] = set()
        self._completed: list[tuple[int, int]] = []
        self._flights: list[Task] = []
        # As locked: later ones see it changed by `after` alone.
        self._cases: dict[int, Case] = {}

    def done(self) -> State:
        for place in sorted(self._places):
            if self._state.events[place].fact.purpose == "refund":
                self._refund(place)
        locked = self._state
        for order in range(self._world.orders):
            self._cases[order] = self._case(locked, order)
        for place in sorted(self._places):
            if self._state.events[place].fact.purpose == "charge":
                self._charge(place)
        self._finish()
        return self._state

    # --- refunds

    def _refund(self, place: int) -> None:
        fact = self._state.events[place].fact
        slot = self._state.slots[fact.slot]
        generation = self._found(slot, place)
        row = None if generation is None else slot.refunds[generation]
        decision = self._rules.decide_refund(fact, row, generation or 0, is_payment_ours=slot.is_known)
        self._outcomes[place] = Ok()
        match decision:
            case Ignore() | Break():
                pass
            case Complete():
                row, generation = _there(row, generation)
                if row.status == "PENDING":
                    self._state = self._state._replace(money=moved(self._state.money, "refunded"))
                self._state = refund_lost(self._state, fact.slot, generation)
                self._write(fact.slot, generation, row._replace(status="COMPLETED", id=fact.number, needs_person=False))
                self._given_back.add(fact.slot)
                self._completed.append((fact.slot, place))
            case FailRefund():
                row, generation = _there(row, generation)
                if row.status == "COMPLETED" and "refund_without_its_money" not in self._flaws:
                    self._state = self._state._replace(money=moved(self._state.money, "refund_failed"))
                self._state = refund_lost(self._state, fact.slot, generation)
                name = row.id if "failed_refund_without_its_name" in self._flaws else fact.number
                self._write(fact.slot, generation, row._replace(status="FAILED", id=name, needs_person=False))
            case other:
                raise AssertionError(other)

    def _found(self, slot: Slot, place: int) -> int | None:
        """By the provider's id of it; by our key; where it keeps none, the live one of that payment."""
        fact = self._state.events[place].fact
        for generation, row in enumerate(slot.refunds):
            if row.status and row.id == fact.number and generation == fact.generation:
                return generation
        if self._world.has_names:
            return fact.generation if slot.refunds[fact.generation].status else None
        for generation, row in enumerate(slot.refunds):
            if row.status == "PENDING" and not row.id:
                return generation
        return None

    # --- charges

    def _case(self, state: State, order: int) -> Case:
        receipts = []
        for number, slot in enumerate(state.slots):
            if self._world.order_of(number) == order and slot.receipt and slot.teller is not None:
                newest = next((row.status for row in reversed(slot.refunds) if row.status), None)
                if "receipt_by_event" in self._flaws and slot.teller not in self._told():
                    continue
                receipts.append(
                    Receipt(
                        payment_intent_id=payment_id(number),
                        fate=slot.receipt,
                        event_number=self._number(slot),
                        refund=newest if slot.receipt == "REFUND" else None,
                    )
                )
        status = state.orders[order].status
        is_late = status == "CANCELLED_BY_SWEEPER" and self._world.late == "backorder"
        free = available(self._world, state) if "stock_not_read" not in self._flaws else 1
        return case_of(status, tuple(receipts), self._rules.policy, free if is_late else None)

    def _told(self) -> set[object]:
        return {self._state.events[place].fact for place in self._places}

    def _number(self, slot: Slot) -> int:
        return next(place for place, event in enumerate(self._state.events) if event.fact == slot.teller)

    def _charge(self, place: int) -> None:
        fact = self._state.events[place].fact
        slot = self._state.slots[fact.slot]
        order = self._world.order_of(fact.slot)
        case = self._cases[order]
        if case.available is not None and "stock_not_read" not in self._flaws:
            # Another order of this batch may have taken it.
            case = case_of(
                case.status, case.receipts, case.policy, min(case.available, available(self._world, self._state))
            )
        ours = None
        if slot.charge:
            ours = Ours(status=slot.charge, payment_intent_id=payment_id(fact.slot) if slot.is_known else None)
        decision = self._rules.decide(fact, ours, case)
        if ours is not None and ours.status == "PENDING" and fact.state != "failed":
            slot = slot._replace(charge="COMPLETED", is_known=True)
        self._outcomes[place] = Ok()
        match decision:
            case Ignore() | Break():
                pass
            case ToldBefore(receipt):
                self._outcomes[place] = self._retold(receipt, place, fact.slot)
            case Pay(is_backordered):
                slot = self._received(slot, "PAID", place)
                self._state = self._state._replace(
                    orders=replaced(
                        self._state.orders,
                        order,
                        self._state.orders[order]._replace(status="PAID", is_backordered=is_backordered),
                    ),
                    money=moved(self._state.money, "paid"),
                )
            case GiveBack():
                slot = self._received(slot, "REFUND", place)
                begun = slot.refunds[0]._replace(status="PENDING", first=0, not_after=-SEND, is_answered=False)
                slot = slot._replace(refunds=replaced(slot.refunds, 0, begun))
                self._state = self._state._replace(money=moved(self._state.money, "held"))
                self._flights.append(Task("sending", fact.slot, event=place, has_event=True, not_after=-SEND))
                self._outcomes[place] = Compensated() if "ended_with_the_intent" in self._flaws else None
            case Review():
                slot = self._received(slot, "REVIEW", place)
                self._state = self._state._replace(money=moved(self._state.money, "held"))
            case FailCharge():
                slot = slot._replace(charge="FAILED")
            case other:
                raise AssertionError(other)
        self._state = with_slot(self._state, fact.slot, slot)
        self._cases[order] = self._rules.after(case, fact, decision, place)

    def _received(self, slot: Slot, fate: str, place: int) -> Slot:
        if slot.receipt:
            # The unique index would refuse it; that it is needed at all is the bug.
            self._state = self._state._replace(breach=ONE_RECEIPT)
        return slot._replace(receipt=fate, teller=self._state.events[place].fact)  # type: ignore[arg-type]

    def _retold(self, receipt: Receipt, place: int, slot: int) -> object:
        if receipt.fate != "REFUND" or receipt.event_number != place:
            return Ok()
        is_done = receipt.refund == "COMPLETED" or slot in self._given_back
        return Compensated() if is_done else LATER

    # --- both

    def _write(self, slot: int, generation: int, row: Refund) -> None:
        self._state = with_refund(self._state, slot, generation, row)

    def _finish(self) -> None:
        state = self._state
        for slot, _ in self._completed:
            teller = state.slots[slot].teller
            for place, event in enumerate(state.events):
                if event.fact == teller and event.status == "UNPROCESSED":
                    state = ended(state, place, "PROCESSED_COMPENSATED")
        for place, outcome in self._outcomes.items():
            if outcome is not None:
                written = self._rules.end(outcome, state.events[place].tries)
                state = ended(state, place, written.status)
        self._state = state._replace(tasks=(*state.tasks, *self._flights))


def _there(row: Refund | None, generation: int | None) -> tuple[Refund, int]:
    if row is None or generation is None:
        raise AssertionError("a refund of nobody's was decided about")
    return row, generation


def _held(task: Task) -> tuple[tuple[int, bool], ...]:
    return task.held if task.stage == "batch" else ((task.event, task.has_event),)


def _robbed(task: Task, wanted: tuple[int, ...]) -> Task:
    if task.stage == "batch":
        return task._replace(held=tuple((place, is_mine and place not in wanted) for place, is_mine in task.held))
    return task._replace(has_event=False) if task.event in wanted else task
