"""Whoever gives money back: flights of the saga and the financial sweeper, as `checkout.refund.flow` has them.

One step is one transaction, one write of bytes, one question or one answer.
"""

from collections.abc import Iterator

from tallystick.providers.words import Lookup
from tests.model.checkout.constitution import INTENT_FIRST
from tests.model.checkout.deciders import Decision, Rules, asked_of
from tests.model.checkout.rows import ended, moved, refund_lost, with_refund
from tests.model.checkout.shape import HORIZON, SEND, Fact, Kind, Next, Refund, State, Task, World


class Refunds:
    """What can be done about refunds."""

    def __init__(self, world: World, rules: Rules) -> None:
        """The flaws are the world's."""
        self._world = world
        self._rules = rules
        self._flaws = world.flaws

    def sweeps(self, state: State) -> Iterator[Next]:
        """The financial sweeper claims what is owed."""
        for slot, found in enumerate(state.slots):
            for generation, row in enumerate(found.refunds):
                if row.status == "PENDING":
                    yield from self._claimed(state, slot, generation, row)

    def _claimed(self, state: State, slot: int, generation: int, row: Refund) -> Iterator[Next]:
        is_held = any(_is_at(task, slot, generation) and task.is_mine for task in state.tasks)
        if is_held and not self._world.pauses:
            return
        kind: Kind = "pause" if is_held else "step"
        state = refund_lost(state, slot, generation)
        asked = asked_of(row)
        decision = self._rules.next_step(asked)
        task = Task("to_send", slot, generation, before=asked.may_have_run)
        label = f"the sweeper claims the refund of slot {slot}: {decision.what}"
        match decision.what:
            case "send":
                yield Next(kind, label, state._replace(tasks=(*state.tasks, task)))
            case "look":
                asking = task._replace(stage="asking", asked=asked)
                yield Next(kind, label, state._replace(tasks=(*state.tasks, asking)))
            case _:
                yield Next(kind, label, self._decided(state, task, decision))

    def steps(self, state: State, number: int) -> Iterator[Next]:
        """What this task can do next."""
        task = state.tasks[number]
        without = state._replace(tasks=state.tasks[:number] + state.tasks[number + 1 :])
        match task.stage:
            case "asking":
                yield from self._asking(without, task)
            case "to_send":
                yield self._to_send(without, task)
            case "sending":
                yield from self._sending(without, task)
            case "waiting":
                yield from self._waiting(without, task)
            case "answered":
                yield self._answered(without, task)
            case "refused":
                yield from self._refused(without, task)
            case other:
                raise AssertionError(other)
        if task.has_event and task.stage in ("sending", "waiting"):
            # The batch waits no longer: its event is somebody else's, or comes again.
            gone = ended(without, task.event, "UNPROCESSED")
            yield Next("step", "nobody waits for the refund", _plus(gone, task._replace(has_event=False)))

    def _shown(self, state: State, task: Task) -> list[tuple[tuple[tuple[int, str], ...] | str, Kind]]:
        row = state.slots[task.slot].refunds[task.generation]
        books = tuple((number, str(fate)) for number, fate in enumerate(row.movements, start=1))
        found: list[tuple[tuple[tuple[int, str], ...] | str, Kind]] = [(books, "step"), ("nobody answers", "outage")]
        if books and self._world.lookup is not Lookup.EXACT:
            found.append(((), "step"))
        return found

    def _asking(self, state: State, task: Task) -> Iterator[Next]:
        if task.asked is None:
            raise AssertionError(task)
        for found, kind in self._shown(state, task):
            decision = self._named(self._rules.after_look(task.asked, found), found)
            label = f"the books of slot {task.slot} say {found}: {decision.what}"
            if decision.what == "send":
                is_proven = self._world.lookup is Lookup.EXACT and not found and task.asked.not_after >= 0
                yield Next(kind, label, _plus(state, task._replace(stage="to_send", asked=None, is_proven=is_proven)))
            else:
                yield Next(kind, label, self._decided(state, task, decision))

    def _named(self, decision: Decision, found: tuple[tuple[int, str], ...] | str) -> Decision:
        """A refund that failed is recorded with its name: what is told of it later must not be taken for another's."""
        is_named = decision.what == "failed" and not isinstance(found, str) and len(found) == 1
        if not is_named or "failed_refund_without_its_name" in self._flaws:
            return decision
        return decision._replace(id=int(found[0][0]))

    def _to_send(self, state: State, task: Task) -> Next:
        """A further attempt, under the fence."""
        row = state.slots[task.slot].refunds[task.generation]
        if not (task.is_mine and row.status == "PENDING"):
            return Next("step", "a claim was lost", self._later(state, task))
        generation = task.generation
        if "new_key_on_retry" in self._flaws and generation + 1 < self._world.generations:
            generation += 1
            state = with_refund(state, task.slot, task.generation, row._replace(status="FAILED"))
            row = state.slots[task.slot].refunds[generation]._replace(status="PENDING", first=0, is_answered=True)
        if row.is_answered or self._rules.permit(row, task.is_proven):
            if not self._rules.permit(row, task.is_proven):
                return Next("step", "no permit", self._later(state, task))
            row = row._replace(not_after=-SEND, is_answered=False, unknown=row.may_have_run)
            state = with_refund(state, task.slot, generation, row)
            sending = task._replace(stage="sending", generation=generation, not_after=-SEND, is_proven=False)
            return Next("step", "an attempt is committed", _plus(state, sending))
        return Next("step", "no permit", self._later(state, task))

    def _sending(self, state: State, task: Task) -> Iterator[Next]:
        heard = task._replace(stage="answered", not_after=0)
        if task.not_after >= 0:
            yield Next("step", "its permit is over", _plus(state, heard._replace(said="too_late")))
            return
        yield Next("step", "the bytes are written", _plus(state, task._replace(stage="waiting")))
        if self._world.is_calm:
            return
        yield Next("outage", "the breaker is open", _plus(state, heard._replace(said="breaker")))

    def _waiting(self, state: State, task: Task) -> Iterator[Next]:
        heard = task._replace(stage="answered", not_after=0)
        if not self._world.is_calm:
            silent = self.left_on_the_wire(state, task)
            yield Next("outage", "nobody answers", _plus(silent, heard._replace(said="unknown")))
            yield Next("outage", "busy", _plus(state, heard._replace(said="busy")))
        if self._world.errors:
            yield Next("outage", "an error before the effect", _plus(state, heard._replace(said="error")))
        after, said = self.executed(state, task.slot, task.generation)
        yield Next("step", f"the refund is carried out: {said}", _plus(after, heard._replace(said=said)))
        if self._world.errors:
            yield Next("outage", "an error after the effect", _plus(after, heard._replace(said="error")))
        if self._world.refuses and not state.slots[task.slot].refunds[task.generation].movements:
            yield Next("trouble", "the refund is refused", _plus(state, heard._replace(said="refused")))

    def executed(self, state: State, slot: int, generation: int) -> tuple[State, str]:
        """What the provider does with a request: once for a key that it remembers."""
        row = state.slots[slot].refunds[generation]
        if row.movements and row.first < HORIZON:
            return state, "done 1"
        standing = any("moved" in one.movements for one in state.slots[slot].refunds)
        if standing and self._world.checks:
            return state, "refused"
        if not row.status and "send_before_commit" not in self._flaws:
            raise AssertionError("a request of nobody's")
        number = len(row.movements) + 1
        state = with_refund(state, slot, generation, row._replace(movements=(*row.movements, "moved")))
        if not row.status:
            state = state._replace(breach=INTENT_FIRST)
        fact = Fact(slot, "refund", "moved", generation, number)
        return state._replace(facts=tuple(sorted({*state.facts, fact}))), f"done {number}"

    def left_on_the_wire(self, state: State, task: Task) -> State:
        row = state.slots[task.slot].refunds[task.generation]
        wire = tuple(sorted((*row.wire, task.not_after)))
        return with_refund(state, task.slot, task.generation, row._replace(wire=wire))

    def _answered(self, state: State, task: Task) -> Next:
        decision = self._rules.after_answer(task.before, task.said)
        if decision.what == "failed" and task.said == "refused" and self._world.lookup is not Lookup.NONE:
            return Next("step", "a refusal: the books are asked", _plus(state, task._replace(stage="refused")))
        return self._record(state, task, decision)

    def _refused(self, state: State, task: Task) -> Iterator[Next]:
        for found, kind in self._shown(state, task):
            decision = self._named(self._rules.after_refusal(found), found)
            after = self._record(state, task, decision)
            yield Next(kind, f"the books say {found}, {after.label}", after.state)

    def _record(self, state: State, task: Task, decision: Decision) -> Next:
        """The answer is kept as evidence in any case; the rest under the claim."""
        row = state.slots[task.slot].refunds[task.generation]
        state = with_refund(state, task.slot, task.generation, _answered(row, task))
        return Next("step", f"{task.said!r} is recorded: {decision.what}", self._decided(state, task, decision))

    def _decided(self, state: State, task: Task, decision: Decision) -> State:
        """The log, the ledger and the event that waited, in one commit."""
        row = state.slots[task.slot].refunds[task.generation]
        is_mine = task.is_mine and (
            row.status == "PENDING" or (row.status == "COMPLETED" and decision.what == "failed")
        )
        if "no_refund_fence" in self._flaws:
            is_mine = True
        if not is_mine or decision.what == "hold":
            if is_mine and row.status == "PENDING":
                state = with_refund(state, task.slot, task.generation, row._replace(needs_person=decision.needs_person))
            return self._later(state, task)
        if decision.what == "failed":
            if row.status == "COMPLETED":
                state = state._replace(money=moved(state.money, "refund_failed"))
            row = row._replace(status="FAILED", id=decision.id or row.id, needs_person=False)
            state = with_refund(state, task.slot, task.generation, row)
            return self._later(state, task)
        row = row._replace(status="COMPLETED", id=decision.id, needs_person=False)
        state = with_refund(state, task.slot, task.generation, row)
        state = state._replace(money=moved(state.money, "refunded"))
        return self._compensated(state, task)

    def _compensated(self, state: State, task: Task) -> State:
        if task.has_event:
            return ended(state, task.event, "PROCESSED_COMPENSATED")
        teller = state.slots[task.slot].teller
        for place, event in enumerate(state.events):
            # One that somebody has in hand is left to him: he finds the refund completed.
            if event.fact == teller and event.status == "UNPROCESSED":
                return ended(state, place, "PROCESSED_COMPENSATED")
        return state

    def _later(self, state: State, task: Task) -> State:
        """The event that waited comes again."""
        if task.has_event and state.events[task.event].status == "IN_PROCESSING":
            return ended(state, task.event, "UNPROCESSED")
        return state


def _is_at(task: Task, slot: int, generation: int) -> bool:
    return task.stage != "batch" and (task.slot, task.generation) == (slot, generation)


def _plus(state: State, task: Task) -> State:
    return state._replace(tasks=(*state.tasks, task))


def _answered(row: Refund, task: Task) -> Refund:
    """What the attempts of a key tell from now on."""
    row = row._replace(is_answered=True)
    match task.said.split():
        case ["done", number]:
            return row._replace(done=int(number))
        case ["refused"]:
            return row._replace(refused=True)
        case ["unknown"]:
            return row._replace(unknown=True)
        case ["error"]:
            return row._replace(unknown=True, error=True)
        case _:
            return row
