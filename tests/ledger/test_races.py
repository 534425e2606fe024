"""Races with the interleaving forced: each caller's own answer is asserted, not only the sum.

The stores here are the real one with a gate between two of its steps. Every test of this file is also run with
a bug planted (tests/planted), and must then fail.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from tallystick.commit.port import Contended, Locked
from tallystick.errors import Faulted
from tallystick.ledger.claims import Record
from tallystick.ledger.kinds import Kind, Operation, Post, PostLeg, Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Rejected
from tallystick.ledger.rules import Leg
from tallystick.ledger.store import PostgresLedger, PostgresTransaction
from tallystick.settings import Limits
from tests import servers
from tests.ledgers import broken, fetchval, ledger

# A held lock shows as a wait in the server; this is how long we look for it before the test gives up.
PATIENCE_SECONDS = 20


def move(amount: int, debit: str = "a", credit: str = "b") -> Transfer:
    return Transfer(debit=debit, credit=credit, amount_micros=amount, currency="USD")


class Gates:
    """Where a store stops until it is let through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def stop(self) -> None:
        self.reached.set()
        await asyncio.wait_for(self.open.wait(), PATIENCE_SECONDS)


def gated(gates: Gates, step: str) -> type[PostgresLedger]:
    """The real store, stopping once after `step`."""

    class GatedTransaction(PostgresTransaction):
        async def lock_accounts(self, wanted: Collection[tuple[int, str]], *, patient: bool) -> Locked:
            locked = await super().lock_accounts(wanted, patient=patient)
            if step == "lock" and not gates.reached.is_set():
                await gates.stop()
            return locked

        async def record(self, records: Sequence[Record], at: datetime) -> None:
            await super().record(records, at)
            if step == "record" and not gates.reached.is_set():
                await gates.stop()

    class GatedLedger(PostgresLedger):
        @asynccontextmanager
        async def transaction(self) -> AsyncIterator[PostgresTransaction]:
            async with self._database.writing() as connection:
                yield GatedTransaction(connection)

    return GatedLedger


async def waits_for_a_lock(dsn: str, *, sessions: int = 1) -> None:
    """Return once that many sessions of this database wait for a lock: the interleaving is then forced."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await fetchval(dsn, query) < sessions:
            await asyncio.sleep(0.01)


SLOW = Limits(lanes=1, lock_wait_seconds=PATIENCE_SECONDS, wait_seconds=60)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_two_engines_cannot_spend_the_same_money(dsn: str) -> None:
    """Both read 100 and want 80: the second must wait for the first and then be refused."""
    gates = Gates()
    async with (
        ledger(dsn, limits=SLOW, store=gated(gates, "lock")) as first,
        ledger(dsn, limits=SLOW) as second,
    ):
        await second.account("a", 100)
        await second.account("b")
        one = asyncio.create_task(first.submit(move(80), "one"))
        await asyncio.wait_for(gates.reached.wait(), PATIENCE_SECONDS)
        two = asyncio.create_task(second.submit(move(80), "two"))
        waiting = asyncio.create_task(waits_for_a_lock(dsn))
        await asyncio.wait([two, waiting], return_when=asyncio.FIRST_COMPLETED)
        gates.open.set()
        assert isinstance(await one, Committed)
        refused = await two
        assert isinstance(refused, Rejected)
        assert refused.code == "insufficient_funds"
        waiting.cancel()
        assert await second.balance("a") == 20
    assert await broken(dsn) == {}


async def test_twins_of_two_engines_meet_at_the_key(dsn: str) -> None:
    """The second has the same key on other accounts, so only the key can stop it."""
    gates = Gates()
    async with (
        ledger(dsn, limits=SLOW, store=gated(gates, "record")) as first,
        ledger(dsn, limits=SLOW) as second,
    ):
        await second.account("a", 100)
        for name in ("b", "c", "d"):
            await second.account(name)
        await second.account("c2", 100)
        one = asyncio.create_task(first.submit(move(80), "same"))
        await asyncio.wait_for(gates.reached.wait(), PATIENCE_SECONDS)
        two = asyncio.create_task(second.submit(move(80, "c2", "d"), "same"))
        await waits_for_a_lock(dsn)
        gates.open.set()
        assert isinstance(await one, Committed)
        refused = await two
        assert isinstance(refused, Rejected)
        assert (refused.code, refused.fields) == ("key_reused", ("credit", "debit"))
        assert await second.balance("c2") == 100


async def test_a_twin_of_another_engine_waits_and_replays_the_same_bytes(dsn: str) -> None:
    gates = Gates()
    async with (
        ledger(dsn, limits=SLOW, store=gated(gates, "record")) as first,
        ledger(dsn, limits=SLOW) as second,
    ):
        await second.account("a", 100)
        await second.account("b")
        one = asyncio.create_task(first.submit(move(80), "same"))
        await asyncio.wait_for(gates.reached.wait(), PATIENCE_SECONDS)
        two = asyncio.create_task(second.submit(move(80), "same"))
        await waits_for_a_lock(dsn)
        gates.open.set()
        committed, duplicate = await one, await two
        assert isinstance(committed, Committed)
        assert isinstance(duplicate, Duplicate)
        assert committed.body == duplicate.body
        assert await second.balance("a") == 20


class CountingLedger(PostgresLedger):
    """Counts the batches that had to be run again because of somebody else's locks."""

    contended = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        try:
            async with super().transaction() as transaction:
                yield transaction
        except Contended:
            CountingLedger.contended += 1
            raise


