"""What the engine needs from a database, and how a database says that it could not.

One batch is one transaction. Locks are taken in one global order, everywhere: accounts by (tenant, id), then
keys by (tenant, id). Two batches can therefore wait for each other in one direction only.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tallystick.errors import InFlight, OutcomeUnknown, Unreachable
from tallystick.ledger.claims import Claim, Known, Record
from tallystick.ledger.rules import Book
from tallystick.settings import LIMITS


class Contended(Exception):
    """Rolled back; run it again.

    `held`: somebody held a lock we need for longer than we wait. Otherwise somebody was quicker (used our key,
    or won a deadlock) and is already done.
    """

    def __init__(self, reason: str, *, held: bool) -> None:
        """`reason` is for the log."""
        super().__init__(reason)
        self.held = held


class Lost(Exception):
    """The connection broke. `commit_sent`: COMMIT was on its way, so nobody knows whether it happened."""

    def __init__(self, reason: str, *, commit_sent: bool) -> None:
        """`reason` must not hold credentials."""
        super().__init__(reason)
        self.commit_sent = commit_sent


@contextmanager
def plain_errors() -> Iterator[None]:
    """For a caller outside group commit: what its transaction met, in the words of `errors`.

    InFlight and Unreachable: nothing was changed. OutcomeUnknown: it may have been; to do it again is safe.
    """
    try:
        yield
    except Contended as contended:
        raise InFlight(LIMITS.lock_wait_seconds) from contended
    except Lost as lost:
        raise (OutcomeUnknown() if lost.commit_sent else Unreachable(str(lost))) from lost


@dataclass(frozen=True, slots=True)
class Locked:
    """Accounts read under their locks, per tenant; `at` is the database's time after the last lock.

    An account whose last entry is later than that goes on with its own time: what is recorded for it is dated so.

    `blocked` are the accounts another transaction holds: only an impatient call reports them.
    """

    books: Mapping[int, Book]
    at: datetime
    blocked: AbstractSet[tuple[int, str]]


class LedgerTransaction(Protocol):
    """One open transaction. Its methods are called in the order they stand here."""

    async def read(self, names: Collection[tuple[int, bytes]]) -> Mapping[tuple[int, bytes], Known]:
        """What is recorded under these operation ids. Recorded operations never change, so no lock."""

    async def read_closed(self, names: Collection[tuple[int, bytes]]) -> AbstractSet[tuple[int, bytes]]:
        """Which of these operations were already released or refunded. Called with the accounts locked."""

    async def lock_accounts(self, wanted: Collection[tuple[int, str]], *, patient: bool) -> Locked:
        """Lock in the global order and read. Impatient: take what is free now and report the rest."""

    async def claim(
        self, claims: Sequence[Claim], *, patient: bool
    ) -> tuple[Mapping[tuple[int, bytes], Known], AbstractSet[tuple[int, bytes]]]:
        """Those of the keys that were used before, with their answers; and those somebody else holds."""

    async def record(self, records: Sequence[Record], at: datetime) -> None:
        """Write everything of these records. Raises Contended when a key was used meanwhile."""

    async def unclaim(self, claims: Sequence[Claim]) -> None:
        """Let go of keys that will not be used. A database whose claim leaves no row does nothing."""


class LedgerStore(Protocol):
    """A database the engine can run on."""

    def transaction(self) -> AbstractAsyncContextManager[LedgerTransaction]:
        """Commit at the end of the block, roll back when it raises; raises Lost and Contended."""
