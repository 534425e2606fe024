"""Waiting for an order from Python: the same as over HTTP."""

import asyncio
import threading

import pytest

import tallystick
from tallystick import sync
from tallystick.ledger.outcome import Rejected
from tests import servers

LAMP = {"sku": "lamp", "quantity": 2, "amount_micros": 50_000_000, "currency": "EUR"}


@pytest.mark.parametrize("server", ["embedded18", "postgres15"])
async def test_an_order_is_waited_for_across_processes(server: str, request: pytest.FixtureRequest) -> None:
    found: servers.Server = request.getfixturevalue(server)
    dsn = found.fresh_database()
    async with tallystick.open(database_url=dsn) as here, tallystick.open(database_url=dsn) as there:
        await there.set_stock("lamp", 3)
        made = await there.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        pending = await here.order_status(made.view.id)
        assert isinstance(pending, tallystick.OrderStatus)
        assert (pending.status, pending.payment, pending.refund) == ("PENDING", None, None)
        assert await here.order_status(made.view.id, wait=0.1, after=pending.version) == pending
        waiting = asyncio.create_task(here.order_status(made.view.id, wait=30))
        await there.cancel_order(made.view.id)
        ended = await asyncio.wait_for(waiting, 15)
        assert isinstance(ended, tallystick.OrderStatus)
        assert ended.status == "CANCELLED"
        for refused in (
            await here.order_status(made.view.id, wait=31),
            await here.order_status(made.view.id, wait=-1),
            await here.order_status(made.view.id, after="latest"),
        ):
            assert isinstance(refused, Rejected)
            assert refused.code == "query_invalid"


def test_the_synchronous_twin_waits_and_is_answered_when_it_closes(embedded18: servers.Server) -> None:
    answers: list[tallystick.OrderStatus | Rejected] = []
    with sync.open(database_url=embedded18.fresh_database()) as tally:
        tally.set_stock("lamp", 2)
        made = tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        name = made.view.id
        first = tally.order_status(name, wait=0.1)
        assert isinstance(first, tallystick.OrderStatus)
        assert first.status == "PENDING"
        waiting = threading.Thread(target=lambda: answers.append(tally.order_status(name, wait=30)))
        waiting.start()
        statuses = tally._tally._needed_service().statuses
        while not any(watch.latest for watch in tuple(statuses._watches.values())):
            pass
    waiting.join(15)
    assert answers == [first]
