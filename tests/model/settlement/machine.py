"""The machine: from a state, everything that can happen next.

Around the deciders this does what `flows.settling` does. One step is one transaction, one write of bytes, one question
or one turn of the provider; between any two of them everything else may happen. A worker that is paused is one whose
steps come late.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, Literal, NamedTuple, TypeVar

from tallystick.core.provider import Lookup
from tallystick.core.settlement_ledger import MOVES, Move, Place
from tests.model.settlement.deciders import Deciders, Decision, Rules, history_of
from tests.model.settlement.provider import Provider
from tests.model.settlement.shape import (
    HORIZON,
    IDLE,
    IN_FLIGHT,
    LONGEST_WAIT,
    OLDEST_FIRST,
    SEND,
    STUCK,
    Asked,
    Book,
    Database,
    Fate,
    Intent,
    Request,
    Row,
    State,
    Worker,
    World,
)

# `pause`: somebody was slower than his leave or his claim. `outage`: not a try, and it may go on for ever.
Kind = Literal["step", "time", "pause", "outage", "crash", "restore", "person", "news"]
_PLACES: Final[tuple[Place, ...]] = ("payable", "in_transit", "paid_out")
_NAMES: Final = "AB"
T = TypeVar("T")


class Next(NamedTuple):
    """One thing that can happen."""

    kind: Kind
    label: str
    state: State


class Machine:
    """All steps of one world."""

    def __init__(self, world: World, deciders: Deciders | None = None) -> None:
        """Without deciders of its own it takes those of production."""
        self.world = world
        self._rules = Rules(world, deciders or Deciders())
        self._provider = Provider(world)
        self._flaws = world.flaws
        self._numbers: dict[Worker, int] = {}
        self._aged = cache(_aged)
        self._aged_worker = cache(_aged_worker)

    def ordered(self, state: State) -> State:
        """Workers are alike: of two mirrored states, this one."""
        numbers = self._numbers
        workers = state.workers
        for worker in workers:
            if worker not in numbers:
                numbers[worker] = len(numbers)
        return state._replace(workers=tuple(sorted(workers, key=numbers.__getitem__)), wire=tuple(sorted(state.wire)))

    def after(self, state: State) -> Iterator[Next]:
        """Everything that can happen next."""
        yield Next("time", "an hour passes", self._hour(state))
        done: set[Worker] = set()
        for number, worker in enumerate(state.workers):
            if worker in done:
                continue
            done.add(worker)
            who = _NAMES[number]
            yield from _STAGES[worker.stage](self, state, number, who)
            if state.crashes and worker.stage != "idle":
                yield Next("crash", f"{who} is killed", self._killed(state, number))
        yield from self._wire(state)
        yield from self._books(state)
        if self.world.bounces:
            yield from self._news(state)
        if state.persons:
            yield from self._persons(state)
        yield from self._disasters(state)

    # Workers.

    def _idle(self, state: State, number: int, who: str) -> Iterator[Next]:
        row = state.database.row
        if row.ask_first and state.restored is not None and state.restored < SEND + IN_FLIGHT:
            # Something of the lost life may still be on its way: `tally recover` waits for it.
            return
        if row.status == "pending":
            if "send_before_commit" in self._flaws:
                early = Worker("sending", False, state.account, row.generation, 0, attempt="uncommitted", not_after=-SEND)
                yield Next("step", f"{who} takes it, without a commit", self._with(state, number, early))
            else:
                yield self._claim(state, number, who)
        elif row.status == "processing" and row.due >= 0:
            yield self._reclaim(state, number, who)

    def _claim(self, state: State, number: int, who: str) -> Next:
        database = state.database
        row = database.row._replace(status="processing", due=-STUCK)
        database = database._replace(row=row, money=_moved(database.money, "claimed"))
        state = self._taken(state._replace(database=database))
        worker = Worker("to_send", True, state.account, row.generation, row.tries)
        if row.ask_first:
            return self._ask(state, number, worker, f"{who} claims it: ask first")
        state, label = self._begin(state, number, worker)
        return Next("step", f"{who} claims it; {label}", state)

    def _reclaim(self, state: State, number: int, who: str) -> Next:
        database = state.database
        row = database.row
        kind: Kind = "pause" if any(worker.is_mine for worker in state.workers) else "step"
        state = self._taken(state._replace(database=database._replace(row=row._replace(due=-STUCK))))
        asked = self._history(database.intents[row.generation])
        worker = Worker("to_send", True, state.account, row.generation, row.tries, before=asked.may_have_run)
        if row.ask_first:
            return self._ask(state, number, worker, f"{who} claims it again: ask first")._replace(kind=kind)
        decision = self._rules.next_step(asked, row.tries, state.account)
        if decision.what == "look":
            worker = worker._replace(stage="asking", asked=asked)
        elif decision.what == "send":
            worker = worker._replace(tries=decision.tries)
        else:
            worker = _deciding(worker, decision, 0)
        return Next(kind, f"{who} claims it again: {_read(decision)}", self._with(state, number, worker))

    def _ask(self, state: State, number: int, worker: Worker, label: str) -> Next:
        """A lost life of the database may have sent it."""
        if self.world.lookup is Lookup.NONE:
            worker = _deciding(worker, Decision("disputed", why="nobody can be asked"), 0)
        else:
            asked = self._history(state.database.intents[worker.generation])
            worker = worker._replace(stage="asking", asked=asked, before=asked.may_have_run, ask_first=True)
        return Next("step", label, self._with(state, number, worker))

    def _asking(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        asked = worker.asked
        if asked is None:
            raise AssertionError(worker)
        place = self.world.book(worker.generation, worker.account)
        shown = tuple(self._shown(state, place))
        answers: list[tuple[tuple[tuple[str, Fate], ...] | str, Kind]] = [(shown, "step")]
        if shown and self.world.lookup is not Lookup.EXACT:
            answers.append(((), "step"))
        # Somebody who may never have been sent is asked about for as long as it takes.
        answers.append(("unreachable", "outage" if worker.ask_first else "step"))
        later = worker.age if "absence_dated_late" in self._flaws else 0
        for found, kind in answers:
            decision = self._rules.after_look(asked, found, worker.tries, later)
            what = found if isinstance(found, str) else ", ".join(f"{id_} {fate}" for id_, fate in found) or "absent"
            label = f"{who} asks the books: {what}: {_read(decision)}"
            if decision.what == "send":
                ready = worker._replace(stage="to_send", tries=decision.tries, asked=None, age=0, ask_first=False)
                yield Next(kind, label, self._with(state, number, ready))
                if worker.ask_first:
                    # `tally recover` does not send: it leaves what is proven absent for a tick.
                    cleared = _deciding(worker._replace(ask_first=False), Decision("wait", decision.tries), 0)
                    yield Next(kind, f"{label}, later", self._with(state, number, cleared))
            else:
                yield Next(kind, label, self._with(state, number, _deciding(worker, decision, worker.age)))

    def _to_send(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        if not self._is_mine(state, worker):
            yield Next("step", f"{who} has lost its claim", self._with(state, number, IDLE))
            return
        after, label = self._begin(state, number, worker)
        yield Next("step", f"{who} sends again: {label}", after)

    def _begin(self, state: State, number: int, worker: Worker) -> tuple[State, str]:
        """The intent and its next attempt, in one transaction with the claim or under its fence."""
        database = state.database
        row, generation = database.row, worker.generation
        if "new_key_on_retry" in self._flaws and database.intents[generation] is not None:
            generation = min(generation + 1, self.world.generations - 1)
            row = row._replace(generation=generation)
        intent = database.intents[generation]
        decision = self._rules.leave(intent, worker.account)
        if decision.what != "begin":
            given = decision._replace(tries=worker.tries) if decision.what == "wait" else decision
            after = self._with(state, number, IDLE)._replace(database=_decided(database, given, row.ask_first))
            return after, f"withheld, {decision.why}"
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
            stage="sending", generation=generation, attempt="newest", not_after=-SEND, asked=None, age=0, ask_first=False
        )
        row = row._replace(tries=worker.tries, due=-STUCK, ask_first=False)
        intents = (*database.intents[:generation], intent, *database.intents[generation + 1 :])
        database = database._replace(row=row, intents=intents)
        return state._replace(database=database, workers=tuple(workers)), "an attempt is committed"

    def _deciding(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        after = self._with(state, number, IDLE)
        if self._is_mine(state, worker):
            what, _, transfer = worker.said.partition(" ")
            decision = Decision(what, worker.tries, worker.age, transfer)  # type: ignore[arg-type]
            # A question that is still open stays open: also when a person is to decide.
            still_open = ("wait",) if "dispute_forgets_the_question" in self._flaws else ("wait", "disputed")
            ask_first = worker.ask_first and what in still_open
            after = after._replace(database=_decided(state.database, decision, ask_first))
        yield Next("step", f"{who} records: {worker.said}", after)

    def _sending(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        answered = worker._replace(stage="answered", not_after=0)
        if worker.not_after < 0 or "leave_by_the_worker_clock" in self._flaws:
            after = self._with(state, number, worker._replace(stage="waiting", not_after=min(worker.not_after, 0)))
            if state.database.intents[worker.generation] is None:
                after = after._replace(breach="Intent before effect: bytes left without a committed intent")
            yield Next("step", f"{who} writes the bytes", after)
            yield Next("outage", f"{who} finds the breaker open", self._with(state, number, answered._replace(said="breaker")))
        else:
            late = self._with(state, number, answered._replace(said="too_late"))
            yield Next("pause", f"{who} finds its leave expired", late)

    def _waiting(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        place = self.world.book(worker.generation, worker.account)
        answered = worker._replace(stage="answered", not_after=0)
        silent = self._with(state, number, answered._replace(said="unknown"))
        wire = (*state.wire, Request(place, worker.not_after))
        yield Next("step", f"{who} waits no longer for an answer", silent._replace(wire=wire))
        for outcome in self._provider.outcomes(state.books[place], _name(self.world, place)):
            after = self._with(state, number, answered._replace(said=outcome.said))
            after = after._replace(books=_replaced(state.books, place, outcome.book))
            kind: Kind = "outage" if outcome.is_outage else "step"
            yield Next(kind, f"the request of {who} {outcome.label}", after)

    def _answered(self, state: State, number: int, who: str) -> Iterator[Next]:
        worker = state.workers[number]
        database = state.database
        if worker.attempt == "uncommitted":
            if database.row.status != "pending":
                yield Next("step", f"{who} was not the first", self._with(state, number, IDLE))
                return
            row = database.row._replace(status="processing")
            intent: Intent | None = Intent(0, worker.account, 0, answered=False)
            database = database._replace(row=row, money=_moved(database.money, "claimed"))
            worker = worker._replace(attempt="newest", is_mine=True)
        else:
            intent = database.intents[worker.generation]
        if intent is not None:
            database = database._replace(
                intents=_replaced(database.intents, worker.generation, _with_answer(intent, worker))
            )
        decision = self._rules.after_answer(worker.before, worker.said, worker.tries)
        label = f"{who} records the answer {worker.said!r}"
        match worker.said.split():
            case ["done", id_, "returned" | "bounced"]:
                state = state._replace(told=id_)
            case _:
                pass
        if self._is_mine(state._replace(database=database), worker):
            database = _decided(database, decision, ask_first=False)
            label += f": {_read(decision)}"
        else:
            label += " as evidence: its claim is lost"
        yield Next("step", label, self._with(state, number, IDLE)._replace(database=database))

    def _is_mine(self, state: State, worker: Worker) -> bool:
        if "no_fence" in self._flaws:
            return True
        return worker.is_mine and state.database.row.status == "processing"

    def _taken(self, state: State) -> State:
        """The claim goes to somebody else. Who held it and has nothing outside can only find that out: he is done."""
        workers = []
        for worker in state.workers:
            stays = worker.stage in ("sending", "waiting", "answered") or "no_fence" in self._flaws
            workers.append(worker._replace(is_mine=False) if stays else IDLE)
        return state._replace(workers=tuple(workers))

    def _killed(self, state: State, number: int) -> State:
        worker = state.workers[number]
        after = self._with(state, number, IDLE)._replace(crashes=state.crashes - 1)
        return self._orphaned(after, worker)

    def _orphaned(self, state: State, worker: Worker) -> State:
        """What a worker leaves behind: bytes on the wire, and an attempt that nobody will answer."""
        if worker.stage == "waiting":
            request = Request(self.world.book(worker.generation, worker.account), worker.not_after)
            state = state._replace(wire=(*state.wire, request))
        intent = state.database.intents[worker.generation]
        if worker.attempt == "older" and intent is not None and intent.open:
            intents = state.database.intents
            left = _replaced(intents, worker.generation, intent._replace(open=intent.open - 1, unknown=True))
            state = state._replace(database=state.database._replace(intents=left))
        return state

    def _history(self, intent: Intent | None) -> Asked:
        asked = history_of(intent)
        if "history_ignores_older_attempts" in self._flaws and intent is not None:
            return asked._replace(may_have_run=not intent.answered)
        return asked

    # The provider.

    def _wire(self, state: State) -> Iterator[Next]:
        for number, request in enumerate(state.wire):
            rest = state.wire[:number] + state.wire[number + 1 :]
            for outcome in self._provider.outcomes(state.books[request.book], _name(self.world, request.book)):
                after = state._replace(books=_replaced(state.books, request.book, outcome.book), wire=rest)
                yield Next("step", f"a late request {outcome.label}", after)

    def _books(self, state: State) -> Iterator[Next]:
        for place, book in enumerate(state.books):
            for change in self._provider.changes(book):
                after = state._replace(books=_replaced(state.books, place, change.book))
                yield Next("step", f"the provider {change.label}", after)

    def _shown(self, state: State, place: int) -> Iterator[tuple[str, Fate]]:
        name = _name(self.world, place)
        for number, fate in enumerate(state.books[place].movements, start=1):
            yield f"{name}.{number}", fate

    def _news(self, state: State) -> Iterator[Next]:
        """Webhooks, late, doubled and out of order: whatever was ever true may be told again."""
        database = state.database
        for place in range(len(state.books)):
            for id_, fate in self._shown(state, place):
                told: tuple[Fate, ...] = (fate, "moved") if fate in ("bounced", "returned") else (fate,)
                for news in told:
                    decision = self._rules.after_movement(database.row.status, database.row.transfer, (id_, news))
                    after = state
                    if decision is not None:
                        after = after._replace(database=_disputed(database, decision.transfer))
                    if news in ("bounced", "returned") and (decision is not None or self.world.told_strictly):
                        after = after._replace(told=id_)
                    yield Next("news", f"news: {id_} {news}", after)

    # People, and what no worker does.

    def _persons(self, state: State) -> Iterator[Next]:
        """A person looks at the provider's dashboard and tells the truth of that moment."""
        database, generation = state.database, state.database.row.generation
        row = database.row
        live = range(generation * self.world.accounts, (generation + 1) * self.world.accounts)
        standing = [id_ for place in live for id_, fate in self._shown(state, place) if fate == "moved"]
        spent = state._replace(persons=state.persons - 1)
        if row.status == "disputed":
            if standing:
                given = Decision("transferred", transfer=standing[0])
                yield Next("person", "a person confirms", spent._replace(database=_decided(database, given, False)))
            else:
                off = _decided(database, Decision("failed"), row.ask_first)
                off = off._replace(row=off.row._replace(by_person=True))
                gambled = state.gambled or self._may_move(state, live)
                yield Next("person", "a person writes it off", spent._replace(database=off, gambled=gambled))
            again = database._replace(row=row._replace(status="processing", tries=0, due=0))
            yield Next("person", "a person has it tried again", spent._replace(database=again))
        if row.status in ("transferred", "failed"):
            yield Next("person", "a person disputes it", spent._replace(database=_disputed(database, row.transfer)))
        may_renew = row.status == "failed" or (row.status == "disputed" and "new_key_from_disputed" in self._flaws)
        if may_renew and generation + 1 < self.world.generations:
            renewed = Row(generation=generation + 1, ask_first=row.ask_first)
            money = database.money if row.status == "failed" else _moved(database.money, "failed")
            after = spent._replace(database=database._replace(row=renewed, money=money))
            yield Next("person", "two persons make a new generation", after)

    def _may_move(self, state: State, live: range) -> bool:
        return (
            any(state.books[place].rolls for place in live)
            or any(request.book in live for request in state.wire)
            or any(
                worker.stage in ("sending", "waiting") and self.world.book(worker.generation, worker.account) in live
                for worker in state.workers
            )
        )

    def _disasters(self, state: State) -> Iterator[Next]:
        if state.account + 1 < self.world.accounts:
            yield Next("crash", "the workers get another account", state._replace(account=state.account + 1))
        if self.world.restores and state.restored is None:
            if state.backup is None:
                yield Next("restore", "a backup is taken", state._replace(backup=state.database))
            else:
                yield Next("restore", "the backup is restored", self._restored(state, state.backup))

    def _restored(self, state: State, backup: Database) -> State:
        """The database goes back, the provider does not, and no process outlives it."""
        for worker in state.workers:
            state = self._orphaned(state, worker)
        intents = tuple(
            intent and intent._replace(open=0, unknown=intent.unknown or intent.open > 0) for intent in backup.intents
        )
        row = backup.row
        asks = row.status in ("pending", "processing", "disputed")
        if row.status == "failed" and "restore_forgets_failed_rows" not in self._flaws:
            # A generation that is made again has the key of the one that was lost.
            asks = True
        if asks and "restore_asks_nothing" not in self._flaws:
            row = row._replace(ask_first=True)
        since = SEND + IN_FLIGHT if "restore_asks_too_early" in self._flaws else 0
        return state._replace(
            database=Database(row, backup.money, intents),
            workers=(IDLE,) * len(state.workers),
            backup=None,
            restored=since,
        )

    def _hour(self, state: State) -> State:
        never_later = self.world.rolls == "in_horizon"
        return state._replace(
            database=self._aged(state.database),
            backup=state.backup and self._aged(state.backup),
            workers=tuple([self._aged_worker(worker) for worker in state.workers]),
            wire=tuple([Request(r.book, r.not_after + 1) for r in state.wire if r.not_after + 1 < IN_FLIGHT]),
            books=tuple([_aged_book(book, never_later=never_later) for book in state.books]),
            restored=None if state.restored is None else min(state.restored + 1, SEND + IN_FLIGHT),
        )

    def _with(self, state: State, number: int, worker: Worker) -> State:
        return state._replace(workers=_replaced(state.workers, number, worker))


