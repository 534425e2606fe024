"""The provider's half: what can be asked of one, what it can answer, and how far that may be believed.

Pure. Adapters turn a provider's wire into these words; flows decide on these words alone.

    Done      the provider has it, under this id
    Refused   final, and known not to have moved money
    Busy      known not to have run: the same request, the same key, later
    Unknown   anything else. Never turned into failed, never sent again under another key

What a movement of money is doing, whatever the provider calls it:

    waiting ──> moving ──> moved ──> returned    it came back: a bounced payout, a reversed transfer
       └───────────┴─────> failed                nothing moved, and nothing will
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

import msgspec

from tallystick.money.currencies import Purpose, Wire
from tallystick.secret import Secret

State = Literal["waiting", "moving", "moved", "failed", "returned"]


# By how much a clock may be set back before what it said earlier is of the future.
_SLACK: Final = timedelta(minutes=1)
# How long before now something may have been made that is of the future: a clock is not wrong for days unnoticed.
_LONGEST_AHEAD: Final = timedelta(days=1)
# No permit to send, nor any other lease, is longer: one that ends later from now was given by a clock that was ahead.
LONGEST_LEASE: Final = timedelta(hours=2)


def is_forgotten(since: datetime, remembered: timedelta, now: datetime) -> bool:
    """Whether a key that counts from `since` may no longer be relied on.

    One from the future was made while the clock was ahead: how old it is, nobody knows.
    """
    return not since - _SLACK <= now < since + remembered


def searched_from(since: datetime, now: datetime) -> datetime:
    """From when on a provider's books are read for something of `since`. Its own clock was right all the time."""
    return since if since <= now + _SLACK else now - _LONGEST_AHEAD


def permit_ended(not_after: datetime, now: datetime) -> datetime:
    """When a permit to send ends, by a clock that may have been set back since it was given.

    One that ends later than any can was given by a clock that was ahead. Who asks holds a claim that began after that
    one's was over, so the permit is over, too: it ran by the sender's steady clock.
    """
    return not_after if not_after <= now + LONGEST_LEASE else now - LONGEST_LEASE


class Lookup(StrEnum):
    """How well a provider answers "did this happen?" by our own reference."""

    EXACT = "exact"  # absence is proof, once nothing of ours can still be on its way
    EVENTUAL = "eventual"  # found is found; absence proves nothing yet
    SCAN = "scan"  # everything of a span of time is listed and matched by us
    NONE = "none"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is so about a provider, whoever the account. Sources: docs/providers.md.

    `wire`: how it writes amounts.
    `key_horizon`: how long the provider remembers a key, counted from its first use, and by us from the creation of
    what it pays for; `key_margin`: how long before its end we stop trusting that. Where the provider publishes none, a
    short one is assumed and `horizon_is_published` is False. `longest_in_flight`: how long after its not-after a
    request may still take effect; `list_lag`: how long after that it may be missing from the provider's books.
    `bounces`: for how long a success may still be undone; a purpose that is missing is final at once.
    `lists`: what `movements` can list; `events_reach`: how far back `events` goes, None where there is no list.
    """

    name: str
    wire: Wire
    key_form: Literal["hex64", "square45", "uuid"]
    key_characters: int
    key_horizon: timedelta
    key_margin: timedelta
    horizon_is_published: bool
    lookup: Mapping[Purpose, Lookup]
    pushes_money: bool
    answer_seconds: float
    longest_in_flight: timedelta
    list_lag: timedelta = timedelta()
    bounces: Mapping[Purpose, timedelta]
    lists: frozenset[Purpose]
    events_reach: timedelta | None
    webhook_tolerance: timedelta | None
    requests_per_second: float
    concurrency: int
    # How many calls one transfer takes.
    requests_per_transfer: int = 1
    # Whether a payment can be cancelled, and the answer tells that it is.
    cancels_charges: bool = False
    # What waits at the provider goes on only when we send again (Wise: made, not yet funded).
    waits_for_us: bool = False

    @property
    def remembered(self) -> timedelta:
        """How long a key is relied on."""
        return self.key_horizon - self.key_margin

    @property
    def settles_in(self) -> timedelta:
        """After that long whatever was written in time has happened or will not, and the books show which."""
        return self.longest_in_flight + self.list_lag


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """Take money from a customer. `payment_method` None: the customer brings it himself, later (Stripe).

    `key` is the digest of `keys.derived.charge_key`; each adapter writes it in the form its provider takes.
    """

    key: bytes
    amount_micros: int
    currency: str
    description: str = ""
    payment_method: str | None = None
    customer: str | None = None


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """Give a charge back, wholly or in part. `payment_id` is the provider's id of the charge."""

    key: bytes
    payment_id: str
    amount_micros: int
    currency: str
    reason: str = ""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Pay a third party. What `destination` looks like is the provider's: see its adapter."""

    key: bytes
    destination: str
    amount_micros: int
    currency: str
    description: str = ""


Instruction = Charge | Refund | Transfer


