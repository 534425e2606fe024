"""HTTP: it is always known whether bytes left; nothing doubtful passes for an answer."""

import asyncio
import contextlib
import datetime as dt
import os
import select
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tallystick.errors import Misconfigured
from tallystick.providers import http
from tallystick.providers.http import Http, NotSent, Reply, Unanswered
from tallystick.providers.steady import steady

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A peer that does exactly what the test says; `heard` is every byte that reached it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.connections = 0
        self.base = ""


@asynccontextmanager
async def peer(*answers: bytes | Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    waiting = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
                server.heard.append(head + await reader.readexactly(sum(length)))
                answer = next(waiting)
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(reader, writer)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    server.base = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        listener.close()


async def post(client: Http, *, leave: float = 5.0, answer: float = 5.0) -> http.HttpResult:
    request = client.request("POST", "/v1/transfers", [("idempotency-key", "k")], b"amount=1")
    return await client.send(request, sendable_until=steady() + leave, answer_seconds=answer)


async def test_what_is_written_is_one_plain_request() -> None:
    async with peer(OK) as server:
        assert await post(Http(server.base + "/stripe/")) == Reply(200, {"content-length": "2"}, b"{}")
        assert server.heard == [
            b"POST /stripe/v1/transfers HTTP/1.1\r\nhost: " + server.base[7:].encode() + b"\r\nidempotency-key: k\r\n"
            b"accept-encoding: identity\r\ncontent-length: 8\r\n\r\namount=1"
        ]


async def test_connections_are_used_again() -> None:
    async with peer(OK, OK, OK) as server:
        client = Http(server.base)
        for _ in range(3):
            assert isinstance(await post(client), Reply)
        assert (len(server.heard), server.connections) == (3, 1)
        await client.close()


async def test_a_refused_connection_is_known_not_to_have_sent() -> None:
    async with peer() as server:
        gone = server.base
    assert isinstance(await post(Http(gone)), NotSent)


async def test_a_name_that_cannot_be_looked_up_is_known_not_to_have_sent() -> None:
    assert isinstance(await post(Http("https://a..b")), NotSent)


async def test_without_leave_not_one_byte_leaves() -> None:
    """Also on a connection that is open already, where nothing but the check stands between us and the wire."""
    async with peer(OK, OK) as server:
        client = Http(server.base)
        assert await post(client, leave=-1) == NotSent("the permit to send ran out", expired=True)
        assert server.connections == 0
        await post(client)
        assert await post(client, leave=-1) == NotSent("the permit to send ran out", expired=True)
        assert len(server.heard) == 1


async def test_silence_is_unanswered_and_the_connection_is_not_used_again() -> None:
    """A late answer on a reused connection would be taken for the next request's."""

    async def late(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        writer.write(OK.replace(b"{}", b"[]"))

    async with peer(late, OK) as server:
        client = Http(server.base)
        assert await post(client, answer=0.05) == Unanswered("no whole answer within 0.05 s")
        assert await post(client) == Reply(200, {"content-length": "2"}, b"{}")
        assert server.connections == 2


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    import socket  # noqa: PLC0415 - only here

    wire = writer.get_extra_info("socket")
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _then_close(answer: bytes) -> Handler:
    async def answering(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    return answering


@pytest.mark.parametrize(
    "answer",
    [
        _hang_up,
        _reset,
        _then_close(b"HTTP/1.1 200 OK\r\ncontent-le"),
        _then_close(b'HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{"id": "tr_'),
        _then_close(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}"),
        # Without a length nobody can tell a whole body from a cut one.
        _then_close(b'HTTP/1.1 200 OK\r\n\r\n{"id": "tr_1"}'),
        _then_close(b"not http at all\r\n\r\n"),
        _then_close(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
        _then_close(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"),
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (http.MOST_HEADERS + 1) + b"content-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (http.MOST_HEAD_BYTES + 1),
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"x" * (http.MOST_BODY_BYTES + 1),
    ],
)
async def test_anything_but_a_whole_answer_is_unanswered(answer: bytes | Handler) -> None:
    async with peer(answer) as server:
        assert isinstance(await post(Http(server.base), answer=2), Unanswered)
        assert len(server.heard) == 1


async def test_a_large_answer_that_comes_at_once_is_whole() -> None:
    body = b"x" * (http.MOST_HEAD_BYTES * 4)
    async with peer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)) as server:
        result = await post(Http(server.base))
        assert isinstance(result, Reply)
        assert result.body == body


async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    async with peer(b"HTTP/1.1 307 T\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n", OK) as server:
        result = await post(Http(server.base))
        assert isinstance(result, Reply)
        assert result.status == 307
        assert len(server.heard) == 1


async def test_an_informational_answer_is_not_the_answer() -> None:
    async with peer(b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK) as server:
        assert await post(Http(server.base)) == Reply(200, {"content-length": "2"}, b"{}")


async def test_bytes_nobody_asked_for_end_the_connection() -> None:
    """A second answer in the pipe would be read as the next request's: one payout's id for another."""
    async with peer(OK + OK.replace(b"{}", b"[]"), OK) as server:
        client = Http(server.base)
        assert await post(client) == Reply(200, {"content-length": "2"}, b"{}")
        assert await post(client) == Reply(200, {"content-length": "2"}, b"{}")
        assert server.connections == 2


async def test_an_answer_that_waits_before_we_ask_is_not_ours() -> None:
    """Unread in the kernel, it would be taken for the answer to what we write next."""

    async def unasked(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        unsolicited.append(writer)

    unsolicited: list[asyncio.StreamWriter] = []
    async with peer(unasked, OK) as server:
        client = Http(server.base)
        assert isinstance(await post(client), Reply)
        # Without a turn of the loop: the client's reader has not seen it.
        server_side = unsolicited[0].get_extra_info("socket")
        os.write(server_side.fileno(), b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n")
        while select.select([client._idle[0]._transport.get_extra_info("socket").fileno()], [], [], 0)[0] == []:  # type: ignore[union-attr]
            pass
        assert await post(client) == Reply(200, {"content-length": "2"}, b"{}")
        assert server.connections == 2


async def test_a_second_answer_changes_nothing_of_the_first() -> None:
    two = OK + b"HTTP/1.1 402 X\r\nidempotent-replayed: true\r\ncontent-length: 0\r\n\r\n"
    async with peer(two) as server:
        assert await post(Http(server.base)) == Reply(200, {"content-length": "2"}, b"{}")


async def test_trailers_are_not_headers() -> None:
    chunked = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nidempotent-replayed: true\r\n\r\n"
    async with peer(chunked) as server:
        assert await post(Http(server.base)) == Reply(200, {"transfer-encoding": "chunked"}, b"{}")


async def test_what_we_gave_up_is_not_sent_after_all() -> None:
    """The kernel would go on repeating it for minutes: closing tells the peer that it is off."""
    ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            ended.set_result(await reader.read(1))
        except ConnectionResetError as error:
            ended.set_result(error)

    async with peer(silent) as server:
        assert isinstance(await post(Http(server.base), answer=0.05), Unanswered)
        assert isinstance(await ended, ConnectionResetError)


async def test_a_peer_that_closed_meanwhile_is_noticed_before_bytes_are_written() -> None:
    async with peer(_then_close(OK), OK) as server:
        client = Http(server.base)
        assert isinstance(await post(client), Reply)
        while server.connections == 1 and client._idle and client._idle[0].usable:
            await asyncio.sleep(0.001)
        assert isinstance(await post(client), Reply)
        assert server.connections == 2


def _self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=36500))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "pem").write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    return context


async def test_a_certificate_nobody_vouches_for_stops_the_call_before_it_is_sent(tmp_path: Path) -> None:
    async with peer(OK, tls=_self_signed(tmp_path)) as server:
        result = await post(Http(server.base))
        assert isinstance(result, NotSent)
        assert "certificate" in result.reason
        assert server.heard == []


async def test_a_peer_that_speaks_no_tls_gets_nothing() -> None:
    async with peer(OK) as server:
        assert isinstance(await post(Http(server.base.replace("http:", "https:"))), NotSent)
        assert server.heard == []


@pytest.mark.parametrize(
    "base",
    [
        "",
        "ftp://x",
        "http://",
        "https://user:pw@host",
        "http://api.stripe.com",
        "https://h/?q=1",
        "https://h#f",
        "https://h:abc",
        "http://127.attacker.example",
        "https://пример.рф",
        "https://a b",
    ],
)
def test_an_address_that_cannot_be_right_is_refused_at_the_start(base: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        Http(base)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "header"), [("/a b", "v"), ("/a\r\nx: y", "v"), ("/a", "v\r\nx: y"), ("/a", "v\nx: y"), ("/a", "v\rx")]
)
def test_nothing_can_be_smuggled_into_the_head(path: str, header: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        Http("http://127.0.0.1:1").request("GET", path, [("name", header)])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("body", [b"", b"a=1"])
@pytest.mark.parametrize("headers", [[], [("a", "1")], [("a", "1"), ("b", "\xe9")]])
def test_a_request_is_its_lines_and_its_body(method: str, body: bytes, headers: list[tuple[str, str]]) -> None:
    lines = [f"{method} /v1/x HTTP/1.1", "host: 127.0.0.1:1", *(f"{name}: {value}" for name, value in headers)]
    lines.append("accept-encoding: identity")
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    expected = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
    assert Http("http://127.0.0.1:1/v1").request(method, "/x", headers, body) == expected


async def test_two_hundred_calls_are_in_flight_at_once() -> None:
    arrived = 0
    all_here = asyncio.Event()

    async def together(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 200:
            all_here.set()
        await all_here.wait()
        writer.write(OK)

    async with peer(*[together] * 200) as server:
        client = Http(server.base)
        results = await asyncio.gather(*(post(client, answer=20) for _ in range(200)))
        assert all(isinstance(result, Reply) for result in results)
        await client.close()