_STAGES: Final[dict[str, Callable[[Machine, State, int, str], Iterator[Next]]]] = {
    "idle": Machine._idle,
    "asking": Machine._asking,
    "to_send": Machine._to_send,
    "deciding": Machine._deciding,
    "sending": Machine._sending,
    "waiting": Machine._waiting,
    "answered": Machine._answered,
}


def _deciding(worker: Worker, decision: Decision, age: int) -> Worker:
    """A verdict in memory. A Wait ends at an hour of its own, however late it is recorded."""
    said = f"{decision.what} {decision.transfer}" if decision.transfer else decision.what
    is_wait = decision.what == "wait"
    return worker._replace(
        stage="deciding",
        tries=decision.tries if is_wait else 0,
        age=min(decision.age + age, 0) if is_wait else 0,
        said=said,
        asked=None,
        before=False,
    )


def _decided(database: Database, decision: Decision, ask_first: bool) -> Database:  # noqa: FBT001
    """What the row and the money become. The caller has checked the fence."""
    row = database.row
    transfer = decision.transfer or row.transfer
    match decision.what:
        case "wait":
            waiting = row._replace(tries=decision.tries, due=min(decision.age, 0), ask_first=ask_first)
            return database._replace(row=waiting)
        case "transferred" | "failed":
            ended = Row(decision.what, row.generation, 0, 0, ask_first, transfer)
            return database._replace(row=ended, money=_moved(database.money, decision.what))
        case "disputed":
            return database._replace(row=Row("disputed", row.generation, 0, 0, ask_first, transfer))
        case other:
            raise AssertionError(other)


