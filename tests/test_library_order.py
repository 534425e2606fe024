"""Orders from Python: the same gate as over HTTP, on PostgreSQL alone."""

import pytest

import tallystick
from tallystick import sync
from tallystick.errors import Misconfigured
from tallystick.ledger.outcome import Rejected
from tests import servers

LAMP = {"sku": "lamp", "quantity": 2, "amount_micros": 50_000_000, "currency": "EUR"}


@pytest.mark.parametrize("server", ["embedded18", "postgres15"])
async def test_stock_is_reserved_once_and_given_back_once(server: str, request: pytest.FixtureRequest) -> None:
    found: servers.Server = request.getfixturevalue(server)
    async with tallystick.open(database_url=found.fresh_database()) as tally:
        assert isinstance(await tally.sku("lamp"), Rejected)
        stocked = await tally.set_stock("lamp", 3)
        assert stocked == tallystick.SkuView(sku="lamp", stock=3, reserved=0, sold=0, available=3)
        made = await tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        again = await tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        assert isinstance(again, tallystick.OrderMade)
        assert (again.view, made.is_replayed, again.is_replayed) == (made.view, False, True)
        out = await tally.reserve(**LAMP, idempotency_key="l")  # type: ignore[arg-type]
        assert isinstance(out, Rejected)
        assert out.code == "sold_out"
        assert await tally.order(made.view.id) == made.view
        cancelled = await tally.cancel_order(made.view.id)
        assert isinstance(cancelled, tallystick.OrderView)
        assert cancelled.status == "CANCELLED"
        assert await tally.cancel_order(made.view.id) == cancelled
        assert await tally.sku("lamp") == stocked


def test_the_synchronous_twin_does_the_same(embedded18: servers.Server) -> None:
    with sync.open(database_url=embedded18.fresh_database()) as tally:
        tally.set_stock("lamp", 2)
        made = tally.reserve(**LAMP, idempotency_key="k")  # type: ignore[arg-type]
        assert isinstance(made, tallystick.OrderMade)
        assert tally.order(made.view.id) == made.view
        cancelled = tally.cancel_order(made.view.id)
        assert isinstance(cancelled, tallystick.OrderView)
        left = tally.sku("lamp")
        assert isinstance(left, tallystick.SkuView)
        assert left.available == 2


async def test_mysql_holds_the_ledger_alone(mariadb: servers.Server) -> None:
    async with tallystick.open(database_url=mariadb.fresh_database()) as tally:
        with pytest.raises(Misconfigured, match=r"orders need PostgreSQL.*Nothing was created"):
            await tally.set_stock("lamp", 1)
