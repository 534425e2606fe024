"""`tally bench growth`: the ledger with millions of operations already in it, beside the same on empty tables.

The rows are loaded by COPY on the same server under the same settings; the guards are off only while loading.
"""

import hashlib
import time
from collections.abc import AsyncIterator
from struct import Struct

import asyncpg

from tallystick.bench import ground
from tallystick.bench.ledger import ACCOUNTS, grouped
from tallystick.bench.result import Result, median, ratio
from tallystick.database import copying
from tallystick.settings import Settings

_CHUNK = 20_000
_AUTHOR = b"billing/tsk_AbCd1234"
_TABLES = ("operation", "entry", "journal", "outbox")
_ENTRY = Struct("!h" + "ii" + "iq" + "iq" + "i16s" + "iq" + "iq" + "iq").pack
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_BEGIN = 700_000_000 * 1_000_000


async def growth(settings: Settings, *, seconds: float, runs: int, seed: int, operations: int) -> Result:
    """Rates on empty and on full tables, taken in turns."""
    full: list[float] = []
    empty: list[float] = []
    async with ground.server(settings) as server_dsn, ground.database(server_dsn) as grown:
        accounts = await ground.make_accounts(grown, ACCOUNTS)
        began = time.perf_counter()
        await _load(grown, operations)
        loading = time.perf_counter() - began
        for run in range(runs):
            answered, elapsed = await grouped(grown, accounts, seconds=seconds, hot=False, seed=seed + run)
            full.append(answered / elapsed)
            async with ground.database(server_dsn) as dsn:
                fresh = await ground.make_accounts(dsn, ACCOUNTS)
                answered, elapsed = await grouped(dsn, fresh, seconds=seconds, hot=False, seed=seed + run)
                empty.append(answered / elapsed)
    value, baseline = median(full), median(empty)
    return Result(
        bench="growth",
        value=round(value),
        unit="operations/s",
        baseline=round(baseline),
        ratio=ratio(value, baseline),
        baseline_is="empty tables",
        details={
            "operations_present": operations,
            "loading_seconds": round(loading),
            "runs": [round(rate) for rate in full],
            "baseline_runs": [round(rate) for rate in empty],
        },
    )


async def _load(dsn: str, operations: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for table in _TABLES:
            await connection.execute(f"ALTER TABLE tally.{table} DISABLE TRIGGER USER")
        numbers = [row[0] for row in await connection.fetch("SELECT number FROM tally.account ORDER BY number")]
        for table, columns, rows in (
            ("operation", copying.OPERATION_COLUMNS, _operations(operations)),
            ("entry", copying.ENTRY_COLUMNS, _entries(operations, numbers)),
        ):
            await connection.copy_to_table(table, schema_name="tally", columns=columns, source=rows, format="binary")
        await connection.execute(
            "INSERT INTO tally.journal (tenant_id, subject, operation_id, digest) "
            "SELECT tenant_id, 'operation', id, sha256(body) FROM tally.operation",
            timeout=3600,
        )
        await connection.execute(
            "INSERT INTO tally.outbox (tenant_id, topic, operation_id) "
            "SELECT tenant_id, 'operation.committed', id FROM tally.operation",
            timeout=3600,
        )
        await connection.execute("ALTER TABLE tally.account DISABLE TRIGGER USER")
        each = 2 * operations // len(numbers)
        await connection.execute("UPDATE tally.account SET entries = $1", each)
        for table in (*_TABLES, "account"):
            await connection.execute(f"ALTER TABLE tally.{table} ENABLE TRIGGER USER")
        await connection.execute("VACUUM ANALYZE", timeout=3600)
        await connection.execute("CHECKPOINT") if await _may_checkpoint(connection) else None
    finally:
        await connection.close()


async def _may_checkpoint(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT pg_has_role(current_user, 'pg_checkpoint', 'MEMBER')"))


def _id(number: int) -> bytes:
    return hashlib.sha256(b"grown-%d" % number).digest()[:16]


async def _operations(count: int) -> AsyncIterator[bytes]:
    yield _HEADER
    request = b'{"kind":"transfer","amount_micros":1000000,"credit":"acct:1234","currency":"USD","debit":"acct:4321"}'
    body = request * 3
    tail = (
        len(request).to_bytes(4, "big")
        + request
        + len(body).to_bytes(4, "big")
        + body
        + len(_AUTHOR).to_bytes(4, "big")
        + _AUTHOR
        + (8).to_bytes(4, "big")
        + _BEGIN.to_bytes(8, "big")
    )
    for first in range(0, count, _CHUNK):
        rows = []
        for number in range(first, min(first + _CHUNK, count)):
            key = b"grown-%d" % number
            rows.append(b"\0\7\0\0\0\4\0\0\0\1\0\0\0\x10" + _id(number) + len(key).to_bytes(4, "big") + key + tail)
        yield b"".join(rows)
    yield _TRAILER


async def _entries(count: int, numbers: list[int]) -> AsyncIterator[bytes]:
    """Account after account takes one entry in turn; pairs cancel, so that every balance ends where it began."""
    yield _HEADER
    accounts = len(numbers)
    for first in range(0, count, _CHUNK):
        rows = []
        for number in range(first, min(first + _CHUNK, count)):
            id_ = _id(number)
            for leg in (0, 1):
                position = 2 * number + leg
                round_, index = divmod(position, accounts)
                amount = 1_000_000 if round_ % 2 else -1_000_000
                balance = 0 if round_ % 2 else -1_000_000
                rows.append(
                    _ENTRY(7, 4, 1, 8, numbers[index], 8, round_ + 1, 16, id_, 8, amount, 8, balance, 8, _BEGIN)
                )
        yield b"".join(rows)
    yield _TRAILER
