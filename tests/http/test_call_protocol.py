"""The short way of calls through the protocol, and the ordinary one: the same answers, whatever the framing."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tallystick import app
from tallystick.access import store as tenant
from tallystick.http.api import build
from tallystick.http.directory import Directory
from tallystick.http.http1 import head
from tallystick.http.http1.call_protocol import CallProtocol, _Calling
from tallystick.http.resource import Resource
from tallystick.http.server import serve
from tallystick.settings import LIMITS, Settings
from tests import servers
from tests.http.test_webhook_protocol import answer

KEY = "tally_short-way"
ORDER = "or_" + 32 * "0"


class Calls:
    def __init__(self, port: int, directory: Directory, service: app.Service) -> None:
        self.port = port
        self.directory = directory
        self.service = service

    @property
    def protocols(self) -> list[Any]:
        """Of the connections that are open."""
        found = [each for each in gc.get_objects() if isinstance(each, CallProtocol) and each in each.connections]
        return [each for each in found if not each.transport.is_closing()]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(30):
                yield reader, writer
        finally:
            writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calls(embedded18: servers.Server) -> AsyncIterator[Calls]:
    dsn = embedded18.fresh_database()
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with app.running(Settings(database_url=dsn)) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        await tenant.add_key(service.database, owner, "admin", KEY)
        await service.orders.set_stock(owner, "lamp", 1_000)
        front: Any = build(service)
        serving = asyncio.create_task(
            serve(front, "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
        )
        yield Calls(await listening, front.api, service)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


pytestmark = pytest.mark.asyncio(loop_scope="module")


def request(target: str, method: str = "GET", body: bytes | None = None, *more: str, key: str = KEY) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}", *more]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def reserve(key: str, quantity: int = 1) -> bytes:
    wish = {"sku": "lamp", "quantity": quantity, "amount_micros": 25_000_000, "currency": "EUR"}
    return request("/v1/orders", "POST", json.dumps(wish).encode(), f"Idempotency-Key: {key}")


async def asked(calls: Calls, *parts: bytes) -> tuple[int, dict[str, str], bytes, bool]:
    """The answer, and whether it came by the short way."""
    async with calls.connected() as (reader, writer):
        for part in parts[:-1]:
            writer.write(part)
            # A packet of its own: the server has begun to parse it before the next one leaves.
            while all(each._is_between for each in calls.protocols):
                await asyncio.sleep(0.001)
        writer.write(parts[-1])
        status, headers, body = await answer(reader)
        (protocol,) = calls.protocols
        return status, headers, body, type(protocol.cycle) is _Calling


async def begin_to_wait(
    calls: Calls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, seconds: int
) -> None:
    """Reserve an order, and ask how it stands, for so long that something can happen meanwhile."""
    writer.write(reserve(key))
    order = json.loads((await answer(reader))[2])
    writer.write(request(f"/v1/orders/{order['id']}/status?wait={seconds}"))
    await writer.drain()
    async with asyncio.timeout(30):
        while not calls.service.statuses.waiting:
            await asyncio.sleep(0.001)


SAME = {
    "an order": reserve("same-1"),
    "its repeat": reserve("same-1"),
    "under another key": reserve("same-2", 2),
    "the key used for something else": reserve("same-1", 7),
    "no such order": request(f"/v1/orders/{ORDER}"),
    "how it stands": request(f"/v1/orders/{ORDER}/status?wait=0"),
    "a parameter nobody knows": request(f"/v1/orders/{ORDER}/status?wiat=1"),
    "a query that repeats itself": request(f"/v1/orders/{ORDER}/status?wait=0&wait=0"),
    "an empty query": request(f"/v1/orders/{ORDER}/status?"),
    "another method": request("/v1/orders", "DELETE"),
    "nobody's key": request(f"/v1/orders/{ORDER}", key="tally_nobody"),
    "two keys": request(f"/v1/orders/{ORDER}", "GET", None, "Authorization: Bearer x"),
    "no JSON": request("/v1/orders", "POST", b"{", "Idempotency-Key: same-3"),
    "no body": request("/v1/orders", "POST", None, "Content-Type: application/json", "Idempotency-Key: same-4"),
    "an empty body": request("/v1/orders", "POST", b"", "Idempotency-Key: same-5"),
    "a body where none belongs": request(f"/v1/orders/{ORDER}", "GET", b"{}"),
    "no content type": request("/v1/orders", "POST", None, "Content-Length: 0", "Idempotency-Key: same-6"),
    "a key with a space in it": request("/v1/orders", "POST", b"{}", "Idempotency-Key: a b"),
    "a connection to be kept": request(f"/v1/orders/{ORDER}", "GET", None, "Connection: Keep-Alive"),
    "the metrics": request("/metrics"),
    "the documentation": request("/docs"),
}


@pytest.mark.parametrize("name", SAME)
async def test_both_ways_give_the_same_answer(calls: Calls, name: str) -> None:
    """In one piece, and with a head that comes in two: the second is the parser's."""
    given = SAME[name]
    first = await asked(calls, given)
    second = await asked(calls, given[:20], given[20:])
    assert (first[3], second[3]) == (True, False)
    assert first[0] == second[0]
    for found in (first, second):
        del found[1]["date"]
    if name in {"an order", "under another key"}:
        assert second[1].pop("idempotent-replayed") == "true"
    if name == "the metrics":
        assert first[1].pop("content-length")
        assert second[1].pop("content-length")
    else:
        assert first[2] == second[2]
    assert first[1] == second[1]


