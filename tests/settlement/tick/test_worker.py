"""The settlement worker: no pause while there is work, a pause when there is none, and nothing left half done."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick import app
from tallystick import settings as configuration
from tallystick.errors import InvariantBroken
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.tick.flow import Settler, Ticked
from tallystick.settlement.tick.worker import SettlementWorker, pause_after
from tallystick.simulator.process import RunningSimulator, start
from tallystick.workers.crew import crew, working
from tallystick.workers.worker import pause_after_failure
from tests import servers
from tests.ledgers import fetchval
from tests.providers.worlds import Control
from tests.settlements import PATIENCE, Shop, shop

# A pause that no test could sit out: who passes, did not pause.
NEVER = replace(LIMITS, settlement_pause_seconds=600.0)
EAGER = replace(
    LIMITS,
    settlement_pause_seconds=0.02,
    worker_first_pause_seconds=0.01,
    worker_longest_pause_seconds=0.1,
    worker_restored_seconds=0.02,
)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSimulator]:
    running = start(tmp_path_factory.mktemp("workers") / "books.sqlite")
    yield running
    running.stop()


@pytest.fixture
def control(simulator: RunningSimulator) -> Control:
    found = Control(simulator.url)
    found.call("DELETE", "faults")
    found.call("POST", "reset")
    return found


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


def worker(made: Shop, *, limits: Limits = EAGER, rows: float = 5_000) -> SettlementWorker:
    """One that takes so many rows at a time."""
    return SettlementWorker(made.settler, "simulator", requests_per_second=rows / 5, limits=limits)


@asynccontextmanager
async def at_work(one: SettlementWorker) -> AsyncIterator[asyncio.Event]:
    """Running beside the test; told to stop at the end, if it was not before."""
    stopping = asyncio.Event()
    task = asyncio.create_task(one.run(stopping))
    try:
        yield stopping
    finally:
        stopping.set()
        async with asyncio.timeout(60):
            await task


async def until_transferred(dsn: str, count: int) -> None:
    statement = "SELECT count(*) FROM tally.settlement_state WHERE status = 'transferred'"
    async with asyncio.timeout(60):
        while await fetchval(dsn, statement) != count:
            await asyncio.sleep(0.02)


async def test_once_is_one_bounded_tick(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as made:
        await made.create_many(10)
        ticked = await worker(made, rows=4).run_once()
        assert (ticked.claimed, ticked.transferred) == (4, 4)


async def test_while_there_is_work_there_is_no_pause(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as made:
        await made.create_many(12)
        async with at_work(worker(made, limits=NEVER, rows=1)):
            await until_transferred(dsn, 12)
        assert (await made.halves()).is_equal


async def test_new_work_is_seen_after_a_pause(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as made, at_work(worker(made)):
        await made.create("first")
        await until_transferred(dsn, 1)
        await made.create("second")
        await until_transferred(dsn, 2)


async def test_stopping_does_not_wait_for_the_pause(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as made:
        await made.create("paid")
        async with at_work(worker(made, limits=NEVER)) as stopping:
            await until_transferred(dsn, 1)
            # It finds nothing, and rests for ten minutes.
            began = time.monotonic()
            stopping.set()
        assert time.monotonic() - began < 30


async def test_stopping_finishes_what_is_held_and_takes_no_more(dsn: str, control: Control) -> None:
    control.plan("stripe.transfer:slow_after(1)=100%")
    async with shop(dsn, control) as made:
        await made.create_many(8)
        async with at_work(worker(made, limits=NEVER, rows=4)) as stopping:
            while not control.made("stripe", "transfer"):
                await asyncio.sleep(0.02)
            stopping.set()
        halves = await made.halves()
        assert halves.statuses == {"transferred": 4, "pending": 4}
        assert halves.is_equal


async def test_a_provider_that_is_down_does_not_empty_the_queue(dsn: str, control: Control) -> None:
    """What is claimed from it only waits: rows that are left pending can still be paid by a healthy worker."""
    async with shop(dsn, control, providers={"simulator": app.simulator("http://127.0.0.1:1")}) as made:
        await made.create_many(40)
        async with at_work(worker(made, limits=NEVER, rows=10)):
            async with asyncio.timeout(30):
                while await fetchval(dsn, "SELECT count(*) FROM tally.settlement_state WHERE status = 'pending'") == 40:
                    await asyncio.sleep(0.02)
            # The tick is over: its rows wait for another day, and nobody takes more.
            counted = "SELECT count(*) FROM tally.attempt WHERE answer IS NOT NULL"
            async with asyncio.timeout(30):
                while await fetchval(dsn, counted) != 10:
                    await asyncio.sleep(0.02)
        assert (await made.halves()).statuses == {"pending": 30, "processing": 10}


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    made = servers.embedded18()
    made.start()
    yield made
    made.remove()


async def test_an_outage_is_survived(
    own_server: servers.Server, control: Control, capfd: pytest.CaptureFixture[str]
) -> None:
    dsn = own_server.fresh_database()
    async with shop(dsn, control) as made:
        async with at_work(worker(made)):
            await made.create("before")
            await until_transferred(dsn, 1)
            await asyncio.to_thread(own_server.stop, immediate=True)
            said = ""
            async with asyncio.timeout(60):
                while said.count("settlement_interrupted") < 3:
                    said += "".join(capfd.readouterr())
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(own_server.start)
            await made.create("after")
            await until_transferred(dsn, 2)
        assert (await made.halves()).is_equal
    # Nobody who reads the log may conclude that nothing was sent.
    assert "no money moved" not in said


async def test_a_restored_database_is_waited_for(dsn: str, control: Control, capfd: pytest.CaptureFixture[str]) -> None:
    async with shop(dsn, control) as made:
        await made.create("a-1")
        await fetchval(dsn, "UPDATE tally.whereabouts SET database = 0")
        async with at_work(worker(made)):
            said = ""
            async with asyncio.timeout(30):
                while said.count("settlement_stopped") < 3:
                    said += "".join(capfd.readouterr())
                    await asyncio.sleep(0.02)
            assert control.made("stripe", "transfer") == []
            await fetchval(dsn, "UPDATE tally.whereabouts SET database = (SELECT database FROM tally.here())")
            await until_transferred(dsn, 1)
    assert "tally recover" in said


class Broken(Settler):
    """One that finds a rule of the constitution broken."""

    async def tick(self, *, budget_seconds: float | None = None, most: int | None = None) -> Ticked:  # noqa: ARG002
        raise InvariantBroken("a made-up one")


async def test_a_broken_invariant_ends_the_worker_and_whatever_runs_beside_it(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as made:
        settler = Broken(made.database, made.providers, made.sender, patience={"simulator": PATIENCE}, by="tests")
        one = SettlementWorker(settler, "simulator", requests_per_second=1)
        with pytest.raises(InvariantBroken):
            async with asyncio.timeout(30), working([one]):
                await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("ticked", "seconds"),
    [
        (Ticked(), 2.0),
        (Ticked(claimed=9, sent=9, transferred=9), 0.0),
        (Ticked(claimed=1, failed=1), 0.0),
        (Ticked(reclaimed=1, disputed=1), 0.0),
        (Ticked(claimed=9, sent=9, waiting=9), 2.0),
        (Ticked(reclaimed=9, late=9), 2.0),
    ],
)
def test_only_what_was_decided_is_a_reason_to_go_on_at_once(ticked: Ticked, seconds: float) -> None:
    assert pause_after(ticked, LIMITS) == seconds


def test_pauses_during_an_outage_grow_to_a_bound() -> None:
    pauses = [pause_after_failure(failures) for failures in range(1, 2_000)]
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 15.0


async def test_there_is_one_worker_for_each_provider_that_pays(dsn: str, simulator: RunningSimulator) -> None:
    """One that hangs holds up nobody else's payouts. Square pays nobody."""
    settings = configuration.load(
        {
            "TALLY_DATABASE_URL": dsn,
            "TALLY_STRIPE_API_KEY": "sk_test_1",
            "TALLY_SQUARE_API_KEY": "sq_1",
            "TALLY_SQUARE_LOCATION_ID": "L1",
        },
        Path("/nonexistent"),
    )
    async with app.running(settings, simulator_url=simulator.url) as service:
        paying = [one.name for one in crew(service) if one.name.startswith("settlement")]
        assert paying == ["settlement (simulator)", "settlement (stripe)"]
