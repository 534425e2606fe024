"""The short way of webhooks through the protocol, and the ordinary one: the same answers, whatever the framing."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tallystick import app
from tallystick.http.api import build
from tallystick.http.http1.webhook_protocol import WebhookProtocol
from tallystick.http.server import serve
from tallystick.settings import Settings
from tallystick.webhooks.receiver import Front, WebhookReceiver
from tests import servers
from tests.deliveries import TRUSTED, body, request, signature, stored


class Hooks:
    def __init__(self, dsn: str, port: int, receiver: WebhookReceiver, log: Any) -> None:
        self.dsn = dsn
        self.port = port
        self.receiver = receiver
        self.work = log._group._work

    @property
    def protocols(self) -> list[Any]:
        """Of the connections that are open."""
        return [each for each in gc.get_objects() if isinstance(each, WebhookProtocol) and each in each.connections]

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(30):
                yield reader, writer
        finally:
            writer.close()


@pytest_asyncio.fixture
async def hooks(embedded18: servers.Server) -> AsyncIterator[Hooks]:
    dsn = embedded18.fresh_database()
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with app.running(Settings(database_url=dsn, simulator_webhook_secret=TRUSTED)) as service:
        front: Any = build(service)
        assert isinstance(front, Front)
        serving = asyncio.create_task(
            serve(front, "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
        )
        yield Hooks(dsn, await listening, front.receiver, service.log)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def test_a_connection_is_used_again(hooks: Hooks) -> None:
    async with hooks.connected() as (reader, writer):
        for number in range(5):
            writer.write(request(number))
            status, headers, rest = await answer(reader)
            assert (status, rest) == (200, b"")
            assert "date" in headers
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await answer(reader))[0] == 200
    assert len(await stored(hooks.dsn)) == 5
    assert hooks.receiver.stored["simulator"] == 5


async def test_a_body_may_come_byte_by_byte(hooks: Hooks) -> None:
    whole = request(1)
    async with hooks.connected() as (reader, writer):
        for part in (whole[:10], whole[10:300], whole[300:-1], whole[-1:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        assert (await answer(reader))[0] == 200
    assert (await stored(hooks.dsn)).keys() == {"evt_1"}


async def test_requests_sent_ahead_are_answered_in_order(hooks: Hooks) -> None:
    forged = request(99).replace(b"v1=", b"v1=0")
    async with hooks.connected() as (reader, writer):
        writer.write(request(1) + forged + request(2) + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + request(3))
        statuses = [(await answer(reader))[0] for _ in range(5)]
    assert statuses == [200, 400, 200, 200, 200]
    assert (await stored(hooks.dsn)).keys() == {"evt_1", "evt_2", "evt_3"}


async def test_a_refusal_leaves_the_connection_usable(hooks: Hooks) -> None:
    async with hooks.connected() as (reader, writer):
        writer.write(request(1).replace(b"v1=", b"v1=0"))
        status, headers, problem = await answer(reader)
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        assert b"webhook_forged" in problem
        writer.write(request(1))
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize("how", ["HTTP/1.0", "Connection: close"])
async def test_who_asks_for_it_gets_the_connection_closed(hooks: Hooks, how: str) -> None:
    whole = request(1)
    whole = (
        whole.replace(b"HTTP/1.1", b"HTTP/1.0")
        if how == "HTTP/1.0"
        else whole.replace(b"Host:", b"Connection: close\r\nHost:")
    )
    async with hooks.connected() as (reader, writer):
        writer.write(whole)
        status, headers, _ = await answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
    assert (await stored(hooks.dsn)).keys() == {"evt_1"}


async def test_chunks_take_the_ordinary_way_to_the_same_end(hooks: Hooks) -> None:
    raw = body(1)
    head = (
        f"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\nStripe-Signature: {signature(raw)}\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    middle = len(raw) // 2
    async with hooks.connected() as (reader, writer):
        writer.write(head.encode())
        for part in (raw[:middle], raw[middle:]):
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        assert (await answer(reader))[0] == 200
    assert (await stored(hooks.dsn)).keys() == {"evt_1"}
    assert hooks.receiver._bytes == 0


async def test_a_body_that_breaks_off_gives_its_room_back(hooks: Hooks) -> None:
    """Ten thousand who promise a megabyte and hang up must not fill the room for good."""
    for _ in range(3):
        async with hooks.connected() as (_reader, writer):
            writer.write(request(1)[:-5])
            await writer.drain()
            async with asyncio.timeout(30):
                while not hooks.receiver._bytes:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while hooks.receiver._bytes:
                await asyncio.sleep(0.01)
    assert await stored(hooks.dsn) == {}


async def test_who_hangs_up_before_the_answer_is_stored_all_the_same(hooks: Hooks) -> None:
    async with hooks.connected() as (_reader, writer):
        writer.write(request(1))
        await writer.drain()
    async with asyncio.timeout(30):
        while (await stored(hooks.dsn)).keys() != {"evt_1"}:
            await asyncio.sleep(0.01)
    assert hooks.receiver._bytes == 0


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(hooks: Hooks) -> None:
    """The short way sets no timer for each answer: the one there is must neither fall asleep nor hang up on anybody."""
    async with hooks.connected() as (reader, writer):
        writer.write(request(1))
        assert (await answer(reader))[0] == 200
        (protocol,) = [each for each in hooks.protocols if not each.transport.is_closing()]
        first = protocol.timeout_keep_alive_task
        assert first is not None
        # Its time is up, but something was answered meanwhile.
        protocol.timeout_keep_alive_handler()
        assert not protocol.transport.is_closing()
        assert protocol.timeout_keep_alive_task is not first
        # Its time is up, and a body is on its way.
        writer.write(request(2)[:-1])
        await writer.drain()
        async with asyncio.timeout(30):
            while not hooks.receiver._bytes:
                await asyncio.sleep(0.01)
        protocol._answered_at -= protocol.timeout_keep_alive
        protocol.timeout_keep_alive_handler()
        writer.write(request(2)[-1:])
        assert (await answer(reader))[0] == 200
        # Its time is up, and nothing came.
        protocol._answered_at -= protocol.timeout_keep_alive
        protocol.timeout_keep_alive_handler()
        assert await reader.read() == b""


async def test_a_server_that_stops_answers_what_it_took_and_closes(hooks: Hooks) -> None:
    hold = asyncio.Event()
    original = hooks.work.commit

    async def commit(items: Any, *, patient: bool) -> Any:
        await hold.wait()
        return await original(items, patient=patient)

    hooks.work.commit = commit
    async with hooks.connected() as (reader, writer):
        writer.write(request(1))
        await writer.drain()
        async with asyncio.timeout(30):
            while not hooks.receiver._bytes:
                await asyncio.sleep(0.01)
        for protocol in hooks.protocols:
            protocol.shutdown()
        hold.set()
        status, headers, _ = await answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""
    assert (await stored(hooks.dsn)).keys() == {"evt_1"}


async def test_an_answer_that_cannot_be_written_harms_nobody_else(hooks: Hooks) -> None:
    """All of a batch are told in one go: what one connection's answer breaks on must not reach the others'."""
    async with hooks.connected() as (reader, writer), hooks.connected() as (other_reader, other_writer):
        for each, number in ((writer, 1), (other_writer, 2)):
            each.write(request(number))
            await each.drain()
        assert (await answer(reader))[0] == 200
        assert (await answer(other_reader))[0] == 200
        broken, _ = sorted(hooks.protocols, key=lambda protocol: protocol.client != writer.get_extra_info("sockname"))

        def refuse(*_given: Any) -> None:
            raise RuntimeError("no")

        broken._acknowledgement = refuse
        hold = asyncio.Event()
        original = hooks.work.commit

        async def commit(items: Any, *, patient: bool) -> Any:
            await hold.wait()
            return await original(items, patient=patient)

        hooks.work.commit = commit
        for each, number in ((writer, 3), (other_writer, 4)):
            each.write(request(number))
            await each.drain()
        async with asyncio.timeout(30):
            while hooks.receiver._bytes < len(body(3)) + len(body(4)):
                await asyncio.sleep(0.01)
        hold.set()
        assert (await answer(other_reader))[0] == 200
        assert await reader.read() == b""
    assert (await stored(hooks.dsn)).keys() == {"evt_1", "evt_2", "evt_3", "evt_4"}


async def test_a_fault_inside_is_no_acknowledgement(hooks: Hooks) -> None:
    """On either way: the provider sends it again."""

    class Broken:
        def receive(self, *_given: Any, **_named: Any) -> Any:
            raise RuntimeError("whsec_secret")

    hooks.receiver._providers = {"simulator": Broken()}  # type: ignore[dict-item]
    chunked = b"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    for sent in (request(1), chunked):
        async with hooks.connected() as (reader, writer):
            writer.write(sent)
            status, _, problem = await answer(reader)
            assert status == 500
            assert b"whsec_secret" not in problem
    assert hooks.receiver._bytes == 0
    assert hooks.receiver.refused["simulator", "internal_error"] == 2
    assert await stored(hooks.dsn) == {}
