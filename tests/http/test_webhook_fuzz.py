"""The short way against the ordinary one: the same bytes, split anywhere, get the same answers and store the same.

The requests rotate with the commit; TALLY_TEST_SEED repeats them. What differs is shown with the bytes and the splits.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest_asyncio
import uvicorn
from uvicorn.server import ServerState

from tallystick import app
from tallystick.http.http1.call_protocol import _Calling
from tallystick.http.http1.protocol import BoundedProtocol
from tallystick.http.http1.webhook_protocol import WebhookProtocol, _Shortcut
from tallystick.webhooks.log.port import Answered, Delivery
from tallystick.webhooks.receiver import Front, WebhookReceiver
from tests.deliveries import TRUSTED, body, signature
from tests.faults.matrix import seed

SEED = seed()
CASES = 3_000
# Turns of the loop within which every answer comes that needs nothing but what was sent.
TURNS = 25
MALFORMED = b'"code":"request_malformed"'

Said = tuple[list[tuple[int, bytes]], bool, list[str]]


class Remembered:
    """A log that keeps events in memory and tells in a later turn, as one on a disk would."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.waiting = 0

    def append(self, delivery: Delivery) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.append_for(future, delivery)
        return future

    def append_for(self, answered: Answered, delivery: Delivery) -> None:
        self.waiting += 1
        asyncio.get_running_loop().call_soon(self._commit, answered, delivery)

    def _commit(self, answered: Answered, delivery: Delivery) -> None:
        self.waiting -= 1
        self.events += [event.dedup_key for event in delivery.events]
        if not answered.done():
            answered.set_result(len(delivery.events))


class Wire:
    """A transport whose pieces arrive exactly as the test cuts them."""

    def __init__(self) -> None:
        self.said = b""
        self.closed = False
        self.paused = False

    def write(self, data: bytes) -> None:
        self.said += b"" if self.closed else data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, _name: str) -> None:
        return None


class Side:
    """One of the two ways, with a receiver and a log of its own."""

    def __init__(self, kind: type[BoundedProtocol], api: Any = None) -> None:
        self.log = Remembered()
        service: Any = SimpleNamespace(
            providers={"simulator": app.simulator("http://127.0.0.1:1", TRUSTED)}, log=self.log
        )
        self.receiver = WebhookReceiver(service)
        self._kind = kind
        self._config = uvicorn.Config(
            Front(self.receiver, api or _api),
            http=kind,
            ws="none",
            lifespan="off",
            log_config=None,
            proxy_headers=False,
        )
        self._config.load()
        self.short = 0

    async def said(self, pieces: list[bytes]) -> Said:
        """Statuses and bodies, whether the connection was closed, and the events that were stored."""
        wire, before = Wire(), len(self.log.events)
        protocol: Any = self._kind(self._config, server_state=ServerState(), app_state={})
        protocol.connection_made(wire)
        for piece in pieces:
            await _until(lambda: not wire.paused or wire.closed)
            if wire.closed:
                break
            protocol.data_received(piece)
            self.short += type(protocol.cycle) in {_Shortcut, _Calling}
            # Before the next piece everything is answered that can be: which way takes more turns is no difference.
            await _until(lambda: _is_settled(protocol))
        closed = wire.closed
        protocol.connection_lost(None)
        await _until(lambda: not self.log.waiting and not protocol.tasks)
        assert self.receiver._bytes == 0, "room was not given back"
        return _answers(wire.said), closed, self.log.events[before:]


