"""`tally bench http` and `tally bench batch`: operations over HTTP, the client on the same machine.

The client keeps its connections open and sends one request after another on each. The baseline is the same
service with one transaction per operation on 16 connections.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from tallystick.bench import ground
from tallystick.bench.result import Result, median, ratio
from tallystick.errors import require
from tallystick.settings import LIMITS, Settings

_CONNECTIONS = 128
_BATCH_CONNECTIONS = 4
_BASELINE_LANES = 16
_ACCOUNTS = 10_000
KEY = "tsk_bench"


async def http(settings: Settings, *, seconds: float, runs: int, seed: int) -> Result:
    """POST /v1/operations."""

    def request(number: int) -> bytes:
        return post("/v1/operations", _operation(seed, number), f"Idempotency-Key: http-{number}\r\n")

    return await _compare(settings, "http", request, 201, per_request=1, seconds=seconds, runs=runs)


async def batch(settings: Settings, *, seconds: float, runs: int, seed: int) -> Result:
    """POST /v1/operations/batch with a thousand operations."""
    size = LIMITS.batch_call

    def request(number: int) -> bytes:
        first = number * size
        operations = [
            msgspec.json.decode(_operation(seed, first + i)) | {"idempotency_key": f"batch-{first + i}"}
            for i in range(size)
        ]
        return post("/v1/operations/batch", msgspec.json.encode({"operations": operations}))

    return await _compare(settings, "batch", request, 200, per_request=size, seconds=seconds, runs=runs)


def _operation(seed: int, number: int) -> bytes:
    debit = (number * 7919 + seed) % _ACCOUNTS
    credit = (number * 104_729 + 1) % _ACCOUNTS
    if debit == credit:
        credit = (credit + 1) % _ACCOUNTS
    return b'{"kind":"transfer","debit":"acct:%d","credit":"acct:%d","amount_micros":1000000,"currency":"USD"}' % (
        debit,
        credit,
    )


def post(path: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n{more}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _compare(
    settings: Settings,
    name: str,
    request: Callable[[int], bytes],
    expected: int,
    *,
    per_request: int,
    seconds: float,
    runs: int,
) -> Result:
    rates: list[float] = []
    baselines: list[float] = []
    memory = 0
    connections = _CONNECTIONS if per_request == 1 else _BATCH_CONNECTIONS
    # What a run will send is made beforehand: making it is not what is measured.
    prepared = [request(i) for i in range(int(seconds * (40_000 if per_request == 1 else 120)))]
    async with ground.server(settings) as server_dsn:
        for _ in range(runs):
            for lanes, size, found in ((LIMITS.lanes, LIMITS.batch, rates), (_BASELINE_LANES, 1, baselines)):
                async with ground.database(server_dsn) as dsn:
                    await ground.make_accounts(dsn, _ACCOUNTS)
                    async with service(dsn, lanes, size) as (port, process):
                        rate = await _drive(port, prepared, connections, expected, seconds)
                        found.append(rate * per_request)
                        process.terminate()
                        peak = int((await process.stdout.readline()) or 0) if process.stdout else 0
                        memory = max(memory, peak if size > 1 else 0)
                    await ground.checked(dsn)
    value, baseline = median(rates), median(baselines)
    return Result(
        bench=name,
        value=round(value),
        unit="operations/s",
        baseline=round(baseline),
        ratio=ratio(value, baseline),
        baseline_is="the same service, one transaction per operation, 16 connections",
        details={
            "runs": [round(rate) for rate in rates],
            "baseline_runs": [round(rate) for rate in baselines],
            "service_memory_mb": memory,
        },
    )


@asynccontextmanager
async def service(dsn: str, lanes: int, size: int) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick.bench.service", dsn, KEY, str(lanes), str(size)),
        stdout=asyncio.subprocess.PIPE,
    )
    require(process.stdout is not None, "the service's output is a pipe")
    try:
        yield int(await process.stdout.readline()), process  # type: ignore[union-attr]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Client(asyncio.Protocol):
    """One connection: the next request goes out when the last was answered."""

    def __init__(self, requests: "Requests") -> None:
        self._requests = requests
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self._buffer.lower().find(b"content-length:") + 15
        length = int(self._buffer[start : self._buffer.find(b"\r\n", start)])
        if len(self._buffer) < end + 4 + length:
            return
        self._requests.answered(int(self._buffer[9:12]), self._buffer[end + 4 :])
        self._buffer = b""
        self._next()

    def _next(self) -> None:
        request = self._requests.next()
        if request is None:
            self._transport.close()
        else:
            self._transport.write(request)  # type: ignore[attr-defined]

    def connection_lost(self, _exception: Exception | None) -> None:
        self._requests.closed()


class Requests:
    """What is left to send, until the time is over."""

    def __init__(self, prepared: list[bytes], connections: int, expected: int, until: float) -> None:
        self._prepared = iter(prepared)
        self._expected = expected
        self._until = until
        self._open = connections
        self.count = 0
        self.ended_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self) -> bytes | None:
        return next(self._prepared, None) if time.perf_counter() < self._until else None

    def answered(self, status: int, body: bytes) -> None:
        if status != self._expected or b'"problem"' in body:
            # Of a batch, the first operation that was not done.
            told = max(0, body.find(b'"problem"') - 100)
            message = f"unexpected answer {status}: {body[told : told + 500]!r}"
            if not self.done.done():
                self.done.set_exception(RuntimeError(message))
        self.count += 1
        self.ended_at = time.perf_counter()

    def closed(self) -> None:
        self._open -= 1
        if self._open == 0 and not self.done.done():
            self.done.set_result(None)


async def _drive(port: int, prepared: list[bytes], connections: int, expected: int, seconds: float) -> float:
    began = time.perf_counter()
    requests = Requests(prepared, connections, expected, began + seconds)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Client(requests), "127.0.0.1", port)
    await requests.done
    require(requests.count < len(prepared), "the prepared requests were used up: prepare more")
    return requests.count / (requests.ended_at - began)
