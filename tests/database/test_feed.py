"""Journal and outbox are read in commit order: no row is ever skipped."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from tallystick.audit.digest import step_digest
from tallystick.database import feed
from tests import servers
from tests.ledgers import Ledger, ledger


@pytest_asyncio.fixture(params=["embedded18", "postgres15"])
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    server: servers.Server = request.getfixturevalue(request.param)
    async with ledger(server.fresh_database()) as one:
        yield one


async def test_a_slow_transaction_is_not_skipped(books: Ledger) -> None:
    """It took its number first and commits last; a reader on `number > last` would lose it."""
    slow = await asyncpg.connect(books.dsn)
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("INSERT INTO tally.outbox (tenant_id, topic, body) VALUES (1, 'slow', 'x')")
    await books.account("a", 100)
    early = await feed.read(books.database, "outbox", after=feed.START, most=100)
    assert early == [], "a row newer than a running transaction was shown"
    await transaction.commit()
    await slow.close()
    rows = await feed.read(books.database, "outbox", after=feed.START, most=100)
    assert [row.topic for row in rows] == ["slow", "operation.committed"]


async def test_pages_join_without_gap_or_overlap(books: Ledger) -> None:
    for number in range(7):
        await books.account(f"n{number}", 1)
    everything = await feed.read(books.database, "journal", after=feed.START, most=1000)
    paged: list[feed.Row] = []
    cursor = feed.START
    while page := await feed.read(books.database, "journal", after=cursor, most=3):
        paged += page
        cursor = page[-1].cursor
    assert paged == everything
    assert sum(row.topic == "operation" for row in everything) == 7


async def test_the_journal_holds_the_digest_an_auditor_computes(books: Ledger) -> None:
    """PostgreSQL's digest and audit.digest's are the same function."""
    await books.account("a", 100)
    rows = await feed.read(books.database, "journal", after=feed.START, most=100)
    (row,) = [row for row in rows if row.transaction is not None]
    async with books.database.owning() as connection:
        (stored,) = await connection.fetch("SELECT request, body FROM tally.operation")
    assert row.digest == step_digest("default", "operation", stored["request"], stored["body"])
