"""What a lost life of the database has charged is older than anything that is stored here, and is found all the same.

The clocks of the database and of the provider go on together, so that its books are as old as they would be.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from tallystick.checkout.order.rules import Swept
from tallystick.checkout.order.store import OrderView
from tallystick.ledger.outcome import Rejected
from tests.checkout.payment.review.test_flow import resolved
from tests.clocks import Movable, Time
from tests.movement.test_memory import PATIENT, unnoticed
from tests.payments import checkout
from tests.providers.worlds import Control
from tests.sagas import Desk, desk, expire

# Longer than the provider remembers a key: nothing is sent unasked.
LONG = timedelta(days=8)


@asynccontextmanager
async def forgetting(server: Movable, control: Control, time: Time) -> AsyncIterator[tuple[Desk, OrderView, str]]:
    """An order that a life which was lost has paid; here its charge was logged, and nobody could be asked."""
    dsn = server.fresh_database()
    async with checkout(dsn, control, ttl=PATIENT) as before:
        order = await before.order()
    backup = await unnoticed(dsn)
    async with checkout(dsn, control, ttl=PATIENT) as before:
        paid = (await before.paying(order)).payment.payment_intent_id
        assert paid is not None
    time.passes(LONG)
    async with desk(backup, control, ttl=PATIENT) as after:
        for operation in ("lookup", "list"):
            control.plan(f"stripe.{operation}:error_500_no_object@*")
        await after.shop.pending(order)
        control.call("DELETE", "faults")
        assert await after.shop.answers() == [], "nothing was sent"
        yield after, order, paid


async def test_a_person_does_not_close_it_as_never_charged(server: Movable, control: Control, time: Time) -> None:
    async with forgetting(server, control, time) as (after, order, paid):
        done = await resolved(after, order, "never_charged")
        assert isinstance(done, Rejected)
        assert (done.code, paid in done.detail) == ("payment_not_confirmed", True)


async def test_the_sweeper_finds_it_and_its_order_is_paid(server: Movable, control: Control, time: Time) -> None:
    async with forgetting(server, control, time) as (after, order, _):
        await expire(after.dsn, order)
        assert await after.shop.orders.sweep() == Swept(told=1)
        await after.run()
        assert await after.status(order) == "PAID"
        assert after.given_back() == []
