"""Settlements against a hostile provider, with workers that are killed every few seconds: both halves end up equal.

1,500 settlements by default; TALLY_TEST_SETTLEMENTS=100000 for the long run, TALLY_TEST_SEED for another one; at two
providers. Each misbehaves in every way of its catalogue; its webhooks come late, doubled, out of order, forged, to the
product's own receiver, which is killed as well; and the database is stopped in the middle. Time is hurried
(`tests.faults.settling`). The counts are printed.
"""

import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tallystick.reconciliation.flow import reconcile
from tallystick.settlement.store import figures
from tallystick.simulator.catalogue import FAULTS, KEYED, Stage
from tallystick.simulator.process import RunningSimulator, start
from tests import servers
from tests.faults.hearing import SECRETS
from tests.faults.plans import not_struck, struck_by
from tests.faults.settling import HURRIED, IS_SHORT, PATIENCE, SETTLEMENTS, hurried
from tests.ledgers import broken
from tests.providers.worlds import WORLDS, Control
from tests.settlements import Halves, Shop, ledger_differences, pass_time, shop

SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))
WORKERS = 3
# Adyen tells three things of each transfer: in a short run, fewer of them.
COUNTS = {"stripe": SETTLEMENTS, "adyen": min(SETTLEMENTS, 700) if IS_SHORT else SETTLEMENTS}
MOST_KILLS = 8 if IS_SHORT else 10_000
# A hang, and not a slow machine.
PATIENCE_SECONDS = 270 + SETTLEMENTS / 40
SHARE_BEFORE_A_KILL = min(COUNTS.values()) // 8
# Of the calls that move money, and of the questions; and of the webhooks.
HOSTILITY = 0.10
# Beside that, every fault strikes at least once: one of so many calls, until each has had its turn.
EVERY = {"transfer": 7, "list": 2, "lookup": 2, "webhook": 13}
# What the adapter asks to learn what became of a transfer, as the simulator calls it.
QUESTION = {"stripe": "list", "adyen": "lookup"}
# Where every fault of an operation is not sure of its turn in a short run, so many different ones are.
LEAST_STRUCK = {"list": 10, "lookup": 10} if IS_SHORT else {}
# So many are paid in spite of it all. Fewer would be a hostile provider that has its way, or a run that did nothing.
LEAST_TRANSFERRED = 0.85
# What is not the default: real time is short, and a body of 32 MB tells no more than one of 9.
ARGUMENTS = {"huge_body": "9", "trickle": "2", "slow_before": "1", "slow_after": "2", "error_500_object_later": "7200"}
# What a person is right to be called for.
UNDECIDABLE = {
    "past_the_horizon",
    "server_error_then_absent",
    "retry_budget_exhausted",
    "provider_cannot_be_asked",
    "returned",
    "returned_after_transferred",
}
# Adyen accepts a transfer and refuses it later; told in the wrong order, that it is on its way looks like a change of
# mind after it was refused, and only a person can tell. Nothing has moved then.
TOLD_IN_ANY_ORDER = {"adyen": {"moved_after_failed", "failed_after_transferred"}}
# A worker's own share is about 60; the rest is what it holds.
MOST_MEGABYTES = 200


def hostile_plan(dialect: str) -> str:
    """Every kind of fault that can strike a transfer, or the question what became of it, equally often."""
    rules = []
    for operation in ("transfer", QUESTION[dialect]):
        fitting = [
            fault
            for fault in FAULTS
            if fault.stage is not Stage.WEBHOOK
            and dialect in fault.dialects
            and ("*" in fault.operations or operation in fault.operations)
            and not (fault.needs_key and operation not in KEYED[dialect])
        ]
        for place, fault in enumerate(fitting, 1):
            argument = f"({ARGUMENTS[fault.name]})" if fault.name in ARGUMENTS else ""
            # Once for certain, among the first calls; then by chance.
            rules.append(f"{dialect}.{operation}:{fault.name}{argument}@{place * EVERY[operation]}")
            rules.append(f"{dialect}.{operation}:{fault.name}{argument}={100 * HOSTILITY / len(fitting):.4f}%")
    told = [fault.name for fault in FAULTS if fault.stage is Stage.WEBHOOK and dialect in fault.dialects]
    rules += [f"{dialect}.webhook:{name}@{place * EVERY['webhook']}" for place, name in enumerate(told, 1)]
    rules += [f"{dialect}.webhook:{name}={100 * HOSTILITY / len(told):.4f}%" for name in told]
    # What is certain comes first: of two rules that meet, the first strikes.
    return "\n".join(sorted(rules, key=lambda rule: "@" not in rule))


