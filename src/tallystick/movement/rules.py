"""Intents: whether an instruction may be written to a provider now. Pure.

    another instruction under the key   never  a key covers one instruction for ever
    its subject has another live key    never  a second key would be a second payment
    another account than the first's    never  its books know nothing of the first send
    an attempt was done                 never  it has happened
    last attempt silent, permit running  wait   somebody may be writing at this very moment
    past the provider's memory:
      a lost life is proven there       wait   until the provider's books have been read
      an attempt may have run           never  the provider may have forgotten: the same bytes would pay again
      no proof of absence               ask    the first attempt too: a life that was lost may have sent it
    otherwise                           send   the first attempt, or the next one: same key, same instruction

The memory is counted from the creation of what is paid for, never from the first send that is stored: a database
cannot always tell that it was restored, and what it shows as unsent may have been sent by a life that it lost. Every
key of one subject, whatever its generation or attempt, counts from the same moment.

Whether a further attempt is wise (look up first, budget) is the flows' question, asked before. What stands here holds
whatever they do.
"""

from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from tallystick.errors import InvariantBroken
from tallystick.ledger.claims import Tenant
from tallystick.providers.words import Charge, Instruction, Lookup, Refund, Transfer, is_forgotten


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that is committed: its bytes may leave until `not_after`, with this mark."""

    tenant: Tenant
    provider: str
    key: bytes
    number: int
    first_sent_at: datetime
    not_after: datetime
    mark: str = ""


class LastAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt of an intent, and what is known of all of them.

    `may_have_run`: one of them is unknown or was never answered. `done_as`: the provider's id, where one was done.
    """

    number: int
    token: UUID
    not_after: datetime
    is_answered: bool
    may_have_run: bool
    done_as: str | None


class KnownIntent(msgspec.Struct, frozen=True, kw_only=True):
    """An intent as it is stored. `last` None: nothing was sent yet. `is_ended`: its subject has another key since.

    `since`: when what it pays for was created, as its first asker knew it; None: it is of a release that did not ask.
    """

    instruction: bytes
    account: str
    since: datetime | None
    first_sent_at: datetime
    last: LastAttempt | None
    is_ended: bool = False


class Absence(msgspec.Struct, frozen=True, kw_only=True):
    """Proof: asked for the subject of this key, the provider's books did not show it.

    `read_at` is the database's time from before the question. `lookup` tells how they were asked: exactly, or by
    reading everything since the subject was created.
    """

    key: bytes
    read_at: datetime
    lookup: Lookup
    # From when on they were asked.
    since: datetime
    # Everything since then was read for what names the subject, under whatever key; None: its keys were asked for.
    listed_since: datetime | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that wants to begin.

    `since`: when what it pays for was created; `remembered`: how long after that the key may be relied on.
    `settles_in`: after that long nothing that somebody began to send can still take effect, nor be missing from the
    provider's books.
    """

    key: bytes
    instruction: bytes
    account: str
    token: UUID
    since: datetime
    remembered: timedelta
    settles_in: timedelta
    absence: Absence | None
    # The key covers more than what a caller sent (a fee by policy): created again it may have another one.
    covers_policy: bool = False
    # When that policy was last changed here; None: nobody has looked.
    policy_since: datetime | None = None


class Begin(msgspec.Struct, frozen=True):
    """Record this attempt, then send."""

    number: int


class Begun(msgspec.Struct, frozen=True):
    """The attempt was recorded by this very call before, and its COMMIT's answer was lost."""

    number: int
    not_after: datetime


class StillSending(msgspec.Struct, frozen=True):
    """Somebody else's attempt may still be writing bytes until then. Nothing was sent."""

    until: datetime


class OtherInstruction(msgspec.Struct, frozen=True):
    """The key covers another instruction. A bug of the caller: nothing was sent."""

    first_sent_at: datetime


class OtherAccount(msgspec.Struct, frozen=True):
    """It was first sent with another account: whether it happened there, only that one can tell. Nothing was sent."""

    account: str
    first_sent_at: datetime


class OtherKey(msgspec.Struct, frozen=True):
    """What the intent serves has another live key, held by a unique index. Nothing was sent."""


