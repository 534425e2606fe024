"""Intents: whether an instruction may be written to a provider now. Pure.

    unknown key                         send   the first attempt; the provider's memory of the key begins
    last attempt answered               send   the next attempt, same key, same instruction
    last attempt silent, leave over     send   its bytes can no longer leave
    last attempt silent, leave running  wait   somebody may be writing at this very moment
    another instruction under the key   never  a key covers one instruction for ever

Whether a further attempt is wise (look up first, past the horizon, budget) is the flows' question, asked before.
"""

from datetime import datetime
from uuid import UUID

import msgspec

from tallystick.core.provider import Charge, Instruction, Refund, Transfer


class LastAttempt(msgspec.Struct, frozen=True):
    """The newest attempt of an intent."""

    number: int
    token: UUID
    not_after: datetime
    is_answered: bool


class KnownIntent(msgspec.Struct, frozen=True):
    """An intent as it is stored. `last` None: it was just made."""

    instruction: bytes
    first_sent_at: datetime
    last: LastAttempt | None


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


Leave = Begin | Begun | StillSending | OtherInstruction


def leave(known: KnownIntent, instruction: bytes, token: UUID, *, now: datetime) -> Leave:
    """May this attempt begin? `now` is the database's."""
    if known.instruction != instruction:
        return OtherInstruction(known.first_sent_at)
    last = known.last
    if last is None:
        return Begin(1)
    if last.token == token:
        return Begun(last.number, last.not_after)
    if not last.is_answered and now < last.not_after:
        return StillSending(last.not_after)
    return Begin(last.number + 1)


_TAGS = {Charge: "charge", Refund: "refund", Transfer: "transfer"}
_encoder = msgspec.json.Encoder(order="deterministic")


def encode_instruction(instruction: Instruction) -> bytes:
    """The exact instruction as bytes: equal instructions give equal bytes, in every release."""
    fields = msgspec.structs.asdict(instruction)
    fields["key"] = instruction.key.hex()
    return _encoder.encode({"instruction": _TAGS[type(instruction)], **fields})
