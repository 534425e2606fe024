"""Senders that are slow, silent or too many: closed in time, and nobody else notices."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
import pytest_asyncio

from tallystick import app
from tallystick.access import store as tenant
from tallystick.http.api import build
from tallystick.http.body_space import BodySpace
from tallystick.http.http1.protocol import MOST_AHEAD, MOST_PIECES
from tallystick.http.server import serve
from tallystick.settings import LIMITS, IpNetwork, Limits, Settings
from tallystick.webhooks.receiver import Front
from tests import servers
from tests.deliveries import TRUSTED, request, stored

# Far longer than anything here takes: a test that waits for it has failed.
PATIENCE_SECONDS = 8 if "TALLY_TEST_PLANT" in os.environ else 30
# Short enough to see the end of, long enough for an honest request on a busy machine.
BRIEF = replace(
    LIMITS, head_seconds=1.0, body_seconds=1.0, reply_seconds=1.0, linger_seconds=0.3, crowd_look_seconds=0.1
)
PROMISE = LIMITS.webhook_body_bytes
HOOK = (
    f"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\nStripe-Signature: t=1,v1=0\r\nContent-Length: {PROMISE}\r\n\r\n"
)


class Place:
    def __init__(self, dsn: str, port: int, front: Front, key: str) -> None:
        self.dsn = dsn
        self.port = port
        self.front = front
        self.key = key

    @contextlib.asynccontextmanager
    async def connected(self, address: str = "127.0.0.1") -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
        """`address`: where the caller comes from. All of 127.0.0.0/8 is this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                yield reader, writer
        finally:
            writer.close()

    async def delivered(self, number: int, address: str = "127.0.0.1") -> int:
        """A genuine webhook on a connection of its own."""
        async with self.connected(address) as (reader, writer):
            writer.write(request(number))
            return await status(reader)

    async def closed_for(self, reason: str, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.front.crowd.closed[reason] < count:
                await asyncio.sleep(0.01)


async def status(reader: asyncio.StreamReader) -> int:
    # Nothing: the connection was ended instead.
    words = (await reader.readline()).split()
    return int(words[1]) if words else 0


@contextlib.asynccontextmanager
async def open_place(dsn: str, limits: Limits, *, proxies: tuple[IpNetwork, ...] = ()) -> AsyncIterator[Place]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    settings = Settings(database_url=dsn, simulator_webhook_secret=TRUSTED, trusted_proxies=proxies)
    async with app.running(settings) as service:
        key = tenant.new_key()
        owner = await tenant.ensure_tenant(service.database, "default")
        await tenant.add_key(service.database, owner, "admin", key)
        front = build(service, limits=limits)
        serving = asyncio.create_task(
            serve(front, "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
        )
        yield Place(dsn, await listening, front, key)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@pytest_asyncio.fixture
async def place(embedded18: servers.Server) -> AsyncIterator[Place]:
    async with open_place(embedded18.fresh_database(), BRIEF) as made:
        yield made


async def test_a_promise_of_bytes_takes_up_no_room(embedded18: servers.Server) -> None:
    """Forty of them promised more than all the room there is, by one head each and without a key."""
    async with open_place(embedded18.fresh_database(), LIMITS) as place, contextlib.AsyncExitStack() as stack:
        for _ in range(40):
            _, writer = await stack.enter_async_context(place.connected())
            writer.write(HOOK.encode())
            await writer.drain()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(place.front.receiver._coming) < 40:
                await asyncio.sleep(0.01)
        assert place.front.receiver._bytes == 0
        assert [await place.delivered(number) for number in range(3)] == [200, 200, 200]
        assert len(await stored(place.dsn)) == 3


async def test_bodies_that_are_still_coming_give_way_to_whole_ones(embedded18: servers.Server) -> None:
    """By either way; those of whoever holds the most go first."""
    limits = replace(LIMITS, webhook_bytes=100_000)
    chunked = HOOK.replace(f"Content-Length: {PROMISE}", "Transfer-Encoding: chunked").encode()
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        small, small_writer = await stack.enter_async_context(place.connected("127.0.0.7"))
        small_writer.write(request(900)[:-1])
        _, first_writer = await stack.enter_async_context(place.connected("127.0.0.8"))
        first_writer.write(HOOK.encode() + b"x" * 49_400)
        second, second_writer = await stack.enter_async_context(place.connected("127.0.0.9"))
        second_writer.write(chunked + b"%x\r\n" % 50_000 + b"x" * 50_000)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while place.front.receiver._bytes < 99_000:
                await asyncio.sleep(0.01)
        assert await place.delivered(1) == 200
        assert await status(second) == 503
        # That sufficed: the others may go on.
        assert 49_000 < place.front.receiver._bytes < 51_000
        small_writer.write(request(900)[-1:])
        assert await status(small) == 200
        assert place.front.receiver.refused["simulator", "busy"] == 1
        assert (await stored(place.dsn)).keys() == {"evt_1", "evt_900"}


DRIPS = {
    "a head": b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    "a webhook's body": HOOK.encode(),
    "a webhook's body in chunks": HOOK.replace(f"Content-Length: {PROMISE}", "Transfer-Encoding: chunked").encode()
    + b"%x\r\n" % PROMISE,
    "a call's body": b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer KEY\r\n"
    b"Content-Type: application/json\r\nIdempotency-Key: a\r\nContent-Length: 1000000\r\n\r\n",
}


@pytest.mark.parametrize("what", DRIPS)
async def test_a_byte_now_and_then_does_not_lengthen_the_time(place: Place, what: str) -> None:
    async with place.connected() as (reader, writer):
        writer.write(DRIPS[what].replace(b"KEY", place.key.encode()))
        dripped = 0
        while not reader.at_eof() and not place.front.crowd.closed["late"]:
            writer.write(b"x")
            dripped += 1
            await asyncio.sleep(0.05)
        assert await status(reader) == 408
        assert b"request_late" in await reader.read()
        assert dripped > 5
    assert place.front.receiver._bytes == 0
    assert place.front.crowd.closed == {"late": 1}
    assert await place.delivered(1) == 200


async def test_a_body_that_goes_on_after_its_refusal_ends_too(place: Place) -> None:
    """Answered with 401 before its body came: what follows is not another request, and gets no second answer."""
    async with place.connected() as (reader, writer):
        writer.write(DRIPS["a call's body"])
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and not place.front.crowd.closed["late"]:
                writer.write(b"x")
                await asyncio.sleep(0.05)
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 401 ")
        assert told.count(b"HTTP/1.1 ") == 1


async def test_who_says_nothing_is_hung_up_on(place: Place) -> None:
    async with place.connected() as (reader, _writer):
        assert await reader.read() == b""
    assert place.front.crowd.closed == {"silent": 1}


async def test_who_does_not_read_his_replies_is_gone_in_the_end(place: Place) -> None:
    """Also when so little is on its way to him that nobody waits to write more."""
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", place.port))
        deaf.setblocking(False)
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not place.front.crowd.members:
                await asyncio.sleep(0.01)
            (member,) = place.front.crowd.members
            while member in place.front.crowd.members:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    deaf.send(asked)
                await asyncio.sleep(0.02)
    assert place.front.crowd.closed == {"unread": 1}


FIELDS = LIMITS.head_fields
PARTS = {
    "fields of a head": b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * (FIELDS + 1) + b"\r\n",
    "fields of a trailer": HOOK.replace(f"Content-Length: {PROMISE}", "Transfer-Encoding: chunked").encode()
    + b"0\r\n"
    + b"a: b\r\n" * FIELDS
    + b"\r\n",
    "what is no request": b"\x16\x03\x01\x00\r\n\r\n",
    "bytes of a target": b"GET /" + b"%41" * 1_400 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "bytes of a plain target": b"GET /v1/accounts/" + b"a" * 4_100 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunks": HOOK.replace(f"Content-Length: {PROMISE}", "Transfer-Encoding: chunked").encode()
    + b"1\r\nx\r\n" * (MOST_PIECES + 500)
    + b"0\r\n\r\n",
}


@pytest.mark.parametrize("what", PARTS)
async def test_more_parts_than_a_request_has_end_its_connection(place: Place, what: str) -> None:
    """Six bytes each for whoever sends them, and a call of ours: 50 connections of these stopped everybody else."""
    async with place.connected() as (reader, writer):
        writer.write(PARTS[what])
        assert await status(reader) == 400
        head, body = (await reader.read()).split(b"\r\n\r\n")
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["code"] == "request_malformed"
    assert place.front.crowd.closed == {"malformed": 1}
    assert place.front.receiver._bytes == 0
    async with place.connected() as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * (FIELDS - 1) + b"Host: x\r\n\r\n")
        assert await status(reader) == 200
    assert await place.delivered(1) == 200


@pytest.mark.parametrize("at_once", [1, 50, 3_000])
async def test_json_that_is_sent_as_it_is_made_is_taken(place: Place, at_once: int) -> None:
    """A chunk for each word, as `http.client` sends what `iterencode` makes; how many a packet holds is chance."""
    words = [b"{"] + [b"   "] * 2_998 + [b"}"]
    chunks = [b"%x\r\n%b\r\n" % (len(word), word) for word in words]
    async with place.connected() as (reader, writer):
        for again in range(2):
            writer.write(
                b"POST /v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Idempotency-Key: a%d\r\nAuthorization: Bearer %b\r\nTransfer-Encoding: chunked\r\n\r\n"
                % (again, place.key.encode())
            )
            for first in range(0, len(chunks), at_once):
                writer.write(b"".join(chunks[first : first + at_once]))
            writer.write(b"0\r\n\r\n")
            assert await status(reader) == 400
            assert b"field_invalid" in await _rest(reader)
    assert not place.front.crowd.closed


async def test_who_sends_many_requests_ahead_is_cut_off_without_a_word(place: Place) -> None:
    """A packet of 1,800 of them kept everybody waiting for seconds; a few ahead are answered in their order."""
    one = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    async with place.connected() as (reader, writer):
        writer.write(one * MOST_AHEAD)
        for _ in range(MOST_AHEAD):
            assert await status(reader) == 200
            await _rest(reader)
        writer.write(one * 10 * MOST_AHEAD)
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1 400" not in await reader.read()
    assert place.front.crowd.closed == {"malformed": 1}


async def test_an_honest_caller_is_never_late(place: Place) -> None:
    """His answer takes longer than any of his deadlines, and then he asks again."""
    async with place.connected() as (reader, writer):
        key = f"Authorization: Bearer {place.key}\r\n"
        put = '{"stock": 5}'
        writer.write(
            f"PUT /v1/skus/slow HTTP/1.1\r\nHost: x\r\n{key}Content-Type: application/json\r\n"
            f"Content-Length: {len(put)}\r\n\r\n{put}".encode()
        )
        assert await status(reader) in {200, 201}
        await _rest(reader)
        order = '{"sku": "slow", "quantity": 1, "amount_micros": 1000000, "currency": "EUR"}'
        writer.write(
            f"POST /v1/orders HTTP/1.1\r\nHost: x\r\n{key}Content-Type: application/json\r\nIdempotency-Key: a\r\n"
            f"Content-Length: {len(order)}\r\n\r\n{order}".encode()
        )
        assert await status(reader) == 201
        order_id = (await _rest(reader)).split(b'"id":"')[1].split(b'"')[0].decode()
        for piece in (f"GET /v1/orders/{order_id}/status?wait=3 HT", f"TP/1.1\r\nHost: x\r\n{key}\r\n"):
            writer.write(piece.encode())
            await writer.drain()
            await asyncio.sleep(0.05)
        assert await status(reader) == 200
    assert not place.front.crowd.closed


async def _rest(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))


