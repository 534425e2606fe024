"""What a state of the settlement model is made of, and which world it belongs to.

Time counts in ticks and is kept as ages: how long ago, negative for what is still to come. An age stops growing where
no decision can tell the difference any more, so the model needs no end of time.

    sent ─1─> not-after ─1─> nothing is on its way ─1─> horizon less margin ─2─> horizon ─1─> nobody asks any more
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from tallystick.providers.words import Lookup
from tallystick.settlement.rules import Status

SEND: Final = 1
IN_FLIGHT: Final = 1
STUCK: Final = 1
HORIZON: Final = 5
MARGIN: Final = SEND + IN_FLIGHT
UNDECIDED: Final = 1
# Where ages stop: see `aged`.
OLDEST_FIRST: Final = HORIZON + UNDECIDED
# No Wait is longer, so one that was decided this long ago is over.
LONGEST_WAIT: Final = max(STUCK, SEND + IN_FLIGHT)
# What ended this long ago is over, and the books show it.
SETTLED: Final = SEND + IN_FLIGHT

# `pause`: somebody was slower than his leave or his claim. `outage`: not a try, and it may go on for ever.
Kind = Literal["step", "time", "pause", "outage", "crash", "restore", "person", "news"]
Stage = Literal["idle", "asking", "looked", "to_send", "deciding", "sending", "waiting", "answered"]
Fate = Literal["waiting", "moved", "failed", "bounced", "returned"]
Flaw = Literal[
    "no_fence",
    "new_key_on_retry",
    "send_before_commit",
    "absence_dated_late",
    "history_of_the_newest_only",
    "not_after_unchecked",
    "restore_asks_nothing",
    "restore_asks_too_early",
    "restore_asks_about_the_unfinished_only",
    "retry_forgets_the_question",
    "retry_adds_no_question",
    "verdict_forgets_the_question",
    "new_key_from_disputed",
    "held_is_claimed",
    "retry_without_a_second_person",
    "restore_forgets_the_held",
    "memory_counts_from_the_first_send",
]


class Row(NamedTuple):
    """The settlement. `due` and `tries` are only kept while processing.

    `approved`: it needs no second person's consent, or has it.
    """

    status: Status = "pending"
    generation: int = 0
    tries: int = 0
    due: int = 0
    ask_first: bool = False
    transfer: str = ""
    approved: bool = True


class Intent(NamedTuple):
    """What is committed about a key.

    Of its attempts only what can still matter: the newest one, how many older ones somebody may yet answer (`open`),
    and what the others came to. An older attempt whose sender died is as good as unknown.
    """

    first: int
    account: int
    not_after: int
    answered: bool
    open: int = 0
    unknown: bool = False
    error: bool = False
    done: str = ""
    fate: Fate | None = None
    refused: bool = False

    @property
    def may_have_run(self) -> bool:
        return self.unknown or not self.answered or self.open > 0


class Database(NamedTuple):
    """Everything a restore takes back. Money: payable, in transit, paid out. `created`: how long ago."""

    row: Row
    money: tuple[int, int, int]
    intents: tuple[Intent | None, ...]
    created: int = 0


class Book(NamedTuple):
    """The provider's books under one key of one account.

    `rolls`: a request that failed inside may yet be carried out. `age`: of what is stored, or of that request.
    """

    movements: tuple[Fate, ...] = ()
    stored: Literal["", "done", "refused", "error"] = ""
    age: int = 0
    rolls: bool = False


class Asked(NamedTuple):
    """What was known when the books were asked, with ages as they were then: see `History`.

    `life`: for how long nobody but this life of the database can have sent.
    """

    created: int
    first: int | None
    not_after: int | None
    may_have_run: bool
    is_silent: bool
    error: bool
    done: str
    fate: Fate | None
    refused: bool
    account: int | None
    life: int


class Worker(NamedTuple):
    """A worker's own memory: a crash loses it.

    `is_mine`: its claim is the row's. `attempt`: whether it is the newest one of its key. `before`: an attempt before
    it may have run. `age`: since when the question was prepared, or until when a Wait lasts. `proof`: for how long
    everything sent had been over when the books that do not show it were asked; None: they were not.
    """

    stage: Stage = "idle"
    is_mine: bool = False
    account: int = 0
    generation: int = 0
    tries: int = 0
    asked: Asked | None = None
    age: int = 0
    ask_first: bool = False
    attempt: Literal["", "newest", "older", "uncommitted"] = ""
    not_after: int = 0
    before: bool = False
    said: str = ""
    proof: int | None = None


class Request(NamedTuple):
    """Bytes that left us and that nobody waits for any more."""

    book: int
    not_after: int


IDLE: Final = Worker()


class State(NamedTuple):
    """One state of the whole world. `persons`: how often people may still act. `restored`: ticks since, None before."""

    database: Database
    books: tuple[Book, ...]
    workers: tuple[Worker, ...]
    wire: tuple[Request, ...] = ()
    backup: Database | None = None
    restored: int | None = None
    persons: int = 0
    account: int = 0
    # What the checks must know and nobody in the world does.
    told: str = ""
    gambled: bool = False
    breach: str = ""

    def __str__(self) -> str:
        """What matters, on a few lines: only what is not as in the beginning."""
        row, money, intents, _ = self.database
        left = {name: getattr(self, name) for name in ("persons", "restored", "told", "gambled", "breach")}
        parts = [
            f"{row.status}, {_short(row, 'status')} payable/in transit/paid out {money}",
            *(f"key {n}: {_short(intent) or 'sent now'}" for n, intent in enumerate(intents, start=1) if intent),
            *(f"books {n}: {_short(book)}" for n, book in enumerate(self.books, start=1) if book != Book()),
            *(f"{name}: {_short(one)}" for name, one in zip("AB", self.workers, strict=False) if one != IDLE),
            *(f"on the wire: {_short(request)}" for request in self.wire),
            "; ".join(f"{name}={value}" for name, value in left.items() if value),
        ]
        return " | ".join(part for part in parts if part)


class Next(NamedTuple):
    """One thing that can happen."""

    kind: Kind
    label: str
    state: State


def _short(value: tuple[object, ...], *without: str) -> str:
    fields: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
    pairs = zip(fields, value, strict=True)
    return " ".join(f"{name}={one}" for name, one in pairs if one not in (0, "", None, ()) and name not in without)


@dataclass(frozen=True, slots=True)
class World:
    """What may happen, and how often. Crashes, pauses, webhooks: as often as they like.

    `rolls`: until when a request that failed inside may yet be carried out. `fails_at_once`: a request may leave a
    movement that failed; `failed_is_done`: which is answered Done with that state (our adapters say Refused).
    `replays_today`: a stored answer shows what became of it since.
    """

    lookup: Lookup
    workers: int = 2
    crashes: bool = True
    persons: int = 0
    generations: int = 1
    accounts: int = 1
    restores: bool = False
    bounces: bool = False
    waits_for_us: bool = False
    keeps_keys: bool = True
    rolls: Literal["never", "in_horizon", "ever"] = "ever"
    budget: int = 2
    margin: int = MARGIN
    fails_at_once: bool = False
    failed_is_done: bool = False
    replays_today: bool = False
    flaws: frozenset[Flaw] = field(default_factory=frozenset)

    def with_flaws(self, *flaws: Flaw) -> "World":
        return replace(self, flaws=frozenset(flaws))

    def book(self, generation: int, account: int) -> int:
        """Where the books of a key are."""
        return generation * self.accounts + account

    @property
    def remembered(self) -> int:
        """How long a key may be relied on. Ages of what it counts from stop there."""
        return HORIZON - self.margin

    def first_state(self) -> State:
        """It waits for a second person."""
        return State(
            database=Database(Row("held", approved=False), (1, 0, 0), (None,) * self.generations),
            books=(Book(),) * (self.generations * self.accounts),
            workers=(IDLE,) * self.workers,
            persons=self.persons,
        )