def _disputed(database: Database, transfer: str) -> Database:
    """From an end: the money goes back to where it is in doubt."""
    row = database.row
    move: Move = "disputed_again" if row.status == "transferred" else "disputed_after_all"
    disputed = Row("disputed", row.generation, 0, 0, row.ask_first, transfer or row.transfer)
    return database._replace(row=disputed, money=_moved(database.money, move))


def _moved(money: tuple[int, int, int], move: Move) -> tuple[int, int, int]:
    source, target = (_PLACES.index(place) for place in MOVES[move])
    after = list(money)
    after[source] -= 1
    after[target] += 1
    return after[0], after[1], after[2]


def _with_answer(intent: Intent, worker: Worker) -> Intent:
    if worker.attempt == "newest":
        intent = intent._replace(answered=True)
    else:
        intent = intent._replace(open=intent.open - 1)
    match worker.said.split():
        case ["done", id_, _]:
            return intent._replace(done=id_)
        case ["unknown"]:
            return intent._replace(unknown=True)
        case ["error"]:
            return intent._replace(unknown=True, error=True)
        case _:
            return intent


def _aged(database: Database) -> Database:
    row = database.row
    if row.due < 0:
        row = row._replace(due=row.due + 1)
    intents = tuple(
        intent
        and intent._replace(first=min(intent.first + 1, OLDEST_FIRST), not_after=min(intent.not_after + 1, IN_FLIGHT))
        for intent in database.intents
    )
    return Database(row, database.money, intents)


def _aged_worker(worker: Worker) -> Worker:
    match worker.stage:
        case "asking":
            return worker._replace(age=min(worker.age + 1, LONGEST_WAIT))
        case "deciding":
            return worker._replace(age=min(worker.age + 1, 0))
        case "sending":
            return worker._replace(not_after=min(worker.not_after + 1, 0))
        case "waiting" if worker.not_after + 1 >= IN_FLIGHT:
            # Whatever became of the request, it is over.
            return worker._replace(stage="answered", not_after=0, said="unknown")
        case "waiting":
            return worker._replace(not_after=worker.not_after + 1)
        case _:
            return worker


def _aged_book(book: Book, *, never_later: bool) -> Book:
    if not book.stored and not book.rolls:
        return book
    age = min(book.age + 1, HORIZON)
    return book._replace(age=age, rolls=book.rolls and not (never_later and age >= HORIZON))


def _name(world: World, place: int) -> str:
    generation, account = divmod(place, world.accounts)
    return f"po{generation + 1}" + (f"@{account}" if world.accounts > 1 else "")


def _read(decision: Decision) -> str:
    return f"{decision.what}, {decision.why}" if decision.why else decision.what


def _replaced(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])
