"""`tally sweep`, and `tally explain` and `tally verify` of orders: real processes, real exit codes."""

import json

import pytest

from tests import servers
from tests.cli.commands import tally
from tests.orders import A_MOMENT, expired, store, wish

NO_GRACE = {"TALLY_RESERVATION_GRACE_SECONDS": "0"}


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_a_sweep_prints_what_it_gave_back(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT) as shop:
        await shop.put(10)
        for number in range(3):
            await shop.made(f"k{number}", wish(quantity=2))
        await expired(dsn)
        # Within the grace of the settings.
        early = tally("sweep", "--json", dsn=dsn)
        assert (early.returncode, json.loads(early.stdout)["cancelled"]) == (0, 0)
        some = tally("sweep", "--limit", "2", dsn=dsn, **NO_GRACE)
        assert some.returncode == 0, some.stderr
        assert [line.split()[:2] for line in some.stdout.splitlines()] == [
            ["cancelled", "2"],
            ["released", "4"],
            ["told", "0"],
            ["held", "0"],
            ["refused", "0"],
            ["completed", "0"],
            ["waiting", "0"],
            ["failed", "0"],
            ["filled", "0"],
        ]
        assert "run it again" in some.stderr
        rest = tally("sweep", "--json", dsn=dsn, **NO_GRACE)
        assert json.loads(rest.stdout) == {
            "cancelled": 1,
            "released": 2,
            "refused": 0,
            "is_complete": True,
            "told": 0,
            "held": 0,
            "refunds": {"claimed": 0, "completed": 0, "failed": 0, "waiting": 0, "sent": 0},
            "filled": 0,
        }
        assert rest.stderr.splitlines() == [f"database: {dsn}"]
        assert await shop.figures() == (0, 0, 10)
    verified = tally("verify", dsn=dsn)
    assert verified.returncode == 0, verified.stdout
    assert "holds  orders" in verified.stdout


def test_without_a_database_it_says_so(tmp_path: object) -> None:
    shown = tally("sweep", dsn=f"postgresql://nobody@/none?host={tmp_path}")
    assert shown.returncode == 3
    assert "database" in shown.stderr


async def test_an_order_is_explained_by_its_id_and_by_its_key(dsn: str) -> None:
    async with store(dsn, ttl=A_MOMENT) as shop:
        await shop.put(10)
        view = await shop.made("basket-17", wish(quantity=2))
        await expired(dsn)
        shown = tally("explain", view.id, dsn=dsn)
        assert shown.returncode == 0, shown.stderr
        assert f"order {view.id}" in shown.stdout
        assert "PENDING: 2 of lamp for 25.00 EUR" in shown.stdout
        assert "its time is over" in shown.stdout
        assert "reserved under key 'basket-17'" in shown.stdout
        tally("sweep", dsn=dsn, **NO_GRACE)
        by_key = json.loads(tally("explain", "basket-17", "--json", dsn=dsn).stdout)["found"]
        assert [found["what"] for found in by_key] == ["transaction", "order"]
        assert by_key[0]["summary"] == "order.reserved: moved no money"
        assert by_key[1]["summary"].startswith("CANCELLED_BY_SWEEPER: 2 of lamp")
        assert "CANCELLED_BY_SWEEPER" in by_key[1]["timeline"][-1]["what"]
    unknown = tally("explain", "or_" + "0" * 32, dsn=dsn)
    assert unknown.returncode == 1
