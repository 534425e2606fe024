"""The wire: HTTP as clients really send it, bounds, and the speed that keeps the simulator out of the way."""

import asyncio
import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tallystick.simulator.dialect import Reply, Request
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.server import NotLoopback, Simulator
from tallystick.simulator.wire import MOST_BODY, MOST_HEAD, Connection, Exchange
from tests.simulator.station import Station

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Line:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str) -> "Line":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        return int(head.split()[1]), body

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def request(key: str, *extra: bytes) -> bytes:
    body = b"amount=100&currency=usd&destination=acct_1&transfer_group=g-%s" % key.encode()
    lines = [
        b"POST /stripe/v1/transfers HTTP/1.1",
        b"Host: localhost",
        b"Authorization: Bearer sk_test",
        b"Idempotency-Key: %s" % key.encode(),
        b"Content-Length: %d" % len(body),
        *extra,
    ]
    return b"\r\n".join([*lines, b"", body])


async def test_pipelined_requests_are_answered_in_order(simulator: Station) -> None:
    line = await Line.to(simulator.url)
    line.writer.write(request("a") + request("b") + request("a"))
    answers = [await line.answer() for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 200]
    groups = [json.loads(body)["transfer_group"] for _, body in answers]
    assert groups == ["g-a", "g-b", "g-a"]
    assert answers[0][1] == answers[2][1]
    await line.close()


async def test_a_request_may_come_byte_by_byte_and_wait_for_its_continue(simulator: Station) -> None:
    line = await Line.to(simulator.url)
    sent = request("slow", b"Expect: 100-continue")
    head, _, body = sent.partition(b"\r\n\r\n")
    for byte in head + b"\r\n\r\n":
        line.writer.write(bytes([byte]))
        await line.writer.drain()
    assert (await line.answer())[0] == 100
    line.writer.write(body)
    assert (await line.answer())[0] == 200
    await line.close()


async def test_connection_close_is_kept(simulator: Station) -> None:
    line = await Line.to(simulator.url)
    line.writer.write(request("bye", b"Connection: close"))
    assert (await line.answer())[0] == 200
    assert await line.reader.read() == b""
    await line.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nx: " + b"y" * 3 * MOST_HEAD, 431),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MOST_BODY + 1) + b"z" * (MOST_BODY + 1), 413),
        (b"not http at all\r\n\r\n", 400),
    ],
    ids=["head", "body", "nonsense"],
)
async def test_what_is_too_large_or_no_http_is_refused(simulator: Station, sent: bytes, status: int) -> None:
    line = await Line.to(simulator.url)
    for start in range(0, len(sent), 16_384):
        line.writer.write(sent[start : start + 16_384])
        await asyncio.sleep(0)
    try:
        assert (await line.answer())[0] == status
    except (ConnectionResetError, BrokenPipeError):
        # A server that closes on unread bytes resets, and the answer may be lost on the way.
        assert status == 431
    await line.close()
    other = await Line.to(simulator.url)
    other.writer.write(request("after"))
    assert (await other.answer())[0] == 200
    await other.close()


async def test_unknown_paths_are_404_and_the_page_is_a_hook(tmp_path: Path) -> None:
    simulator = Simulator(
        tmp_path / "books",
        every_dialect(),
        page=lambda request, _control: Reply(200, b"books") if request.path == "/" else None,
    )
    await simulator.start()
    try:
        line = await Line.to(simulator.url)
        line.writer.write(b"GET / HTTP/1.1\r\n\r\nGET /nothing HTTP/1.1\r\n\r\nGET /stripe HTTP/1.1\r\n\r\n")
        assert [await line.answer() for _ in range(2)] == [(200, b"books"), (404, b'{"error":"not found"}')]
        assert (await line.answer())[0] == 401
        await line.close()
    finally:
        await simulator.stop()


async def test_it_listens_on_loopback_only_unless_told(tmp_path: Path) -> None:
    simulator = Simulator(tmp_path / "books", every_dialect())
    with pytest.raises(NotLoopback):
        await simulator.start("0.0.0.0")  # noqa: S104  that is the point
    await simulator.stop()