async def test_the_idlest_of_who_has_the_most_makes_room_for_another(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, connections=20)
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        # Idle for longest, and its address has no other.
        modest, modest_writer = await stack.enter_async_context(place.connected("127.0.0.7"))
        modest_writer.write(request(1))
        assert await status(modest) == 200
        many = [await stack.enter_async_context(place.connected("127.0.0.8")) for _ in range(60)]
        assert [await place.delivered(number, "127.0.0.9") for number in range(2, 12)] == [200] * 10
        await place.closed_for("crowded", 41)
        assert len(place.front.crowd.members) <= 21
        assert await many[0][0].read() == b""
        await modest.readuntil(b"\r\n\r\n")
        modest_writer.write(request(100))
        assert await status(modest) == 200


async def test_a_proxy_that_is_trusted_does_not_give_way_to_a_stranger(embedded18: servers.Server) -> None:
    """Everybody who comes through it has its address: one who comes by himself, with a few, takes more than each."""
    limits, proxies = replace(LIMITS, connections=20), (ip_network("127.0.0.8"),)
    async with (
        open_place(embedded18.fresh_database(), limits, proxies=proxies) as place,
        contextlib.AsyncExitStack() as stack,
    ):
        through = [await stack.enter_async_context(place.connected("127.0.0.8")) for _ in range(12)]
        strangers = [await stack.enter_async_context(place.connected("127.0.0.7")) for _ in range(12)]
        await place.closed_for("crowded", 4)
        assert [await reader.read() for reader, _ in strangers[:4]] == [b""] * 4
        for number, (reader, writer) in enumerate(through):
            writer.write(request(number))
            assert await status(reader) == 200


