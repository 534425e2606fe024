"""`tally bench idle`: what a lone caller waits, beside a plain transaction that does the same by hand.

Both use the same connection in turns: a server process that happens to sit on the client's own core answers a
third faster, and with two connections that luck would be measured.
"""

import time

import asyncpg
from asyncpg.pgproto.pgproto import UUID

from tallystick.access import store as tenants
from tallystick.bench import ground
from tallystick.bench.result import Result, median, ratio
from tallystick.database import pool as postgres
from tallystick.errors import require
from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Tenant
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kinds, Transfer
from tallystick.ledger.store import PostgresLedger
from tallystick.settings import LIMITS, Settings

_ACCOUNTS = 1_000


async def idle(settings: Settings, *, operations: int, seed: int) -> Result:
    """Median latency of both, taken in turns so that the machine's mood is shared."""
    grouped: list[float] = []
    plain: list[float] = []
    async with ground.server(settings) as server_dsn, ground.database(server_dsn) as dsn:
        accounts = await ground.make_accounts(dsn, _ACCOUNTS)
        database = await postgres.connect(dsn, connections=LIMITS.lanes + 1)
        try:
            tenant = await tenants.find_tenant(database, "default")
            require(tenant is not None, "the tenant `default` is not there")
            async with Engine(PostgresLedger(database), Kinds()) as engine:
                for number in range(operations):
                    debit = accounts[(seed + number) % _ACCOUNTS]
                    credit = accounts[(seed + number + 7) % _ACCOUNTS]
                    began = time.perf_counter()
                    await engine.submit(
                        tenant,  # type: ignore[arg-type]
                        Transfer(debit=debit, credit=credit, amount_micros=1_000_000, currency="USD"),
                        f"idle-{number}",
                    )
                    grouped.append(time.perf_counter() - began)
                    began = time.perf_counter()
                    async with database.connection() as connection:
                        await _plain(connection, tenant, debit, credit, f"plain-{number}")  # type: ignore[arg-type]
                    plain.append(time.perf_counter() - began)
        finally:
            await database.close()
    value, baseline = median(grouped) * 1000, median(plain) * 1000
    return Result(
        bench="idle",
        value=round(value, 3),
        unit="ms p50 (less is better)",
        baseline=round(baseline, 3),
        ratio=ratio(value, baseline),
        baseline_is="the same operation as a plain transaction on one connection",
        details={
            "operations": operations,
            "p99_ms": round(sorted(grouped)[int(0.99 * operations)] * 1000, 3),
        },
    )


async def _plain(connection: asyncpg.Connection, tenant: Tenant, debit: str, credit: str, key: str) -> None:
    """What an engineer writes by hand for an idempotent transfer on these tables."""
    id_ = UUID(operation_id(tenant.name, key))
    async with connection.transaction():
        rows = await connection.fetch(
            "SELECT number, id, balance_micros, entries FROM tally.account "
            "WHERE tenant_id = $1 AND id = ANY($2::text[]) ORDER BY id FOR NO KEY UPDATE",
            tenant.number,
            [debit, credit],
        )
        known = await connection.fetchval(
            "SELECT body FROM tally.operation WHERE tenant_id = $1 AND id = $2", tenant.number, id_
        )
        require(known is None, "the key is new")
        found = {row["id"]: row for row in rows}
        body = f'{{"id":"tx_{id_.hex}","idempotency_key":"{key}","kind":"transfer","entries":[]}}'
        await connection.execute(
            "INSERT INTO tally.operation (tenant_id, id, key, request, body, at) "
            "VALUES ($1, $2, $3, $4, $5, clock_timestamp())",
            *(tenant.number, id_, key, b"{}", body.encode()),
        )
        await connection.execute(
            "INSERT INTO tally.entry (tenant_id, account_number, number, operation_id, amount_micros, "
            "balance_micros, at) SELECT $1, account, number, $2, amount, balance, clock_timestamp() "
            "FROM (VALUES ($3::bigint, $4::bigint, $5::bigint, $6::bigint), ($7, $8, $9, $10)) "
            "AS leg (account, number, amount, balance)",
            tenant.number,
            id_,
            *(found[debit]["number"], found[debit]["entries"] + 1, -1_000_000),
            found[debit]["balance_micros"] - 1_000_000,
            *(found[credit]["number"], found[credit]["entries"] + 1, 1_000_000),
            found[credit]["balance_micros"] + 1_000_000,
        )
