"""Figures of orders at /metrics: the database's, beside what this process refused; and their alerts."""

import math
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tallystick import app
from tallystick.access.store import Access
from tallystick.http.api import metrics_of, vitals_of
from tallystick.http.call import Call
from tallystick.http.health import Vitals
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.settings import Settings
from tests import servers
from tests.ledgers import fetchval
from tests.orders import A_MOMENT, NONE, expired, store, wish

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "order.yml"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def service(dsn: str) -> AsyncIterator[app.Service]:
    async with app.running(Settings(database_url=dsn)) as running:
        yield running


async def _scrape(vitals: Vitals) -> dict[str, float]:
    vitals._figures["order_figures_unread"]._asked_at = -math.inf

    async def receive() -> Any:
        return {"type": "http.request"}

    reply = await vitals.metrics(Call({"query_string": b""}, receive, Access(Tenant(0, ""), "nobody", "")))
    assert not isinstance(reply, Rejected)
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith("tally_orders")
    }


async def test_the_figures_are_those_of_the_database(service: app.Service, dsn: str) -> None:
    vitals = vitals_of(service, metrics_of(service))
    empty = await _scrape(vitals)
    assert empty == {
        "tally_orders_sold_out_total": 0,
        "tally_orders_figures_current": 1,
        "tally_orders_grace_seconds": 30,
        "tally_orders_reserved_total": 0,
        "tally_orders_paid_total": 0,
        "tally_orders_cancelled_total": 0,
        "tally_orders_swept_total": 0,
        "tally_orders_pending": 0,
        "tally_orders_oldest_overdue_seconds": 0,
    }
    async with store(dsn, ttl=A_MOMENT, grace=NONE) as hasty:
        await hasty.put(10)
        swept, cancelled, paid = [await hasty.made(f"k{number}") for number in range(3)]
        await hasty.orders.cancel(hasty.tenant, cancelled.id)
        await hasty.pay(paid.id)
        await expired(dsn)
        assert (await hasty.orders.sweep()).cancelled == 1
        assert await hasty.status(swept.id) == "CANCELLED_BY_SWEEPER"
        late = await hasty.made("late")
        await expired(dsn)
        held = await service.orders.reserve(hasty.tenant, wish(quantity=8), "held")
        assert not isinstance(held, Rejected)
        for number in range(4):
            assert isinstance(await service.orders.reserve(hasty.tenant, wish(), f"out{number}"), Rejected)
        found = await _scrape(vitals)
        assert found["tally_orders_oldest_overdue_seconds"] > 0
        least = await fetchval(dsn, "SELECT extract(epoch FROM clock_timestamp() - $1)::float8", late.expires_at)
        assert found["tally_orders_oldest_overdue_seconds"] <= least
    del found["tally_orders_oldest_overdue_seconds"]
    assert found == {
        **{name: value for name, value in empty.items() if name != "tally_orders_oldest_overdue_seconds"},
        "tally_orders_sold_out_total": 4,
        "tally_orders_reserved_total": 5,
        "tally_orders_paid_total": 1,
        "tally_orders_cancelled_total": 1,
        "tally_orders_swept_total": 1,
        "tally_orders_pending": 2,
    }


async def test_every_alert_looks_at_figures_that_are_shown(service: app.Service) -> None:
    """A rule on a misspelled figure is quiet for ever."""
    shown = set(await _scrape(vitals_of(service, metrics_of(service))))
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == ["ReservationsNotSwept", "ReservationsMostlySwept"]
    for rule in rules:
        looked_at = set(re.findall(r"\btally_\w+", rule["expr"]))
        assert looked_at
        assert looked_at <= shown, rule["alert"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "money", "remedy"}
