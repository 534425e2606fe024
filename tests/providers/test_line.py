"""The line: the breaker stops new sends and nothing else; a 429 slows everybody; evidence holds no secret."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.breaker import FAILURES_TO_OPEN
from tallystick.providers.http import NotSent, Reply
from tallystick.providers.line import SAID_CHARACTERS, Headers, Line, Said, excerpt
from tallystick.providers.steady import steady
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import Busy, Sending
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


async def test_each_answer_tells_the_providers_time() -> None:
    at = "Wed, 18 Nov 2026 21:00:00 GMT"
    async with peer(status(200), status(500, f"date: {at}"), status(200, "date: yesterday")) as server:
        one = line(server.base)
        told = [one.time()]
        for _ in range(3):
            await one.ask("GET", "/x")
            told.append(one.time())
        assert (told[0], told[1], told[3]) == (None, None, None)
        assert told[2] is not None
        assert timedelta() <= told[2] - datetime(2026, 11, 18, 21, tzinfo=UTC) < timedelta(minutes=1)


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


async def test_credentials_that_were_changed_are_hidden_from_then_on() -> None:
    """Also where they are changed in the same list."""
    held: list[tuple[str, str]] = []
    secrets = [f"sk_live_number_{number}_of_three" for number in range(3)]
    echoes = [b"HTTP/1.1 401 X\r\ncontent-length: 25\r\n\r\n%s" % secret.encode() for secret in secrets]
    async with peer(*echoes) as server:
        one = Line(FACTS, server.base, authorization=lambda: held)
        for secret in secrets:
            held[:] = [("authorization", f"Bearer {secret}")]
            said = await one.ask("GET", "/x")
            assert isinstance(said.result, Reply)
            assert said.result.body == b"(hidden)"


async def test_credentials_are_hidden_as_json_writes_them() -> None:
    headers: Headers = (("x-api-key", 'a/b"c\\d-and-some-more'),)
    echo = rb'{"plain":"a/b\"c\\d-and-some-more","slashed":"a\/b\"c\\d-and-some-more"}'
    async with peer(b"HTTP/1.1 401 X\r\ncontent-length: %d\r\n\r\n%s" % (len(echo), echo)) as server:
        said = await Line(FACTS, server.base, authorization=lambda: headers).ask("GET", "/x")
        assert isinstance(said.result, Reply)
        assert said.result.body == b'{"plain":"(hidden)","slashed":"(hidden)"}'


def test_what_opens_something_is_hidden_in_an_excerpt() -> None:
    body = b'{"id":"pi_1","client_secret":"pi_1_secret_xyz","access_token" : "t0k3n"}'
    assert excerpt(body) == '{"id":"pi_1","client_secret":"(hidden)","access_token" : "(hidden)"}'


def test_an_escaped_quote_does_not_end_a_secret() -> None:
    assert excerpt(rb'{"client_secret":"a\"b_rest","x":1}') == '{"client_secret":"(hidden)","x":1}'


def test_a_secret_cut_off_by_the_excerpts_end_is_hidden_too() -> None:
    body = b'{"x":"' + b"a" * 470 + b'","client_secret":"pi_1_secret_xyz_and_more_of_it_until_past_the_end"}'
    assert "secret_xyz" not in excerpt(body)


NAMES = (
    "client_secret",
    "sessionData",
    "paymentData",
    "authorisationToken",
    "redirectData",
    "MD",
    "access_token",
    "token",
    "secret",
)
CONFIDENTIAL = re.compile(rf'("(?:{"|".join(NAMES)})"\s*:\s*")(?:[^"\\]|\\.)*')


def bodies() -> st.SearchStrategy[str]:
    """Pieces of JSON in any order, whole and broken: names in quotes and half in quotes, escapes, odd spaces."""
    names = st.sampled_from([*NAMES, "Data", "D", "oken", "id"])
    members = st.builds(lambda name, value: f'"{name}":"{value}"', names, st.text('ab\\"tokenMD', max_size=6))
    scraps = st.sampled_from(['"', '\\"', "\\", ":", '":"', ' : "', ",", "\n", "\u2003", "\x1c", "{", "é"])
    long = st.integers(1, 600).map(lambda length: "a" * length)
    return st.lists(st.one_of(names, names.map(lambda name: f'"{name}"'), members, scraps, long)).map("".join)


@given(bodies())
def test_an_excerpt_hides_what_the_plain_pattern_hides(body: str) -> None:
    """The value's part of it is written out for speed: not one byte may come out otherwise."""
    text = body.encode()[: SAID_CHARACTERS * 2].decode("utf-8", "replace")
    assert excerpt(body.encode()) == CONFIDENTIAL.sub(r"\1(hidden)", text)[:SAID_CHARACTERS]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_hidden_wherever_it_stands(name: str) -> None:
    for before in range(0, SAID_CHARACTERS, 50):
        assert "0p3n5" not in excerpt(f'{{"x":"{"a" * before}","{name}":"0p3n5"}}'.encode())
