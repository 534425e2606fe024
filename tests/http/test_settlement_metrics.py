"""Figures of settlements at /metrics: the database's, cheap to ask for, never a reason to fail; and their alerts."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tallystick import app
from tallystick.access.store import Access
from tallystick.http import health
from tallystick.http.api import metrics_of, vitals_of
from tallystick.http.call import Call
from tallystick.http.health import Vitals
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Settings
from tests import servers
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, Shop, shop

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "settlement.yml"

Figures = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A database server of its own, to be stopped."""
    own = servers.embedded18()
    try:
        own.start()
        yield own
    finally:
        own.remove()


@pytest.fixture
def dsn(server: servers.Server) -> str:
    return server.fresh_database()


@pytest.fixture
async def service(dsn: str) -> AsyncIterator[app.Service]:
    async with app.running(Settings(database_url=dsn)) as running:
        yield running


@pytest.fixture
def vitals(service: app.Service) -> Vitals:
    return vitals_of(service, metrics_of(service))


async def _scrape(vitals: Vitals, *, remembering: bool = False) -> Figures:
    """Every sample about settlements, by its name and its label."""
    if not remembering:
        vitals._figures["settlement_figures_unread"]._asked_at = -math.inf

    async def receive() -> Any:
        return {"type": "http.request"}

    reply = await vitals.metrics(Call({"query_string": b""}, receive, Access(Tenant(0, ""), "nobody", "")))
    assert not isinstance(reply, Rejected)
    assert reply.status == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith(("tally_settlement", "tally_provider_stopped"))
    }


async def _settle(worker: Shop, control: Control) -> None:
    """Three are paid, one of them after its answer was lost; one is refused; one of the paid is doubted."""
    await worker.create("lost")
    control.plan("stripe.transfer:execute_then_drop")
    await worker.tick()
    paid = await worker.create("paid")
    await worker.create("also-paid")
    await worker.create("refused", destination="acct_closed")
    await worker.pass_time(A_WHILE)
    await worker.tick()
    await worker.reviews.dispute(
        worker.tenant, paid.id, reason="Not received.", evidence="A ticket.", by="a person", idempotency_key="doubt"
    )
    await worker.create("waiting")


async def test_the_figures_are_those_of_the_database(vitals: Vitals, dsn: str, control: Control) -> None:
    """Counted by another process than the one that is asked."""
    async with shop(dsn, control) as worker:
        await _settle(worker, control)
    found = await _scrape(vitals)
    assert {name: value for name, value in found.items() if value} == {
        ("tally_settlement_figures_current",): 1,
        ("tally_settlement_timeout_seconds", "simulator"): 300,
        ("tally_settlements_total", "transferred"): 3,
        ("tally_settlements_total", "failed"): 1,
        ("tally_settlements_total", "disputed"): 1,
        ("tally_settlement_claims_total",): 4,
        ("tally_settlement_reclaims_total",): 1,
        ("tally_settlement_lookups_total", "found"): 1,
        ("tally_settlement_reviews_total",): 1,
        ("tally_settlement_waiting", "pending"): 1,
        ("tally_settlement_waiting", "disputed"): 1,
    }
    # What has not happened is told as 0: an alert on a figure that is not there never fires.
    assert {name for name, value in found.items() if not value} == {
        ("tally_provider_stopped", "simulator"),
        ("tally_settlement_lookups_total", "absent"),
        ("tally_settlement_lookups_total", "undecided"),
        ("tally_settlement_doubles_total",),
        ("tally_settlement_key_collisions_total",),
        ("tally_settlement_late_answers_total",),
        ("tally_settlement_oldest_processing_seconds", "simulator"),
    }