async def test_where_all_are_owed_an_answer_the_newcomer_is_told_that_there_is_no_room(
    embedded18: servers.Server,
) -> None:
    limits = replace(LIMITS, connections=2)
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        hold = asyncio.Event()
        work = place.front.receiver._append_for.__self__._group._work  # type: ignore[attr-defined]
        original = work.commit

        async def commit(items: Any, *, patient: bool) -> Any:
            await hold.wait()
            return await original(items, patient=patient)

        work.commit = commit
        owed = [await stack.enter_async_context(place.connected()) for _ in range(2)]
        for number, (_, writer) in enumerate(owed):
            writer.write(request(number))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len([one for one in place.front.crowd.members if one.is_owed]) < 2:
                await asyncio.sleep(0.01)
        reader, _ = await stack.enter_async_context(place.connected())
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in told
        assert b"connections_exhausted" in told
        hold.set()
        assert [await status(reader) for reader, _ in owed] == [200, 200]


async def test_heads_that_are_not_whole_are_bounded_in_all(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, unfinished_bytes=100_000, crowd_look_seconds=0.1)
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        modest, modest_writer = await stack.enter_async_context(place.connected("127.0.0.7"))
        modest_writer.write(request(1)[:50])
        for _ in range(5):
            _, writer = await stack.enter_async_context(place.connected("127.0.0.8"))
            writer.write(b"GET / HTTP/1.1\r\nX-Large: " + b"x" * 50_000)
        await place.closed_for("crowded", 3)
        modest_writer.write(request(1)[50:])
        assert await status(modest) == 200


