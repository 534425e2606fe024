"""The provider of the model: everything it may do with a request, and everything that happens in its books.

It keeps its word: a key it remembers moves money at most once, Refused and Busy did not move it. Where
`keeps_keys` is False it breaks the first half of that. All the rest is up to chance.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from tests.model.settlement.shape import HORIZON, Book, Fate, State, World

# Money that left us, whether or not it came back since.
LEFT: Final[frozenset[Fate]] = frozenset({"moved", "bounced", "returned"})


class Outcome(NamedTuple):
    """What a request came to. `is_outage`: nobody counts it as a try, and it may go on for ever."""

    label: str
    book: Book
    said: str
    is_outage: bool = False


class Change(NamedTuple):
    """What happened in the books without a request."""

    label: str
    book: Book


class Provider:
    """Cached: books are few."""

    def __init__(self, world: World) -> None:
        """The world says what it is like."""
        self._world = world
        self.outcomes = cache(self._outcomes)
        self.effects = cache(self._effects)
        self.changes = cache(self._changes)

    def _outcomes(self, book: Book, name: str) -> tuple[Outcome, ...]:
        return tuple(dict.fromkeys(self._each(book, name)))

    def _effects(self, book: Book, name: str) -> tuple[Change, ...]:
        """The outcomes of a request that nobody waits for."""
        labels = {outcome.book: outcome.label for outcome in reversed(self.outcomes(book, name))}
        return tuple(Change(label, after) for after, label in labels.items())

    def _each(self, book: Book, name: str) -> Iterator[Outcome]:
        yield Outcome("is lost on the way, or meets its own key in flight (409)", book, "unknown")
        yield Outcome("is answered 429", book, "busy")
        yield Outcome("is answered 403", book, "forbidden", is_outage=True)
        if book.stored:
            yield from self._again(book, name)
        if not book.stored or not self._world.keeps_keys:
            yield from self._fresh(book, name)

    def _again(self, book: Book, name: str) -> Iterator[Outcome]:
        match book.stored:
            case "error":
                yield Outcome("gets the stored 500", book, "error")
            case "refused":
                yield Outcome("gets the stored refusal", book, "refused replayed")
            case _ if book.movements[-1] == "waiting":
                yield from self._heard("funds what was made", _fate(book, "moved"), _done(book, name, "moved"))
            case _:
                # Some providers answer as on that day, some with the state of today.
                today = book.movements[-1]
                if today in LEFT:
                    yield Outcome("gets the stored answer", book, _done(book, name, "moved"))
                if today not in LEFT or self._world.replays_today:
                    said = self._made(book, name, today, " replayed")
                    yield Outcome("gets the stored answer, as of today", book, said)

    def _fresh(self, book: Book, name: str) -> Iterator[Outcome]:
        # A provider that keeps keys carries a request out once: what was to be rolled forward is this.
        rolls = book.rolls and not self._world.keeps_keys
        moved = Book((*book.movements, "moved"), "done", 0, rolls)
        yield from self._heard("moves the money", moved, _done(moved, name, "moved"))
        yield Outcome("moves the money and is answered 500", moved, "error")
        yield Outcome("moves the money and is answered 500, which is stored", moved._replace(stored="error"), "error")
        if self._world.fails_at_once and not book.movements:
            # One is enough: a second that fails is a refusal with a record.
            failed = moved._replace(movements=("failed",))
            yield from self._heard("makes a movement that fails at once", failed, self._made(failed, name, "failed"))
        if self._world.waits_for_us:
            made = moved._replace(movements=(*book.movements, "waiting"))
            yield Outcome("makes it and does not fund it", made, "unknown")
            yield Outcome("makes it, does not fund it and is answered 500", made, "error")
        yield from self._heard("is refused", book, "refused")
        if not book.rolls and not LEFT & set(book.movements):
            # Stored, it answers for every request of the key: so it must be true of them.
            yield from self._heard("is refused, which is stored", book._replace(stored="refused", age=0), "refused")
        pending = book._replace(rolls=self._world.rolls != "never", age=0)
        yield from self._heard("fails inside: 500", pending, "error")
        yield from self._heard("fails inside: 500, which is stored", pending._replace(stored="error"), "error")

    def _made(self, book: Book, name: str, fate: Fate, replayed: str = "") -> str:
        if fate == "failed" and not self._world.failed_is_done:
            return f"refused{replayed}"
        return _done(book, name, fate)

    def _heard(self, label: str, book: Book, said: str) -> Iterator[Outcome]:
        yield Outcome(label, book, said)
        yield Outcome(f"{label}; the answer is lost", book, "unknown")

    def _changes(self, book: Book) -> tuple[Change, ...]:
        return tuple(self._each_change(book))

    def _each_change(self, book: Book) -> Iterator[Change]:
        if book.stored and book.age >= HORIZON:
            yield Change("forgets the key", book._replace(stored=""))
        if book.rolls:
            # The stored 500 stays what it was: only the books show that it was carried out.
            stored = book.stored or "done"
            yield Change("rolls forward", Book((*book.movements, "moved"), stored, book.age))
        if book.movements and book.movements[-1] == "waiting":
            yield Change("cancels what was not funded", _fate(book, "failed"))
        if self._world.bounces and "moved" in book.movements:
            yield Change("returns the money", _fate(book, "returned"))
            yield Change("fails the movement after all", _fate(book, "bounced"))


def shown(world: World, state: State, place: int) -> Iterator[tuple[str, Fate]]:
    """What the books show under a key."""
    for number, fate in enumerate(state.books[place].movements, start=1):
        yield f"{name_of(world, place)}.{number}", fate


def name_of(world: World, place: int) -> str:
    """What the ids of a key's movements begin with."""
    generation, account = divmod(place, world.accounts)
    return f"po{generation + 1}@{account}"


def _fate(book: Book, fate: Fate) -> Book:
    return book._replace(movements=(*book.movements[:-1], fate))


def _done(book: Book, name: str, fate: Fate) -> str:
    return f"done {name}.{len(book.movements)} {fate}"
