"""An hour passes. Ages stop where no decision can tell the difference any more."""

from functools import cache

from tests.model.settlement.shape import (
    HORIZON,
    IN_FLIGHT,
    LONGEST_WAIT,
    OLDEST_FIRST,
    SETTLED,
    Book,
    Database,
    Request,
    State,
    Worker,
    World,
)


def an_hour_later(world: World, state: State) -> State:
    gives_up = world.rolls == "in_horizon"
    return State(
        _database(state.database, world.remembered),
        tuple([_book(book, gives_up) for book in state.books]),
        tuple([_worker(worker) for worker in state.workers]),
        # What was not carried out by then never is.
        tuple([Request(r.book, r.not_after + 1) for r in state.wire if r.not_after + 1 < IN_FLIGHT]),
        state.backup and _database(state.backup, world.remembered),
        None if state.restored is None else min(state.restored + 1, SETTLED),
        *state[6:],
    )


@cache
def _database(database: Database, oldest: int) -> Database:
    row = database.row
    if row.due < 0:
        row = row._replace(due=row.due + 1)
    intents = tuple(
        intent
        and intent._replace(first=min(intent.first + 1, OLDEST_FIRST), not_after=min(intent.not_after + 1, SETTLED))
        for intent in database.intents
    )
    return Database(row, database.money, intents, min(database.created + 1, oldest))


@cache
def _worker(worker: Worker) -> Worker:
    match worker.stage:
        case "asking" | "looked":
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


@cache
def _book(book: Book, gives_up: bool) -> Book:  # noqa: FBT001 - cached by position
    if not book.stored and not book.rolls:
        return book
    age = min(book.age + 1, HORIZON)
    return book._replace(age=age, rolls=book.rolls and not (gives_up and age >= HORIZON))
