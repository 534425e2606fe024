"""SIGKILL of the process, and of the database, in mid-load: what was acknowledged is there, once.

Ten seconds by default; TALLY_TEST_SOAK_SECONDS=60 for the long run. The counts are printed.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.ledger.outcome import Committed, Duplicate
from tests import servers
from tests.faults.load import ACCOUNTS, prepare, submit_until_known
from tests.ledgers import broken, fetchval, ledger

SECONDS = float(os.environ.get("TALLY_TEST_SOAK_SECONDS", "10"))
SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server of its own: it will be stopped the hard way."""
    made = servers.embedded18()
    made.start()
    yield made
    made.remove()


def _load(dsn: str, path: Path, first: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.faults.load", dsn, str(path), str(first)])


def _acknowledged(path: Path) -> list[int]:
    # The last line may be cut: the process was killed.
    return [int(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


async def _grown(path: Path, size: int) -> None:
    async with asyncio.timeout(60):
        while not path.exists() or path.stat().st_size < size:
            await asyncio.sleep(0.02)


async def test_a_soak_of_kills_loses_and_doubles_nothing(
    server: servers.Server, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Random kills of the engine's process and immediate stops of PostgreSQL, one after another."""
    chance = random.Random(SEED)
    dsn = server.fresh_database()
    async with ledger(dsn) as one:
        await prepare(one)
    path = tmp_path / "acknowledged"
    kills = {"process": 0, "database": 0}
    ends = time.monotonic() + SECONDS
    first = 0
    load = _load(dsn, path, first)
    try:
        while time.monotonic() < ends or not all(kills.values()):
            await _grown(path, (path.stat().st_size if path.exists() else 0) + 2_000)
            if chance.random() < 0.5 or not kills["database"]:
                server.stop(immediate=True)
                kills["database"] += 1
                server.start()
            else:
                load.send_signal(signal.SIGKILL)
                load.wait()
                kills["process"] += 1
                # The next process begins a little before the end, so that some keys are repeated.
                first = max(_acknowledged(path), default=0) - 150
                load = _load(dsn, path, max(first, 0))
    finally:
        load.kill()
        load.wait()

    acknowledged = set(_acknowledged(path))
    stored = await fetchval(
        dsn, "SELECT array_agg(substr(key, 6)::bigint) FROM tally.operation WHERE key LIKE 'load-%'"
    )
    assert len(stored) == len(set(stored))
    lost = acknowledged - set(stored)
    assert not lost, f"{len(lost)} acknowledged operations are gone"
    assert await broken(dsn) == {}

    async with ledger(dsn) as one:
        sample = sorted(acknowledged)[-500:]
        again = await asyncio.gather(*(submit_until_known(one, number) for number in sample))
        assert all(isinstance(outcome, Duplicate) for outcome in again)
        last = max(stored)
        unknown = await asyncio.gather(*(submit_until_known(one, number) for number in range(last - 300, last + 300)))
        assert all(isinstance(outcome, Committed | Duplicate) for outcome in unknown)
        balances = [await one.balance(f"n{number}") for number in range(ACCOUNTS)] + [await one.balance("world")]
        assert sum(balances) == 0
    assert await broken(dsn) == {}
    record_property(
        "counted",
        f"soak: {SECONDS:g} s, seed {SEED}: {kills['process']} process kills, {kills['database']} database "
        f"stops, {len(acknowledged)} operations acknowledged, 0 lost, 0 doubled",
    )