async def test_rare_and_bad_things_are_counted(vitals: Vitals, service: app.Service) -> None:
    async with service.database.owning() as connection:
        await connection.execute(
            "INSERT INTO tally.settlement_count (slot, name, value)"
            " VALUES (1, 'doubles', 1), (2, 'doubles', 2), (1, 'key_collisions', 4), (1, 'late_answers', 5)"
        )
    found = await _scrape(vitals)
    assert found["tally_settlement_doubles_total",] == 3
    assert found["tally_settlement_key_collisions_total",] == 4
    assert found["tally_settlement_late_answers_total",] == 5


async def test_the_oldest_processing_settlement_is_shown_with_its_age(
    vitals: Vitals, dsn: str, control: Control
) -> None:
    control.plan("stripe.transfer:execute_then_drop")
    async with shop(dsn, control) as worker:
        await worker.create("lost")
        await worker.tick()
        await worker.pass_time(timedelta(hours=2))
    age = (await _scrape(vitals))["tally_settlement_oldest_processing_seconds", "simulator"]
    assert 7_200 <= age < 7_200 + 300


async def test_the_database_is_asked_by_one_scraper_at_a_time_and_not_again_at_once(
    vitals: Vitals, dsn: str, control: Control
) -> None:
    # Fewer than are written anew at once.
    scrapes = [asyncio.create_task(_scrape(vitals, remembering=True)) for _ in range(LIMITS.metrics_burst // 2)]
    asking = None
    async with asyncio.timeout(60):
        while asking is None:
            # Other rooms' figures are asked for before these.
            await asyncio.sleep(0)
            asking = vitals._figures["settlement_figures_unread"]._asking
    first, *others = await asyncio.gather(*scrapes)
    assert all(found == first for found in others)
    async with shop(dsn, control) as worker:
        await worker.create("new")
    remembered = await _scrape(vitals, remembering=True)
    assert vitals._figures["settlement_figures_unread"]._asking is asking
    assert remembered["tally_settlement_waiting", "pending"] == 0
    vitals._figures["settlement_figures_unread"]._asked_at -= health._FIGURES_SECONDS
    assert (await _scrape(vitals, remembering=True))["tally_settlement_waiting", "pending"] == 1


async def test_a_database_that_is_away_fails_no_scrape(
    vitals: Vitals, service: app.Service, server: servers.Server, dsn: str, control: Control
) -> None:
    async with shop(dsn, control) as worker:
        await worker.create("paid")
        await worker.tick()
    assert (await _scrape(vitals))["tally_settlements_total", "transferred"] == 1
    stranger = vitals_of(service, metrics_of(service))
    server.stop(immediate=True)
    try:
        found = await _scrape(vitals)
        never_asked = await _scrape(stranger)
    finally:
        server.start()
    assert found["tally_settlement_figures_current",] == 0
    assert found["tally_settlements_total", "transferred"] == 1
    # How old and how many is a matter of now, and now is not known.
    assert not {name for name, *_ in found} & {
        "tally_settlement_waiting",
        "tally_settlement_oldest_processing_seconds",
    }
    assert never_asked == {
        ("tally_settlement_figures_current",): 0,
        ("tally_settlement_timeout_seconds", "simulator"): 300,
    }
    assert (await _scrape(vitals))["tally_settlement_figures_current",] == 1


def _rules() -> dict[str, Any]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


async def test_every_alert_looks_at_figures_that_are_shown(vitals: Vitals) -> None:
    """A rule on a misspelled figure is quiet for ever."""
    shown = {name for name, *_ in await _scrape(vitals)}
    rules = _rules()
    assert rules.keys() == {
        "ProviderStopped",
        "SettlementReclaimsFrequent",
        "SettlementProcessingOld",
        "SettlementPaidTwice",
        "SettlementKeyCollision",
        "SettlementDisputedLong",
        "SettlementFiguresOld",
    }
    for name, rule in rules.items():
        looked_at = set(re.findall(r"\btally_\w+", rule["expr"]))
        assert looked_at, name
        assert looked_at <= shown, name
        assert rule["expr"].count("(") == rule["expr"].count(")"), name
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "money", "remedy"}, name
