"""`make bench-peers`: our engine beside what a Python team would use instead. The method is in README.md."""

import asyncio
import json
import os
import sys
from importlib.metadata import version

import asyncpg
import click
import msgspec

from bench import side
from bench.load import Driven
from tallystick import settings as configuration
from tallystick.bench import ground
from tallystick.bench.result import median
from tallystick.errors import require
from tallystick.settings import Settings

# In the order in which they take turns.
SIDES = {
    "tallystick": "engine, 4,000 callers, 2 connections",
    "function": "plpgsql function, 16 callers on 16 connections",
    "dbos": "workflow with a transaction, 16 callers in threads",
}

# Beside the run itself: imports, the warm-up, DBOS's last twin, our verification.
_MORE_SECONDS = 120
# A server process may outlive its client by a moment, and reports its commits when it ends.
_QUIET_SECONDS = 10.0
_LOOK_SECONDS = 0.05


class Run(msgspec.Struct, frozen=True):
    """One run of one side."""

    operations_per_second: float
    commits_per_operation: float
    transactions_per_operation: float
    wal_bytes_per_operation: float


class Row(msgspec.Struct, frozen=True):
    """A line of the table: medians, and the rates they come from."""

    side: str
    is_: str = msgspec.field(name="is")
    operations_per_second: int
    ratio: float
    commits_per_operation: float
    transactions_per_operation: float
    wal_bytes_per_operation: int
    runs: list[int]


class Report(msgspec.Struct, frozen=True):
    """The table and what it was measured on. `load` is the machine's, over a minute, before and after."""

    rows: list[Row]
    server: dict[str, str]
    versions: dict[str, str]
    load: tuple[float, float]


async def compare(settings: Settings, *, seconds: float, runs: int, seed: int) -> Report:
    """All sides in turns on one server, so that the machine's mood is shared."""
    measured: dict[str, list[Run]] = {name: [] for name in SIDES}
    before = os.getloadavg()[0]
    async with ground.server(settings) as server_dsn:
        server = await _durable(server_dsn)
        for number in range(runs):
            for name in SIDES:
                measured[name].append(await _measured(server_dsn, name, seconds=seconds, seed=seed + number))
    ours = median([run.operations_per_second for run in measured["tallystick"]])
    return Report(
        rows=[_row(name, taken, ours) for name, taken in measured.items()],
        server=server,
        versions={name: version(name) for name in ("tallystick", "dbos", "sqlalchemy", "psycopg", "asyncpg")}
        | {"python": sys.version.split()[0]},
        load=(before, os.getloadavg()[0]),
    )


def _row(name: str, runs: list[Run], ours: float) -> Row:
    rate = median([run.operations_per_second for run in runs])
    return Row(
        side=name,
        is_=SIDES[name],
        operations_per_second=round(rate),
        ratio=round(rate / ours, 3),
        commits_per_operation=round(median([run.commits_per_operation for run in runs]), 4),
        transactions_per_operation=round(median([run.transactions_per_operation for run in runs]), 4),
        wal_bytes_per_operation=round(median([run.wal_bytes_per_operation for run in runs])),
        runs=[round(run.operations_per_second) for run in runs],
    )


async def _measured(server_dsn: str, name: str, *, seconds: float, seed: int) -> Run:
    async with ground.database(server_dsn) as dsn:
        peer = side.find(name)
        await peer.prepare(dsn, side.accounts())
        await _quiet(dsn)
        before = await _counters(dsn)
        driven = await _in_a_process(name, dsn, seconds=seconds, seed=seed)
        await _quiet(dsn)
        after = await _counters(dsn)
        await _balanced(dsn, name, peer.BOOKS, driven.committed)
    commits, transactions, wal = ((late - early) / driven.answered for early, late in zip(before, after, strict=True))
    return Run(driven.operations_per_second, commits, transactions, wal)


