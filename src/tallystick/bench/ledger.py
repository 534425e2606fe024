"""`tally bench ledger`: idempotent two-leg operations in process, with every constraint, journal and outbox on.

Of all submissions a tenth repeat an earlier key and a hundredth are twins sent at the same moment. The baseline
is the same work on the same tables with one transaction per operation, on 16 connections.
"""

import asyncio
import gc
import random
import resource
import time
from collections.abc import Awaitable, Callable

from tallystick.access import store as tenants
from tallystick.bench import ground
from tallystick.bench.result import Result, median, ratio
from tallystick.commit.group import SetAside
from tallystick.commit.port import Contended
from tallystick.database import pool as postgres
from tallystick.errors import require
from tallystick.ledger.batch import LedgerWork
from tallystick.ledger.claims import Fault, Tenant
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kinds, Operation, Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Outcome
from tallystick.ledger.store import PostgresLedger
from tallystick.settings import LIMITS, Settings

Submit = Callable[[Operation, str], Awaitable[Outcome]]

CALLERS = 4_000
BASELINE_CONNECTIONS = 16
ACCOUNTS = 10_000
REPLAYS = 0.10
TWINS = 0.01


class Load:
    """A reproducible mix of operations; every answer is checked as it comes."""

    def __init__(self, submit: Submit, accounts: list[str], *, hot: bool, seed: int) -> None:
        """`hot`: the first account is in every operation."""
        self._submit = submit
        self._accounts = accounts
        self._hot = hot
        self._random = random.Random(seed)  # noqa: S311 - a load, not a secret
        self._name = f"bench-{seed}"
        self._sent = 0
        self._done: list[tuple[Operation, str]] = []
        self.answers = {"committed": 0, "duplicate": 0}

    def _operation(self) -> Operation:
        accounts, chance = self._accounts, self._random.random
        debit = accounts[0 if self._hot else int(chance() * len(accounts))]
        credit = debit
        while credit == debit:
            credit = accounts[int(chance() * len(accounts))]
        return Transfer(debit=debit, credit=credit, amount_micros=1_000_000, currency="USD")

    async def caller(self, until: float) -> None:
        """Submit one thing after another until the time is over."""
        while time.perf_counter() < until:
            chance = self._random.random()
            if chance < REPLAYS and self._done:
                operation, key = self._done[self._random.randrange(len(self._done))]
                self._count(await self._submit(operation, key), duplicate=True)
                continue
            self._sent += 1
            operation, key = self._operation(), f"{self._name}-{self._sent}"
            if chance > 1 - TWINS:
                first, second = await asyncio.gather(self._submit(operation, key), self._submit(operation, key))
                require({type(first), type(second)} == {Committed, Duplicate}, f"twins got {first} and {second}")
                require(first.body == second.body, "twins got different bytes")  # type: ignore[union-attr]
                self.answers["committed"] += 1
                self.answers["duplicate"] += 1
            else:
                self._count(await self._submit(operation, key), duplicate=False)
            self._done.append((operation, key))

    def _count(self, outcome: Outcome, *, duplicate: bool) -> None:
        require(type(outcome) is (Duplicate if duplicate else Committed), f"unexpected answer {outcome}")
        self.answers["duplicate" if duplicate else "committed"] += 1

    @property
    def answered(self) -> int:
        """Submissions answered."""
        return sum(self.answers.values())


async def ledger(settings: Settings, *, seconds: float, runs: int, hot: bool, seed: int) -> Result:
    """Median of several runs of engine and baseline, taken in turns."""
    rates: list[float] = []
    baselines: list[float] = []
    details: dict[str, float | int | str | list[float]] = {}
    async with ground.server(settings) as server_dsn:
        for run in range(runs):
            rate, more = await _measured(server_dsn, grouped, seconds=seconds, hot=hot, seed=seed + run)
            baseline, plain = await _measured(server_dsn, one_by_one, seconds=seconds, hot=hot, seed=seed + run)
            rates.append(rate)
            baselines.append(baseline)
            details |= more
            details |= {f"baseline_{name}": value for name, value in plain.items()}
    details |= {"runs": [round(rate) for rate in rates], "baseline_runs": [round(rate) for rate in baselines]}
    details["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    value, baseline = median(rates), median(baselines)
    return Result(
        bench="ledger --hot" if hot else "ledger",
        value=round(value),
        unit="operations/s",
        baseline=round(baseline),
        ratio=ratio(value, baseline),
        baseline_is="one transaction per operation, 16 connections",
        details=details,
    )


async def _measured(
    server_dsn: str,
    drive: Callable[..., Awaitable[tuple[int, float]]],
    *,
    seconds: float,
    hot: bool,
    seed: int,
) -> tuple[float, dict[str, float | int | str | list[float]]]:
    async with ground.database(server_dsn) as dsn:
        accounts = await ground.make_accounts(dsn, ACCOUNTS)
        wal, commits = await ground.wal_position(dsn)
        answered, elapsed = await drive(dsn, accounts, seconds=seconds, hot=hot, seed=seed)
        wal_after, commits_after = await ground.wal_position(dsn)
        await ground.checked(dsn)
    return answered / elapsed, {
        "wal_bytes_per_operation": round((wal_after - wal) / answered),
        "commits_per_operation": round((commits_after - commits) / answered, 4),
    }


async def grouped(dsn: str, accounts: list[str], *, seconds: float, hot: bool, seed: int) -> tuple[int, float]:
    """The engine as it ships."""
    database = await postgres.connect(dsn, connections=LIMITS.lanes + 1)
    try:
        async with Engine(PostgresLedger(database), Kinds()) as engine:
            tenant = await _default(database)

            def submit(operation: Operation, key: str) -> Awaitable[Outcome]:
                return engine.submit(tenant, operation, key)

            return await _drive(submit, accounts, CALLERS, seconds=seconds, hot=hot, seed=seed)
    finally:
        await database.close()


async def one_by_one(dsn: str, accounts: list[str], *, seconds: float, hot: bool, seed: int) -> tuple[int, float]:
    """The same statements, one transaction per operation, on 16 connections."""
    database = await postgres.connect(dsn, connections=BASELINE_CONNECTIONS)
    try:
        work = LedgerWork(PostgresLedger(database))
        engine = Engine(PostgresLedger(database), Kinds())
        tenant = await _default(database)

        async def submit(operation: Operation, key: str) -> Outcome:
            claim = engine.claim(tenant, operation, key)
            while True:
                try:
                    (answer,) = await work.commit([claim], patient=True)  # type: ignore[list-item]
                except Contended:
                    continue
                require(not isinstance(answer, Fault | SetAside), f"unexpected answer {answer}")
                return answer  # type: ignore[return-value]

        return await _drive(submit, accounts, BASELINE_CONNECTIONS, seconds=seconds, hot=hot, seed=seed)
    finally:
        await database.close()


async def _drive(
    submit: Submit, accounts: list[str], callers: int, *, seconds: float, hot: bool, seed: int
) -> tuple[int, float]:
    load = Load(submit, accounts, hot=hot, seed=seed)
    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(load.caller(began + seconds) for _ in range(callers)))
    return load.answered, time.perf_counter() - began


async def _default(database: postgres.Database) -> Tenant:
    tenant = await tenants.find_tenant(database, "default")
    require(tenant is not None, "the tenant `default` is not there")
    return tenant  # type: ignore[return-value]
