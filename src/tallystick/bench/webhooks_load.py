"""The load of `tally bench webhooks`, in a process of its own: signed webhooks over HTTP to one or several receivers.

python -m tallystick.bench.webhooks_load ORDER     ORDER is JSON (`Order`); prints one line of JSON (`Driven`)

    closed   each connection sends the next when the last was answered
    open     by schedule, whatever the receiver does; waiting counts from the planned moment, also for a connection

Connections are shared out over the receivers as a balancer would. Requests are signed before the clock starts, but for
a spike, which is larger than anybody's memory.
"""

import asyncio
import gc
import hmac
import random
import sys
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from itertools import cycle
from typing import Final

import msgspec
import uvloop

from tallystick.bench.processor import own_seconds, stolen_seconds

# A schedule is kept to about this.
_TICK_SECONDS: Final = 0.001
# What is not answered by then, after the last was sent, never will be.
_PATIENCE_SECONDS: Final = 30.0
_OK: Final = b"HTTP/1.1 200 "


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and how. `count`: requests in all, repetitions included; `rate` 0: a closed loop."""

    ports: tuple[int, ...]
    path: str
    secret: str
    seed: int
    # Every event of a run has a name of this run.
    run: str
    count: int
    seconds: float
    connections: int
    rate: float = 0.0
    repeated_percent: int = 5
    body_bytes: int = 1024
    signed_before: bool = True
    # Of this machine: all of 127.0.0.0/8 is.
    from_address: str = "127.0.0.1"
    # The connections come from so many, from that one on.
    addresses: int = 1


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Milliseconds are of answers with 200; `distinct` events were acknowledged."""

    answered: int
    distinct: int
    seconds: float
    statuses: dict[str, int]
    unanswered: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    longest_ms: float
    # How much later than planned a request was handed to its connection, at worst: the generator's own fault.
    behind_ms: float
    # Of this process while it sent, without the signing.
    cpu_seconds: float
    # By the clock that every process of a machine shares.
    began_at: float
    # Of all processors together, by other guests of the host.
    stolen_seconds: float


def requests(order: Order) -> Iterator[tuple[int, bytes]]:
    """The event's number and the whole request. The same seed gives the same repetitions."""
    chance = random.Random(order.seed)  # noqa: S311 - which ones are repeated is no secret
    secret = order.secret.encode()
    fresh = 0
    for _ in range(order.count):
        if fresh > 1 and chance.randrange(100) < order.repeated_percent:
            # One told lately: as a provider repeats what it thinks was not heard.
            number = fresh - 1 - chance.randrange(min(fresh, 5_000))
        else:
            number, fresh = fresh, fresh + 1
        yield number, _request(order, secret, number)


def _request(order: Order, secret: bytes, number: int) -> bytes:
    body = (
        b'{"id":"evt_%b_%d","object":"event","api_version":"2024-06-20","created":1700000000,"livemode":false,'
        b'"pending_webhooks":1,"type":"payment_intent.succeeded","data":{"object":{"id":"pi_%b_%d",'
        b'"object":"payment_intent","amount":4999,"currency":"eur","status":"succeeded","created":1700000000,'
        b'"latest_charge":"ch_%d","metadata":{"tally_key":"%064x"},"description":"%b"}}}'
    )
    run = order.run.encode()
    bare = body % (run, number, run, number, number, number, b"")
    whole = body % (run, number, run, number, number, number, b"x" * max(order.body_bytes - len(bare), 0))
    at = int(time.time())
    signature = hmac.digest(secret, b"%d.%b" % (at, whole), "sha256").hex()
    head = (
        f"POST {order.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Stripe/1.0\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nStripe-Signature: t={at},v1={signature}\r\n"
        f"Content-Length: {len(whole)}\r\n\r\n"
    )
    return head.encode() + whole


class _Client(asyncio.Protocol):
    """One connection, one request at a time."""

    __slots__ = ("_buffer", "_load", "_number", "_planned", "_transport", "is_gone")

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._buffer = b""
        self._number = -1
        self._planned = 0.0
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def send(self, number: int, request: bytes, planned: float) -> None:
        self._number = number
        self._planned = planned
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        # An acknowledgement has no body; a problem has, and its length is looked for.
        if end < 0 or (not data.startswith(_OK) and len(data) < end + 4 + _length(data)):
            self._buffer = data
            return
        self._buffer = b""
        number, self._number = self._number, -1
        self._load.answered(self, number, int(data[9:12]), self._planned)

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_gone = True
        self._load.lost(self, self._number)


def _length(answer: bytes) -> int:
    start = answer.lower().find(b"content-length:") + 15
    return int(answer[start : answer.find(b"\r\n", start)])