async def _counters(dsn: str) -> tuple[int, int, int]:
    """Writing transactions, all transactions and bytes of WAL so far.

    The server's own count of commits has empty ones in it: of DBOS's 14 for a transfer, six are its pool asking
    whether a connection still lives, and three only read. A transaction that writes takes a number.
    """
    wal, transactions = await ground.wal_position(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        writing = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    finally:
        await connection.close()
    return writing, transactions, wal


async def _in_a_process(name: str, dsn: str, *, seconds: float, seed: int) -> Driven:
    arguments = ("-m", "bench.side", name, dsn, str(seconds), str(seed))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(seconds + _MORE_SECONDS):
            answer, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    require(process.returncode == 0, f"{name} ended with {process.returncode}")
    return msgspec.json.decode(answer, type=Driven)


async def _durable(dsn: str) -> dict[str, str]:
    """What the server promises about a commit. A server that promises less is not measured."""
    connection = await asyncpg.connect(dsn)
    try:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        server = {name: str(await connection.fetchval("SELECT current_setting($1)", name)) for name in names}
    finally:
        await connection.close()
    if (server["fsync"], server["synchronous_commit"]) != ("on", "on"):
        message = f"commits on this server are not durable: {server}"
        raise SystemExit(message)
    return server


async def _quiet(dsn: str) -> None:
    """Wait until nobody else is connected to this database: then all of its commits are counted."""
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(_QUIET_SECONDS):
            while await connection.fetchval(  # noqa: ASYNC110 - a server process tells nobody that it ends
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ):
                await asyncio.sleep(_LOOK_SECONDS)
    finally:
        await connection.close()


async def _balanced(dsn: str, name: str, books: str, committed: int | None) -> None:
    """A fast wrong ledger is worth nothing."""
    connection = await asyncpg.connect(dsn)
    try:
        ((total, entries, operations),) = await connection.fetch(books)
    finally:
        await connection.close()
    require(total == 0, f"{name}: the balances sum to {total}")
    require(entries == 2 * operations, f"{name}: {entries} entries for {operations} operations")
    require(committed in {operations, None}, f"{name}: {operations} operations for {committed} that were answered")
    if name == "tallystick":
        await ground.checked(dsn)


def _table(report: Report) -> str:
    heads = f"{'operations/s':>13}{'ratio':>8}{'commits/op':>12}{'all txns/op':>13}{'WAL bytes/op':>14}"
    lines = [f"{'side':<11}{heads}  runs, and what it is"]
    for row in report.rows:
        figures = (
            f"{row.operations_per_second:>13,}{row.ratio:>8.3f}{row.commits_per_operation:>12.4f}"
            f"{row.transactions_per_operation:>13.3f}{row.wal_bytes_per_operation:>14,}"
        )
        lines.append(f"{row.side:<11}{figures}  {' '.join(f'{run:,}' for run in row.runs)} ({row.is_})")
    facts = {**report.server, **report.versions, "cores": str(os.cpu_count())}
    lines.append("on " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    lines.append(f"load average {report.load[0]:.2f} before, {report.load[1]:.2f} after")
    return "\n".join(lines)


@click.command()
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(0.5, 600), help="Length of a run.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 50), help="The median of them counts.")
@click.option("--seed", default=1, show_default=True, help="Chooses the load; the same seed gives the same one.")
@click.option("--json", "as_json", is_flag=True, help='{"rows":[...],"server":...,"versions":...,"load":[...]}')
def main(*, seconds: float, runs: int, seed: int, as_json: bool) -> None:
    """Measure all sides in turns, with durable commits, and check the books of each.

    Uses databases of its own on the configured server, or an embedded server that is thrown away.
    """
    report = asyncio.run(compare(configuration.load(), seconds=seconds, runs=runs, seed=seed))
    click.echo(json.dumps(msgspec.to_builtins(report)) if as_json else _table(report))


if __name__ == "__main__":
    main()
