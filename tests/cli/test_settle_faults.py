"""`tally settle` and `tally work` under faults: two at once, killed, told to stop, a wrong clock, a lost database."""

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests import servers
from tests.cli.payouts import Payouts, ended, until
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, halves, ledger_differences
from tests.settlements import books as books_of


async def assert_all_paid_once(payouts: Payouts, count: int) -> None:
    both = await halves(payouts.dsn, payouts.control)
    assert both.statuses == {"transferred": count}
    assert both.is_equal, both
    assert await ledger_differences(payouts.dsn) == {}
    assert await broken(payouts.dsn) == {}


async def test_two_at_once_share_nothing(payouts: Payouts) -> None:
    """The second runs while the first one, stopped, holds rows that it has sent and not recorded."""
    payouts.control.plan("stripe.transfer:slow_after(1.5)@1-40")
    await payouts.create_many(80)
    first = payouts.start("settle", "--limit", "20", "--json")
    await until(lambda: _all_sent(payouts), "the first has claimed and sent")
    first.send_signal(signal.SIGSTOP)
    held = await payouts.count("status = 'processing'")
    second = payouts.run("settle", "--json")
    assert second.returncode == 0, second.stderr
    assert await payouts.statuses() == {"processing": held, "transferred": 80 - held}
    first.send_signal(signal.SIGCONT)
    status, output, talk = ended(first)
    assert status == 0, talk
    told = [json.loads(output), json.loads(second.stdout)]
    assert [one["late"] for one in told] == [0, 0]
    assert sum(one["claimed"] for one in told) == sum(one["transferred"] for one in told) == 80
    assert all(one["claimed"] for one in told)
    workers = await fetchval(payouts.dsn, "SELECT count(DISTINCT claimed_by) FROM tally.settlement_state")
    assert workers == 2
    assert await fetchval(payouts.dsn, "SELECT max(claim_number) FROM tally.settlement_state") == 1
    await assert_all_paid_once(payouts, 80)


async def _all_sent(payouts: Payouts) -> bool:
    return 0 < await payouts.count("status = 'processing'") == len(books_of(payouts.control))


@pytest.mark.parametrize("is_lost", [False, True], ids=["after the money moved", "before it reached the provider"])
async def test_what_a_killed_tick_held_is_finished_by_another(payouts: Payouts, *, is_lost: bool) -> None:
    payouts.control.plan("stripe.transfer:hang=100%")
    await payouts.create_many(20)
    with socket.create_server(("127.0.0.1", 0)) as nowhere:
        # Connections are made there, and nobody ever reads from them.
        port = nowhere.getsockname()[1] if is_lost else urlsplit(payouts.control.url).port
        tick = payouts.start("settle", TALLY_SIMULATOR_PORT=str(port))
        await until(lambda: payouts.count("status = 'processing'"), "the rows are claimed")
        if not is_lost:
            await until(lambda: len(books_of(payouts.control)) == 20, "the provider has moved all of it")
        tick.kill()
        assert ended(tick)[0] == -signal.SIGKILL
    assert await payouts.statuses() == {"processing": 20}
    assert len(books_of(payouts.control)) == (0 if is_lost else 20)
    payouts.control.call("DELETE", "faults")

    early = json.loads(payouts.run("settle", "--json", TALLY_SETTLEMENT_TIMEOUT_SECONDS="1").stdout)
    assert early["transferred"] == early["sent"] == 0, "claims stand until they are overdue"

    await payouts.pass_time(A_WHILE)
    shown = payouts.run("settle", "--json", TALLY_SETTLEMENT_TIMEOUT_SECONDS="1")
    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert (told["claimed"], told["reclaimed"], told["looked_up"], told["transferred"]) == (0, 20, 20, 20)
    assert told["sent"] == (20 if is_lost else 0)
    await assert_all_paid_once(payouts, 20)


async def test_workers_told_to_stop_finish_what_they_hold(payouts: Payouts) -> None:
    payouts.control.plan("stripe.transfer:slow_after(2)=100%")
    await payouts.create_many(30)
    workers = payouts.start("work")
    await until(lambda: payouts.count("status = 'processing'"), "the rows are claimed")
    workers.send_signal(signal.SIGTERM)
    status, _, talk = ended(workers)
    assert status == 0, talk
    assert "at work: settlement (simulator)" in talk
    assert "finishing what is held" in talk
    assert await payouts.count("status = 'processing'") == 0
    both = await halves(payouts.dsn, payouts.control)
    assert both.is_equal
    assert both.statuses.get("transferred", 0) == len(books_of(payouts.control)) > 0


async def test_told_twice_they_stop_at_once_and_lose_nothing(payouts: Payouts) -> None:
    payouts.control.plan("stripe.transfer:hang=100%")
    await payouts.create_many(5)
    workers = payouts.start("work")
    await until(lambda: len(books_of(payouts.control)) == 5, "the provider has moved all of it")
    workers.send_signal(signal.SIGINT)
    assert workers.stderr is not None
    while "finishing" not in (line := workers.stderr.readline()):
        assert line
    workers.send_signal(signal.SIGINT)
    # Sooner than the provider's answers are given up, which is after 20 s.
    _, talk = workers.communicate(timeout=12)
    assert workers.returncode == 130, talk
    assert "Traceback" not in talk
    payouts.control.call("DELETE", "faults")
    await payouts.pass_time(A_WHILE)
    assert json.loads(payouts.run("settle", "--json").stdout)["transferred"] == 5
    await assert_all_paid_once(payouts, 5)


