"""The engine's stores behind one face, so that one suite can ask the same of each."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Protocol

import asyncpg
import msgspec

from tallystick.access import store as tenant
from tallystick.commit.port import LedgerStore
from tallystick.database import migrate, verify
from tallystick.database import pool as database
from tallystick.ledger import store as operation
from tallystick.ledger.account import store as account
from tallystick.ledger.account.store import AccountView, EntryView, Put
from tallystick.ledger.claims import Tenant
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kind, Kinds, TopUp
from tallystick.ledger.mysql import account as mysql_account
from tallystick.ledger.mysql import database as mysql_database
from tallystick.ledger.mysql import migrate as mysql_migrate
from tallystick.ledger.mysql import operation as mysql_operation
from tallystick.ledger.mysql import tenant as mysql_tenant
from tallystick.ledger.mysql import verify as mysql_verify
from tallystick.ledger.mysql.address import is_address, read_address
from tallystick.ledger.outcome import Committed, Rejected
from tallystick.ledger.velocity import VelocityLimit
from tallystick.settings import LIMITS, Limits

CONNECTIONS = 8
TABLES = ("operation", "entry", "closing", "journal", "outbox")

_numbers = itertools.count(1)


class Stranger(Protocol):
    """Somebody else's open transaction."""

    async def hold_account(self, tenant: Tenant, account_id: str) -> None: ...

    async def hold_key(self, tenant: Tenant, operation_id: bytes) -> None: ...


class Books:
    """One database and a tenant nobody used before: tenants are walls, so a test has the books to itself."""

    def __init__(self, dsn: str, connected: Any) -> None:
        self.dsn = dsn
        self.database = connected
        self.tenant = Tenant(0, "")
        self._is_mysql = is_address(dsn)
        self._accounts: Any = mysql_account if self._is_mysql else account

    @property
    def store(self) -> LedgerStore:
        if self._is_mysql:
            return mysql_operation.MysqlLedger(self.database)
        return operation.PostgresLedger(self.database)

    def engine(
        self, kinds: Iterable[Kind] = (), *, limits: Limits = LIMITS, store: LedgerStore | None = None
    ) -> Engine:
        return Engine(store or self.store, Kinds(kinds), limits=limits)

    async def new_tenant(self) -> Tenant:
        ensure: Any = mysql_tenant.ensure_tenant if self._is_mysql else tenant.ensure_tenant
        made: Tenant = await ensure(self.database, f"tenant-{next(_numbers)}")
        return made

    async def put(self, account_id: str, **options: Any) -> None:
        done = await self.try_put(account_id, **options)
        assert isinstance(done, Put), done

    async def try_put(
        self,
        account_id: str,
        *,
        currency: str = "USD",
        floor: int | None = 0,
        limits: Sequence[VelocityLimit] = (),
        tenant: Tenant | None = None,
    ) -> Put | Rejected:
        owner, arguments = (
            tenant or self.tenant,
            {"currency": currency, "floor_micros": floor, "limits": tuple(limits)},
        )
        done: Put | Rejected = await self._accounts.put(self.database, owner, account_id, **arguments)
        return done

    async def account(self, account_id: str, tenant: Tenant | None = None) -> AccountView:
        found = await self._accounts.read(self.database, tenant or self.tenant, account_id)
        assert isinstance(found, AccountView), found
        return found

    async def balance(self, account_id: str, tenant: Tenant | None = None) -> int:
        return (await self.account(account_id, tenant)).balance_micros

    async def entries(self, account_id: str) -> list[EntryView]:
        """Oldest first."""
        found = await self._accounts.list_entries(self.database, self.tenant, account_id, before=None, most=10_000)
        assert isinstance(found, list), found
        return found[::-1]

    async def postdate(self, account_id: str, moment: datetime) -> None:
        """An entry of one micro from `elsewhere`, written while the server's clock was ahead."""
        await self.put("elsewhere", floor=None)
        given = TopUp(account=account_id, source="elsewhere", amount_micros=1, currency="USD")
        if self._is_mysql:
            statements, clock, then = (
                mysql_operation._SQL,
                "SELECT UTC_TIMESTAMP(6)",
                f"SELECT TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}'",
            )
        else:
            statements, clock, then = operation._SQL, "clock_timestamp()", f"'{moment.isoformat()}'::timestamptz"
        right = statements["lock_accounts"]
        assert clock in right
        statements["lock_accounts"] = right.replace(clock, then)
        try:
            async with self.engine() as engine:
                done = await engine.submit(self.tenant, given, "from-the-future")
                assert isinstance(done, Committed), done
        finally:
            statements["lock_accounts"] = right

    async def count(self, table: str, tenant: Tenant | None = None) -> int:
        return len(await self._rows(table, tenant or self.tenant))

    async def written(self, tenant: Tenant) -> dict[str, list[tuple[Any, ...]]]:
        """Everything stored for a tenant, without what must differ: numbers, ids, digests, times."""
        keys = {bytes(row["id"]): row["key"] for row in await self._rows("operation", tenant)}
        found: dict[str, list[tuple[Any, ...]]] = {}
        for table in TABLES:
            found[table] = sorted(_comparable(row, keys) for row in await self._rows(table, tenant))
        return found

    async def _rows(self, table: str, tenant: Tenant) -> list[dict[str, Any]]:
        if self._is_mysql:
            return await self._mysql_rows(table, tenant)
        async with self.database.owning() as connection:
            rows = await connection.fetch(f"TABLE tally.{table}")
            names = dict(await connection.fetch("SELECT number, id FROM tally.account"))
        found = [{k: getattr(v, "bytes", v) for k, v in row.items()} for row in rows]
        return [_named(row, names) for row in found if row["tenant_id"] == tenant.number]

    async def _mysql_rows(self, table: str, tenant: Tenant) -> list[dict[str, Any]]:
        async with self.database.reading() as session:
            rows = await session.rows(f"SELECT * FROM tally_{table}")
            columns = await session.rows(
                "SELECT column_name FROM information_schema.columns "
                "WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position",
                f"tally_{table}",
            )
            names = dict(await session.rows("SELECT number, id FROM tally_account"))
        keys = ["key" if column == "idempotency_key" else column for (column,) in columns]
        found = [dict(zip(keys, row, strict=True)) for row in rows]
        return [_named(row, names) for row in found if row["tenant_id"] == tenant.number]

    async def broken(self) -> dict[str, int]:
        """The invariants that do not hold in this database."""
        verdicts: Any = mysql_verify.verify(self.dsn) if self._is_mysql else verify.verify(self.dsn)
        return {verdict.invariant: verdict.broken async for verdict in verdicts if verdict.broken}

    @asynccontextmanager
    async def stranger(self) -> AsyncIterator[Stranger]:
        """A transaction that is rolled back at the end of the block."""
        if self._is_mysql:
            session = await mysql_database.open_session(read_address(self.dsn), LIMITS.statement_seconds)
            try:
                yield _MysqlStranger(session)
                await session.roll_back()
            finally:
                session.abandon()
            return
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute("BEGIN")
            yield _PostgresStranger(connection)
        finally:
            await connection.close()


