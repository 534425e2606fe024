"""Refunds while a provider is out of order: they are sent again under the same key, and go back once."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests import servers, simulators
from tests.ledgers import broken
from tests.payments import age
from tests.providers.worlds import Control
from tests.sagas import Desk, desk

# Its time goes ahead here, and never comes back.
payouts_simulator = simulators.own


@pytest.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Desk]:
    async with desk(embedded18.fresh_database(), control) as opened:
        yield opened


@pytest.mark.parametrize("fault", ["gateway_502", "gateway_503", "gateway_504", "drop_before"])
async def test_a_refund_that_an_outage_kept_from_the_provider_is_sent_again(till: Desk, fault: str) -> None:
    """A gateway's 5xx is what an outage looks like: one of them must not leave the customer to a person."""
    order, payment = await till.ghost()
    till.shop.control.plan(f"stripe.refund:{fault}")
    await till.tell(payment)
    await till.run()
    assert (await till.refund_statuses(order), till.given_back()) == (["PENDING"], [])
    await age(till.dsn)
    swept = await till.refunds.sweep()
    assert (swept.completed, swept.sent) == (1, 1)
    assert (await till.refund_statuses(order), len(till.given_back())) == (["COMPLETED"], 1)
    assert await till.ended() == {"evt_1": "PROCESSED_COMPENSATED"}
    assert await broken(till.dsn) == {}


async def test_a_refund_that_rolls_forward_after_its_error_goes_back_once(till: Desk) -> None:
    """The provider stores its 500 under our key, and makes the refund an hour later: every repeat is the same 500."""
    order, payment = await till.ghost()
    till.shop.control.plan("stripe.refund:error_500_object_later(3600)")
    await till.tell(payment)
    await till.run()
    for _ in range(3):
        await age(till.dsn)
        assert (await till.refunds.sweep()).completed == 0
    till.shop.control.advance(hours=2)
    await age(till.dsn, timedelta(hours=2))
    assert (await till.refunds.sweep()).completed == 1
    assert (await till.refund_statuses(order), len(till.given_back())) == (["COMPLETED"], 1)
    assert await broken(till.dsn) == {}