class _Load:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._left = requests(order)
        if order.signed_before:
            self._left = iter(list(self._left))
        self._idle: deque[_Client] = deque()
        self._waiting: deque[tuple[int, bytes, float]] = deque()
        self._latencies = array("d")
        self._acknowledged = bytearray(order.count)
        self._statuses: Counter[int] = Counter()
        self._in_flight = 0
        self._behind = 0.0
        self._until = 0.0
        self._cpu_before = self._stolen_before = self._began_at = 0.0
        self._ended_at = 0.0
        self._is_over = False
        self._after: Callable[[_Client, float], None] = self._next_closed if not order.rate else self._next_open
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def drive(self) -> Driven:
        loop = asyncio.get_running_loop()
        clients = []
        first = ip_address(self._order.from_address)
        for place, port in zip(range(self._order.connections), cycle(self._order.ports), strict=False):
            address = str(first + place % self._order.addresses)
            _, client = await loop.create_connection(lambda: _Client(self), "127.0.0.1", port, local_addr=(address, 0))
            clients.append(client)
        gc.collect()
        gc.freeze()
        self._cpu_before, self._stolen_before = own_seconds(), stolen_seconds()
        self._began_at = time.monotonic()
        began = time.perf_counter()
        self._until = began + self._order.seconds
        if self._order.rate:
            self._idle.extend(clients)
            await self._by_schedule(began)
        else:
            for client in clients:
                self._next_closed(client, time.perf_counter())
        try:
            async with asyncio.timeout(self._order.seconds + _PATIENCE_SECONDS):
                await self._done
        except TimeoutError:
            pass
        return self._result(began)

    async def _by_schedule(self, began: float) -> None:
        rate, planned = self._order.rate, 0
        most = min(self._order.count, int(rate * self._order.seconds))
        while planned < most:
            due = min(int((time.perf_counter() - began) * rate) + 1, most)
            for place in range(planned, due):
                number, request = next(self._left)
                at = began + place / rate
                if self._idle:
                    self._begin(self._idle.popleft(), time.perf_counter(), number, request, at)
                else:
                    self._waiting.append((number, request, at))
            planned = max(planned, due)
            await asyncio.sleep(_TICK_SECONDS)
        self._over()

    def _begin(self, client: _Client, now: float, number: int, request: bytes, planned: float) -> None:
        self._in_flight += 1
        self._behind = max(self._behind, now - planned)
        client.send(number, request, planned)

    def _next_open(self, client: _Client, now: float) -> None:
        if self._waiting:
            self._begin(client, now, *self._waiting.popleft())
        else:
            self._idle.append(client)
            if self._is_over:
                self._over()

    def _next_closed(self, client: _Client, now: float) -> None:
        found = next(self._left, None) if now < self._until else None
        if found is None:
            self._over()
            return
        self._begin(client, now, *found, now)

    def _over(self) -> None:
        self._is_over = True
        if not self._in_flight and not self._waiting and not self._done.done():
            self._done.set_result(None)

    def answered(self, client: _Client, number: int, status: int, planned: float) -> None:
        now = self._ended_at = time.perf_counter()
        self._in_flight -= 1
        self._statuses[status] += 1
        if status == 200:  # noqa: PLR2004 - acknowledged
            self._latencies.append(now - planned)
            self._acknowledged[number] = 1
        self._after(client, now)

    def lost(self, client: _Client, number: int) -> None:
        if number >= 0:
            self._in_flight -= 1
            self._statuses[0] += 1
        if client in self._idle:
            self._idle.remove(client)
        if self._is_over:
            self._over()

    def _result(self, began: float) -> Driven:
        found = sorted(self._latencies)

        def at(share: float) -> float:
            return round(1000 * found[min(int(share * len(found)), len(found) - 1)], 2) if found else 0.0

        return Driven(
            answered=self._statuses.total() - self._statuses[0],
            distinct=sum(self._acknowledged),
            seconds=round(self._ended_at - began, 3),
            statuses={str(status): count for status, count in sorted(self._statuses.items()) if count},
            unanswered=self._in_flight + len(self._waiting),
            p50_ms=at(0.5),
            p99_ms=at(0.99),
            p999_ms=at(0.999),
            longest_ms=at(1.0),
            behind_ms=round(1000 * self._behind, 2),
            cpu_seconds=round(own_seconds() - self._cpu_before, 3),
            began_at=self._began_at,
            stolen_seconds=round(stolen_seconds() - self._stolen_before, 2),
        )


async def main(order: Order) -> Driven:
    """Sign, connect, drive."""
    return await _Load(order).drive()


if __name__ == "__main__":
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        driven = runner.run(main(msgspec.json.decode(sys.argv[1], type=Order)))
    sys.stdout.buffer.write(msgspec.json.encode(driven) + b"\n")
