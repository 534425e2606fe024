"""What transactions do to the row, its money and its intents. The caller has checked the fence."""

from typing import Final, TypeVar, cast

from tallystick.settlement.postings import MOVES, Move, PayoutAccount
from tallystick.settlement.rules import Status
from tests.model.settlement.deciders import Decision
from tests.model.settlement.shape import Database, Fate, Intent, Row, Worker

_PLACES: Final[tuple[PayoutAccount, ...]] = ("payable", "in_transit", "paid_out")
_LATEST_FIRST: Final = ("returned", "bounced", "failed", "moved", "waiting")
T = TypeVar("T")


def decided(database: Database, decision: Decision, *, ask_first: bool) -> Database:
    """A verdict. `ask_first`: the provider must still be asked before anything is sent."""
    row = database.row
    transfer = decision.transfer or row.transfer
    match decision.what:
        case "wait":
            waiting = row._replace(tries=decision.tries, due=min(decision.age, 0), ask_first=ask_first)
            return database._replace(row=waiting)
        case "transferred" | "failed":
            ended = _ended(row, decision.what, transfer, ask_first=ask_first)
            return database._replace(row=ended, money=moved(database.money, decision.what))
        case "disputed":
            return database._replace(row=_ended(row, "disputed", transfer, ask_first=ask_first))
        case other:
            raise AssertionError(other)


def disputed(database: Database, transfer: str) -> Database:
    """Somebody contradicts: the money goes to where it is in doubt."""
    row = database.row
    into = _ended(row, "disputed", transfer or row.transfer, ask_first=row.ask_first)
    if row.status == "processing":
        return database._replace(row=into)
    move: Move = "disputed_again" if row.status == "transferred" else "disputed_after_all"
    return database._replace(row=into, money=moved(database.money, move))


def _ended(row: Row, status: Status, transfer: str, *, ask_first: bool) -> Row:
    return Row(status, row.generation, 0, 0, ask_first, transfer, row.approved)


def moved(money: tuple[int, int, int], move: Move) -> tuple[int, int, int]:
    """One posting, as production words it."""
    source, target = (_PLACES.index(place) for place in MOVES[move])
    after = list(money)
    after[source] -= 1
    after[target] += 1
    return after[0], after[1], after[2]


def answered(intent: Intent, worker: Worker) -> Intent:
    """An attempt's answer, kept whoever holds the claim."""
    is_newest = worker.attempt == "newest"
    intent = intent._replace(answered=intent.answered or is_newest, open=intent.open - (not is_newest))
    match worker.said.split():
        case ["done", id_, fate]:
            # That it came back is the later news, whichever answer is heard last.
            came_back = intent.fate in ("failed", "bounced", "returned")
            return intent._replace(done=id_, fate=intent.fate if came_back else cast("Fate", fate))
        case ["refused", *_]:
            return intent._replace(refused=True)
        case ["unknown"]:
            return intent._replace(unknown=True)
        case ["error"]:
            return intent._replace(unknown=True, error=True)
        case _:
            return intent


def replaced(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])