async def test_a_large_body_waits_for_its_turn_and_a_small_one_does_not(embedded18: servers.Server) -> None:
    """What is made of a megabyte takes the process for tens of milliseconds: of one tenant's, one at a time."""
    asked = (
        "POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n"
        "Idempotency-Key: a\r\nContent-Length: {}\r\n\r\n"
    )
    async with open_place(embedded18.fresh_database(), LIMITS) as place, contextlib.AsyncExitStack() as stack:
        (resource, _) = place.front.api.find("/v1/operations")  # type: ignore[attr-defined]
        owner = await tenant.ensure_tenant(resource._doorkeeper._database, "default")
        room = resource._room
        await room.turn(owner.number, LIMITS.turn_bytes)
        turn = room._turns[owner.number]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await turn.acquire()
        large, large_writer = await stack.enter_async_context(place.connected())
        large_writer.write(asked.format(place.key, LIMITS.turn_bytes).encode() + b"x" * LIMITS.turn_bytes)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not room.held:
                await asyncio.sleep(0.01)
        small, small_writer = await stack.enter_async_context(place.connected())
        small_writer.write(asked.format(place.key, 5).encode() + b"x" * 5)
        assert await status(small) == 400
        assert room.held == LIMITS.turn_bytes
        turn.release()
        assert await status(large) == 400
        assert room.held == 0


async def test_after_a_large_body_the_others_have_the_process_for_as_long() -> None:
    room, loop = BodySpace(), asyncio.get_running_loop()
    await room.turn(1, LIMITS.turn_bytes)
    following = [asyncio.create_task(room.turn(1, LIMITS.turn_bytes)) for _ in range(2)]
    # As a reader of JSON does: nobody else runs.
    time.sleep(0.2)
    read_at = loop.time()
    await room.turn(1, LIMITS.turn_bytes - 1)
    await room.turn(2, LIMITS.turn_bytes)
    # Whoever hangs up while he waits leaves the turn to the next.
    following[0].cancel()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await following[1]
    assert loop.time() - read_at >= 0.19


async def test_bodies_of_calls_have_a_share_for_each_tenant(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, call_bytes=1_000_000, call_bytes_per_tenant=600_000)
    asked = (
        "POST /v1/operations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n"
        "Idempotency-Key: a\r\nContent-Length: 500000\r\n\r\n"
    )
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        (resource, _) = place.front.api.find("/v1/operations")  # type: ignore[attr-defined]
        first, first_writer = await stack.enter_async_context(place.connected())
        first_writer.write(asked.format(place.key).encode() + b"x" * 400_000)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while resource._room.held < 400_000:
                await asyncio.sleep(0.01)
        second, second_writer = await stack.enter_async_context(place.connected())
        second_writer.write(asked.format(place.key).encode() + b"x" * 400_000)
        assert await status(second) == 429
        assert b"retry-after: 1\r\n" in await second.readuntil(b"\r\n\r\n")
        first_writer.write(b"x" * 100_000)
        assert await status(first) == 400
        assert resource._room.held == 0


async def test_the_connections_are_shown_in_the_metrics(place: Place) -> None:
    async with place.connected() as (reader, _silent):
        await reader.read()
    async with place.connected() as (reader, writer):
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await status(reader) == 200
        shown = (await _rest(reader)).decode()
    assert "tally_connections 1.0" in shown
    assert f"tally_connections_most {place.front.crowd.most}.0" in shown
    assert 'tally_connections_closed_total{reason="silent"} 1.0' in shown


async def test_a_server_that_stops_does_not_wait_for_who_is_slow(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, linger_seconds=0.3)
    writers = []
    loop = asyncio.get_running_loop()
    async with open_place(embedded18.fresh_database(), limits) as place:
        for slow in (HOOK.encode(), DRIPS["a call's body"].replace(b"KEY", place.key.encode()), DRIPS["a head"]):
            _, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writers.append(writer)
            writer.write(slow)
        members: Any = place.front.crowd.members
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len([one for one in members if not one.is_whole]) < len(writers):
                await asyncio.sleep(0.01)
        began = loop.time()
    assert loop.time() - began < LIMITS.drain_seconds / 3
    for writer in writers:
        writer.close()