class AlreadyDone(msgspec.Struct, frozen=True):
    """An earlier attempt was done, under this id of the provider's. Nothing was sent."""

    provider_id: str


class PastHorizon(msgspec.Struct, frozen=True):
    """An earlier attempt may have run, and the provider may have forgotten its key. Nothing was sent."""

    first_sent_at: datetime


class AskFirst(msgspec.Struct, frozen=True):
    """The provider may have forgotten the key: its books must be asked for the subject first. Nothing was sent.

    Absence counts when they are read at `from_` or later, for everything from `since` on. Whoever has it comes back
    with it.
    """

    from_: datetime
    since: datetime


# A policy that was changed, or another generation that was begun, and a payout that was made by it, in less than this
# before a life was lost: only then is a change missing here that is not taken for possible. A promotion loses seconds,
# a backup minutes or days.
LONGEST_TRUSTED: Final = timedelta(minutes=5)

# How long it is before somebody looks again whether the books were read.
STOPPED_PAUSE: Final = timedelta(seconds=30)

# Why an attempt may not begin, now or ever.
Withheld = StillSending | OtherInstruction | OtherAccount | OtherKey | AlreadyDone | PastHorizon | AskFirst
Permit = Begin | Begun | Withheld


def permit(
    known: KnownIntent,
    wanted: Wanted,
    *,
    life_began: datetime,
    now: datetime,
    known_until: datetime | None = None,
    is_stopped: bool = False,
) -> Permit:
    """May this attempt begin? `now` is the database's. First match wins.

    `life_began`: since when nobody but this very database can have sent. `known_until`: a life may have been lost since
    then, and the provider's books are not read yet; None: they are, or nothing hints at it. `is_stopped`: the provider
    has shown that one was (`movement.mark`).
    """
    another = _if_another(known, wanted)
    if another is not None:
        return another
    last = known.last
    if last is not None:
        if last.token == wanted.token:
            return Begun(last.number, last.not_after)
        if last.done_as is not None:
            return AlreadyDone(last.done_as)
        if not last.is_answered and now < last.not_after:
            return StillSending(last.not_after)
    # The earliest of them: neither who asks next nor a clock that was set back makes a key younger.
    born = min(wanted.since, known.since or wanted.since, known.first_sent_at)
    if known_until is not None:
        # Unread, it is as old as what was known: a caller who came again may have created it anew.
        born = min(born, known_until)
    withheld: Withheld | None = None
    if is_forgotten(born, wanted.remembered, now):
        if is_stopped:
            # Whatever was asked of it: what the lost life did is known when everything since has been read.
            return AskFirst(max(life_began + wanted.settles_in, now + STOPPED_PAUSE), born)
        withheld = _if_forgotten(known, wanted, life_began, born)
    if withheld is None and known_until is not None:
        withheld = _if_named_otherwise(known, wanted, life_began, born, known_until=known_until, now=now)
    return withheld or Begin(1 if last is None else last.number + 1)


def _if_another(known: KnownIntent, wanted: Wanted) -> OtherKey | OtherInstruction | OtherAccount | None:
    if known.is_ended:
        return OtherKey()
    if known.instruction != wanted.instruction:
        return OtherInstruction(known.first_sent_at)
    if known.account != wanted.account:
        return OtherAccount(known.account, known.first_sent_at)
    return None


def _if_named_otherwise(
    known: KnownIntent, wanted: Wanted, life_began: datetime, born: datetime, *, known_until: datetime, now: datetime
) -> AskFirst | None:
    """Why it may not be sent under a key that its lost self need not have had; None: nothing bears its name.

    Created again it may have another fee; and a generation that was refused there may have been followed by the next.
    """
    if not wanted.covers_policy:
        return None
    absence, settled_at = wanted.absence, life_began + wanted.settles_in
    if absence is None or absence.key != wanted.key or absence.listed_since is None:
        return AskFirst(now, born)
    if absence.listed_since > known_until or absence.lookup not in (Lookup.EXACT, Lookup.SCAN):
        return AskFirst(now, born)
    # What is on its way is in no list, nor in one that lags; and an exact look-up does not find another key.
    must_settle = absence.lookup is Lookup.SCAN or _may_have_another_key(wanted, life_began, known_until)
    if absence.lookup is Lookup.EXACT and wanted.since <= known_until:
        # Of a row of before. Who starts his server for each tick begins a life with each: it is waited for once.
        settled_at = min(settled_at, known.first_sent_at + wanted.settles_in)
    return AskFirst(settled_at, born) if must_settle and absence.read_at < settled_at else None


