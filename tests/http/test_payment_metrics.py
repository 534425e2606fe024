"""Figures of payments at /metrics, and their alerts."""

import math
import re
from pathlib import Path
from typing import Any

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
from tests.payments import checkout
from tests.providers.worlds import Control

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "payment.yml"


async def scrape(vitals: Vitals) -> dict[str, float]:
    vitals._figures["payment_figures_unread"]._asked_at = -math.inf

    async def receive() -> Any:
        return {"type": "http.request"}

    reply = await vitals.metrics(Call({"query_string": b""}, receive, Access(Tenant(0, ""), "nobody", "")))
    assert not isinstance(reply, Rejected)
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith("tally_payments")
    }


async def test_what_nobody_knows_yet_is_counted_and_alerts_look_at_it(
    embedded18: servers.Server, control: Control
) -> None:
    dsn = embedded18.fresh_database()
    async with app.running(Settings(database_url=dsn)) as service:
        vitals = vitals_of(service, metrics_of(service))
        shown = await scrape(vitals)
        assert shown == {
            "tally_payments_figures_current": 1,
            "tally_payments_pending": 0,
            "tally_payments_oldest_pending_seconds": 0,
        }
        control.plan("stripe.charge:execute_then_drop@2")
        async with checkout(dsn, control) as shop:
            await shop.paying(await shop.order("k1"))
            await shop.pending(await shop.order("k2"))
        found = await scrape(vitals)
        assert found["tally_payments_pending"] == 1
        assert 0 < found["tally_payments_oldest_pending_seconds"] < 600
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    for rule in rules:
        looked_at = set(re.findall(r"\btally_\w+", rule["expr"]))
        assert looked_at
        assert looked_at <= set(shown), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "money", "remedy"}
