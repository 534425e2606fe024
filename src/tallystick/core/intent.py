"""Intents: whether an instruction may be written to a provider now. Pure.

    another instruction under the key   never  a key covers one instruction for ever
    its subject has another live key    never  a second key would be a second payment
    another account than the first's    never  its books know nothing of the first send
    an attempt was done                 never  it has happened
    last attempt silent, leave running  wait   somebody may be writing at this very moment
    an attempt may have run, and the    never  the provider has forgotten, or may have: the same bytes would pay again
      provider no longer remembers it
    otherwise                           send   the first attempt, or the next one: same key, same instruction

Whether a further attempt is wise (look up first, budget) is the flows' question, asked before. What stands here holds
whatever they do.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from tallystick.core.provider import Charge, Instruction, Refund, Transfer
from tallystick.errors import InvariantBroken


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
    """An intent as it is stored. `last` None: it was just made. `is_ended`: its subject has another key since."""

    instruction: bytes
    account: str
    first_sent_at: datetime
    last: LastAttempt | None
    is_ended: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that wants to begin. `remembered`: how long after the first send the key may be relied on."""

    instruction: bytes
    account: str
    token: UUID
    remembered: timedelta


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


# Why an attempt may not begin, now or ever.
Withheld = StillSending | OtherInstruction | OtherAccount | OtherKey | AlreadyDone | PastHorizon
Leave = Begin | Begun | Withheld


def leave(known: KnownIntent, wanted: Wanted, *, now: datetime) -> Leave:
    """May this attempt begin? `now` is the database's. First match wins."""
    if known.is_ended:
        return OtherKey()
    if known.instruction != wanted.instruction:
        return OtherInstruction(known.first_sent_at)
    if known.account != wanted.account:
        return OtherAccount(known.account, known.first_sent_at)
    last = known.last
    if last is None:
        return Begin(1)
    if last.token == wanted.token:
        return Begun(last.number, last.not_after)
    if last.done_as is not None:
        return AlreadyDone(last.done_as)
    if not last.is_answered and now < last.not_after:
        return StillSending(last.not_after)
    if last.may_have_run and now >= known.first_sent_at + wanted.remembered:
        return PastHorizon(known.first_sent_at)
    return Begin(last.number + 1)


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