async def test_batches_take_their_locks_in_one_order(dsn: str) -> None:
    """Both need a, m and z while a third holds m: whoever has a must get z too, or neither ever would."""
    CountingLedger.contended = 0
    async with (
        ledger(dsn, limits=SLOW, store=CountingLedger) as one,
        ledger(dsn, limits=SLOW, store=CountingLedger) as two,
    ):
        for name in ("a", "m", "z"):
            await one.account(name, 1_000)
        legs = tuple(PostLeg(name, amount, "USD") for name, amount in (("a", -2), ("m", 1), ("z", 1)))
        holder = await asyncpg.connect(dsn)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM tally.account WHERE id = 'm' FOR UPDATE")
            first = asyncio.create_task(one.submit(Post(legs=legs), "first"))
            await waits_for_a_lock(dsn)
            second = asyncio.create_task(two.submit(Post(legs=legs), "second"))
            await waits_for_a_lock(dsn, sessions=2)
        await holder.close()
        assert isinstance(await first, Committed)
        assert isinstance(await second, Committed)
        assert CountingLedger.contended == 0, "one of the two was the victim of a deadlock"


async def test_engines_that_shuffle_the_same_money_all_commit(dsn: str) -> None:
    limits = Limits(lanes=2, batch=8)
    names = [f"n{i}" for i in range(12)]
    async with ledger(dsn, limits=limits) as one, ledger(dsn, limits=limits) as two:
        for name in names:
            await one.account(name, 1_000)
        moves = []
        for number in range(600):
            there, back = names[number % 12], names[(number * 5 + 1) % 12]
            if there != back:
                engine = (one, two)[number % 2]
                debit, credit = (there, back) if number % 4 < 2 else (back, there)
                moves.append(engine.submit(move(1, debit, credit), f"m{number}"))
        answers = await asyncio.gather(*moves)
        assert all(isinstance(answer, Committed) for answer in answers)
    assert await broken(dsn) == {}


