"""Buyers of `tally bench checkout`: each reserves, pays, waits for PAID, and begins again, on one connection."""

import asyncio
import time
from array import array
from typing import Final

import msgspec

from tallystick.bench.http import post
from tallystick.errors import require

# How often a buyer asks who is not kept waiting.
_POLL_SECONDS: Final = 0.05
# A buyer who waits longer than this for one answer never gets it.
_PATIENCE_SECONDS: Final = 60.0
_CREATED: Final = 201
_OK: Final = 200


class _Order(msgspec.Struct):
    id: str
    reservation_token: str


class _Status(msgspec.Struct):
    status: str


_order: Final = msgspec.json.Decoder(_Order).decode
_status: Final = msgspec.json.Decoder(_Status).decode


class Bought(msgspec.Struct, frozen=True, kw_only=True):
    """What the buyers saw. Milliseconds of a whole checkout, from the reservation to the answer that says PAID."""

    checkouts: int
    seconds: float
    p50_ms: float
    p99_ms: float
    questions: int


class Sale:
    """What all buyers share. None begins anew after the time is over; everyone finishes what he has begun."""

    def __init__(self, *, port: int, buyers: int, seconds: float, seed: int, sku: str) -> None:
        """Connects nobody yet."""
        self._port = port
        self._buyers = buyers
        self._seconds = seconds
        self._seed = seed
        self.wish = msgspec.json.encode({"sku": sku, "quantity": 1, "amount_micros": 25_000_000, "currency": "EUR"})
        self._number = 0
        self._until = 0.0
        self._ended_at = 0.0
        self._open = buyers
        self._times = array("d")
        self.questions = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Bought:
        """All of it."""
        loop = asyncio.get_running_loop()
        buyers = []
        for _ in range(self._buyers):
            _, buyer = await loop.create_connection(lambda: _Buyer(self), "127.0.0.1", self._port)
            buyers.append(buyer)
        began = time.perf_counter()
        self._until = began + self._seconds
        for buyer in buyers:
            buyer.begin()
        async with asyncio.timeout(self._seconds + _PATIENCE_SECONDS):
            await self._done
        found = sorted(self._times)
        require(bool(found), "nobody bought anything")
        return Bought(
            checkouts=len(found),
            seconds=self._ended_at - began,
            p50_ms=round(1000 * found[len(found) // 2], 1),
            p99_ms=round(1000 * found[min(int(0.99 * len(found)), len(found) - 1)], 1),
            questions=self.questions,
        )

    def next(self) -> str | None:
        """The key of another purchase; None: the time is over."""
        if time.perf_counter() >= self._until:
            return None
        self._number += 1
        return f"checkout-{self._seed}-{self._number}"

    def paid(self, began: float) -> None:
        """A buyer has heard that his order is PAID."""
        self._ended_at = time.perf_counter()
        self._times.append(self._ended_at - began)

    def left(self) -> None:
        """A buyer is through."""
        self._open -= 1
        if not self._open and not self._done.done():
            self._done.set_result(None)

    def failed(self, why: str) -> None:
        """What nobody expects ends the bench."""
        if not self._done.done():
            self._done.set_exception(RuntimeError(why))


class _Buyer(asyncio.Protocol):
    def __init__(self, sale: Sale) -> None:
        self._sale = sale
        self._buffer = b""
        self._began = 0.0
        self._order: _Order | None = None
        self._is_paying = False
        self._is_through = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_through:
            self._sale.failed(f"a buyer's connection was closed: {error}")

    def begin(self) -> None:
        key = self._sale.next()
        if key is None:
            self._is_through = True
            self._transport.close()
            self._sale.left()
            return
        self._order = None
        self._began = time.perf_counter()
        self._transport.write(post("/v1/orders", self._sale.wish, f"Idempotency-Key: {key}\r\n"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        start = head.find(b"content-length:") + 15
        length = int(head[start:].split(b"\r\n", 1)[0])
        if len(self._buffer) < end + 4 + length:
            return
        status, body, self._buffer = int(self._buffer[9:12]), self._buffer[end + 4 :], b""
        self._answered(status, body)

    def _answered(self, status: int, body: bytes) -> None:
        if status != (_CREATED if self._order is None or self._is_paying else _OK):
            self._sale.failed(f"unexpected answer {status}: {body[:500]!r}")
        elif self._order is None:
            self._order = _order(body)
            self._is_paying = True
            asked = {"reservation_token": self._order.reservation_token, "payment_method": "pm_card_visa"}
            # The order's id is as good a key as any: there is one attempt.
            key = f"Idempotency-Key: {self._order.id}\r\n"
            self._transport.write(post(f"/v1/orders/{self._order.id}/pay", msgspec.json.encode(asked), key))
        elif self._is_paying:
            self._is_paying = False
            self._ask()
        elif _status(body).status == "PAID":
            self._sale.paid(self._began)
            self.begin()
        else:
            asyncio.get_running_loop().call_later(_POLL_SECONDS, self._ask)

    def _ask(self) -> None:
        self._sale.questions += 1
        if self._order is not None:
            self._transport.write(get(f"/v1/orders/{self._order.id}/status?wait=20"))


def get(path: str) -> bytes:
    """A question, with the key of the bench."""
    return post(path, b"").replace(b"POST", b"GET", 1)
