"""The line: the breaker stops new sends and nothing else; a 429 slows everybody; evidence holds no secret."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec

from tallystick.core.provider import Busy, Sending
from tallystick.providers.breaker import FAILURES_TO_OPEN
from tallystick.providers.http import NotSent, Reply
from tallystick.providers.line import Line, Said, excerpt
from tallystick.providers.steady import steady
from tallystick.providers.stripe.facts import FACTS
from tests.providers.test_http import OK, Handler, peer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "sk_live_do_not_show"


def leave(seconds: float = 5.0) -> Sending:
    return Sending(first_sent_at=NOW, not_after=NOW + timedelta(seconds=seconds), sendable_until=steady() + seconds)


def line(base: str) -> Line:
    return Line(FACTS, base, authorization=lambda: (("authorization", f"Bearer {SECRET}"),))


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} X", *headers, "content-length: 2", "", "{}"]).encode()


async def test_a_provider_that_is_down_gets_no_new_sends_but_still_gets_questions() -> None:
    async with peer(*[status(503)] * FAILURES_TO_OPEN, OK) as server:
        one = line(server.base)
        for _ in range(FAILURES_TO_OPEN):
            assert isinstance(await one.send("POST", "/x", sending=leave()), Said)
        stopped = await one.send("POST", "/x", sending=leave())
        assert isinstance(stopped, Busy)
        assert (stopped.code, len(server.heard)) == ("breaker_open", FAILURES_TO_OPEN)
        asked = await one.ask("GET", "/x")
        assert isinstance(asked.result, Reply)
        assert asked.result.status == 200


async def test_what_is_in_flight_when_it_opens_is_left_alone() -> None:
    release = asyncio.Event()

    async def slowly(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(OK)

    answers: list[bytes | Handler] = [slowly, *[status(500)] * FAILURES_TO_OPEN]
    async with peer(*answers) as server:
        one = line(server.base)
        flying = asyncio.create_task(one.send("POST", "/slow", sending=leave()))
        while not server.heard:
            await asyncio.sleep(0.001)
        for _ in range(FAILURES_TO_OPEN):
            await one.send("POST", "/x", sending=leave())
        assert one.breaker.state == "open"
        release.set()
        said = await flying
        assert isinstance(said, Said)
        assert isinstance(said.result, Reply)


async def test_a_replayed_500_tells_nothing_of_the_present() -> None:
    async with peer(*[status(500, "idempotent-replayed: true")] * 10) as server:
        one = line(server.base)
        for _ in range(10):
            await one.send("POST", "/x", sending=leave())
        assert one.breaker.state == "closed"


async def test_a_429_makes_everybody_wait_as_long_as_asked() -> None:
    async with peer(status(429, "retry-after: 30")) as server:
        one = line(server.base)
        await one.send("POST", "/x", sending=leave())
        told = await one.send("POST", "/x", sending=leave())
        assert isinstance(told, Busy)
        assert told.code == "gate_full"
        assert 29 < told.after_seconds <= 30
        assert len(server.heard) == 1


async def test_a_leave_that_ran_out_is_busy_and_nobodys_fault() -> None:
    async with peer(OK) as server:
        one = line(server.base)
        for _ in range(FAILURES_TO_OPEN + 1):
            late = await one.send("POST", "/x", sending=leave(-1))
            assert isinstance(late, Busy)
        assert (one.breaker.state, server.heard) == ("closed", [])


async def test_a_probe_that_is_stopped_on_its_way_does_not_keep_the_breaker_shut() -> None:
    async with peer(*[status(503)] * FAILURES_TO_OPEN, OK) as server:
        one = line(server.base)
        for _ in range(FAILURES_TO_OPEN):
            await one.send("POST", "/x", sending=leave())
        one.breaker._until = 0.0
        late = await one.send("POST", "/x", sending=leave(-1))
        assert isinstance(late, Busy)
        assert late.code == "not_after_passed"
        assert isinstance(await one.send("POST", "/x", sending=leave()), Said)
        assert one.breaker.state == "closed"


async def test_an_unreachable_provider_is_busy_and_opens_the_breaker() -> None:
    async with peer() as server:
        gone = server.base
    one = line(gone)
    for _ in range(FAILURES_TO_OPEN):
        refused = await one.send("POST", "/x", sending=leave())
        assert isinstance(refused, Busy)
        assert refused.code == "unreachable"
    assert one.breaker.state == "open"
    assert isinstance((await one.ask("GET", "/x")).result, NotSent)


async def test_the_credentials_are_on_the_wire_and_nowhere_else() -> None:
    async with peer(OK) as server:
        said = await line(server.base).send("POST", "/x", sending=leave())
        assert SECRET.encode() in server.heard[0]
        assert isinstance(said, Said)
        assert SECRET not in repr(said)
        assert SECRET.encode() not in msgspec.json.encode(said.exchange)


async def test_credentials_that_are_echoed_come_no_further() -> None:
    echo = f'{{"error":"no such key {SECRET}"}}'.encode()
    async with peer(b"HTTP/1.1 401 X\r\ncontent-length: %d\r\n\r\n%s" % (len(echo), echo)) as server:
        said = await line(server.base).send("POST", "/x", sending=leave())
        assert isinstance(said, Said)
        assert isinstance(said.result, Reply)
        assert said.result.body == b'{"error":"no such key (hidden)"}'
        assert SECRET not in repr(said)


def test_what_opens_something_is_hidden_in_an_excerpt() -> None:
    body = b'{"id":"pi_1","client_secret":"pi_1_secret_xyz","access_token" : "t0k3n"}'
    assert excerpt(body) == '{"id":"pi_1","client_secret":"(hidden)","access_token" : "(hidden)"}'


def test_an_escaped_quote_does_not_end_a_secret() -> None:
    assert excerpt(rb'{"client_secret":"a\"b_rest","x":1}') == '{"client_secret":"(hidden)","x":1}'


def test_a_secret_cut_off_by_the_excerpts_end_is_hidden_too() -> None:
    body = b'{"x":"' + b"a" * 470 + b'","client_secret":"pi_1_secret_xyz_and_more_of_it_until_past_the_end"}'
    assert "secret_xyz" not in excerpt(body)