def kind_of(instruction: Instruction) -> Purpose:
    """What kind of movement an instruction asks for, before a provider has its own word for it."""
    match instruction:
        case Charge():
            return "charge"
        case Refund():
            return "refund"
        case Transfer():
            return "transfer"


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """A permit to write bytes: proof that the intent, with its first_sent_at and not_after, is committed.

    The datetimes are the database's, and evidence. `sendable_until` is the same not-after on this machine's own
    steady clock (`providers.steady`), checked just before the bytes are written: a wrong wall clock changes
    nothing, and a process that was stopped for too long finds its permit expired.
    """

    first_sent_at: datetime
    not_after: datetime
    sendable_until: float
    # When what it pays for was created: a life of the database that was lost may have sent it since, unknown here.
    since: datetime | None = None
    # Whose it is, for the provider's books (`movement.mark`): the intent's, so that every attempt has the same bytes.
    mark: str = ""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and what came back, as evidence for a person. Never holds a secret.

    `status` 0: no answer. `said` is the beginning of the body, or why there is none.
    """

    asked: str
    status: int
    request_id: str = ""
    said: str = ""


class Movement(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's books say of one movement. `status` is its own word, `state` ours.

    `reference` is our key in the provider's form, where it kept it; `parent` is a refund's payment. `about` is what a
    transfer says of itself in words: ours names what it pays. `mark` is whose it is (`movement.mark`), where the
    provider has room for it.
    """

    provider: str
    purpose: Purpose
    id: str
    amount_micros: int
    currency: str
    state: State
    status: str
    reference: str = ""
    parent: str = ""
    about: str = ""
    mark: str = ""
    created_at: datetime | None = None

    @property
    def elsewhere(self) -> str:
        """Whose account it is in, where it is not ours: its owner writes there what he likes. Empty: ours."""
        return self.id.rpartition("/")[0]


def may_have_paid(provider_id: str, destination: str) -> bool:
    """Whether a movement can be a payout of ours to that destination.

    In an account that is somebody else's, only one that was ordered from that very account.
    """
    elsewhere = provider_id.rpartition("/")[0]
    return not elsewhere or destination.startswith(f"{elsewhere}/")


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The provider has it. What it is doing with it is `movement.state`; whether that can bounce, the facts tell.

    `replayed`: it had it before this request, by its own word or its own clock.
    """

    movement: Movement
    replayed: bool = False
    client_secret: Secret | None = None
    evidence: tuple[Exchange, ...] = ()

    @property
    def id(self) -> str:
        """The provider's id."""
        return self.movement.id


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Final: this request did not move money and never will.

    `replayed`: the provider answered from what it stored under the key, so this is also the answer to every
    earlier send. Without that mark it says nothing of an earlier one whose outcome is unknown. `left_as`: the
    provider's id of a payment that it made all the same, and that the customer could still finish by another card.
    """

    code: str
    message: str
    replayed: bool = False
    evidence: tuple[Exchange, ...] = ()
    left_as: str = ""


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """Known not to have run. Says nothing of an earlier send of the same key.

    `needs_person`: waiting alone will not help (wrong credentials, missing permission).
    """

    code: str
    message: str
    after_seconds: float
    needs_person: bool = False
    evidence: tuple[Exchange, ...] = ()


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """It may have happened. `server_error`: the provider failed inside, and may roll it forward later.

    `says_refused`: the provider's own words refuse the request, but under no code that is known to be final. Whether
    that is a refusal depends on what was sent before: `movement.steps.believed` decides. Whoever does not ask it has
    an Unknown. `replayed` is as in Refused.
    """

    code: str
    message: str
    server_error: bool = False
    says_refused: bool = False
    replayed: bool = False
    evidence: tuple[Exchange, ...] = ()


Answer = Done | Refused | Busy | Unknown


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's books have it. More than one: it moved more than once, and a person must know."""

    movements: tuple[Movement, ...]
    evidence: tuple[Exchange, ...] = ()


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's books do not show it. Proof only by an exact lookup, and only late enough (the flows' rule)."""

    lookup: Lookup
    evidence: tuple[Exchange, ...] = ()


class Undecided(msgspec.Struct, frozen=True, kw_only=True):
    """The question could not be asked, or was not answered in full.

    `may_pass`: an outage, as far as can be seen; False: the provider answered, and would again.
    """

    code: str
    message: str
    may_pass: bool = True
    evidence: tuple[Exchange, ...] = ()


Looked = Found | Absent | Undecided


class NotShown(msgspec.Struct, frozen=True, kw_only=True):
    """The provider shows nothing of that kind by its id: it tells neither that it is there nor that it is not."""

    message: str


# What a question for one movement, by the provider's own id, is answered with.
Fetched = Done | Absent | NotShown | Undecided


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a provider told us of, from a webhook's item or from its list of events.

    `dedup_key` is equal for two deliveries of one event; `change_key` also for two events about one change.
    `movement` is None where the event says nothing about money we know of. `object_purpose`: it names a movement of
    this purpose by `object_id`, without saying what became of it, so it must be fetched. `body` is the item as it came.
    """

    provider: str
    type: str
    dedup_key: str
    change_key: str
    object_id: str
    occurred_at: datetime | None
    movement: Movement | None
    body: bytes
    object_purpose: Purpose | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events after a cursor, oldest first. `more`: ask again with this page's cursor."""

    events: tuple[Event, ...]
    cursor: str
    more: bool


class Forged(msgspec.Struct, frozen=True):
    """A webhook that must not be believed. `code` is stable; `message` holds nothing of secret or body."""

    code: str
    message: str


class Reachability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the provider answers us, with our credentials."""

    reachable: bool
    authorised: bool
    detail: str
    seconds: float
