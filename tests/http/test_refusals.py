"""Who is refused often waits for it, and nobody else does."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network

import pytest
import pytest_asyncio

from tallystick.http.address import caller_address
from tallystick.http.refusals import Refusals
from tallystick.settings import LIMITS
from tests import servers
from tests.deliveries import body, request, signature
from tests.http.test_crowd import Place, open_place, status

# Four at once, and four a second.
FEW = replace(LIMITS, refusals_per_second=4.0, refusal_seconds=1.0)
FORGED = b"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\nStripe-Signature: t=1,v1=0\r\nContent-Length: 2\r\n\r\n{}"
REFUSED = {
    "an unknown path": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    "no key": b"GET /v1/accounts/a HTTP/1.1\r\nHost: x\r\n\r\n",
    "a guessed key": b"GET /v1/accounts/a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\n\r\n",
    "no key, by the parser's way": b"GET /v1/accounts/a HTTP/1.1\r\nHost: x\r\nTE: x\r\n\r\n",
    "a method there is not": b"DELETE /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "a forged webhook": FORGED,
    "a forged webhook, by the parser's way": FORGED.replace(b"Host: x", b"Host: x\r\nTE: x"),
}


@pytest_asyncio.fixture
async def place(embedded18: servers.Server) -> AsyncIterator[Place]:
    async with open_place(embedded18.fresh_database(), FEW) as made:
        yield made


async def seconds_until_refused(place: Place, asked: bytes, address: str = "127.0.0.2") -> float:
    began = time.monotonic()
    async with place.connected(address) as (reader, writer):
        writer.write(asked)
        assert await status(reader) in (400, 401, 404, 405, 429)
    return time.monotonic() - began


@pytest.mark.parametrize("what", REFUSED)
async def test_who_is_refused_often_waits_for_it(place: Place, what: str) -> None:
    """And whoever is not refused does not, with the same address: nor does another who is."""
    assert await seconds_until_refused(place, REFUSED[what]) < 1.0
    paid_until = place.front.receiver.refusals._paid_until
    # It is he that this was counted for.
    assert paid_until.keys() == {"127.0.0.2"}
    paid_until["127.0.0.2"] += 60
    late = asyncio.create_task(seconds_until_refused(place, REFUSED[what]))
    async with asyncio.timeout(30):
        while not any(one.is_held for one in place.front.crowd.members):  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        assert await place.delivered(1, "127.0.0.2") == 200
        async with place.connected("127.0.0.2") as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await status(reader) == 200
        assert await seconds_until_refused(place, REFUSED[what], "127.0.0.3") < 1.0
        assert not late.done()
        assert await late >= 1.0


async def test_on_a_connection_that_was_refused_the_genuine_one_is_answered(place: Place) -> None:
    """As through a proxy: it is refused late, and what comes after it is taken."""
    async with place.connected() as (reader, writer):
        writer.write(FORGED * 6 + request(1))
        for expected in (*[400] * 6, 200):
            assert await status(reader) == expected
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    assert place.front.receiver.refusals.held


async def test_who_waits_to_be_refused_gives_way_to_others(embedded18: servers.Server) -> None:
    limits = replace(FEW, connections=20, refusals_per_second=0.1, refusal_seconds=60.0)
    async with open_place(embedded18.fresh_database(), limits) as place, contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            _, writer = await stack.enter_async_context(place.connected("127.0.0.2"))
            writer.write(FORGED)
        async with asyncio.timeout(30):
            while place.front.receiver.refusals.held < 18:
                await asyncio.sleep(0.01)
        assert [await place.delivered(number, "127.0.0.3") for number in range(5)] == [200] * 5


def test_what_took_longer_to_read_counts_for_more() -> None:
    """And each address for itself, told by a proxy only if it is trusted."""
    refusals = Refusals(limits=FEW, proxies=(ip_network("10.0.0.9"),))
    attacker = {"client": ("10.0.0.1", 1), "headers": []}
    assert refusals.wait_seconds(attacker, 3 * 1024, 0.0) == 0.0
    assert refusals.wait_seconds(attacker, 0, 0.0) == 0.0
    assert refusals.wait_seconds(attacker, 100 * 1024, 0.0) == 0.25
    # A debt ends: what it has in excess of the longest wait is forgiven.
    assert refusals.wait_seconds(attacker, 100 * 1024, 0.0) == 1.0
    assert refusals.wait_seconds(attacker, 0, 2.0) == 0.0
    through = {"client": ("10.0.0.9", 1), "headers": [(b"x-forwarded-for", b"10.0.0.1")]}
    assert refusals.wait_seconds(through, 0, 0.0) == 1.0
    assert refusals.wait_seconds({**through, "headers": [(b"x-forwarded-for", b"10.0.0.2")]}, 0, 0.0) == 0.0
    pretended = {**attacker, "headers": [(b"x-forwarded-for", b"10.0.0.2")]}
    assert refusals.wait_seconds(pretended, 0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("hop", "told"),
    [
        ("1.2.3.4:5678", "1.2.3.4"),
        ("[2001:db8::1]:5678", "2001:db8::/64"),
        ("[2001:db8::1]", "2001:db8::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("unknown", "unknown"),
    ],
)
def test_a_proxy_may_write_the_port_as_well(hop: str, told: str) -> None:
    """Each connection would be an address of its own, with guesses of its own."""
    proxies = (ip_network("10.0.0.0/8"),)
    scope = {"client": ("10.0.0.9", 1), "headers": [(b"x-forwarded-for", f"9.9.9.9, {hop}, 10.0.0.7:80".encode())]}
    assert caller_address(scope, proxies) == told


def test_addresses_are_bounded() -> None:
    refusals = Refusals(limits=replace(FEW, guessers=3))
    for number in range(10):
        refusals.wait_seconds({"client": (f"10.0.0.{number}", 1), "headers": []}, 0, 0.0)
    assert len(refusals._paid_until) == 3


async def test_a_webhook_that_its_provider_signed_never_waits(place: Place) -> None:
    """Not even one that cannot be read."""
    raw = body(1).replace(b'"amount"', b'"amounts"')
    head = f"POST /webhooks/simulator HTTP/1.1\r\nHost: x\r\nStripe-Signature: {signature(raw)}\r\n"
    asked = f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw
    for _ in range(12):
        await seconds_until_refused(place, asked)
    assert not place.front.receiver.refusals.held