# Whatever asks for the time of day gets another day's. The steady clocks stay as they are.
WRONG_CLOCK = """
import ctypes, datetime, gc, time
of_day, of_day_ns, now = time.time, time.time_ns, datetime.datetime.now
time.time = lambda: of_day() + {seconds}
time.time_ns = lambda: of_day_ns() + {seconds} * 10**9
# A subclass would not do: others hold the type itself.
names = gc.get_referents(datetime.datetime.__dict__)[0]
names["now"] = classmethod(lambda cls, tz=None: now(tz) + datetime.timedelta(seconds={seconds}))
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
assert abs(datetime.datetime.now(datetime.UTC).timestamp() - of_day()) > 80_000
from tallystick.cli import main
main()
"""


@pytest.mark.parametrize("days", [1, -1])
async def test_a_worker_whose_clock_is_wrong_by_a_day_does_the_same(payouts: Payouts, days: int) -> None:
    """By its own clock the stuck one would be past the horizon, or sent in the future; both would be wrong."""
    payouts.control.plan("stripe.transfer:drop_before")
    await payouts.create("stuck")
    assert json.loads(payouts.run("settle", "--json").stdout)["waiting"] == 1
    await payouts.pass_time(A_WHILE)
    await payouts.create("fresh")
    program = [sys.executable, "-c", WRONG_CLOCK.format(seconds=days * 86_400)]
    status, output, talk = ended(payouts.start("settle", "--json", program=program))
    assert status == 0, talk
    told = json.loads(output)
    assert (told["claimed"], told["reclaimed"], told["transferred"]) == (1, 1, 2)
    # What it wrote is of the database's day.
    assert await payouts.count("abs(extract(epoch FROM clock_timestamp() - changed_at)) > 3600") == 0
    await assert_all_paid_once(payouts, 2)


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    """A server of its own: it will be stopped the hard way."""
    made = servers.embedded18()
    made.start()
    yield made
    made.remove()


@pytest.fixture
def fragile(own_server: servers.Server, books: Control) -> Iterator[Payouts]:
    with Payouts(own_server.fresh_database(), books) as made:
        yield made


async def test_an_outage_of_the_database_sends_nothing_uncommitted_and_is_survived(
    own_server: servers.Server, fragile: Payouts
) -> None:
    payouts = fragile
    # Answers come while the database is away.
    payouts.control.plan("stripe.transfer:slow_after(2)@1-60")
    await payouts.create_many(60)
    workers = payouts.start("work")
    await until(lambda: len(books_of(payouts.control)) >= 60, "the provider has moved it")
    own_server.stop(immediate=True)
    # Long enough for an answer that cannot be recorded to be given up, and for a few tries of the worker.
    await asyncio.sleep(10)
    assert workers.poll() is None, "an outage does not end a worker"
    own_server.start()
    sent = {movement.reference for movement in books_of(payouts.control)}
    attempts = await fetchval(
        payouts.dsn, "SELECT array_agg(encode(key, 'hex')) FROM tally.attempt WHERE sent_at IS NOT NULL"
    )
    assert sent <= set(attempts), "nothing was sent without a committed claim"

    await payouts.create_many(10, prefix="later")
    await until(lambda: payouts.count("status = 'transferred'"), "the worker goes on by itself")
    await payouts.pass_time(A_WHILE)
    await until(
        lambda: fetchval(payouts.dsn, "SELECT count(*) = 70 FROM tally.settlement_state WHERE status = 'transferred'"),
        "the next ticks finish what was interrupted",
    )
    workers.send_signal(signal.SIGTERM)
    status, _, talk = ended(workers)
    assert status == 0, talk
    assert "settlement_interrupted" in talk
    await assert_all_paid_once(payouts, 70)


async def test_a_tick_cut_off_by_an_outage_says_where_the_money_is(
    own_server: servers.Server, fragile: Payouts
) -> None:
    payouts = fragile
    payouts.control.plan("stripe.transfer:slow_after(2)=100%")
    await payouts.create_many(5)
    tick = payouts.start("settle")
    await until(lambda: len(payouts.control.made("stripe", "transfer")) == 5, "the provider has moved it")
    own_server.stop(immediate=True)
    status, _, talk = ended(tick)
    own_server.start()
    assert status == 3, talk
    (told,) = re.findall("^tally: .*", talk, re.MULTILINE)
    assert re.search(r"may have been sent.*in transit.*again", told), told
    assert "no money moved" not in told
    assert "Traceback" not in talk
    await payouts.pass_time(A_WHILE)
    payouts.control.call("DELETE", "faults")
    assert json.loads(payouts.run("settle", "--json").stdout)["transferred"] == 5
    await assert_all_paid_once(payouts, 5)