class PatientControl(Control):
    """Days in which thousands of things happen take longer than the other tests wait."""

    def call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=600)
        try:
            connection.request(method, f"/_sim/{path}", None if body is None else json.dumps(body))
            reply = connection.getresponse()
            content = json.loads(reply.read())
        finally:
            connection.close()
        assert reply.status == 200, content
        return content


@pytest.fixture(params=["stripe", "adyen"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def simulator(tmp_path: Path, dialect: str) -> Iterator[RunningSimulator]:
    running = start(tmp_path / "books.sqlite", log=tmp_path / "simulator.log", faults=hostile_plan(dialect), seed=SEED)
    yield running
    running.stop()


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """One of its own: it is stopped the hard way."""
    made = servers.embedded18()
    made.start()
    yield made
    made.remove()


class Crew:
    """Worker processes and a receiver: killed, started again, and asked how much memory they hold."""

    def __init__(self, dsn: str, url: str, dialect: str, log: Path, chance: random.Random) -> None:
        self._arguments = (dsn, url, dialect)
        self._receiver: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.deaf = 0
        self._log = log
        self._chance = chance
        self._workers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.kills = 0
        self.most_megabytes = 0.0

    def start(self) -> None:
        while len(self._workers) < WORKERS:
            self._started += 1
            with self._log.open("ab") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "tests.faults.settling", *self._arguments, f"worker-{self._started}"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
            self._workers.append(worker)

    def hear(self) -> None:
        """Start the receiver, the first time on any free port, then on the same."""
        with self._log.open("ab") as log:
            self._receiver = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.hearing", *self._arguments, str(self.port)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._receiver.stdout is not None
        line = self._receiver.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        self.port = int(line)

    def kill_receiver(self) -> None:
        assert self._receiver is not None
        self._receiver.kill()
        self._receiver.wait()
        self.deaf += 1
        self.hear()

    def hang_up(self) -> None:
        if self._receiver is not None:
            self._receiver.kill()
            self._receiver.wait()

    def kill_one(self) -> None:
        """SIGKILL, wherever it is."""
        worker = self._workers.pop(self._chance.randrange(len(self._workers)))
        self._end(worker, kill=True)
        self.kills += 1
        self.start()

    def weigh(self) -> None:
        for worker in self._workers:
            assert worker.poll() is None, f"a worker ended by itself: {self._log.read_text()[-4000:]}"
            megabytes = psutil.Process(worker.pid).memory_info().rss / 2**20
            self.most_megabytes = max(self.most_megabytes, megabytes)

    def stop(self, *, kill: bool = False) -> None:
        """Let them finish their tick."""
        workers, self._workers = self._workers, []
        for worker in workers:
            self._end(worker, kill=kill)

    @staticmethod
    def _end(worker: "subprocess.Popen[bytes]", *, kill: bool) -> None:
        if kill:
            worker.kill()
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait(60)


async def _heard(one: Shop) -> None:
    """Until every webhook that was stored is at its end."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        async with one.database.owning() as connection:
            left = await connection.fetchval(
                "SELECT count(*) FROM tally.webhook_events WHERE status IN ('UNPROCESSED', 'IN_PROCESSING')"
            )
        if not left:
            return
        assert time.monotonic() < ends, f"{left} events are not processed"
        await asyncio.sleep(0.1)


async def _open(one: Shop) -> dict[str, int]:
    async with one.database.owning() as connection:
        found = await connection.fetch(
            "SELECT status, count(*) FROM tally.settlement_state WHERE status IN ('pending', 'processing') GROUP BY 1"
        )
    return {row["status"]: row["count"] for row in found}


async def _worked_until(
    one: Shop, crew: Crew, *, kill_every: float | None, wanted: Any, server: servers.Server | None = None
) -> None:
    """Let the crew work until nothing is open that matters; kill one of it every so often, and the server once."""
    ends = time.monotonic() + PATIENCE_SECONDS
    next_kill = time.monotonic() + (kill_every or 0.0)
    still = open_then = await _open(one)
    while not wanted(still):
        assert time.monotonic() < ends, f"still open after {PATIENCE_SECONDS:g} s: {still}"
        crew.weigh()
        may_kill = kill_every is not None and crew.kills < MOST_KILLS
        # Not before something was decided since the last time: on a slow machine nobody would get anything done. And by
        # what was decided as well as by the clock: a fast one would be through before anybody was killed.
        decided = sum(open_then.values()) - sum(still.values())
        if may_kill and (decided >= SHARE_BEFORE_A_KILL or (decided > 0 and time.monotonic() >= next_kill)):
            if server is not None:
                # As at a crash: without a checkpoint. Everybody finds it gone, and then back.
                server.stop(immediate=True)
                server.start()
                await asyncio.to_thread(crew.kill_receiver)
                server = None
            crew.kill_one()
            if IS_SHORT:
                # Two at once, so that somebody is killed twice however fast the rest is done. In a long run it would
                # leave nobody the twenty seconds that a look through a hundred thousand takes.
                crew.kill_one()
            next_kill, open_then = time.monotonic() + (kill_every or 0.0), still
        await asyncio.sleep(0.1)
        still = await _open(one)


def _is_asked_enough(one: Shop, dialect: str) -> bool:
    """Whether the questions were answered in as many wrong ways as they must be."""
    question = QUESTION[dialect]
    return question not in not_struck(hostile_plan(dialect), struck_by(one.control.call("GET", "faults")), LEAST_STRUCK)


async def _later(one: Shop, span: timedelta) -> None:
    """Nobody works while time passes. The provider's webhooks of that time arrive before this returns."""
    await pass_time(one.dsn, span)
    # In a thread: the simulator waits for our endpoint, which is served by this loop.
    await asyncio.to_thread(one.control.advance, seconds=span.total_seconds())


def _told(halves: Halves, crew: Crew, told: dict[str, int], struck: dict[str, int], counts: dict[str, int]) -> str:
    disputed = Counter(
        f"{row.reason}, {' and '.join(sorted(movement.state for movement in moved)) or 'nothing moved'}"
        for row, moved in halves.disputed
    )
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(halves.statuses.items()))
    return "\n".join(
        [
            f"hostile: {sum(halves.statuses.values())} settlements, seed {SEED}: {statuses}",
            f"  doubled {len(halves.doubled)}, lost {len(halves.lost)}, mismatched {len(halves.mismatched)}",
            f"  {crew.kills} kills of {WORKERS} workers, {crew.deaf} of the receiver and of the database, at most "
            f"{crew.most_megabytes:.0f} MB each; "
            + ", ".join(f"{name} {value}" for name, value in sorted(counts.items())),
            "  faults: " + ", ".join(f"{name} {count}" for name, count in sorted(struck.items())),
            "  webhooks stored: " + ", ".join(f"{name} {count}" for name, count in sorted(told.items())),
            "  disputed: " + "; ".join(f"{count} {what}" for what, count in sorted(disputed.items())),
        ]
    )


class Stopwatch:
    """How long each part took, in seconds since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.laps: list[str] = []

    def lap(self, what: str) -> None:
        self.laps.append(f"{what} {time.monotonic() - self._began:.0f} s")


async def _days(one: Shop, crew: Crew, clock: Stopwatch, server: servers.Server, dialect: str) -> dict[str, Any]:
    """Everything that happens, up to the last late webhook. Returns what the simulator says of its faults."""
    destination = next(world for world in WORLDS if world.name == dialect).destination
    count = COUNTS[dialect]
    await one.create_many(count, squads=200, provider=dialect, destination=destination)
    clock.lap("created")
    crew.start()

    def is_over(still: dict[str, int]) -> bool:
        # Some are still undecided when the provider forgets their keys; but on a fast machine all that was sent would
        # be decided before anybody is stuck for long enough to be asked about.
        few = not still.get("pending") and still.get("processing", 0) <= min(count // 10, 1_000)
        return few and (_is_asked_enough(one, dialect) or not still)

    await _worked_until(one, crew, kill_every=2.0 if IS_SHORT else 4.0, wanted=is_over, server=server)
    clock.lap("hostile days over")
    # Nobody works for two days: the provider forgets the keys of what is left, and undoes what it will undo.
    crew.stop(kill=True)
    await _later(one, timedelta(days=2))
    clock.lap("two days later")
    struck: dict[str, Any] = await asyncio.to_thread(one.control.call, "GET", "faults")
    await asyncio.to_thread(one.control.call, "DELETE", "faults")
    crew.start()
    await _worked_until(one, crew, kill_every=None, wanted=lambda still: not still)
    crew.stop()
    # The last webhooks are days late.
    await _later(one, timedelta(days=5))
    await _heard(one)
    clock.lap("all decided and told")
    # Of what nobody was told (`webhook_lost`), the list tells.
    found: Counter[str] = Counter()
    reconciled = await reconcile(
        one.database,
        one.providers,
        one.reviews,
        by="tests",
        since=timedelta(days=30),
        repair=True,
        tell=lambda found_one: found.update([f"{found_one.reason} of a {found_one.status}"]),
    )
    assert reconciled.is_complete, reconciled
    clock.lap(f"books compared ({', '.join(f'{count} {what}' for what, count in found.items()) or 'no breaks'})")

    return struck


async def _stored(one: Shop) -> dict[str, int]:
    """What the receiver believed and stored, by what it tells of; every event is at its end."""
    async with one.database.owning() as connection:
        rows = await connection.fetch("SELECT status, purpose, count(*) FROM tally.webhook_events GROUP BY 1, 2")
    assert {row["status"] for row in rows} <= {"PROCESSED_OK"}, rows
    return {row["purpose"] or "nothing": row["count"] for row in rows}


@pytest.mark.timeout(2 * PATIENCE_SECONDS + 120)
async def test_whatever_the_provider_does_and_whoever_is_killed_both_halves_are_equal(
    server: servers.Server,
    simulator: RunningSimulator,
    dialect: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Every row ends decided or disputed; transferred is paid once, failed not at all; the ledger says the same."""
    clock = Stopwatch()
    control = PatientControl(simulator.url)
    provider = hurried(simulator.url, dialect)
    dsn = server.fresh_database()
    crew = Crew(dsn, simulator.url, dialect, tmp_path / "workers.log", random.Random(SEED))
    async with shop(dsn, control, providers={dialect: provider}, patience=PATIENCE, limits=HURRIED) as one:
        try:
            crew.hear()
            endpoint = {"url": f"http://127.0.0.1:{crew.port}/webhooks/{dialect}", "secrets": [SECRETS[dialect]]}
            await asyncio.to_thread(control.call, "PUT", f"endpoints/{dialect}", endpoint)
            await one.set_fee("EUR", percent_ppm=12_500, fixed_micros=250_000)
            struck = await _days(one, crew, clock, server, dialect)
        finally:
            crew.stop(kill=True)
            crew.hang_up()
        halves = await one.halves()
        told = await _stored(one)
        counts, _, _ = await figures(one.database)
    await provider.close()
    clock.lap("compared")
    record_property("counted", f"{_told(halves, crew, told, struck['struck'], counts)}\n  {', '.join(clock.laps)}")
    assert sum(halves.statuses.values()) == COUNTS[dialect]
    assert halves.open == []
    assert halves.doubled == []
    assert halves.lost == []
    assert halves.mismatched == []
    # Nor was anything put right by later news that had been decided wrongly: only the provider may change its mind.
    in_any_order = TOLD_IN_ANY_ORDER.get(dialect, set())
    confused = [moved for row, moved in halves.disputed if row.reason in in_any_order]
    assert not any(confused), "a person is called, and nothing has moved"
    assert counts.get("doubles", 0) == 0
    assert counts.get("contradicted", 0) <= len(confused)
    assert {row.reason for row, _ in halves.disputed} <= UNDECIDABLE | in_any_order
    assert await ledger_differences(dsn) == {}
    assert await broken(dsn) == {}
    assert halves.statuses["transferred"] >= LEAST_TRANSFERRED * COUNTS[dialect], halves.statuses
    assert crew.kills >= 2
    assert crew.deaf == 1
    assert crew.most_megabytes < MOST_MEGABYTES
    # A provider that behaved, or one that nobody heard, would prove nothing.
    assert not_struck(hostile_plan(dialect), struck_by(struck), LEAST_STRUCK) == {}
    assert told["transfer"] >= LEAST_TRANSFERRED * COUNTS[dialect], told
