"""While a provider's books are unread, no more is claimed than can be asked about and sent."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tallystick.movement.life import store as life
from tallystick.settings import LIMITS
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import A_DAY, Shop, pass_time, shop

BACKLOG = 300
# Several chunks of each size.
SMALL = replace(LIMITS, settlement_chunk=100, settlement_stuck_chunk=50)


@pytest.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Shop]:
    async with shop(embedded18.fresh_database(), control, limits=SMALL) as opened:
        await opened.create_many(BACKLOG)
        yield opened
        assert await broken(opened.dsn) == {}


async def test_a_backlog_waits_as_pending_where_the_books_cannot_be_read(till: Shop) -> None:
    """Claimed, all of it would be asked about one by one when they can be."""
    await life.begin(till.database, "tests")
    till.control.plan("stripe.list:gateway_503@*")
    ticked = await till.tick()
    assert (ticked.claimed, ticked.sent, ticked.looked_up) == (0, 0, 0)
    assert till.control.struck()["gateway_503"] >= 1


async def test_a_backlog_is_asked_about_and_sent_where_they_can_be_read(till: Shop) -> None:
    await life.begin(till.database, "tests")
    ticked = await till.tick()
    assert (ticked.claimed, ticked.transferred) == (BACKLOG, BACKLOG)
    assert ticked.looked_up >= BACKLOG


async def test_what_cannot_be_proven_yet_is_claimed_by_the_chunk_and_no_more(till: Shop) -> None:
    """Until what a lost life began to send has settled, an absence proves nothing."""
    await pass_time(till.dsn, A_DAY)
    await life.begin(till.database, "tests")
    ticked = await till.tick()
    assert ticked.sent == 0
    assert 0 < ticked.claimed <= SMALL.settlement_lanes * SMALL.settlement_stuck_chunk
