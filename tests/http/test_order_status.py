"""Waiting for an order over HTTP."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tallystick import app
from tallystick.access import store as tenant
from tallystick.access.store import Access
from tallystick.checkout.status import views as order_status
from tallystick.http import api, examples, server
from tallystick.http.call import WHEN_GONE, Call
from tallystick.http.http1.call_protocol import _Calling
from tallystick.ledger.claims import Tenant
from tallystick.settings import LIMITS, Limits, Settings
from tests import servers
from tests.http.site import Site
from tests.http.test_order import post, wish

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "order_status.yml"
NEVER = 3_600.0
# Nobody is woken by the poll.
BY_NEWS = replace(LIMITS, status_poll_seconds=NEVER)


@pytest.fixture
def made(client: httpx2.Client, key: str) -> dict[str, Any]:
    """An order that holds."""
    sku = f"sku-{key}"
    assert client.put(f"/v1/skus/{sku}", json={"stock": 10}).status_code == 200
    order: dict[str, Any] = post(client, wish(sku), key).json()
    return order


def status(client: httpx2.Client, order: dict[str, Any], **query: Any) -> httpx2.Response:
    return client.get(f"/v1/orders/{order['id']}/status", params=query)


def test_the_answer_is_what_the_order_says(client: httpx2.Client, made: dict[str, Any]) -> None:
    found = status(client, made)
    assert found.status_code == 200
    told = found.json()
    assert told == {
        "id": made["id"],
        "status": "PENDING",
        "payment": None,
        "refund": None,
        "changed_at": made["changed_at"],
        "version": told["version"],
    }
    cancelled = client.post(f"/v1/orders/{made['id']}/cancel").json()
    # What this very process did is told by it at once, kept or not.
    after = status(client, made).json()
    assert (after["status"], after["changed_at"]) == ("CANCELLED", cancelled["changed_at"])
    assert after["version"] != told["version"]
    assert status(client, made, wait=20).json() == status(client, made, after=told["version"], wait=20).json() == after


@pytest.mark.parametrize(
    "query",
    [
        "wait=soon",
        "wait=-1",
        "wait=1.5",
        "wait=31",
        "wait=999999999999999999999",
        "wait=1e1",
        "wait=",
        "wait=%D9%A3",
        "wait=1&wait=2",
        "after=latest",
        "after=&wait=1",
        "wiat=1",
    ],
)
def test_a_query_that_cannot_be_used_is_refused_by_its_name(
    client: httpx2.Client, made: dict[str, Any], query: str
) -> None:
    began = time.monotonic()
    answer = client.get(f"/v1/orders/{made['id']}/status?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "query_invalid")
    assert time.monotonic() - began < 5
    if not query.startswith(("wiat", "wait=1&")):
        assert answer.json()["fields"] == [query.partition("=")[0]]


@pytest.mark.parametrize("query", ["", "?wait=20", "?wait=20&after=0123456789abcdef"])
@pytest.mark.parametrize("name", ["or_" + "0" * 32, "or_x", "nothing", "or_" + "A" * 32])
def test_an_order_that_is_not_there_is_404_at_once(client: httpx2.Client, name: str, query: str) -> None:
    answer = client.get(f"/v1/orders/{name}/status{query}")
    assert (answer.status_code, answer.json()["code"]) == (404, "order_unknown")


@pytest.mark.parametrize("query", ["", "?wait=20"])
def test_another_tenants_order_is_404(site: Site, client: httpx2.Client, made: dict[str, Any], query: str) -> None:
    # Kept in memory, if it ever is.
    for _ in range(3):
        assert status(client, made).status_code == 200
    with site.client("other") as stranger:
        answer = stranger.get(f"/v1/orders/{made['id']}/status{query}")
    assert (answer.status_code, answer.json()["code"]) == (404, "order_unknown")


def test_whoever_may_read_may_wait_and_nobody_else(site: Site, made: dict[str, Any]) -> None:
    with site.client(role="viewer") as viewer:
        assert status(viewer, made).status_code == 200
    nobody = httpx2.get(f"http://127.0.0.1:{site.port}/v1/orders/{made['id']}/status?wait=20")
    assert nobody.status_code == 401


def test_a_wait_that_ends_without_news_tells_the_same_version(client: httpx2.Client, made: dict[str, Any]) -> None:
    began = time.monotonic()
    first = status(client, made, wait=1).json()
    assert time.monotonic() - began >= 1
    assert status(client, made).json() == first


def test_the_example_and_the_answers_are_what_the_document_says(client: httpx2.Client, made: dict[str, Any]) -> None:
    document = client.get("/openapi.json").json()
    answer = document["paths"]["/v1/orders/{id}/status"]["get"]["responses"]["200"]
    schema = {**answer["content"]["application/json"]["schema"], "components": document["components"]}
    for told in (examples.ORDER_STATUS, status(client, made).json()):
        jsonschema_rs.validate(schema, told)


# --- many connections, and their ends: a server in this test's own loop


@dataclass(frozen=True)
class Served:
    service: app.Service
    port: int
    key: str
    serving: "asyncio.Task[None]"

    async def order(self) -> str:
        owner = await self.service.tenant("default")
        assert owner is not None
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}") as client:
            headers = {"authorization": f"Bearer {self.key}", "idempotency-key": "k"}
            await client.put("/v1/skus/lamp", json={"stock": 10}, headers=headers)
            made = await client.post("/v1/orders", json=wish("lamp"), headers=headers)
        return str(made.json()["id"])

    async def asks(self, name: str, query: str = "?wait=30") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.ask(writer, name, query)
        return reader, writer

    def ask(self, writer: asyncio.StreamWriter, name: str, query: str = "") -> None:
        head = f"GET /v1/orders/{name}/status{query} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}"
        writer.write("\r\n".join((*head, "", "")).encode())

    async def figures(self) -> dict[str, float]:
        async with httpx2.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        return {
            sample.name + "".join(f".{value}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("tally_order_status")
        }

    async def waiting(self, count: int, within_seconds: float = 30.0) -> None:
        async with asyncio.timeout(within_seconds):
            while self.service.statuses.waiting != count:
                await asyncio.sleep(0.005)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], dict[str, Any]]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, json.loads(body)


@asynccontextmanager
async def served(dsn: str, limits: Limits = BY_NEWS) -> AsyncIterator[Served]:
    async with app.running(Settings(database_url=dsn), limits=limits) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        key = tenant.new_key()
        await tenant.add_key(service.database, owner, "admin", key)
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            server.serve(
                api.build(service),
                "127.0.0.1",
                0,
                on_listening=lambda _host, number: port.set_result(number),
                on_stopping=service.statuses.stop_waiting,
            )
        )
        yield Served(service, await port, key, serving)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def test_a_thousand_connections_wait_for_one_order_and_are_answered_together(dsn: str) -> None:
    async with served(dsn) as here, app.running(Settings(database_url=dsn)) as there:
        name = await here.order()
        asked = [await here.asks(name) for _ in range(1_000)]
        await here.waiting(1_000)
        owner = await there.tenant("default")
        assert owner is not None
        began = time.monotonic()
        await there.orders.cancel(owner, name)
        answers = await asyncio.gather(*(answer(reader) for reader, _ in asked))
        took = time.monotonic() - began
        print(f"1,000 answered within {took:.3f} s of the cancellation")
        # Woken, and not told at the end of their time.
        assert took < 15
        assert {(code, told["status"]) for code, _, told in answers} == {(200, "CANCELLED")}
        for _, writer in asked:
            writer.close()
        await here.waiting(0)


async def test_who_hangs_up_is_forgotten_at_once(dsn: str) -> None:
    async with served(dsn) as here:
        name = await here.order()
        asked = [await here.asks(name) for _ in range(10)]
        await here.waiting(10)
        assert (await here.figures())["tally_order_status_waiting"] == 10
        for _, writer in asked:
            writer.transport.abort()
        # Far less than they wanted to wait.
        await here.waiting(0, within_seconds=10)
        assert here.service.statuses._watches == {}


async def test_too_many_who_wait_are_told_when_to_come_back(dsn: str) -> None:
    async with served(dsn, replace(BY_NEWS, status_waiters=3)) as here:
        name = await here.order()
        asked = [await here.asks(name) for _ in range(3)]
        await here.waiting(3)
        reader, writer = await here.asks(name)
        code, headers, told = await answer(reader)
        assert (code, told["code"], headers["retry-after"]) == (503, "busy", "1")
        # Whoever does not wait is answered.
        reader, other = await here.asks(name, "")
        assert (await answer(reader))[0] == 200
        for _, one in (*asked, (reader, writer), (reader, other)):
            one.close()


async def test_a_server_that_stops_answers_who_waits_promptly(dsn: str) -> None:
    async with served(dsn) as here:
        name = await here.order()
        asked = [await here.asks(name) for _ in range(20)]
        await here.waiting(20)
        began = time.monotonic()
        here.serving.cancel()
        answers = await asyncio.gather(*(answer(reader) for reader, _ in asked))
        await asyncio.gather(here.serving, return_exceptions=True)
        assert time.monotonic() - began < 5
        assert {(code, told["status"]) for code, _, told in answers} == {(200, "PENDING")}


async def test_the_figures_tell_from_where_the_answers_came(dsn: str) -> None:
    async with served(dsn, replace(BY_NEWS, status_age_seconds=NEVER)) as here:
        name = await here.order()
        before = await here.figures()
        assert before == {
            "tally_order_status_waiting": 0,
            "tally_order_status_listening": 0,
            "tally_order_status_answers_total.memory": 0,
            "tally_order_status_answers_total.database": 0,
            "tally_order_status_answers_total.distrusted": 0,
            "tally_order_status_found_by_poll_total": 0,
        }
        reader, writer = await here.asks(name, "")
        await answer(reader)
        async with asyncio.timeout(30):
            while not here.service.statuses.is_listening:
                await asyncio.sleep(0.005)
        for _ in range(3):
            here.ask(writer, name)
            await answer(reader)
        writer.close()
        assert await here.figures() == {
            **before,
            "tally_order_status_listening": 1,
            "tally_order_status_answers_total.distrusted": 1,
            "tally_order_status_answers_total.database": 1,
            "tally_order_status_answers_total.memory": 2,
        }


async def test_every_alert_looks_at_figures_that_are_shown(dsn: str) -> None:
    """A rule on a misspelled figure is quiet for ever."""
    async with served(dsn) as here:
        shown = {name.partition(".")[0] for name in await here.figures()}
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == ["OrderNotificationsNotHeard", "TooManyWaitForOrders"]
    for rule in rules:
        looked_at = set(re.findall(r"\btally_\w+", rule["expr"]))
        assert looked_at
        assert looked_at <= shown, rule["alert"]
        assert rule["annotations"].keys() == {"summary", "money", "remedy"}


class Caller:
    """Who asks, and may hang up. By the short way that is told; by the ordinary one it has to be received."""

    def __init__(self, *, is_short: bool) -> None:
        self._is_gone = asyncio.Event()
        self._messages = [{"type": "http.request", "body": b"", "more_body": False}]
        self._calling = _Calling(b"")
        scope: dict[str, Any] = {WHEN_GONE: self._calling.when_gone} if is_short else {}
        self.call = Call(scope, self.receive, Access(Tenant(0, ""), "nobody", ""))

    def hang_up(self) -> None:
        self._is_gone.set()
        self._calling.set()

    async def receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop()
        await self._is_gone.wait()
        return {"type": "http.disconnect"}


async def waited_for(answer: "asyncio.Future[Any]") -> Any:
    return await answer


async def left_over() -> set[str]:
    """What still runs besides the test, once all has had its turn."""
    for _ in range(3):
        await asyncio.sleep(0)
    return {str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()}


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("is_answered_first", [True, False])
async def test_an_answer_and_a_hanging_up_of_the_same_moment_do_not_trouble_each_other(
    caplog: pytest.LogCaptureFixture, *, is_answered_first: bool, is_short: bool
) -> None:
    caller, answer = Caller(is_short=is_short), asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(order_status._unless_gone(waited_for(answer), caller.call))
    await asyncio.sleep(0.01)
    steps = [lambda: answer.set_result("told"), caller.hang_up]
    for step in steps if is_answered_first else reversed(steps):
        step()
    assert str(await asking) in {"told", "None"}
    assert await left_over() == set()
    # asyncio writes there what nobody catches.
    assert not caplog.records


@pytest.mark.parametrize("is_short", [True, False])
async def test_who_hangs_up_takes_the_question_with_him(*, is_short: bool) -> None:
    caller, answer = Caller(is_short=is_short), asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(order_status._unless_gone(waited_for(answer), caller.call))
    await asyncio.sleep(0.01)
    caller.hang_up()
    assert await asking is None
    assert answer.cancelled()
    assert await left_over() == set()


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_question_that_takes_too_long_is_not_taken_for_a_caller_who_left(*, is_short: bool) -> None:
    caller, answer = Caller(is_short=is_short), asyncio.get_running_loop().create_future()
    answer.set_exception(TimeoutError("the database"))
    with pytest.raises(TimeoutError, match="the database"):
        await order_status._unless_gone(waited_for(answer), caller.call)
    assert await left_over() == set()


@pytest.mark.parametrize("is_short", [True, False])
async def test_a_request_that_is_cancelled_is_cancelled(*, is_short: bool) -> None:
    caller, answer = Caller(is_short=is_short), asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(order_status._unless_gone(waited_for(answer), caller.call))
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert answer.cancelled()
    assert await left_over() == set()
