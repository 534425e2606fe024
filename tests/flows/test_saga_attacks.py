"""What a hostile reviewer got away with in checkout: each of these lost money, lied, or held up everybody."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tallystick.core.saga import Policy
from tallystick.core.settlement import Transferred
from tallystick.flows.events import Processed
from tallystick.providers.steady import steady
from tallystick.store import refund as refunds
from tallystick.store import saga as store
from tallystick.store import webhook
from tallystick.store.migrate import migrate
from tests import servers
from tests.ledgers import broken, fetchval
from tests.payments import CHARGING, age
from tests.providers.worlds import Control, send
from tests.sagas import LEASE, Desk, desk
from tests.settlements import empty

PRICE = 25_000_000
ADYEN = next(world for world in CHARGING if world.name == "adyen")


@pytest.fixture(scope="module")
def attacked_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(attacked_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(attacked_dsn)
    await empty(attacked_dsn)
    return attacked_dsn


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened
        assert await broken(dsn) == {}


async def test_a_refund_that_came_and_failed_in_one_batch_is_still_owed(till: Desk, control: Control) -> None:
    """After an outage both events wait side by side.

    Written as two results of one refund, one of them won: the buyer was told of a refund that had failed.
    """
    control.plan("stripe.refund:execute_then_drop@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    (refund,) = await till.refunds_of(order)
    (made,) = till.given_back()
    told: dict[str, Any] = {"purpose": "refund", "parent": payment, "reference": refund.key.hex()}
    await till.tell(made["id"], "evt_2", **told)
    await till.tell(made["id"], "evt_3", state="failed", **told)
    await till.run()
    assert await till.refund_statuses(order) == ["FAILED"]
    assert await till.balances() == {"taken": -PRICE, "owed": PRICE}
    assert await till.breaks() == ["refund_failed"]


async def test_who_is_overtaken_by_the_refunds_own_event_still_ends_his(till: Desk) -> None:
    """The webhook of the refund was quicker than the answer to it; the event that waits is in the sender's hand."""
    order, payment = await till.ghost()
    await till.tell(payment)
    (event,) = await webhook.claim(till.shop.database, most=1, lease=LEASE, by="sender")
    began = steady()
    async with till.shop.database.writing() as connection:
        settled = await store.settle(connection, [event], till.refunds.terms, look_again_seconds=600)
    ((_, begun),) = settled.begun
    made: Any = await send(till.shop.provider, begun.instruction)
    await till.tell(made.movement.id, "evt_2", purpose="refund", parent=payment, reference=begun.owed.key.hex())
    await till.run()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    (flight,) = till.refunds.launch(settled.begun, began=began)
    assert await flight == Transferred(made.movement.id)
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED", "evt_2": "PROCESSED_OK"}