ORDINARY = {
    "a path nobody has": (request("/v1/nothing"), 404),
    "a path in percent": (request("/v1/orders/or%5F0"), 404),
    "an empty part": (request("/v1/orders//status"), 404),
    "an absolute target": (request(f"http://127.0.0.1/v1/orders/{ORDER}"), 404),
    "a slash at the end": (request("/v1/orders/"), 404),
    "no body wanted": (request(f"/v1/orders/{ORDER}", "HEAD"), 404),
    "a connection to be closed": (request(f"/v1/orders/{ORDER}", "GET", None, "Connection: close"), 404),
    "a connection for something else": (
        request(f"/v1/orders/{ORDER}", "GET", None, "Connection: keep-alive, upgrade", "Upgrade: h2c"),
        404,
    ),
    "in chunks": (
        request("/v1/orders", "POST", None, "Content-Type: application/json", "Transfer-Encoding: chunked")
        + b"2\r\n{}\r\n0\r\n\r\n",
        400,
    ),
    "a header that is folded": (request(f"/v1/orders/{ORDER}", "GET", None, "X-Odd: a", " b"), 400),
    "a header without a name": (request(f"/v1/orders/{ORDER}", "GET", None, ": a"), 400),
    "two lengths": (request("/v1/orders", "POST", b"{}", "Content-Length: 2"), 400),
    "HTTP/1.0": (request(f"/v1/orders/{ORDER}").replace(b"HTTP/1.1", b"HTTP/1.0"), 404),
    "a tab in a header": (request(f"/v1/orders/{ORDER}", "GET", None, "X-Odd: a\tb"), 404),
}


@pytest.mark.parametrize("name", ORDINARY)
async def test_what_is_odd_is_the_parsers(calls: Calls, name: str) -> None:
    given, status = ORDINARY[name]
    async with calls.connected() as (reader, writer):
        writer.write(given)
        line = await reader.readline()
        assert int(line.split()[1]) == status
    assert not any(type(each.cycle) is _Calling for each in calls.protocols)


async def test_calls_sent_ahead_are_answered_in_order(calls: Calls) -> None:
    """Also those that come while one is under way by the short way."""
    async with calls.connected() as (reader, writer):
        await begin_to_wait(calls, reader, writer, "ahead-1", 1)
        (protocol,) = calls.protocols
        # In a piece of its own, as if nothing were under way; then another.
        writer.write(request(f"/v1/orders/{ORDER}"))
        async with asyncio.timeout(30):
            while not protocol.pipeline:
                await asyncio.sleep(0.001)
        writer.write(reserve("ahead-1"))
        assert [(await answer(reader))[0] for _ in range(3)] == [200, 404, 201]
        # And after that the short way again.
        writer.write(request(f"/v1/orders/{ORDER}"))
        assert (await answer(reader))[0] == 404
        assert type(protocol.cycle) is _Calling


