"""A tenant that asks too often is told so, by both ways in, before anything is done for it; nobody else is."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import structlog

from tallystick import app
from tallystick.access import store as tenant
from tallystick.access.store import new_key
from tallystick.database.pool import Database
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.settings import Settings
from tests import servers
from tests.ledgers import fetchval

PATIENCE_SECONDS = 30
RATE = 5


@dataclass
class Clock:
    """Stands still until it is told."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    dsn: str
    port: int
    keys: dict[str, str]
    clock: Clock
    client: httpx2.AsyncClient
    answers: list[Any] = field(default_factory=list)

    async def ask(self, method: str, path: str, *, of: str = "default", **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.keys[of]}", **more.pop("headers", {})}
        return await self.client.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers, **more)

    async def piecewise(self, path: str) -> bytes:
        """The same call in two pieces: what does not come at once takes the ordinary way."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(f"authorization: Bearer {self.keys['default']}\r\nconnection: close\r\n\r\n".encode())
        said = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        writer.close()
        return said


@contextlib.asynccontextmanager
async def serving(dsn: str, per_second: float | None) -> AsyncIterator[Place]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock = Clock()
    settings = Settings(database_url=dsn, tenant_requests_per_second=per_second)
    async with app.running(settings) as service, httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        keys = {name: new_key() for name in ("default", "other")}
        for name, key in keys.items():
            await tenant.add_key(service.database, await tenant.ensure_tenant(service.database, name), "admin", key)
        running = asyncio.create_task(
            serve(
                build(service, clock=clock), "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port)
            )
        )
        yield Place(dsn, await listening, keys, clock, client)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest_asyncio.fixture
async def place(embedded18: servers.Server) -> AsyncIterator[Place]:
    async with serving(embedded18.fresh_database(), RATE) as found:
        yield found


def transfers(count: int, first: int = 0) -> dict[str, Any]:
    move = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 1, "currency": "EUR"}
    return {"operations": [{**move, "idempotency_key": f"move-{first + number}"} for number in range(count)]}


async def test_a_second_s_worth_and_then_as_fast_as_it_grows(place: Place) -> None:
    statuses = [(await place.ask("GET", "/v1/accounts")).status_code for _ in range(RATE + 2)]
    assert statuses == [200] * RATE + [429] * 2
    place.clock.now += 1 / RATE
    assert [(await place.ask("GET", "/v1/accounts")).status_code for _ in range(2)] == [200, 429]
    # The others have their own.
    assert (await place.ask("GET", "/v1/accounts", of="other")).status_code == 200


async def test_the_refusal_says_that_nothing_was_done_and_when_to_come_again(place: Place) -> None:
    for _ in range(RATE):
        await place.ask("GET", "/v1/accounts")
    move = transfers(1)["operations"][0]
    del move["idempotency_key"]
    refused = await place.ask("POST", "/v1/operations", json=move, headers={"idempotency-key": "once"})
    assert (refused.status_code, refused.headers["content-type"]) == (429, "application/problem+json")
    problem = refused.json()
    assert (problem["code"], problem["money"]) == ("rate_exceeded", "No money moved.")
    assert "no key was used" in problem["detail"]
    assert int(refused.headers["retry-after"]) == 1
    assert await fetchval(place.dsn, "SELECT count(*) FROM tally.operation") == 0
    place.clock.now += int(refused.headers["retry-after"])
    for name in ("a", "b"):
        assert (
            await place.ask("PUT", f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": None})
        ).is_success
    done = await place.ask("POST", "/v1/operations", json=move, headers={"idempotency-key": "once"})
    assert done.status_code == 201
    assert "idempotent-replayed" not in done.headers


async def test_what_is_refused_never_reaches_the_database(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(RATE):
        await place.ask("GET", "/v1/accounts")
    asked: list[str] = []

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def asking(*given: Any, **named: Any) -> Any:
            asked.append(name)
            return original(*given, **named)

        return asking

    # Whose key it is may be asked again, once a second (`owning`).
    for name in ("reading", "writing", "stepping"):
        monkeypatch.setattr(Database, name, watched(name, getattr(Database, name)))
    for method, path in (("GET", "/v1/accounts"), ("GET", "/v1/accounts/a"), ("POST", "/v1/orders/or_1/cancel")):
        assert (await place.ask(method, path)).status_code == 429
    assert (await place.ask("POST", "/v1/operations/batch", json=transfers(3))).status_code == 429
    assert asked == []
    place.clock.now += 1
    assert (await place.ask("GET", "/v1/accounts")).status_code == 200
    assert asked, "the watch itself would have seen it"


async def test_both_ways_in_count_and_refuse_alike(place: Place) -> None:
    """One after the other: whoever is refused by one of them must not be served by the other."""
    served = []
    for number in range(RATE + 4):
        if number % 2:
            served.append((await place.ask("GET", "/v1/accounts")).status_code)
        else:
            served.append(int((await place.piecewise("/v1/accounts")).split(b" ")[1]))
    assert served == [200] * RATE + [429] * 4
    said = await place.piecewise("/v1/accounts")
    assert b"retry-after: 1\r\n" in said
    assert json.loads(said.split(b"\r\n\r\n")[1]) == (await place.ask("GET", "/v1/accounts")).json()


@pytest.mark.parametrize("path", ["/v1/operations/batch", "/v1/settlements/batch"])
async def test_a_batch_counts_as_what_is_in_it(place: Place, path: str) -> None:
    """A thousand in one call would otherwise be a thousand times the rate."""
    asked = {path.split("/")[2]: transfers(10 * RATE)["operations"]}
    assert (await place.ask("POST", path, json=asked)).status_code == 200
    later = await place.ask("GET", "/v1/accounts")
    assert (later.status_code, later.headers.get("retry-after")) == (429, "10")
    place.clock.now += 9
    assert (await place.ask("GET", "/v1/accounts")).status_code == 429
    place.clock.now += 1
    assert (await place.ask("GET", "/v1/accounts")).status_code == 200


async def test_a_batch_that_must_wait_runs_nothing_and_then_runs_whole(place: Place) -> None:
    for name in ("a", "b"):
        assert (
            await place.ask("PUT", f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": None})
        ).is_success
    refused = await place.ask("POST", "/v1/operations/batch", json=transfers(20))
    assert (refused.status_code, refused.json().get("code")) == (429, "rate_exceeded")
    assert await fetchval(place.dsn, "SELECT count(*) FROM tally.operation") == 0
    place.clock.now += int(refused.headers["retry-after"])
    done = await place.ask("POST", "/v1/operations/batch", json=transfers(20))
    assert {outcome["status"] for outcome in done.json()["outcomes"]} == {"committed"}


async def test_health_and_webhooks_are_nobody_s_calls(place: Place) -> None:
    for _ in range(RATE + 1):
        await place.ask("GET", "/v1/accounts")
    for _ in range(2 * RATE):
        assert (await place.ask("GET", "/livez")).status_code == 200
        assert (await place.ask("GET", "/readyz")).status_code == 200
        assert (await place.ask("POST", "/webhooks/simulator", content=b"{}")).status_code == 400
    assert (await place.ask("GET", "/v1/accounts")).status_code == 429


async def test_the_public_figure_counts_and_names_nobody_the_log_names_the_tenant_now_and_then(place: Place) -> None:
    with structlog.testing.capture_logs() as logged:
        for _ in range(RATE + 7):
            await place.ask("GET", "/v1/accounts", of="other")
    shown = (await place.ask("GET", "/metrics")).text
    assert "tally_rate_exceeded_total 7.0" in shown
    assert "other" not in [line for line in shown.splitlines() if "rate_exceeded" in line][-1]
    assert [entry["tenant"] for entry in logged if entry["event"] == "rate_exceeded"] == ["other"]


async def test_a_call_of_a_role_that_may_not_counts_too(place: Place) -> None:
    """Otherwise a key that may only read could ask for writes without end."""
    async with app.running(Settings(database_url=place.dsn)) as service:
        place.keys["viewer"] = new_key()
        await tenant.add_key(
            service.database, await tenant.ensure_tenant(service.database, "default"), "viewer", place.keys["viewer"]
        )
    put = {"currency": "EUR", "floor_micros": None}
    statuses = [(await place.ask("PUT", "/v1/accounts/a", of="viewer", json=put)).status_code for _ in range(RATE + 1)]
    assert statuses == [403] * RATE + [429]


async def test_without_the_setting_nobody_is_refused(embedded18: servers.Server) -> None:
    async with serving(embedded18.fresh_database(), None) as place:
        statuses = {(await place.ask("GET", "/v1/accounts")).status_code for _ in range(20 * RATE)}
        assert statuses == {200}
