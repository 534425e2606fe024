"""Operations on PostgreSQL: lock accounts, look keys up, record. One instance is one open transaction."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from operator import attrgetter

from asyncpg.pgproto.pgproto import UUID

from tallystick import queries
from tallystick.commit.port import Locked
from tallystick.database import copying
from tallystick.database.literal import numbers, texts
from tallystick.database.pool import Connection, Database
from tallystick.errors import require
from tallystick.ledger.claims import Claim, Known, Record, Tenant
from tallystick.ledger.outcome import transaction_id
from tallystick.ledger.rules import Account, Book
from tallystick.ledger.velocity import Limit

_SQL = queries.load(__package__, "store.sql")

# From here on two COPY streams are cheaper than one statement with array parameters.
_COPY_FROM = 16

OperationName = tuple[int, bytes]


class PostgresLedger:
    """The engine's store on PostgreSQL."""

    def __init__(self, database: Database) -> None:
        """Several may share one database."""
        self._database = database

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["PostgresTransaction"]:
        """One transaction on a connection of the pool."""
        async with self._database.writing() as connection:
            yield PostgresTransaction(connection)


class PostgresTransaction:
    """See `commit.port.LedgerTransaction`."""

    def __init__(self, connection: Connection) -> None:
        """The connection is inside a transaction; who opened it ends it."""
        self._connection = connection
        self._numbers: dict[int, dict[str, int]] = {}
        # Accounts whose last entry is later than the clock, which was ahead once: the time their entries go on with.
        self._ahead: dict[tuple[int, str], datetime] = {}

    async def read(self, names: Collection[OperationName]) -> Mapping[OperationName, Known]:
        """See the port."""
        rows = await self._connection.fetch(_SQL["read"], *_columns(names))
        return {(row["tenant_id"], row["id"].bytes): Known(row["key"], row["request"], row["body"]) for row in rows}

    async def read_closed(self, names: Collection[OperationName]) -> AbstractSet[OperationName]:
        """See the port."""
        rows = await self._connection.fetch(_SQL["read_closed"], *_columns(names))
        return {(row["tenant_id"], row["closed_id"].bytes) for row in rows}

    async def lock_accounts(self, wanted: Collection[tuple[int, str]], *, patient: bool) -> Locked:
        """See the port."""
        tenants, ids = _literal([tenant for tenant, _ in wanted]), _lines([name for _, name in wanted])
        statement = "lock_accounts" if patient else "lock_free_accounts"
        rows = await self._connection.fetch(_SQL[statement], tenants, ids)
        latest = clock = datetime.min.replace(tzinfo=UTC)
        books: dict[int, Book] = {}
        limited = []
        for tenant, number, name, currency, floor, balance, entries, is_limited, posted_at, locked_at in rows:
            clock = max(clock, locked_at)
            latest = max(latest, posted_at)
            if tenant not in books:
                books[tenant], self._numbers[tenant] = {}, {}
            self._numbers[tenant][name] = number
            books[tenant][name] = Account(number, name, currency, floor, balance, entries)
            if is_limited:
                limited.append((tenant, number, name))
        # Within an account time never goes back, also when the server's clock does. It goes on with the account's own
        # time, and with nobody else's: a clock that was a day ahead must not date what all the others do for a day.
        self._ahead = (
            {(row["tenant_id"], row["id"]): row["posted_at"] for row in rows if row["posted_at"] > clock}
            if latest > clock
            else {}
        )
        if limited:
            await self._add_limits(books, limited, clock)
        blocked = frozenset[tuple[int, str]]()
        if not patient and len(rows) < len(wanted):
            existing = await self._connection.fetch(_SQL["existing_accounts"], tenants, ids)
            blocked = frozenset((tenant, name) for tenant, name in existing if name not in books.get(tenant, {}))
        return Locked(books, clock, blocked)

    async def _add_limits(self, books: dict[int, Book], limited: list[tuple[int, int, str]], clock: datetime) -> None:
        names = {(tenant, number): name for tenant, number, name in limited}
        rows = await self._connection.fetch(
            _SQL["velocity"], [tenant for tenant, _ in names], [number for _, number in names], clock
        )
        limits: dict[tuple[int, int], list[Limit]] = {}
        for tenant, number, window, max_count, max_sum, count, micros in rows:
            limits.setdefault((tenant, number), []).append(Limit(window, max_count, max_sum, count, micros))
        for (tenant, number), found in limits.items():
            name = names[tenant, number]
            a = books[tenant][name]
            books[tenant][name] = Account(
                number, name, a.currency, a.floor_micros, a.balance_micros, a.entries, tuple(found)
            )

    async def claim(
        self, claims: Sequence[Claim], *, patient: bool
    ) -> tuple[Mapping[OperationName, Known], AbstractSet[OperationName]]:
        """See the port. The claim itself is the insert in `record`: the primary key lets one of two through."""
        names = [(claim.tenant.number, claim.id) for claim in claims]
        held = frozenset[OperationName]()
        if not patient:
            rows = await self._connection.fetch(_SQL["try_keys"], *_columns(names))
            held = frozenset((row["tenant_id"], row["id"].bytes) for row in rows)
        return await self.read(names), held

    async def hold(self, tenant: Tenant, id_: bytes) -> None:
        """Make lanes step around this key until the caller's transaction ends."""
        await self._connection.execute(_SQL["hold_key"], tenant.number, UUID(id_))

    async def record(self, records: Sequence[Record], at: datetime) -> None:
        """See the port."""
        records = sorted(records, key=_lock_order)
        if self._ahead or len(records) < _COPY_FROM:
            await self._record_by_statement(records, at)
        else:
            await self._record_by_copy(records, at)

    async def _record_by_statement(self, records: Sequence[Record], at: datetime) -> None:
        """One round trip, for the lone caller who waits for it."""
        lines = [(record.claim.tenant.number, record.claim.id, entry) for record in records for entry in record.entries]
        ahead = [[self._ahead.get((tenant, entry.account), at) for tenant, _, entry in lines]] if self._ahead else []
        await self._connection.execute(
            _SQL["record_ahead" if ahead else "record"],
            numbers([record.claim.tenant.number for record in records]),
            [UUID(record.claim.id) for record in records],
            texts([record.claim.key for record in records]),
            [record.claim.request for record in records],
            [record.body for record in records],
            at,
            numbers([tenant for tenant, _, _ in lines]),
            numbers([self._numbers[tenant][entry.account] for tenant, _, entry in lines]),
            numbers([entry.number for _, _, entry in lines]),
            [UUID(id_) for _, id_, _ in lines],
            numbers([entry.amount_micros for _, _, entry in lines]),
            numbers([entry.balance_micros for _, _, entry in lines]),
            *_closings(records),
            texts([record.claim.author for record in records]),
            *ahead,
        )

    async def _record_by_copy(self, records: Sequence[Record], at: datetime) -> None:
        """Two streams, each far cheaper per row. The second is packed while the server works on the first."""
        time = copying.moment(at)
        entries = b""

        async def operations() -> AsyncIterator[bytes]:
            nonlocal entries
            yield copying.operations(records, time)
            entries = copying.entries(records, self._numbers, time)

        async def packed() -> AsyncIterator[bytes]:
            yield entries

        await self._copy("operation", copying.OPERATION_COLUMNS, operations())
        await self._copy("entry", copying.ENTRY_COLUMNS, packed())
        closings = _closings(records)
        if closings[0]:
            await self._connection.execute(_SQL["close"], *closings)

    async def _copy(self, table: str, columns: Sequence[str], rows: AsyncIterator[bytes]) -> None:
        # A stream, because asyncpg would read a file in a thread.
        await self._connection.copy_to_table(table, schema_name="tally", columns=columns, source=rows, format="binary")

    async def unclaim(self, claims: Sequence[Claim]) -> None:
        """See the port: nothing was written, so there is nothing to take back."""


def _columns(names: Collection[OperationName]) -> tuple[str, str]:
    """Numbers and ids as array literals: asyncpg takes several times longer to encode an array of them."""
    tenants, ids = _literal([tenant for tenant, _ in names]), ",".join([id_.hex() for _, id_ in names])
    return tenants, "{" + ids + "}"


def _closings(records: Sequence[Record]) -> tuple[list[int], list[UUID], list[UUID]]:
    """What these records release or refund: tenants, closed operations, closing operations."""
    closing = [record for record in records if record.closes is not None]
    closed = [UUID(id_) for record in closing if (id_ := transaction_id(record.closes or "")) is not None]
    require(len(closed) == len(closing), "a record closes something that has no id")
    return [record.claim.tenant.number for record in closing], closed, [UUID(record.claim.id) for record in closing]


def _literal(numbers: list[int]) -> str:
    return "{" + repr(numbers)[1:-1] + "}"


def _lines(names: list[str]) -> str:
    """Names as one text. A line feed inside one would shift all that follow; no account can have one."""
    text = "\n".join(names)
    if text.count("\n") != max(len(names) - 1, 0):
        message = "an account id holds a line feed"
        raise ValueError(message)
    return text


_lock_order = attrgetter("claim.tenant.number", "claim.id")
