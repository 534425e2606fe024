"""Operations on MariaDB and MySQL: lock accounts, claim keys by placeholder rows, record.

    claim ──> INSERT IGNORE of a row without a body ──> ours ───> record   the row gets its body
                                                       │     └──> unclaim  the row is deleted again
                                                       └> used before: its body is read and replayed

Who inserts the same key meanwhile waits at the primary key, and finds the body when we have committed.
One instance is one open transaction.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from tallystick.commit.port import Locked, Lost
from tallystick.errors import Unreachable, require
from tallystick.ledger.claims import Claim, Known, Record
from tallystick.ledger.mysql import statements
from tallystick.ledger.mysql.database import Database, Session
from tallystick.ledger.outcome import transaction_id
from tallystick.ledger.rules import Account, Book
from tallystick.ledger.velocity import Limit

_SQL = statements.load("operation.sql")

OperationName = tuple[int, bytes]


class MysqlLedger:
    """The engine's store on MariaDB and MySQL."""

    def __init__(self, database: Database) -> None:
        """Several may share one database."""
        self._database = database

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["MysqlTransaction"]:
        """One transaction on a connection of the pool."""
        async with self._database.writing() as session:
            yield MysqlTransaction(self._database, session)


class MysqlTransaction:
    """See `commit.port.LedgerTransaction`."""

    def __init__(self, database: Database, session: Session) -> None:
        """The session is inside a transaction; who opened it ends it."""
        self._database = database
        self._session = session
        self._numbers: dict[tuple[int, str], int] = {}
        # Accounts whose last entry is later than the clock, which was ahead once: the time their entries go on with.
        self._ahead: dict[tuple[int, str], datetime] = {}
        self._claimed: set[OperationName] = set()

    async def read(self, names: Collection[OperationName]) -> Mapping[OperationName, Known]:
        """See the port."""
        rows = await self._session.rows(_SQL["read"], _json_names(names))
        return {(tenant, id_): Known(key, request, body) for tenant, id_, key, request, body in rows}

    async def read_closed(self, names: Collection[OperationName]) -> AbstractSet[OperationName]:
        """See the port."""
        rows = await self._session.rows(_SQL["read_closed"], _json_names(names))
        return {(tenant, id_) for tenant, id_ in rows}

    async def lock_accounts(self, wanted: Collection[tuple[int, str]], *, patient: bool) -> Locked:
        """See the port."""
        # The statement locks in the order of this list.
        asked = _json(sorted(wanted))
        statement = "lock_accounts" if patient else "lock_free_accounts"
        rows, ((clock,),) = await self._session.row_sets(_SQL[statement], asked)
        # Within an account time never goes back, also when the server's clock does: it goes on with the account's own.
        self._ahead = {(row[0], row[2]): row[-1].replace(tzinfo=UTC) for row in rows if row[-1] > clock}
        books: dict[int, Book] = {}
        limited = []
        for tenant, number, name, currency, floor, balance, entries, is_limited, _ in rows:
            self._numbers[tenant, name] = number
            books.setdefault(tenant, {})[name] = Account(number, name, currency, floor, balance, entries)
            if is_limited:
                limited.append((tenant, number, name))
        if limited:
            await self._add_limits(books, limited, clock)
        blocked = frozenset[tuple[int, str]]()
        if not patient and len(rows) < len(wanted):
            existing = await self._session.rows(_SQL["existing_accounts"], asked)
            blocked = frozenset((tenant, name) for tenant, name in existing) - self._numbers.keys()
        return Locked(books, clock.replace(tzinfo=UTC), blocked)

    async def _add_limits(self, books: dict[int, Book], limited: list[tuple[int, int, str]], clock: datetime) -> None:
        names = {(tenant, number): name for tenant, number, name in limited}
        rows = await self._session.rows(_SQL["velocity"], clock, clock, _json(list(names)))
        limits: dict[tuple[int, int], list[Limit]] = {}
        for tenant, number, window, max_count, max_sum, count, micros in rows:
            # A sum is DECIMAL here, wide enough for any window.
            limits.setdefault((tenant, number), []).append(Limit(window, max_count, max_sum, count, int(micros)))
        for (tenant, number), found in limits.items():
            name = names[tenant, number]
            books[tenant][name] = msgspec.structs.replace(books[tenant][name], limits=tuple(found))

    async def claim(
        self, claims: Sequence[Claim], *, patient: bool
    ) -> tuple[Mapping[OperationName, Known], AbstractSet[OperationName]]:
        """See the port."""
        names = sorted((claim.tenant.number, claim.id) for claim in claims)
        held = frozenset[OperationName]()
        if not patient:
            held = await self._held(names)
            names = [name for name in names if name not in held]
        inserted = await self._session.insert(_SQL["claim"], names)
        known = {} if inserted == len(names) else await self.read(names)
        self._claimed = set(names) - known.keys()
        return known, held

    async def _held(self, names: list[OperationName]) -> frozenset[OperationName]:
        """Keys with a row that is not committed. Asked first: waiting at one would delay all the others."""
        asked = _json_names(names)
        try:
            async with self._database.glancing() as session:
                seen = await session.rows(_SQL["glance_at_keys"], asked)
        except Unreachable as error:
            raise Lost(str(error), commit_sent=False) from error
        return frozenset((tenant, id_) for tenant, id_ in seen) - (await self.read(names)).keys()

    async def unclaim(self, claims: Sequence[Claim]) -> None:
        """See the port. Only placeholders of our own: at another's we would wait for him."""
        ours = self._claimed.intersection((claim.tenant.number, claim.id) for claim in claims)
        if ours:
            await self._session.execute(_SQL["unclaim"], _json_names(sorted(ours)))
            self._claimed -= ours

    async def record(self, records: Sequence[Record], at: datetime) -> None:
        """See the port."""
        names = [(record.claim.tenant.number, record.claim.id) for record in records]
        require(self._claimed.issuperset(names), "an operation is recorded under a key that was not claimed")
        insert = self._session.insert
        await insert(
            _SQL["fill"],
            [(*_name(r), r.claim.key, r.claim.request, r.body, at) for r in records],
        )
        await insert(_SQL["enter"], self._entries(records, at))
        moved = self._moved(records)
        changed = await self._session.execute(_SQL["move"], _json(moved), at)
        require(changed == len(moved), "a balance did not move with its entries")
        await insert(
            _SQL["journal"],
            [(t, "operation", id_, r.digest, r.claim.author) for (t, id_), r in zip(names, records, strict=True)],
        )
        await insert(_SQL["publish"], [(tenant, "operation.committed", id_) for tenant, id_ in names])
        await insert(_SQL["close"], _closings(records))

    def _entries(self, records: Sequence[Record], at: datetime) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        for record in records:
            tenant, id_ = _name(record)
            for entry in record.entries:
                number = self._numbers[tenant, entry.account]
                time = self._ahead.get((tenant, entry.account), at)
                rows.append((tenant, number, entry.number, id_, entry.amount_micros, entry.balance_micros, time))
        return rows

    def _moved(self, records: Sequence[Record]) -> list[tuple[int, int, int, int]]:
        """Tenant, number, balance and entry count of each account after its last entry."""
        last = {(record.claim.tenant.number, entry.account): entry for record in records for entry in record.entries}
        return sorted(
            (tenant, self._numbers[tenant, name], entry.balance_micros, entry.number)
            for (tenant, name), entry in last.items()
        )


def _closings(records: Sequence[Record]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for record in records:
        if record.closes is not None:
            closed = transaction_id(record.closes)
            require(closed is not None, "a record closes something that has no id")
            tenant, id_ = _name(record)
            rows.append((tenant, closed, id_))
    return rows


def _name(record: Record) -> OperationName:
    return record.claim.tenant.number, record.claim.id


def _json(rows: Collection[tuple[object, ...]]) -> str:
    return msgspec.json.encode(rows).decode()


def _json_names(names: Collection[OperationName]) -> str:
    return _json([(tenant, id_.hex()) for tenant, id_ in names])
