"""Workers: around the deciders they do what `settlement.tick.flow` does.

One step is one transaction, one write of bytes, one question or one answer. Between any two of them everything else may
happen; a worker that is paused is one whose steps come late.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tallystick.providers.words import Lookup
from tests.model.settlement import rows
from tests.model.settlement.constitution import INTENT_FIRST, TRANSFERRED_MEANS_PAID
from tests.model.settlement.deciders import Decision, Rules, history_of
from tests.model.settlement.provider import Provider, name_of, shown
from tests.model.settlement.shape import (
    IDLE,
    IN_FLIGHT,
    OLDEST_FIRST,
    SEND,
    SETTLED,
    STUCK,
    Asked,
    Fate,
    Intent,
    Kind,
    Next,
    Request,
    State,
    Worker,
    World,
)

_NAMES: Final = "AB"


class Workers:
    """What each worker can do next."""

    def __init__(self, world: World, rules: Rules, provider: Provider) -> None:
        """The flaws are the world's."""
        self._world = world
        self._rules = rules
        self._provider = provider
        self._flaws = world.flaws

    def steps(self, state: State) -> Iterator[Next]:
        """Workers are alike: of two that are in the same place one is moved."""
        done: set[Worker] = set()
        for number, worker in enumerate(state.workers):
            if worker not in done:
                done.add(worker)
                yield from _STAGES[worker.stage](self, state, number, _NAMES[number])
                if self._world.crashes and worker.stage != "idle":
                    killed = self.left_behind(_with(state, number, IDLE), worker)
                    yield Next("crash", f"{_NAMES[number]} is killed", killed)

    def taken(self, state: State) -> State:
        """The claim goes to somebody else. Who held it and has nothing outside can only find that out: he is done."""
        workers = []
        for worker in state.workers:
            stays = worker.stage in ("sending", "waiting", "answered") or "no_fence" in self._flaws
            workers.append(worker._replace(is_mine=False) if stays else IDLE)
        return state._replace(workers=tuple(workers))

    def left_behind(self, state: State, worker: Worker) -> State:
        """What a dead worker leaves: bytes on the wire, and an attempt that nobody will answer."""
        if worker.stage == "waiting":
            request = Request(self._world.book(worker.generation, worker.account), worker.not_after)
            state = state._replace(wire=(*state.wire, request))
        intents = state.database.intents
        intent = intents[worker.generation]
        if worker.attempt == "older" and intent is not None and intent.open:
            left = rows.replaced(intents, worker.generation, intent._replace(open=intent.open - 1, unknown=True))
            state = state._replace(database=state.database._replace(intents=left))
        return state

    def _idle(self, state: State, number: int, who: str) -> Iterator[Next]:
        row = state.database.row
        if row.ask_first and state.restored is not None and state.restored < SEND + IN_FLIGHT:
            # Something of the lost life may still be on its way: `tally recover` waits for it.
            return
        if row.status == "pending" and "send_before_commit" in self._flaws:
            early = Worker("sending", False, state.account, row.generation, attempt="uncommitted", not_after=-SEND)
            yield Next("step", f"{who} takes it, without a commit", _with(state, number, early))
        elif row.status == "pending" or (row.status == "held" and "held_is_claimed" in self._flaws):
            yield self._claim(state, number, who)
        elif row.status == "processing" and row.due >= 0:
            yield self._claim_again(state, number, who)

    def _claim(self, state: State, number: int, who: str) -> Next:
        """Pass 1."""
        database = state.database
        row = database.row._replace(status="processing", due=-STUCK)
        database = database._replace(row=row, money=rows.moved(database.money, "claimed"))
        state = self.taken(state._replace(database=database))
        worker = Worker("to_send", True, state.account, row.generation, row.tries)
        if row.ask_first:
            return Next("step", f"{who} claims it: ask first", self._ask(state, number, worker))
        state, label = self._begin(state, number, worker)
        return Next("step", f"{who} claims it: {label}", state)

    def _claim_again(self, state: State, number: int, who: str) -> Next:
        """Pass 2."""
        database = state.database
        row = database.row
        # From somebody who is still at it: he was slower than his claim.
        kind: Kind = "pause" if any(worker.is_mine for worker in state.workers) else "step"
        state = self.taken(state._replace(database=database._replace(row=row._replace(due=-STUCK))))
        asked = self._history(state)
        worker = Worker("to_send", True, state.account, row.generation, row.tries, before=asked.may_have_run)
        if row.ask_first:
            return Next(kind, f"{who} claims it again: ask first", self._ask(state, number, worker))
        decision = self._rules.next_step(asked, row.tries, state.account)
        state = _believed(state, decision)
        if decision.what == "look":
            worker = worker._replace(stage="asking", asked=asked)
        elif decision.what == "send":
            worker = worker._replace(tries=decision.tries)
        else:
            worker = _deciding(worker, decision)
        return Next(kind, f"{who} claims it again: {decision}", _with(state, number, worker))

    def _ask(self, state: State, number: int, worker: Worker) -> State:
        """A lost life of the database may have sent it."""
        worker = worker._replace(ask_first=True)
        if self._world.lookup is Lookup.NONE:
            return _with(state, number, _deciding(worker, Decision("disputed")))
        asked = self._history(state)
        return _with(state, number, worker._replace(stage="asking", asked=asked, before=asked.may_have_run))

    def _asking(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        books = tuple(shown(self._world, state, self._world.book(worker.generation, worker.account)))
        answers: list[tuple[tuple[tuple[str, Fate], ...] | str, Kind]] = [(books, "step")]
        if books and self._world.lookup is not Lookup.EXACT and _over(worker) < SETTLED:
            # A list lags. Read to its end, when all that was sent has been over for so long, it shows everything.
            answers.append(((), "step"))
        # About what may never have been sent it is asked for as long as it takes.
        is_unsent = worker.asked is not None and not worker.asked.may_have_run
        answers.append(("nobody answers", "outage" if worker.ask_first or is_unsent else "step"))
        for found, kind in answers:
            if found or "absence_dated_late" not in self._flaws:
                yield from self._after_look(state, number, found, Next(kind, f"{who} asks the books", state))
            else:
                late = worker._replace(stage="looked")
                yield Next(
                    kind, f"{who} asks the books: absent, and looks at the clock later", _with(state, number, late)
                )

    def _looked(self, state: State, number: int, who: str) -> Iterator[Next]:
        later = state.workers[number].age
        yield from self._after_look(state, number, (), Next("step", f"{who} looks at the clock", state), later)

    def _after_look(
        self, state: State, number: int, found: tuple[tuple[str, Fate], ...] | str, asking: Next, later: int = 0
    ) -> Iterator[Next]:
        """The time that is passed is that of before the question."""
        worker = state.workers[number]
        if worker.asked is None:
            raise AssertionError(worker)
        decision = self._rules.after_look(worker.asked, found, worker.tries, later)
        what = found if isinstance(found, str) else ", ".join(f"{id_} {fate}" for id_, fate in found) or "absent"
        label = f"{asking.label}: {what}: {decision}"
        if decision.what != "send":
            late = decision._replace(age=decision.age + worker.age)
            yield Next(asking.kind, label, _with(state, number, _deciding(worker, late)))
            return
        proof = min(_over(worker) + later, SETTLED) if found == () else None
        ready = worker._replace(stage="to_send", tries=decision.tries, asked=None, age=0, ask_first=False, proof=proof)
        yield Next(asking.kind, label, _with(state, number, ready))
        if worker.ask_first:
            # `tally recover` does not send: it leaves what is proven absent for a tick.
            cleared = _deciding(worker._replace(ask_first=False), Decision("wait", decision.tries))
            yield Next(asking.kind, f"{label}, later", _with(state, number, cleared))

    def _to_send(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        if self._is_mine(state, worker):
            after, label = self._begin(state, number, worker)
            yield Next("step", f"{who} wants to send again: {label}", after)
        else:
            yield Next("step", f"{who} has lost its claim", _with(state, number, IDLE))

    def _begin(self, state: State, number: int, worker: Worker) -> tuple[State, str]:
        """The intent and its next attempt, in one transaction with the claim or under its fence."""
        database = state.database
        row, generation = database.row, worker.generation
        if "new_key_on_retry" in self._flaws and database.intents[generation] is not None:
            generation = min(generation + 1, self._world.generations - 1)
            row = row._replace(generation=generation)
        intent = database.intents[generation]
        life = self._life(state)
        decision = self._rules.leave(intent, worker.account, worker.proof, database.created, life)
        if decision.what != "begin":
            state = _believed(_with(state, number, IDLE), decision)
            given = decision._replace(tries=worker.tries)
            # Once it must be asked about, it is, whoever looks at it next.
            ask_first = decision.why == "ask first"
            return state._replace(database=rows.decided(database, given, ask_first=ask_first)), f"{decision}"
        workers = list(state.workers)
        if intent is None:
            intent = Intent(0, worker.account, -SEND, answered=False)
        else:
            if not intent.answered:
                held = [n for n, one in enumerate(workers) if one.attempt == "newest" and one.generation == generation]
                for holder in held:
                    workers[holder] = workers[holder]._replace(attempt="older")
                intent = intent._replace(open=intent.open + len(held), unknown=intent.unknown or not held)
            intent = intent._replace(not_after=-SEND, answered=False)
        workers[number] = worker._replace(
            stage="sending",
            generation=generation,
            attempt="newest",
            not_after=-SEND,
            asked=None,
            age=0,
            proof=None,
        )
        row = row._replace(tries=worker.tries, due=-STUCK, ask_first=False)
        database = database._replace(row=row, intents=rows.replaced(database.intents, generation, intent))
        return state._replace(database=database, workers=tuple(workers)), "an attempt is committed"

    def _verdict(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        after = _with(state, number, IDLE)
        if self._is_mine(state, worker):
            what, _, transfer = worker.said.partition(" ")
            decision = Decision(what, worker.tries, worker.age, transfer)  # type: ignore[arg-type]
            # Only proof of absence answers the question for good: whatever is decided may be disputed and retried.
            ask_first = worker.ask_first and (what == "wait" or "verdict_forgets_the_question" not in self._flaws)
            after = after._replace(database=rows.decided(state.database, decision, ask_first=ask_first))
        yield Next("step", f"{who} records: {worker.said}", after)

    def _sending(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        heard = worker._replace(stage="answered", not_after=0)
        if worker.not_after >= 0 and "not_after_unchecked" not in self._flaws:
            yield Next(
                "pause", f"{who} finds its permit expired", _with(state, number, heard._replace(said="too_late"))
            )
            return
        after = _with(state, number, worker._replace(stage="waiting"))
        if worker.attempt == "uncommitted":
            after = after._replace(breach=INTENT_FIRST)
        yield Next("step", f"{who} writes the bytes", after)
        yield Next("outage", f"{who} finds the breaker open", _with(state, number, heard._replace(said="breaker")))

    def _waiting(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        place = self._world.book(worker.generation, worker.account)
        heard = worker._replace(stage="answered", not_after=0)
        silent = _with(state, number, heard._replace(said="unknown"))
        request = Request(place, worker.not_after)
        yield Next("step", f"{who} waits no longer for an answer", silent._replace(wire=(*state.wire, request)))
        for outcome in self._provider.outcomes(state.books[place], name_of(self._world, place)):
            workers = rows.replaced(state.workers, number, heard._replace(said=outcome.said))
            after = State(state[0], rows.replaced(state.books, place, outcome.book), workers, *state[3:])
            yield Next("outage" if outcome.is_outage else "step", f"the request of {who} {outcome.label}", after)

    def _answered(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        database = state.database
        intent = database.intents[worker.generation]
        label = f"{who} records the answer {worker.said!r}"
        if worker.attempt == "uncommitted":
            if database.row.status != "pending":
                yield Next("step", f"{who} was not the first", _with(state, number, IDLE))
                return
            row = database.row._replace(status="processing")
            database = database._replace(row=row, money=rows.moved(database.money, "claimed"))
            worker = worker._replace(attempt="newest", is_mine=True)
            intent = Intent(0, worker.account, 0, answered=False)
        if intent is not None:
            answered = rows.replaced(database.intents, worker.generation, rows.answered(intent, worker))
            database = database._replace(intents=answered)
        if self._is_mine(state._replace(database=database), worker):
            decision = self._rules.after_answer(worker.before, worker.said, worker.tries)
            database = rows.decided(database, decision, ask_first=False)
            label += f": {decision}"
        else:
            label += " as evidence: its claim is lost"
        match worker.said.split():
            case ["done", id_, "returned" | "bounced"]:
                state = state._replace(told=id_)
            case _:
                pass
        yield Next("step", label, _with(state, number, IDLE)._replace(database=database))

    def _is_mine(self, state: State, worker: Worker) -> bool:
        """The fence."""
        if "no_fence" in self._flaws:
            return True
        return worker.is_mine and state.database.row.status == "processing"

    def _life(self, state: State) -> int:
        """A restore that nobody noticed begins no life."""
        is_noticed = "restore_asks_nothing" not in self._flaws
        return state.restored if is_noticed and state.restored is not None else OLDEST_FIRST

    def _history(self, state: State) -> Asked:
        database = state.database
        intent = database.intents[database.row.generation]
        created = 0 if "memory_counts_from_the_first_send" in self._flaws else database.created
        asked = history_of(intent, created, self._life(state))
        if "history_of_the_newest_only" in self._flaws and intent is not None:
            return asked._replace(may_have_run=not intent.answered)
        return asked


_STAGES: Final[dict[str, Callable[[Workers, State, int, str], Iterator[Next]]]] = {
    "idle": Workers._idle,
    "asking": Workers._asking,
    "looked": Workers._looked,
    "to_send": Workers._to_send,
    "deciding": Workers._verdict,
    "sending": Workers._sending,
    "waiting": Workers._waiting,
    "answered": Workers._answered,
}


def _with(state: State, number: int, worker: Worker) -> State:
    # By position: this is most of the work, and `_replace` is three times as slow.
    return State(state[0], state[1], rows.replaced(state.workers, number, worker), *state[3:])


def _over(worker: Worker) -> int:
    """For how long everything that was sent had been over when the books were asked."""
    if worker.asked is None:
        raise AssertionError(worker)
    ended = (worker.asked.life, worker.asked.not_after)
    return min(age for age in ended if age is not None)


def _deciding(worker: Worker, decision: Decision) -> Worker:
    """A verdict in memory. A Wait ends at an hour of its own, however late it is recorded."""
    is_wait = decision.what == "wait"
    return worker._replace(
        stage="deciding",
        tries=decision.tries if is_wait else 0,
        age=min(decision.age, 0) if is_wait else 0,
        said=f"{decision.what} {decision.transfer}".rstrip(),
        asked=None,
        before=False,
    )


def _believed(state: State, decision: Decision) -> State:
    """Stored evidence is believed: but not as that of an arrival when it tells of the return."""
    if decision.what == "transferred" and decision.transfer == state.told:
        return state._replace(breach=TRANSFERRED_MEANS_PAID)
    return state
