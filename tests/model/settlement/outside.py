"""What happens without a worker: at the provider, on the wire, in the webhooks, by people, by disaster."""

from collections.abc import Iterator
from typing import Final

from tests.model.settlement import rows
from tests.model.settlement.deciders import Decision, Rules
from tests.model.settlement.provider import Provider, name_of, shown
from tests.model.settlement.shape import IDLE, SETTLED, Database, Fate, Next, Row, State, World
from tests.model.settlement.workers import Workers

# What a restored row may be. One that was final is compared by the reconciliation, which is no part of this model.
_OPEN: Final = frozenset({"held", "pending", "processing", "disputed"})


class Outside:
    """Everything else that can happen next."""

    def __init__(self, world: World, rules: Rules, provider: Provider, workers: Workers) -> None:
        """The flaws are the world's."""
        self._world = world
        self._rules = rules
        self._provider = provider
        self._workers = workers
        self._flaws = world.flaws

    def steps(self, state: State) -> Iterator[Next]:
        yield from self._wire(state)
        yield from self._books(state)
        if self._world.bounces:
            yield from self._news(state)
        if state.database.row.status == "held":
            yield from self._second_person(state)
        if state.persons:
            yield from self._persons(state)
        if state.account + 1 < self._world.accounts:
            yield Next("crash", "the workers get another account", state._replace(account=state.account + 1))
        if self._world.restores and state.restored is None:
            if state.backup is None and state.database.row.status in _OPEN:
                yield Next("restore", "a backup is taken", state._replace(backup=state.database))
            elif state.backup is not None:
                yield Next("restore", "the backup is restored", self._restored(state, state.backup))

    def _wire(self, state: State) -> Iterator[Next]:
        for number, request in enumerate(state.wire):
            rest = state.wire[:number] + state.wire[number + 1 :]
            for effect in self._provider.effects(state.books[request.book], name_of(self._world, request.book)):
                after = state._replace(books=rows.replaced(state.books, request.book, effect.book), wire=rest)
                yield Next("step", f"a late request {effect.label}", after)

    def _books(self, state: State) -> Iterator[Next]:
        for place, book in enumerate(state.books):
            for change in self._provider.changes(book):
                after = State(state[0], rows.replaced(state.books, place, change.book), *state[2:])
                yield Next("step", f"the provider {change.label}", after)

    def _news(self, state: State) -> Iterator[Next]:
        """Webhooks, late, doubled and out of order: whatever was ever true may be told again."""
        database = state.database
        row = database.row
        for place in range(len(state.books)):
            is_live = place // self._world.accounts == row.generation
            for id_, fate in shown(self._world, state, place):
                told: tuple[Fate, ...] = (fate, "moved") if fate in ("bounced", "returned") else (fate,)
                for news in told:
                    decision = self._rules.after_movement(row.status, row.transfer, (id_, news), is_live)
                    if decision is None:
                        continue
                    # Whoever holds the claim loses it: the number goes up.
                    after = self._workers.taken(state)._replace(database=rows.disputed(database, decision.transfer))
                    if news in ("bounced", "returned"):
                        after = after._replace(told=id_)
                    yield Next("news", f"news: {id_} {news}", after)

    def _second_person(self, state: State) -> Iterator[Next]:
        database = state.database
        agreed = database.row._replace(status="pending", approved=True)
        yield Next("person", "a second person agrees", state._replace(database=database._replace(row=agreed)))
        if not any(book.movements for book in state.books):
            # Only a lost life can have paid it. What is final before the books are read, the reconciliation compares.
            rejected = database._replace(row=database.row._replace(status="failed"))
            gambled = state.gambled or self._may_move(state, range(len(state.books)))
            yield Next("person", "a second person does not", state._replace(database=rejected, gambled=gambled))

    def _persons(self, state: State) -> Iterator[Next]:
        """A person looks at the provider's dashboard, and tells the truth of that moment."""
        row = state.database.row
        spent = state._replace(persons=state.persons - 1)
        if row.status == "disputed":
            yield from self._resolutions(state, spent)
        if row.status in ("transferred", "failed"):
            by_hand = rows.disputed(state.database, row.transfer)
            yield Next("person", "a person disputes it", spent._replace(database=by_hand))
        yield from self._renewals(state, spent)

    def _resolutions(self, state: State, spent: State) -> Iterator[Next]:
        database = state.database
        row = database.row
        live = range(row.generation * self._world.accounts, (row.generation + 1) * self._world.accounts)
        standing = [id_ for place in live for id_, fate in shown(self._world, state, place) if fate == "moved"]
        if standing:
            confirmed = rows.decided(database, Decision("transferred", transfer=standing[0]), ask_first=row.ask_first)
            yield Next("person", "a person confirms it", spent._replace(database=confirmed))
        elif not any(fate == "moved" for book in state.books for fate in book.movements):
            # The dashboard shows every payment to that payee, also those whose key a restore lost.
            off = rows.decided(database, Decision("failed"), ask_first=row.ask_first)
            gambled = state.gambled or self._may_move(state, live)
            yield Next("person", "a person writes it off", spent._replace(database=off, gambled=gambled))
        intent = database.intents[row.generation]
        may_be_sent = row.approved or "retry_without_a_second_person" in self._flaws
        if may_be_sent and (intent is None or not intent.done):
            # Under a key that was answered Done there is nothing to try. A person may be wrong: it is asked about.
            ask_first = row.ask_first or "retry_adds_no_question" not in self._flaws
            ask_first = ask_first and "retry_forgets_the_question" not in self._flaws
            again = row._replace(status="processing", tries=0, due=0, ask_first=ask_first)
            yield Next("person", "a person has it tried again", spent._replace(database=database._replace(row=again)))

    def _renewals(self, state: State, spent: State) -> Iterator[Next]:
        database = state.database
        row = database.row
        intent = database.intents[row.generation]
        if row.generation + 1 >= self._world.generations:
            return
        if intent is not None and intent.done and not state.told:
            # What the provider once made must be seen to have come back.
            return
        money = database.money
        if row.status == "disputed" and "new_key_from_disputed" in self._flaws:
            money = rows.moved(money, "failed")
        elif row.status != "failed":
            return
        # After a restore the key of a new generation may be that of one that was lost.
        renewed = Row(generation=row.generation + 1, ask_first=row.ask_first)
        after = spent._replace(database=database._replace(row=renewed, money=money))
        yield Next("person", "two persons make a new generation", after)

    def _may_move(self, state: State, live: range) -> bool:
        return (
            any(state.books[place].rolls for place in live)
            or any(request.book in live for request in state.wire)
            or any(
                worker.stage in ("sending", "waiting") and self._world.book(worker.generation, worker.account) in live
                for worker in state.workers
            )
        )

    def _restored(self, state: State, backup: Database) -> State:
        """The database goes back, the provider does not, and no process outlives it."""
        for worker in state.workers:
            state = self._workers.left_behind(state, worker)
        intents = tuple(
            intent and intent._replace(open=0, unknown=intent.unknown or intent.open > 0) for intent in backup.intents
        )
        row = backup.row
        if row.status == "disputed":
            # It may be retried, with a key that the lost life may have sent again.
            is_asked = "restore_asks_about_the_unfinished_only" not in self._flaws
        elif row.status == "held":
            # Approved once more, it is sent with a key that the lost life may have sent.
            is_asked = not {"restore_asks_nothing", "restore_forgets_the_held"} & self._flaws
        else:
            is_asked = "restore_asks_nothing" not in self._flaws
        row = row._replace(ask_first=is_asked)
        return state._replace(
            database=Database(row, backup.money, intents, backup.created),
            workers=(IDLE,) * len(state.workers),
            backup=None,
            restored=SETTLED if "restore_asks_too_early" in self._flaws else 0,
        )
