"""The token of a reservation: nobody can guess it, and an order has the same one in every life of the database."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from tallystick.checkout.order.rules import reservation_token
from tests import servers
from tests.ledgers import fetchval
from tests.movement.test_memory import unnoticed
from tests.payments import charged, checkout
from tests.providers.worlds import Control


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_a_token_follows_from_the_tenants_secret_and_the_order(one: bytes, other: bytes, order: bytes) -> None:
    assert reservation_token(one, order) == reservation_token(one, order)
    assert (reservation_token(one, order) == reservation_token(other, order)) == (one == other)
    assert reservation_token(one, order) != reservation_token(one, bytes(16 * [order[0] ^ 1]))


async def test_a_buyer_who_comes_again_after_a_restore_is_not_charged_again(
    embedded18: servers.Server, control: Control
) -> None:
    """Backup, order, payment; the backup comes back, and the buyer's client sends both requests again."""
    dsn = embedded18.fresh_database()
    async with checkout(dsn, control) as before:
        await before.orders.set_stock(before.tenant, "lamp", 1_000)
    backup = await unnoticed(dsn)
    async with checkout(dsn, control) as before:
        first = await before.order("k")
        paid = await before.paying(first)
    made = len(charged(control))
    async with checkout(backup, control, ttl=timedelta(hours=1)) as after:
        again = await after.order("k")
        assert (again.id, again.reservation_token) == (first.id, first.reservation_token)
        assert (await after.paying(again)).payment.payment_intent_id == paid.payment.payment_intent_id
    assert len(charged(control)) == made


async def test_a_tenant_that_was_lost_with_the_backup_has_the_tokens_it_had(
    embedded18: servers.Server, control: Control
) -> None:
    """A new one, and his first buyer: both are made again, and the buyer is not charged again."""
    dsn = embedded18.fresh_database()
    async with checkout(dsn, control):
        pass
    backup = await unnoticed(dsn)
    async with checkout(dsn, control, tenant="acme") as before:
        first = await before.order("k")
        paid = await before.paying(first)
    async with checkout(backup, control, tenant="acme") as after:
        again = await after.order("k")
        assert (again.id, again.reservation_token) == (first.id, first.reservation_token)
        assert (await after.paying(again)).payment.payment_intent_id == paid.payment.payment_intent_id
    assert len(charged(control)) == 1


async def test_a_tenant_has_its_secret_from_the_start_and_keeps_it(
    embedded18: servers.Server, control: Control
) -> None:
    dsn = embedded18.fresh_database()
    async with checkout(dsn, control, tenant="acme") as shop:
        await shop.order("k")
    without = "SELECT count(*) FROM tally.tenant LEFT JOIN tally.tenant_secret USING (tenant_id) WHERE secret IS NULL"
    assert await fetchval(dsn, without) == 0
    assert await fetchval(dsn, "SELECT count(DISTINCT secret) FROM tally.tenant_secret") == 2
