"""What a caller is told about an operation. Pure.

    Committed   it ran now, and is durable
    Duplicate   it ran earlier under this key; this is that very answer, to the byte
    Rejected    it did not run, nothing changed, and the key is still unused

Everything else is an exception: the caller cannot be told what happened (`errors`).
"""

import re
from dataclasses import dataclass
from datetime import datetime

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line in an account's book. `number` counts the account's entries from 1."""

    account: str
    amount_micros: int
    currency: str
    balance_micros: int
    number: int


class Transaction(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A committed movement of money. `id` is a pure function of tenant and idempotency key.

    `author` is who did it (audit/author.py); an earlier release did not say.
    """

    id: str
    idempotency_key: str
    kind: str
    at: datetime
    entries: tuple[Entry, ...]
    memo: str | None = None
    closes: str | None = None
    author: str | None = None


encode_transaction = msgspec.json.Encoder().encode
_decode_transaction = msgspec.json.Decoder(Transaction).decode


def read_transaction(body: bytes) -> Transaction:
    """The transaction a stored body stands for."""
    return _decode_transaction(body)


def transaction_name(operation_id: bytes) -> str:
    """How an operation's 16-byte id is written for people and programs."""
    return "tx_" + operation_id.hex()


# One spelling only: two names for one transaction would be two keys in every set of names.
_NAME = re.compile(r"tx_([0-9a-f]{32})")


def transaction_id(name: str) -> bytes | None:
    """The 16-byte id behind a written one; None when it is not one of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else bytes.fromhex(found[1])


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The operation ran and is durable. `body` is what every replay will return."""

    body: bytes

    @property
    def transaction(self) -> Transaction:
        """The body, read."""
        return _decode_transaction(self.body)


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The key was used before by the same request: the recorded answer, nothing run."""

    body: bytes

    @property
    def transaction(self) -> Transaction:
        """The body, read."""
        return _decode_transaction(self.body)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The operation did not run and left no trace; the key may be used again.

    `code` is stable; `detail` says what happened, `remedy` what to do. `fields` names what differs when a
    key was used before with another payload.
    """

    code: str
    detail: str
    remedy: str
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a person at 3 a.m.: what happened, where the money is, what to do."""
        return f"{self.code}: {self.detail} No money moved.\n{self.remedy}"


Outcome = Committed | Duplicate | Rejected