async def test_a_body_that_comes_later_is_read(calls: Calls) -> None:
    given = reserve("later-1")
    status, _, body, is_short = await asked(calls, given[:-5], given[-5:])
    assert (status, is_short) == (201, False)
    assert json.loads(body)["status"] == "PENDING"


async def test_who_hangs_up_while_he_waits_is_forgotten(calls: Calls) -> None:
    async with calls.connected() as (reader, writer):
        await begin_to_wait(calls, reader, writer, "gone-1", 20)
        (protocol,) = calls.protocols
        assert type(protocol.cycle) is _Calling
    async with asyncio.timeout(15):
        while calls.service.statuses.waiting:
            await asyncio.sleep(0.001)


async def test_a_server_that_stops_answers_what_it_took_and_closes(calls: Calls) -> None:
    async with calls.connected() as (reader, writer):
        await begin_to_wait(calls, reader, writer, "stop-1", 1)
        for protocol in calls.protocols:
            assert protocol.tasks, "the server waits for it"
            protocol.shutdown()
        status, headers, _ = await answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(calls: Calls) -> None:
    async with calls.connected() as (reader, writer):
        await begin_to_wait(calls, reader, writer, "idle-1", 1)
        (protocol,) = calls.protocols
        assert protocol.timeout_keep_alive_task is not None
        # Its time is up, and somebody waits for his answer.
        protocol._answered_at -= protocol.timeout_keep_alive
        protocol.timeout_keep_alive_handler()
        assert (await answer(reader))[0] == 200
        # Its time is up, and nothing came.
        protocol._answered_at -= protocol.timeout_keep_alive
        protocol.timeout_keep_alive_handler()
        assert await reader.read() == b""


async def test_who_does_not_read_his_replies_gets_no_more_by_the_short_way(calls: Calls) -> None:
    async with calls.connected() as (reader, writer):
        writer.write(request(f"/v1/orders/{ORDER}"))
        assert (await answer(reader))[0] == 404
        (protocol,) = calls.protocols
        protocol.pause_writing()
        writer.write(request(f"/v1/orders/{ORDER}"))
        async with asyncio.timeout(30):
            while type(protocol.cycle) is _Calling:
                await asyncio.sleep(0.001)
        protocol.resume_writing()
        assert (await answer(reader))[0] == 404


async def test_a_fault_inside_breaks_one_connection_and_no_other(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_given: Any) -> None:
        raise RuntimeError("no")

    async with calls.connected() as (reader, writer), calls.connected() as (other_reader, other_writer):
        with monkeypatch.context() as patched:
            patched.setattr(Resource, "serve", broken)
            writer.write(request(f"/v1/orders/{ORDER}"))
            assert await reader.read() == b""
        other_writer.write(request(f"/v1/orders/{ORDER}"))
        assert (await answer(other_reader))[0] == 404
    # asyncio writes there what nobody catches.
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_lines_that_are_remembered_are_bounded(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.http.http1.call_protocol._MOST_LINES", 3)
    CallProtocol._lines.clear()
    async with calls.connected() as (reader, writer):
        for number in range(10):
            writer.write(request(f"/v1/orders/{ORDER}", "GET", None, f"X-Number: {number}", "Idempotency-Key: a"))
            assert (await answer(reader))[0] == 404
            assert len(CallProtocol._lines) <= 3
    assert b"Idempotency-Key: a" not in CallProtocol._lines


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"a",
        b"a:",
        b"a: ",
        b"a : b",
        b" a: b",
        b"a: b ",
        b"a:  b",
        b"a: b\xff",
        b"a\xff: b",
        b"a: b\x00",
        b"a: \tb",
    ],
)
async def test_a_line_that_is_odd_is_not_read(line: bytes) -> None:
    assert head.read_field(line) is None


async def test_a_line_that_is_plain_is_read() -> None:
    assert head.read_field(b"X-Name:value") == (b"x-name", b"value")
    assert head.read_field(b"X-Name: two words") == (b"x-name", b"two words")
    assert LIMITS.body_bytes < 10**9, "a length of nine digits is more than any body has"
