"""Claim, run, record, replay: what becomes of each claim of a batch.

Pure. The caller has locked and read; this decides, in the order the claims came, and each sees the effect
of those before it:

    key used by the same request ──> Duplicate, the recorded answer to the byte
    key used by another request  ──> Rejected, naming the fields that differ
    key free ──> handler ──> Rejected         key still free, no trace
                         ──> Fault            the handler raised: key still free, no trace
                         ──> Committed        one record: the key, the answer, the entries
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from tallystick.audit.author import current
from tallystick.audit.digest import step_digest
from tallystick.errors import InvariantBroken
from tallystick.keys.derived import MAX_IDEMPOTENCY_KEY_CHARACTERS, idempotency_key_fault
from tallystick.ledger.kinds import (
    Kind,
    Operation,
    Reading,
    differing_fields,
    memo_fault,
    reserved_fault,
    transaction_unknown,
)
from tallystick.ledger.outcome import (
    Committed,
    Duplicate,
    Entry,
    Outcome,
    Rejected,
    Transaction,
    encode_transaction,
    transaction_name,
)
from tallystick.ledger.rules import Book, post


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """A tenant by its row number and its name."""

    number: int
    name: str


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One caller's wish to use a key. `request` is the canonical form of the operation.

    `accounts` are those it touches, as far as the operation alone tells (`Kind.names` is empty). `author` is whoever
    makes the claim: of a batch, each claim may be another's.
    """

    tenant: Tenant
    id: bytes
    key: str
    kind: Kind
    operation: Operation
    request: bytes
    accounts: tuple[tuple[int, str], ...] = ()
    author: str = msgspec.field(default_factory=current)


class Known(msgspec.Struct, frozen=True, gc=False):
    """What is already recorded under a key."""

    key: str
    request: bytes
    body: bytes


class Fault(msgspec.Struct, frozen=True, gc=False):
    """The handler raised. Nothing is kept of the operation."""

    kind: str
    cause: Exception


class Record(msgspec.Struct, frozen=True, gc=False):
    """All that one committed operation writes."""

    claim: Claim
    body: bytes
    entries: tuple[Entry, ...]
    closes: str | None

    @property
    def digest(self) -> bytes:
        """What the journal keeps of it. PostgreSQL computes the same from the same bytes."""
        return step_digest(self.claim.tenant.name, "operation", self.claim.request, self.body)


_KEY_FAULTS: Final = {
    "idempotency_key_missing": (
        "There is no idempotency key.",
        "Send one; repeat it when you repeat the request.",
    ),
    "idempotency_key_invalid": ("The idempotency key is not plain text.", "Use visible ASCII characters."),
    "idempotency_key_too_long": (
        "The idempotency key is too long.",
        f"Use at most {MAX_IDEMPOTENCY_KEY_CHARACTERS} characters.",
    ),
}


def key_refusal(key: object) -> Rejected | None:
    """Why nothing can be claimed under this key."""
    fault = idempotency_key_fault(key)
    return None if fault is None else Rejected(fault, *_KEY_FAULTS[fault])


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read under the locks. Books and closings are per tenant: a wall by construction."""

    at: datetime
    known: Mapping[tuple[int, bytes], Known]
    books: Mapping[int, Book]
    transactions: Mapping[int, Mapping[str, Transaction]]
    closed: Mapping[int, AbstractSet[str]]


Answer = Outcome | Fault

_NOTHING_READ = Reading({}, {})


def decide(claims: Sequence[Claim], facts: Facts) -> tuple[list[Answer], list[Record]]:
    """An answer for each claim, in order, and the records of those that commit."""
    answers: list[Answer] = []
    records: list[Record] = []
    closed = {tenant: set(names) for tenant, names in facts.closed.items()}
    readings = {tenant: Reading(book, facts.transactions.get(tenant, {})) for tenant, book in facts.books.items()}
    for claim in claims:
        known = facts.known.get((claim.tenant.number, claim.id))
        if known is not None:
            answers.append(replay(claim, known))
            continue
        tenant = claim.tenant.number
        answer = _run(claim, facts, readings.get(tenant, _NOTHING_READ), closed.setdefault(tenant, set()))
        if isinstance(answer, Record):
            records.append(answer)
            answers.append(Committed(answer.body))
        else:
            answers.append(answer)
    return answers, records


def replay(claim: Claim, known: Known) -> Duplicate | Rejected:
    """The answer to a key that was used before."""
    if known.request == claim.request and known.key == claim.key:
        return Duplicate(known.body)
    fields = differing_fields(known.request, claim.request)
    return Rejected(
        "key_reused",
        f"The idempotency key {claim.key!r} was used for another request; they differ in {', '.join(fields)}.",
        "Use a new key for a new request, or repeat the first one unchanged.",
        fields,
    )


def _run(claim: Claim, facts: Facts, reading: Reading, closed: set[str]) -> Record | Rejected | Fault:
    kind = claim.kind
    try:
        decided = kind.decide(claim.operation, reading)
        if isinstance(decided, Rejected):
            return decided
        closes = kind.closes(claim.operation)
        legs = tuple(decided)
        refusal = _unclosable(closes, reading, closed) or (None if kind.internal else reserved_fault(legs))
        if refusal is not None:
            return refusal
        posted = post(facts.books.get(claim.tenant.number, {}), legs)
    except InvariantBroken:
        raise
    except Exception as cause:  # noqa: BLE001 - a user's handler may raise or return anything; only it fails
        return Fault(kind.name, cause)
    if isinstance(posted, Rejected):
        return posted
    if closes is not None:
        closed.add(closes)
    memo = getattr(claim.operation, "memo", None)
    if memo_fault(memo) is not None:
        memo = None
    transaction = Transaction(
        transaction_name(claim.id),
        claim.key,
        kind.name,
        facts.at,
        posted,
        memo,
        closes,
        claim.author,
    )
    body = encode_transaction(transaction)
    return Record(claim, body, posted, closes)


def _unclosable(name: str | None, reading: Reading, closed: set[str]) -> Rejected | None:
    if name is None:
        return None
    if name not in reading.transactions:
        return transaction_unknown(name, "transaction")
    if name not in closed:
        return None
    return Rejected(
        "already_closed",
        f"{name} was already released or refunded.",
        "Look at it with `tally explain`; a further movement is an operation of its own.",
    )