class Broken:
    """A dialect with a bug."""

    name = "stripe"
    switches = ()
    retry_gaps_seconds = ()

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


async def test_a_bug_in_a_dialect_is_a_500_and_the_server_goes_on(tmp_path: Path) -> None:
    simulator = Simulator(tmp_path / "books", [Broken()])  # type: ignore[list-item]
    await simulator.start()
    try:
        line = await Line.to(simulator.url)
        for _ in range(2):
            line.writer.write(b"GET /stripe/v1/transfers HTTP/1.1\r\n\r\n")
            assert (await line.answer())[0] == 500
        await line.close()
    finally:
        await simulator.stop()


def test_a_request_is_immutable() -> None:
    asked = Request("GET", "/", {}, {}, b"")
    with pytest.raises(AttributeError):
        asked.path = "/other"  # type: ignore[misc]


async def test_it_takes_transfers_faster_than_any_engine_sends_them(simulator: Station) -> None:
    """Far below what it does (the bench tells); a second process of this machine may be busy."""
    lanes, each = 32, 60

    async def send(lane: int) -> int:
        line = await Line.to(simulator.url)
        good = 0
        for number in range(each):
            line.writer.write(request(f"{lane}-{number}"))
            good += (await line.answer())[0] == 200
        await line.close()
        return good

    started = time.perf_counter()
    done = sum(await asyncio.gather(*(send(lane) for lane in range(lanes))))
    seconds = time.perf_counter() - started
    assert done == lanes * each
    print(f"{done / seconds:.0f} transfers/s")
    assert done / seconds > 500


async def test_an_exception_while_handling_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    """A 400 would say that nothing was done, and money may have moved."""

    def broken(_request: Request, _exchange: Exchange) -> None:
        raise RuntimeError("after the effect")

    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Connection(broken, set(), lambda: "now"), "127.0.0.1", 0) as server:
        line = await Line.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(2):
            line.writer.write(request("a"))
            assert (await line.answer())[0] == 500
        await line.close()
    assert "after the effect" in caplog.text


async def test_nonsense_after_a_request_does_not_replace_its_answer(simulator: Station) -> None:
    line = await Line.to(simulator.url)
    line.writer.write(request("a") + request("b") + b"nonsense\r\n\r\n")
    assert [(await line.answer())[0] for _ in range(3)] == [200, 200, 400]
    assert await line.reader.read() == b""
    await line.close()


async def test_an_exchange_answers_once() -> None:
    answers = [Reply(200, b"first"), Reply(200, b"second")]

    def twice(_request: Request, exchange: Exchange) -> None:
        for reply in answers:
            exchange.answer(reply)

    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: Connection(twice, set(), lambda: "now"), "127.0.0.1", 0) as server:
        line = await Line.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        line.writer.write(request("a", b"Connection: close"))
        assert (await line.answer()) == (200, b"first")
        line.writer.write(request("b"))
        assert await line.reader.read() == b""
        await line.close()


@pytest.mark.parametrize("path", ["/", "/stripe/v1/transfers", "/_sim/books"])
async def test_head_is_answered_without_a_body(simulator: Station, path: str) -> None:
    line = await Line.to(simulator.url)
    line.writer.write(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    whole = await line.reader.read()
    assert re.search(rb"content-length: [1-9]", whole)
    assert whole.endswith(b"\r\n\r\n")
    await line.close()


@pytest.mark.parametrize("name", ["stripe", "adyen", "square", "wise"])
def test_a_foreign_name_that_leads_here_is_refused(simulator: Station, name: str) -> None:
    """A page that a person visits could otherwise read and move what is here, under its own name."""
    headers = {"authorization": "Bearer sk_test", "x-api-key": "any"}
    foreign = httpx2.get(f"{simulator.url}/{name}/v1/transfers", headers=headers | {"host": "evil.example"})
    assert foreign.status_code == 403
    assert httpx2.get(f"{simulator.url}/{name}/v1/transfers", headers=headers).status_code != 403