def _may_have_another_key(wanted: Wanted, life_began: datetime, known_until: datetime) -> bool:
    """Whether a lost life may have begun to pay it under another key.

    In more time than a promotion loses, whatever it was: a row of before has its amount and its key, but its generation
    may have been refused and followed by the next; and who was refused need not be known by the first key any more.
    In less, a row of before has what it had; one that is younger may be made anew: as it was, unless the policy was
    changed here since.
    """
    if not -LONGEST_TRUSTED <= life_began - known_until <= LONGEST_TRUSTED:
        # Far less than nothing: a clock that was ahead has dated it, and how much was lost nobody knows. By a little it
        # is less where others wrote while the life began.
        return True
    is_younger = wanted.since > known_until
    return is_younger and (wanted.policy_since is None or wanted.policy_since > known_until)


def _if_forgotten(
    known: KnownIntent, wanted: Wanted, life_began: datetime, born: datetime
) -> PastHorizon | AskFirst | None:
    """Why it may not be sent under a key that the provider may have forgotten; None: it is proven absent."""
    last = known.last
    if last is not None and last.may_have_run:
        return PastHorizon(known.first_sent_at)
    settled_at = (life_began if last is None else max(life_began, last.not_after)) + wanted.settles_in
    return None if _is_proof(wanted.absence, wanted.key, settled_at, born) else AskFirst(settled_at, born)


def _is_proof(absence: Absence | None, key: bytes, settled_at: datetime, born: datetime) -> bool:
    """Of this very subject, by all books since it was born, and not before everything that was sent has settled."""
    return (
        absence is not None
        and absence.key == key
        and absence.lookup in (Lookup.EXACT, Lookup.SCAN)
        and absence.read_at >= settled_at
        and absence.since <= born
    )


_TAGS = {Charge: "charge", Refund: "refund", Transfer: "transfer"}
# What the first release wrote. A field that is added later is written only where it is set, so that an instruction of
# today has the bytes it had yesterday.
_FIRST_FIELDS = {
    Charge: frozenset({"key", "amount_micros", "currency", "description", "payment_method", "customer"}),
    Refund: frozenset({"key", "payment_id", "amount_micros", "currency", "reason"}),
    Transfer: frozenset({"key", "destination", "amount_micros", "currency", "description"}),
}
# Asked for once: each time it is most of what encoding costs.
_FIELDS = {kind: msgspec.structs.fields(kind) for kind in (Charge, Refund, Transfer)}
_encoder = msgspec.json.Encoder(order="deterministic")


def encode_instruction(instruction: Instruction) -> bytes:
    """The exact instruction as bytes: equal instructions give equal bytes, in every release."""
    kind = type(instruction)
    fields = {
        field.name: value
        for field in _FIELDS[kind]
        for value in [getattr(instruction, field.name)]
        if field.name in _FIRST_FIELDS[kind] or value != field.default
    }
    return _encoder.encode({"instruction": _TAGS[kind], **fields, "key": instruction.key.hex()})


def decode_charge(instruction: bytes) -> Charge:
    """A charge as `encode_instruction` wrote it."""
    fields: dict[str, Any] = msgspec.json.decode(instruction)
    if fields.pop("instruction") != _TAGS[Charge]:
        raise InvariantBroken("what is stored under a charge's key is no charge")
    return Charge(**{**fields, "key": bytes.fromhex(fields["key"])})


def decode_refund(instruction: bytes) -> Refund:
    """A refund as `encode_instruction` wrote it."""
    fields: dict[str, Any] = msgspec.json.decode(instruction)
    if fields.pop("instruction") != _TAGS[Refund]:
        raise InvariantBroken("what is stored under a refund's key is no refund")
    return Refund(**{**fields, "key": bytes.fromhex(fields["key"])})
