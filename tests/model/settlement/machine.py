"""The machine: from a state, everything that can happen next; and which states are the same for every purpose."""

from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.model.settlement.clock import an_hour_later
from tests.model.settlement.deciders import Deciders, Decision, Rules
from tests.model.settlement.outside import Outside
from tests.model.settlement.provider import Provider
from tests.model.settlement.shape import IDLE, Intent, Next, State, Worker, World
from tests.model.settlement.workers import Workers

# Answers that leave a trace in the history.
_TRACES: Final = ("done", "refused", "unknown", "error")
_FINAL: Final = frozenset({"transferred", "failed", "disputed"})


class Machine:
    """All steps of one world."""

    def __init__(self, world: World, deciders: Deciders | None = None) -> None:
        """Without deciders of its own it takes those of production."""
        self.world = world
        self._rules = Rules(world, deciders or Deciders())
        provider = Provider(world)
        self._workers = Workers(world, self._rules, provider)
        self._outside = Outside(world, self._rules, provider, self._workers)
        self._numbers: dict[Worker, int] = {}
        # For the same worker, decision and trace in the history: one answer that stands for all that come to them.
        self._sayings: dict[tuple[Worker, Decision, str], str] = {}
        self._nothing_sent: tuple[Intent | None, ...] = (None,) * world.generations
        self._plain = cache(self._plain_worker)

    def after(self, state: State) -> Iterator[Next]:
        """Everything that can happen next."""
        yield Next("time", "an hour passes", an_hour_later(self.world, state))
        yield from self._workers.steps(state)
        yield from self._outside.steps(state)

    def ordered(self, state: State) -> State:
        """Of states that nothing can tell apart, always the same one: workers are alike, and some facts are spent."""
        database, wire = state.database, state.wire
        workers = [self._plain(worker) for worker in state.workers]
        if not (self.world.restores and state.restored is None) and "no_fence" not in self.world.flaws:
            if database.row.status in _FINAL and not state.persons:
                # Nobody will read what was sent any more: only what is still on its way can do something.
                database = database._replace(intents=self._nothing_sent, created=0)
                workers = [worker if worker.stage in ("sending", "waiting") else IDLE for worker in workers]
            if database.row.generation:
                state = self._without_ended(state, workers)
                database = database._replace(intents=self._live_only(state))
        numbers = self._numbers
        for worker in workers:
            if worker not in numbers:
                numbers[worker] = len(numbers)
        workers.sort(key=numbers.__getitem__)
        if len(wire) > 1:
            wire = tuple(sorted(wire))
        return State(database, state.books, tuple(workers), wire, *state[4:])

    def _live_only(self, state: State) -> tuple[Intent | None, ...]:
        generation = state.database.row.generation
        return (*self._nothing_sent[:generation], *state.database.intents[generation:])

    def _without_ended(self, state: State, workers: list[Worker]) -> State:
        """Without a request the books of an ended key answer nobody."""
        asked = {request.book for request in state.wire}
        asked |= {self.world.book(w.generation, w.account) for w in workers if w.stage in ("sending", "waiting")}
        books = list(state.books)
        for place in range(state.database.row.generation * self.world.accounts):
            if place not in asked and (books[place].stored or books[place].age):
                books[place] = books[place]._replace(stored="", age=0)
        return state._replace(books=tuple(books))

    def _plain_worker(self, worker: Worker) -> Worker:
        """Without what can no longer matter to it."""
        is_out = worker.stage in ("sending", "waiting", "answered") and worker.attempt != "uncommitted"
        if not is_out or "no_fence" in self.world.flaws:
            return worker
        if not worker.is_mine:
            worker = worker._replace(tries=0, before=False)
        if worker.stage != "answered":
            return worker
        trace = worker.said if worker.said.split()[0] in _TRACES else ""
        if not worker.is_mine:
            return worker._replace(said=trace or "busy")
        decision = self._rules.after_answer(worker.before, worker.said, worker.tries)
        same = worker._replace(said=""), decision, trace
        return worker._replace(said=self._sayings.setdefault(same, worker.said))
