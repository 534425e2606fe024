"""Orders that are asked about while something else is measured: by schedule, whatever the service does.

    uncached   one of many orders after the other: each answer is read from the database
    cached     one order again and again: read once a second, and otherwise from memory

Waiting counts from the planned moment, also for a connection.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle, repeat
from typing import Final

import msgspec

from tallystick import app
from tallystick.access import store as tenant
from tallystick.checkout.order.rules import OrderReserved
from tallystick.checkout.order.store import Reserved
from tallystick.errors import require
from tallystick.settings import LIMITS, Settings

# Questions a second, of either sort.
_RATE: Final = 50.0
# More than are asked about while an answer may be kept, many times over.
_ORDERS: Final = 1_000
_CONNECTIONS: Final = 64
_PATIENCE_SECONDS: Final = 30.0
_FROM_MEMORY: Final = b'tally_order_status_answers_total{source="memory"} '


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the questions. Milliseconds are of all answers; `from_memory` is the service's own count."""

    uncached: int
    uncached_p50_ms: float
    uncached_p99_ms: float
    cached: int
    cached_p50_ms: float
    cached_p99_ms: float
    from_memory: int
    statuses: dict[str, int]


class Ground(msgspec.Struct, frozen=True):
    """Orders to ask about, and a key to ask with."""

    key: str
    orders: list[str]


async def prepared(dsn: str) -> Ground:
    """A shop with orders in it."""
    async with app.running(Settings(database_url=dsn), migrating=False) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        key = tenant.new_key()
        await tenant.add_key(service.database, owner, "viewer", key)
        await service.orders.set_stock(owner, "lamp", _ORDERS)
        wish = OrderReserved(sku="lamp", quantity=1, amount_micros=25_000_000, currency="EUR")
        made = await asyncio.gather(
            *(service.orders.reserve(owner, wish, f"order-{number}") for number in range(_ORDERS))
        )
    orders = [one.view.id for one in made if isinstance(one, Reserved)]
    require(len(orders) == _ORDERS, "not every order was reserved")
    require(LIMITS.status_age_seconds < _ORDERS / _RATE, "orders would come from memory")
    return Ground(key, orders)


class Asking:
    """Questions under way to one service."""

    def __init__(self, port: int, ground: Ground) -> None:
        """Nothing is asked yet."""
        self._port = port
        self._ground = ground
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._took: dict[str, list[float]] = {"uncached": [], "cached": []}
        self._statuses: Counter[int] = Counter()
        self._under_way: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """All connections that are ever used."""
        for _ in range(_CONNECTIONS):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    async def keep_asking(self, name: str, orders: Iterator[str]) -> None:
        """By schedule, until cancelled."""
        began = time.perf_counter()
        planned = 0
        while True:
            at = began + planned / _RATE
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            question = asyncio.create_task(self._ask(name, next(orders), at))
            self._under_way.add(question)
            question.add_done_callback(self._under_way.discard)
            planned += 1

    async def _ask(self, name: str, order: str, planned: float) -> None:
        connection = await self._idle.get()
        status, _ = await self._get(*connection, f"/v1/orders/{order}/status")
        self._took[name].append(time.perf_counter() - planned)
        self._statuses[status] += 1
        self._idle.put_nowait(connection)

    async def _get(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> tuple[int, bytes]:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._ground.key}\r\n\r\n"
        writer.write(head.encode())
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        start = answered.index(b"content-length:") + 15
        body = await reader.readexactly(int(answered[start : answered.index(b"\r\n", start)]))
        return int(answered[9:12]), body

    async def ended(self) -> Asked:
        """What came of it, when the last is answered."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.gather(*self._under_way)
        connection = await self._idle.get()
        _, figures = await self._get(*connection, "/metrics")
        connection[1].close()
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()
        after = figures.find(_FROM_MEMORY) + len(_FROM_MEMORY)
        (uncached, u50, u99), (cached, c50, c99) = (_figures(self._took[name]) for name in ("uncached", "cached"))
        return Asked(
            uncached=uncached,
            uncached_p50_ms=u50,
            uncached_p99_ms=u99,
            cached=cached,
            cached_p50_ms=c50,
            cached_p99_ms=c99,
            from_memory=int(float(figures[after : figures.index(b"\n", after)])),
            statuses={str(status): count for status, count in sorted(self._statuses.items())},
        )


@asynccontextmanager
async def asking(port: int, ground: Ground) -> AsyncIterator[Asking]:
    """Ask as long as the block runs; then call `ended`."""
    made = Asking(port, ground)
    await made.connect()
    tasks = [
        asyncio.create_task(made.keep_asking("uncached", cycle(ground.orders[1:]))),
        asyncio.create_task(made.keep_asking("cached", repeat(ground.orders[0]))),
    ]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _figures(took: list[float]) -> tuple[int, float, float]:
    """How many, and milliseconds at the half and at 99 of 100."""
    found = sorted(took)

    def at(share: float) -> float:
        return round(1000 * found[min(int(share * len(found)), len(found) - 1)], 2) if found else 0.0

    return len(found), at(0.5), at(0.99)
