"""What a state of the checkout model is made of, and which world it belongs to.

Claims and leases have no clock here: what is held can be taken over at any moment (a `pause`). The time that decides
about a refund's send counts in ticks and is kept as ages, as in the model of settlement:

    sent ─1─> not-after ─1─> nothing is on its way ─1─> horizon less margin ─2─> horizon
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from tallystick.checkout.payment.rules import Status as LogStatus
from tallystick.checkout.saga.rules import Fate
from tallystick.providers.words import Lookup
from tallystick.webhooks.rules import Status as EventStatus

SEND: Final = 1
IN_FLIGHT: Final = 1
HORIZON: Final = 5
MARGIN: Final = SEND + IN_FLIGHT

Kind = Literal["step", "time", "pause", "outage", "crash", "person", "trouble"]
Stage = Literal["batch", "asking", "to_send", "sending", "waiting", "answered", "refused"]
Flaw = Literal[
    "claims_unchecked",
    "no_refund_fence",
    "send_before_commit",
    "new_key_on_retry",
    "ended_with_the_intent",
    "receipt_by_event",
    "stock_not_read",
    "swept_twice",
    "refund_without_its_money",
    "failed_refund_without_its_name",
    "person_asks_nothing",
]


class Order(NamedTuple):
    """An order; "" before somebody reserves."""

    status: str = ""
    is_backordered: bool = False


class Refund(NamedTuple):
    """One generation of a payment's refund: its row, what is committed of its attempts, and the provider's books.

    `id` counts the movements from 1; 0 is none. Ages: `first` since the first attempt, `not_after` of the newest.
    `wire`: ages of requests that nobody waits for any more.
    """

    status: LogStatus | Literal[""] = ""
    id: int = 0
    needs_person: bool = False
    first: int = 0
    not_after: int = -SEND
    is_answered: bool = False
    unknown: bool = False
    error: bool = False
    done: int = 0
    refused: bool = False
    movements: tuple[Literal["moved", "failed"], ...] = ()
    wire: tuple[int, ...] = ()

    @property
    def may_have_run(self) -> bool:
        return self.unknown or not self.is_answered


class Slot(NamedTuple):
    """An attempt to pay: its charge in the log, the payment in the provider's books, and what became of it.

    `is_known`: the log has the payment's id. `is_sent`: the request is on its way. `teller`: the event that told first.
    """

    charge: LogStatus | Literal[""] = ""
    is_known: bool = False
    is_sent: bool = False
    payment: Literal["", "waiting", "moved", "failed"] = ""
    receipt: Fate | Literal[""] = ""
    teller: "Fact | None" = None
    refunds: tuple[Refund, ...] = ()


class Fact(NamedTuple):
    """What a provider tells, under an event id of its own for each `copy`."""

    slot: int
    purpose: Literal["charge", "refund"]
    state: Literal["moved", "failed"]
    generation: int = 0
    number: int = 0
    copy: int = 0


class Event(NamedTuple):
    """A fact that was delivered. Its place among the others is its number."""

    fact: Fact
    status: EventStatus = "UNPROCESSED"
    tries: int = 0


class Asked(NamedTuple):
    """What was known of a refund when it was looked at."""

    first: int
    not_after: int
    may_have_run: bool
    error: bool
    done: int
    refused: bool


class Task(NamedTuple):
    """What a process does, in its memory: a crash loses it.

    batch: `held` are places of events, and whether the claim is still its own. The other stages are of one refund:
    `event` is the one that waits for it, -1: none; `has_event`: under a claim that is still its own. `is_proven`: an
    exact look-up has shown that nothing is there, after everything that was sent had settled.
    """

    stage: Stage
    slot: int = 0
    generation: int = 0
    is_mine: bool = True
    held: tuple[tuple[int, bool], ...] = ()
    event: int = -1
    has_event: bool = False
    asked: Asked | None = None
    before: bool = False
    not_after: int = 0
    said: str = ""
    is_proven: bool = False


class State(NamedTuple):
    """One state of the whole world. `money`: taken, sales, owed. `breach`: what a step itself broke."""

    orders: tuple[Order, ...]
    slots: tuple[Slot, ...]
    facts: tuple[Fact, ...] = ()
    events: tuple[Event, ...] = ()
    tasks: tuple[Task, ...] = ()
    money: tuple[int, int, int] = (0, 0, 0)
    persons: int = 0
    breach: str = ""

    def __str__(self) -> str:
        """Only what is not as in the beginning."""
        parts = [
            "orders "
            + ", ".join(f"{o.status or '-'}{' backordered' if o.is_backordered else ''}" for o in self.orders),
            *(f"slot {n}: {_short(slot)}" for n, slot in enumerate(self.slots) if slot != Slot()),
            *(f"event {n}: {_short(event.fact)} {event.status}" for n, event in enumerate(self.events)),
            *(f"task: {_short(task)}" for task in self.tasks),
            f"taken, sales, owed {self.money}",
            self.breach,
        ]
        return " | ".join(part for part in parts if part)


class Next(NamedTuple):
    """One thing that can happen."""

    kind: Kind
    label: str
    state: State


def _short(value: tuple[object, ...]) -> str:
    fields: tuple[str, ...] = value._fields  # type: ignore[attr-defined]
    pairs = zip(fields, value, strict=True)
    return " ".join(f"{name}={one}" for name, one in pairs if one not in (0, "", None, ()))


@dataclass(frozen=True, slots=True)
class World:
    """What may happen, and how often. Crashes, pauses, silence and outages: as often as they like.

    `attempts`: charges for each order. `copies`: event ids under which one fact is told. `has_names`: refunds carry our
    key. `checks`: the provider refuses to give more back than it took. `ages`: time reaches the horizon.
    `is_calm`: refunds are answered at once, so that a world of many events stays small.
    """

    lookup: Lookup = Lookup.EXACT
    orders: int = 1
    attempts: int = 1
    copies: int = 2
    workers: int = 2
    crashes: bool = True
    pauses: bool = True
    late: Literal["refund", "backorder"] = "refund"
    other_amount: Literal["", "refund", "review"] = ""
    cancels: bool = False
    loses_answers: bool = False
    contradicts: bool = False
    swept_at_once: bool = False
    refuses: bool = False
    refunds_fail: bool = False
    errors: bool = False
    has_names: bool = True
    checks: bool = False
    ages: bool = False
    is_calm: bool = False
    persons: int = 0
    generations: int = 1
    poison: bool = False
    stock: int = 1
    flaws: frozenset[Flaw] = field(default_factory=frozenset)

    def with_flaws(self, *flaws: Flaw) -> "World":
        return replace(self, flaws=frozenset(flaws))

    def order_of(self, slot: int) -> int:
        return slot // self.attempts

    def first_state(self) -> State:
        """Or, `swept_at_once`, the ghost payment's beginning: charged, swept, the webhook still to come."""
        slots = [Slot(refunds=(Refund(),) * self.generations)] * (self.orders * self.attempts)
        orders = [Order()] * self.orders
        facts: tuple[Fact, ...] = ()
        if self.swept_at_once:
            orders[0] = Order("CANCELLED_BY_SWEEPER")
            slots[0] = slots[0]._replace(charge="COMPLETED", is_known=True, payment="moved")
            facts = (Fact(0, "charge", "moved"),)
        return State(tuple(orders), tuple(slots), facts, persons=self.persons)
