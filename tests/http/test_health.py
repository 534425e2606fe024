"""What operators see: liveness, readiness, metrics; and a database that goes away."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator

import asyncpg
import httpx2
import pytest

from tallystick import app
from tallystick.access.store import Access
from tallystick.http.api import metrics_of, vitals_of
from tallystick.http.call import Call, Reply
from tallystick.http.health import Vitals
from tallystick.ledger.claims import Tenant
from tallystick.settings import LIMITS, Settings
from tests import servers
from tests.http import site as sites

NOBODY = Access(Tenant(0, ""), "nobody", "")
# Short waits, and a queue of one: what takes ten seconds and twenty thousand callers elsewhere.
IMPATIENT = dataclasses.replace(
    LIMITS, wait_seconds=0.4, outage_seconds=0.3, queue=1, queue_per_source=1, lanes=1, batch=1
)


@pytest.fixture(scope="module")
def server() -> Iterator[servers.Server]:
    """A database server of its own, to be stopped."""
    own = servers.embedded18()
    try:
        own.start()
        yield own
    finally:
        own.remove()


@pytest.fixture(scope="module")
def dsn(server: servers.Server) -> str:
    return server.fresh_database()


@pytest.fixture(scope="module")
def impatient(dsn: str) -> Iterator[sites.Site]:
    with sites.running(dsn, limits=IMPATIENT) as running:
        yield running


def test_liveness_and_readiness(client: httpx2.Client) -> None:
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}
    verbose = client.get("/readyz?verbose").json()
    assert {check["name"]: check["ok"] for check in verbose["checks"]} == {"database": True, "queue": True}
    assert client.head("/livez").status_code == 200


def test_metrics_count_requests_operations_and_batches(client: httpx2.Client, accounts: tuple[str, str, str]) -> None:
    client.get("/v1/accounts/nobody")
    text = client.get("/metrics").text
    for line in (
        'tally_http_requests_total{route="/v1/accounts/{id}",status="404"}',
        'tally_operations_total{outcome="committed"}',
        "tally_engine_waiting",
        "tally_engine_batches_total",
        "tally_engine_answered_total",
        'tally_http_request_seconds_bucket{le="0.01",route="/v1/operations"}',
    ):
        assert line in text
    assert accounts[0] not in text


async def test_figures_are_not_written_for_everybody_who_asks(embedded18: servers.Server) -> None:
    """To write them takes 10 ms, and nobody needs a key: 50 connections of this stopped everything else for seconds."""
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        metrics = metrics_of(service)
        written, original = 0, metrics.exposition

        def exposition() -> bytes:
            nonlocal written
            written += 1
            return original()

        metrics.exposition = exposition  # type: ignore[method-assign]
        vitals, call = vitals_of(service, metrics), Call({"query_string": b"", "headers": []}, _nothing, NOBODY)
        began = time.monotonic()
        replies = [await vitals.metrics(call) for _ in range(20 * LIMITS.metrics_burst)]
        most = LIMITS.metrics_burst + LIMITS.metrics_per_second * (time.monotonic() - began)
        assert LIMITS.metrics_burst <= written <= most
        assert {reply.status for reply in replies if isinstance(reply, Reply)} == {200}
        # And anew as soon as a scraper may: what happened meanwhile is in it.
        metrics.request("/a-path-of-its-own", 200, 0.1)
        async with asyncio.timeout(30):
            while b"/a-path-of-its-own" not in (await _scraped(vitals, call)):
                await asyncio.sleep(0.01)


async def _scraped(vitals: Vitals, call: Call) -> bytes:
    reply = await vitals.metrics(call)
    assert isinstance(reply, Reply)
    return reply.body


async def _nothing() -> dict[str, object]:
    return {"type": "http.disconnect"}


def test_a_held_account_is_told_as_in_flight_and_a_full_queue_as_busy(impatient: sites.Site, dsn: str) -> None:
    """Somebody else's transaction holds an account: callers wait a bounded time, and no more than fit."""
    with impatient.client() as client:
        for name in ("held", "free"):
            client.put(f"/v1/accounts/{name}", json={"currency": "USD", "floor_micros": None})
        release, holding = threading.Event(), threading.Event()
        holder = threading.Thread(target=lambda: asyncio.run(_hold(dsn, holding, release)))
        holder.start()
        try:
            assert holding.wait(sites.PATIENCE_SECONDS)
            answers = _at_once(impatient, 6)
            changed = client.put("/v1/accounts/held", json={"currency": "USD", "floor_micros": -1})
        finally:
            release.set()
            holder.join()
        told = {(answer.status_code, answer.json()["code"]) for answer in (*answers, changed)}
        assert told == {(409, "in_flight"), (503, "busy")}
        assert (changed.status_code, changed.json()["code"]) == (409, "in_flight")
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in (*answers, changed))
        again = _at_once(impatient, 1)[0]
        assert again.status_code == 201


def test_a_database_that_is_away_is_told_and_comes_back(impatient: sites.Site, server: servers.Server) -> None:
    with impatient.client() as client:
        assert client.get("/readyz").status_code == 200
        client.get("/v1/accounts")
        for name in ("held", "free"):
            client.put(f"/v1/accounts/{name}", json={"currency": "USD", "floor_micros": None})
        server.stop(immediate=True)
        try:
            assert client.get("/livez").status_code == 200
            unready = client.get("/readyz?verbose")
            assert (unready.status_code, unready.json()["failed"]) == (503, ["database"])
            operation = _at_once(impatient, 1)[0]
            read = client.get("/v1/accounts")
            settlements = _settlements(client)
            metrics = client.get("/metrics")
        finally:
            server.start()
        assert (metrics.status_code, "tally_settlement_figures_current 0.0" in metrics.text) == (200, True)
        for answer in (operation, read, *settlements):
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")
            assert "retry-after" in answer.headers
        assert client.get("/readyz").status_code == 200
        assert _at_once(impatient, 1)[0].status_code == 201


def _settlements(client: httpx2.Client) -> list[httpx2.Response]:
    """Every sort of call about settlements: created, read, decided, and the fee."""
    wish = {"attribution_id": "a", "squad_id": "s", "gross_micros": 10_000, "currency": "EUR", "destination": "acct_1"}
    headers = {"idempotency-key": "away"}
    why = {"reason": "r", "evidence": "e"}
    return [
        client.post("/v1/settlements", json=wish, headers=headers),
        client.get("/v1/settlements"),
        client.get(f"/v1/settlements/st_{'0' * 32}"),
        client.post(f"/v1/settlements/st_{'0' * 32}/dispute", json=why, headers=headers),
        client.get("/v1/approvals"),
        client.put("/v1/settlement-policies/EUR", json={}),
    ]


def _at_once(site: sites.Site, count: int) -> list[httpx2.Response]:
    async def send() -> list[httpx2.Response]:
        headers = {"authorization": f"Bearer {site.keys['default', 'admin']}"}
        base = f"http://127.0.0.1:{site.port}"
        body = {"kind": "transfer", "debit": "held", "credit": "free", "amount_micros": 1, "currency": "USD"}
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=sites.PATIENCE_SECONDS) as client:
            return await asyncio.gather(
                *(
                    client.post("/v1/operations", json=body, headers={"idempotency-key": f"held-{n}"})
                    for n in range(count)
                )
            )

    return asyncio.run(send())


async def _hold(dsn: str, holding: threading.Event, release: threading.Event) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM tally.account WHERE id = 'held' FOR UPDATE")
            holding.set()
            await asyncio.to_thread(release.wait, sites.PATIENCE_SECONDS)
    finally:
        await connection.close()