class _PostgresStranger:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def hold_account(self, tenant: Tenant, account_id: str) -> None:
        await self._connection.execute(
            "SELECT 1 FROM tally.account WHERE tenant_id = $1 AND id = $2 FOR UPDATE",
            tenant.number,
            account_id,
        )

    async def hold_key(self, tenant: Tenant, operation_id: bytes) -> None:
        await self._connection.execute(
            "INSERT INTO tally.operation (tenant_id, id, key, request, body, at) VALUES ($1, $2, 'k', '', '', now())",
            tenant.number,
            operation_id.hex(),
        )


class _MysqlStranger:
    def __init__(self, session: mysql_database.Session) -> None:
        self._session = session

    async def hold_account(self, tenant: Tenant, account_id: str) -> None:
        await self._session.rows(
            "SELECT 1 FROM tally_account WHERE tenant_id = %s AND id = %s FOR UPDATE",
            tenant.number,
            account_id,
        )

    async def hold_key(self, tenant: Tenant, operation_id: bytes) -> None:
        await self._session.execute(
            "INSERT INTO tally_operation (tenant_id, id) VALUES (%s, %s)", tenant.number, operation_id
        )


def prepare(dsn: str) -> None:
    run: Any = mysql_migrate.migrate if is_address(dsn) else migrate.migrate
    asyncio.run(run(dsn))


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Books]:
    connect: Any = mysql_database.connect if is_address(dsn) else database.connect
    connected = await connect(dsn, connections=CONNECTIONS)
    try:
        books = Books(dsn, connected)
        books.tenant = await books.new_tenant()
        yield books
    finally:
        await connected.close()


def _named(row: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    if "account_number" in row:
        row["account_number"] = names[row["account_number"]]
    return row


def _comparable(row: dict[str, Any], keys: dict[bytes, str]) -> tuple[Any, ...]:
    values: list[str] = []
    for column, value in sorted(row.items()):
        if column in ("tenant_id", "id", "at", "digest", "xid") or (column == "number" and "account_number" not in row):
            continue
        if column in ("operation_id", "closed_id"):
            values.append(keys[bytes(value)] if value is not None else "")
        elif column == "body" and value is not None and "key" in row:
            body = msgspec.json.decode(value)
            body.pop("id"), body.pop("at"), body.pop("closes", None)
            values.append(repr(body))
        elif column == "request":
            request = msgspec.json.decode(value)
            values.append(repr({k: v for k, v in request.items() if k not in ("hold", "transaction")}))
        else:
            values.append(repr(value))
    return tuple(values)
