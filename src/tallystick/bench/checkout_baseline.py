"""What most would write: a framework's handlers, one transaction for each step, on 16 connections.

    reserve   one conditional UPDATE of the stock, one INSERT
    pay       the intent, committed; the provider; the answer, committed
    webhook   verified, one INSERT, 200; then PAID, the stock and the event's end in a transaction of their own
    status    one SELECT

In its favour: plain tables, no ledger; the provider's adapter, the signature check and the server are ours; an event is
processed as soon as it is stored, by the process that has it in memory.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tallystick import app, queries
from tallystick.core.provider import Charge, Done, Event, Forged, Sending
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS

CONNECTIONS: Final = 16
SQL: Final = queries.load(__package__, "checkout.sql")


class _Wish(msgspec.Struct):
    sku: str
    quantity: int
    amount_micros: int
    currency: str


class _Payment(msgspec.Struct):
    reservation_token: str
    payment_method: str


async def make(dsn: str, sku: str, stock: int) -> None:
    """Its tables, and what is for sale."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SQL["make"])
        await connection.execute(SQL["stock"], sku, stock)
    finally:
        await connection.close()


@asynccontextmanager
async def baseline(dsn: str, simulator_url: str) -> AsyncIterator[ASGIApp]:
    """The application, over the simulator."""
    provider = app.simulator(simulator_url)
    try:
        async with asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            shop = _Shop(pool, provider)
            yield Starlette(
                routes=[
                    Route("/v1/orders", shop.reserve, methods=["POST"]),
                    Route("/v1/orders/{id}/pay", shop.pay, methods=["POST"]),
                    Route("/v1/orders/{id}/status", shop.status, methods=["GET"]),
                    Route("/webhooks/simulator", shop.receive, methods=["POST"]),
                ]
            )
            await shop.finish()
    finally:
        await provider.close()


class _Shop:
    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", provider: Provider) -> None:
        self._pool = pool
        self._provider = provider
        self._wish = msgspec.json.Decoder(_Wish).decode
        self._payment = msgspec.json.Decoder(_Payment).decode
        self._processing: set[asyncio.Task[None]] = set()

    async def reserve(self, request: Request) -> Response:
        wish = self._wish(await request.body())
        key = request.headers["idempotency-key"]
        async with self._pool.acquire() as connection, connection.transaction():
            if await connection.execute(SQL["take"], wish.sku, wish.quantity) == "UPDATE 0":
                return _json({"code": "sold_out"}, 409)
            (row,) = await connection.fetch(
                SQL["order"], key, wish.sku, wish.quantity, wish.amount_micros, wish.currency
            )
        return _json(
            {"id": str(row["id"]), "status": "PENDING", "reservation_token": str(row["reservation_token"])}, 201
        )

    async def pay(self, request: Request) -> Response:
        asked = self._payment(await request.body())
        id_ = UUID(request.path_params["id"])
        digest = hashlib.sha256(f"{id_} {asked.reservation_token} 1".encode()).digest()
        async with self._pool.acquire() as connection, connection.transaction():
            order = await connection.fetchrow(SQL["payable"], id_, UUID(asked.reservation_token))
            if order is None:
                return _json({"code": "order_unknown"}, 404)
            await connection.execute(SQL["intend"], digest.hex(), id_, order["amount_micros"])
        charge = Charge(
            key=digest,
            amount_micros=order["amount_micros"],
            currency=order["currency"],
            payment_method=asked.payment_method,
        )
        now = datetime.now(UTC)
        until = timedelta(seconds=LIMITS.send_seconds)
        leave = Sending(first_sent_at=now, not_after=now + until, sendable_until=steady() + LIMITS.send_seconds)
        answer = await self._provider.charge(charge, leave)
        if not isinstance(answer, Done):
            return _json({"code": "payment_pending"}, 202)
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(SQL["charged"], digest.hex(), answer.id)
        return _json({"order_id": str(id_), "status": "COMPLETED", "payment_intent_id": answer.id}, 201)

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        events = self._provider.receive(request.headers.items(), body, now=datetime.now(UTC))
        if isinstance(events, Forged):
            return Response(status_code=400)
        for event in events:
            async with self._pool.acquire() as connection, connection.transaction():
                number = await connection.fetchval(SQL["event"], event.dedup_key, event.type, body.decode())
            if number is not None:
                task = asyncio.create_task(self._process(number, event))
                self._processing.add(task)
                task.add_done_callback(self._processing.discard)
        return Response(status_code=200)

    async def _process(self, number: UUID, event: Event) -> None:
        movement = event.movement
        is_paid = movement is not None and event.type == "payment_intent.succeeded"
        async with self._pool.acquire() as connection, connection.transaction():
            if movement is not None and is_paid:
                sold = await connection.fetchrow(SQL["pay"], movement.reference)
                if sold is not None:
                    await connection.execute(SQL["sell"], sold["sku"], sold["quantity"])
            await connection.execute(SQL["processed"], number)

    async def status(self, request: Request) -> Response:
        async with self._pool.acquire() as connection:
            status = await connection.fetchval(SQL["status"], UUID(request.path_params["id"]))
        return _json({"status": status})

    async def finish(self) -> None:
        """What was acknowledged is processed."""
        await asyncio.gather(*self._processing, return_exceptions=True)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