async def _api(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _is_settled(protocol: Any) -> bool:
    cycle = protocol.cycle
    return (cycle is None or cycle.response_complete) and not protocol.pipeline


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(TURNS):
        if is_so():
            return
        await asyncio.sleep(0)


def _answers(said: bytes) -> list[tuple[int, bytes]]:
    found = []
    while said:
        head, _, rest = said.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status == 100:
            said = rest
            continue
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        length = int(lengths[0]) if lengths else 0
        found.append((status, rest[:length]))
        said = rest[length:]
    return found


def _is_same(ours: Said, theirs: Said) -> bool:
    if ours == theirs:
        return True
    # A malformed request closes the connection at once: how many before it have been answered and stored by then is a
    # matter of turns of the loop, on either way. What was answered is the same as far as it goes.
    is_cut_off = all(said[1] and said[0] and _is_malformed(*said[0][-1]) for said in (ours, theirs))
    return is_cut_off and _begin_alike(ours[0][:-1], theirs[0][:-1]) and _begin_alike(ours[2], theirs[2])


def _is_malformed(status: int, body: bytes) -> bool:
    return status == 400 and MALFORMED in body


def _begin_alike(ours: list[Any], theirs: list[Any]) -> bool:
    return all(one == other for one, other in zip(ours, theirs, strict=False))


@pytest_asyncio.fixture
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    yield Side(WebhookProtocol), Side(BoundedProtocol)


METHODS = ["GET", "HEAD", "PUT", "post", "POST ", "OPTIONS", "CONNECT", ""]
PATHS = [
    "/webhooks/adyen",
    "/webhooks/",
    "/webhooks/simulator/",
    "/webhooks/simulator?x=1",
    "/webhooks/simulato%72",
    "/webhooks/simulator#x",
    "/Webhooks/simulator",
    "//webhooks/simulator",
    "http://x/webhooks/simulator",
    "/livez",
]
VERSIONS = ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", ""]
LENGTHS = [
    "{}, {}",
    "+{}",
    "-{}",
    "0{}",
    "{} ",
    " {}",
    "\t{}",
    "0x{}",
    "{}.0",
    "",
    "1_0",
    "\uff19",
    "{}{}",
    "99999999999",
]
ODD_LINES = [
    "Transfer-Encoding: chunked",
    "transfer-encoding: identity",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: xchunked",
    "X: y\r\n Transfer-Encoding: chunked",
    "X: y\n Transfer-Encoding: chunked",
    "Content-Length: 5",
    "Content-Length: 0",
    "content-length : 5",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Keep-Alive, Upgrade",
    "Proxy-Connection: close",
    "Upgrade: websocket",
    "Connection: upgrade\r\nUpgrade: websocket",
    "Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA",
    "Expect: 100-continue",
    "Expect: something",
    "Stripe-Signature: t=1,v1=0",
    "STRIPE-SIGNATURE: t=1,v1=0",
    "X-Empty:",
    "X-Blank:   ",
    "X-Trailing: y  ",
    "X-Tab:\ty",
    "X-Nul: a\0b",
    "X-Return: a\rb",
    "X-Feed: a\nb",
    "X-High: é",
    "X-Del: \x7f",
    ": no name",
    "no colon",
    "X Y: z",
    " folded: x",
    "X:y",
    "X:: y",
    "X" * 300 + ": y",
    "X: " + "y" * 9_000,
]


def one_request(chance: random.Random, number: int) -> bytes:
    """Mostly a proper webhook; often with something about it that a proxy or an attacker would make of it."""
    raw = body(number, pad="x" * chance.choice([0, 0, 0, 500, 3_000]))
    if chance.random() < 0.05:
        raw = b"not JSON"
    signed = signature(raw, secret="whsec_wrong") if chance.random() < 0.1 else signature(raw)
    method = chance.choice(METHODS) if chance.random() < 0.05 else "POST"
    path = chance.choice(PATHS) if chance.random() < 0.07 else "/webhooks/simulator"
    version = chance.choice(VERSIONS) if chance.random() < 0.05 else "HTTP/1.1"
    length = str(len(raw))
    if chance.random() < 0.07:
        length = chance.choice(LENGTHS).format(length, length) if chance.random() < 0.8 else str(len(raw) + 7)
    lines = [
        f"Host: {chance.choice(['x', '127.0.0.1:80'])}",
        f"{chance.choice(['Content-Length', 'content-length', 'CONTENT-LENGTH'])}: {length}",
        f"{chance.choice(['Stripe-Signature', 'stripe-signature'])}: {signed}",
        "Content-Type: application/json",
    ]
    return spoiled(chance, f"{method} {path} {version}", lines, raw)


def spoiled(chance: random.Random, line: str, lines: list[str], raw: bytes) -> bytes:
    """A request of these lines: with some left out, odd ones among them, bytes that are others, or its end missing."""
    if chance.random() < 0.04:
        del lines[chance.randrange(len(lines))]
    for _ in range(chance.choice([0, 0, 0, 0, 1, 1, 2])):
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(ODD_LINES))
    chance.shuffle(lines)
    between = "\n" if chance.random() < 0.02 else "\r\n"
    head = between.join([line, *lines, "", ""]).encode()
    if b"chunked" in head and chance.random() < 0.7:
        raw = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
    whole = head + raw
    if chance.random() < 0.05:
        place = chance.randrange(len(whole))
        whole = whole[:place] + bytes([chance.randrange(256)]) + whole[place + 1 :]
    if chance.random() < 0.03:
        whole = whole[: chance.randrange(len(whole))]
    return chance.choice([b"", b"", b"", b"", b"", b"\r\n"]) + whole


def split(chance: random.Random, whole: bytes) -> list[bytes]:
    """In one piece, in a few, or byte by byte about its most delicate places."""
    cuts = {chance.randrange(1, len(whole)) for _ in range(chance.choice([0, 0, 1, 2, 5]))} if len(whole) > 1 else set()
    end = whole.find(b"\r\n\r\n")
    if end > 0 and chance.random() < 0.3:
        cuts |= {end + step for step in range(1, 6) if end + step < len(whole)}
    edges = [0, *sorted(cuts), len(whole)]
    return [whole[start:stop] for start, stop in pairwise(edges)]


async def test_the_short_way_answers_what_the_ordinary_one_does(
    sides: tuple[Side, Side], record_property: Callable[[str, object], None]
) -> None:
    """A difference would be a way to smuggle a request past one of them, or to lose a webhook on one of them."""
    short, ordinary = sides
    statuses: set[int] = set()
    for case in range(CASES):
        chance = random.Random(f"{SEED}.{case}")
        whole = b"".join(one_request(chance, 10 * case + place) for place in range(chance.choice([1, 1, 1, 2, 3])))
        pieces = split(chance, whole)
        ours, theirs = await short.said(pieces), await ordinary.said(pieces)
        assert _is_same(ours, theirs), f"TALLY_TEST_SEED={SEED} case {case}: {pieces!r}\n{ours}\n{theirs}"
        statuses |= {status for status, _ in ours[0]}
    assert {200, 204, 400, 404, 405, 413} <= statuses
    # Were everything sent the ordinary way, nothing would have been compared.
    assert short.short > CASES // 5
    assert ordinary.short == 0
    record_property(
        "counted", f"webhook ways: seed {SEED}: {CASES} byte streams, {short.short} times the short way, 0 differences"
    )