async def test_a_used_key_is_bound_to_its_request(dsn: str) -> None:
    async with ledger(dsn) as one:
        await one.account("a", 100)
        await one.account("b")
        assert isinstance(await one.submit(move(10), "k"), Committed)
        refused = await one.submit(move(11), "k")
        assert isinstance(refused, Rejected)
        assert (refused.code, refused.fields) == ("key_reused", ("amount_micros",))
        again, refused_twin = await asyncio.gather(one.submit(move(5), "t"), one.submit(move(6), "t"))
        assert isinstance(again, Committed)
        assert isinstance(refused_twin, Rejected)
        assert refused_twin.code == "key_reused"


async def test_a_rejected_key_may_be_used_again(dsn: str) -> None:
    """A decline is not final: money may come, and the same key must then work, once."""
    async with ledger(dsn) as one:
        await one.account("a")
        await one.account("b")
        await one.account("rich", 100)
        refused = await one.submit(move(10), "k")
        assert isinstance(refused, Rejected)
        assert refused.code == "insufficient_funds"
        assert isinstance(await one.submit(move(10, "rich", "a"), "gift"), Committed)
        assert isinstance(await one.submit(move(10), "k"), Committed)
        assert isinstance(await one.submit(move(10), "k"), Duplicate)
        assert await one.balance("b") == 10


class Poison(Operation, frozen=True, tag_field="kind", tag="poison"):
    """Its handler returns legs that only the database refuses."""

    how: str


def _poison(operation: Any, _reading: Any) -> list[Leg]:
    if operation.how == "raise":
        message = "the handler's own bug"
        raise RuntimeError(message)
    return [Leg("a", -1, "USD"), Leg("b", 1, "USD")]


POISON = Kind(Poison, lambda _operation, _transactions: ("a", "b"), _poison)


class PoisonedTransaction(PostgresTransaction):
    """Fails like a constraint would, for one record of the batch."""

    async def record(self, records: Sequence[Record], at: datetime) -> None:
        if any(getattr(record.claim.operation, "how", None) == "database" for record in records):
            await self._connection.execute("SELECT 1 / 0")
        await super().record(records, at)


class PoisonedLedger(PostgresLedger):
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        async with self._database.writing() as connection:
            yield PoisonedTransaction(connection)


@pytest.mark.parametrize("how", ["raise", "database"])
async def test_a_poisonous_operation_fails_alone(dsn: str, how: str) -> None:
    """One bad item in a batch of fifty: forty-nine commit, and its key stays free."""
    async with ledger(dsn, limits=Limits(lanes=1), kinds=(POISON,), store=PoisonedLedger) as one:
        await one.account("a", 1_000)
        await one.account("b")
        calls = [one.submit(move(1), f"good{i}") for i in range(49)]
        calls.insert(20, one.submit(Poison(how=how), "bad"))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        bad = answers.pop(20)
        assert isinstance(bad, Faulted if how == "raise" else Exception)
        assert all(isinstance(answer, Committed) for answer in answers)
        assert isinstance(await one.submit(move(1), "bad"), Committed), "the key of the failed one must be free"
    assert await broken(dsn) == {}


async def test_nobody_is_answered_before_the_commit(dsn: str) -> None:
    """The batch is stopped between its last statement and COMMIT: no caller may know anything yet."""
    gates = Gates()
    async with ledger(dsn, limits=SLOW, store=gated(gates, "record")) as one, ledger(dsn) as other:
        await other.account("a", 100)
        await other.account("b")
        calls = [asyncio.create_task(one.submit(move(1), f"k{i}")) for i in range(10)]
        await asyncio.wait_for(gates.reached.wait(), PATIENCE_SECONDS)
        seen = await fetchval(dsn, "SELECT count(*) FROM tally.operation WHERE key LIKE 'k%'")
        assert seen == 0, "the batch is not committed yet"
        done, _ = await asyncio.wait(calls, timeout=0.2)
        assert not done
        gates.open.set()
        assert all(isinstance(answer, Committed) for answer in await asyncio.gather(*calls))
        assert await fetchval(dsn, "SELECT count(*) FROM tally.operation WHERE key LIKE 'k%'") == 10
