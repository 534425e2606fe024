"""submit() inside the caller's own transaction."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

import tallystick
from tallystick.errors import CallerTransaction, InFlight
from tallystick.ledger.outcome import Committed, Duplicate, Rejected
from tallystick.settings import LIMITS
from tests import servers
from tests.ledgers import broken, fetchval

MOVE = tallystick.Transfer(debit="a", credit="b", amount_micros=5, currency="USD")


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def tally(dsn: str) -> AsyncIterator[tallystick.Tally]:
    async with tallystick.open(database_url=dsn) as opened:
        await opened.put_account("world", currency="USD", floor_micros=None)
        for name in ("a", "b", "c"):
            await opened.put_account(name, currency="USD")
        topup = tallystick.TopUp(account="a", source="world", amount_micros=100, currency="USD")
        await opened.submit(topup, idempotency_key="fund")
        yield opened


@pytest_asyncio.fixture
async def connection(dsn: str, tally: tallystick.Tally) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn)
    await opened.execute("CREATE TABLE invoice (id text PRIMARY KEY)")
    yield opened
    await opened.close()


async def balance(tally: tallystick.Tally, name: str) -> int:
    found = await tally.account(name)
    assert not isinstance(found, Rejected)
    return found.balance_micros


async def test_it_commits_with_the_callers_rows(tally: tallystick.Tally, connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO invoice VALUES ('i1')")
        done = await tally.submit(MOVE, idempotency_key="i1", connection=connection)
        assert isinstance(done, Committed)
        assert await balance(tally, "b") == 0, "nothing is durable before the caller's COMMIT"
    assert await balance(tally, "b") == 5
    again = await tally.submit(MOVE, idempotency_key="i1")
    assert isinstance(again, Duplicate)
    assert again.body == done.body


async def test_it_rolls_back_with_the_callers_rows(
    tally: tallystick.Tally, connection: asyncpg.Connection, dsn: str
) -> None:
    with pytest.raises(RuntimeError):
        async with connection.transaction():
            await connection.execute("INSERT INTO invoice VALUES ('i1')")
            await tally.submit(MOVE, idempotency_key="i1", connection=connection)
            raise RuntimeError
    assert await balance(tally, "b") == 0
    assert await connection.fetchval("SELECT count(*) FROM invoice") == 0
    assert isinstance(await tally.submit(MOVE, idempotency_key="i1"), Committed), "the key is free again"
    assert await broken(dsn) == {}


async def test_a_refusal_leaves_the_callers_transaction_usable(
    tally: tallystick.Tally, connection: asyncpg.Connection
) -> None:
    too_much = tallystick.Transfer(debit="a", credit="b", amount_micros=500, currency="USD")
    async with connection.transaction():
        refused = await tally.submit(too_much, idempotency_key="big", connection=connection)
        assert isinstance(refused, Rejected)
        await connection.execute("INSERT INTO invoice VALUES ('i1')")
        assert isinstance(await tally.submit(MOVE, idempotency_key="i1", connection=connection), Committed)
        assert isinstance(await tally.submit(MOVE, idempotency_key="i1", connection=connection), Duplicate)
    assert await connection.fetchval("SELECT count(*) FROM invoice") == 1
    assert await balance(tally, "b") == 5


async def test_without_a_transaction_it_says_so(tally: tallystick.Tally, connection: asyncpg.Connection) -> None:
    with pytest.raises(CallerTransaction, match="open transaction"):
        await tally.submit(MOVE, idempotency_key="x", connection=connection)


async def test_a_slow_caller_does_not_stop_the_lanes(
    tally: tallystick.Tally, connection: asyncpg.Connection, dsn: str
) -> None:
    """He holds account a and key i1; others go on, and those who need a wait for him and then succeed."""
    other = tallystick.TopUp(account="c", source="world", amount_micros=1, currency="USD")
    async with connection.transaction():
        await tally.submit(MOVE, idempotency_key="i1", connection=connection)
        blocked = asyncio.create_task(tally.submit(MOVE, idempotency_key="needs-a"))
        twin = asyncio.create_task(tally.submit(MOVE, idempotency_key="i1"))
        await asyncio.sleep(2 * LIMITS.lock_wait_seconds)
        for number in range(20):
            began = time.monotonic()
            assert isinstance(await tally.submit(other, idempotency_key=f"c{number}"), Committed)
            assert time.monotonic() - began < LIMITS.lock_wait_seconds, "a lane waited for the caller's locks"
        assert not blocked.done()
        assert not twin.done()
    assert isinstance(await blocked, Committed)
    assert isinstance(await twin, Duplicate)
    assert await balance(tally, "b") == 10
    assert await broken(dsn) == {}


async def test_two_callers_with_one_key_do_not_both_pay(
    tally: tallystick.Tally, connection: asyncpg.Connection, dsn: str
) -> None:
    second = await asyncpg.connect(dsn)
    async with connection.transaction():
        assert isinstance(await tally.submit(MOVE, idempotency_key="i1", connection=connection), Committed)
        with pytest.raises(InFlight):
            async with second.transaction():
                await tally.submit(MOVE, idempotency_key="i1", connection=second)
    async with second.transaction():
        assert isinstance(await tally.submit(MOVE, idempotency_key="i1", connection=second), Duplicate)
    await second.close()
    assert await balance(tally, "b") == 5


async def test_an_old_transaction_is_refused(
    tally: tallystick.Tally, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold back the feeds and everybody who needs the same money."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_sleep(0.2)")
    young = tallystick.settings.Limits(caller_transaction_seconds=0.1)
    monkeypatch.setattr(tallystick.caller, "LIMITS", young)
    with pytest.raises(CallerTransaction, match="older"):
        await tally.submit(MOVE, idempotency_key="x", connection=connection)
    await transaction.rollback()


async def test_a_caller_who_forgets_to_end_is_ended_by_the_server(
    tally: tallystick.Tally, connection: asyncpg.Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = tallystick.settings.Limits(caller_transaction_seconds=0.3)
    monkeypatch.setattr(tallystick.caller, "LIMITS", young)
    await connection.execute("BEGIN")
    await tally.submit(MOVE, idempotency_key="i1", connection=connection)
    # The server ends his session; the account is free for others.
    assert isinstance(await tally.submit(MOVE, idempotency_key="other"), Committed)
    assert await fetchval(dsn, "SELECT count(*) FROM tally.operation WHERE key = 'i1'") == 0
