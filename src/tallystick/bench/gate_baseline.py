"""What `tally bench gate` is measured against: one conditional UPDATE per transaction, on 16 connections.

python -m tallystick.bench.gate_baseline DSN     the same behind HTTP: prints the port, serves until SIGTERM
"""

import asyncio
import sys
from typing import Final

import asyncpg
import msgspec
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tallystick import queries
from tallystick.checkout.order.rules import OrderReserved
from tallystick.http.server import serve

SQL: Final = queries.load(__package__, "gate.sql")
CONNECTIONS: Final = 16


async def make(dsn: str, sku: str, stock: int) -> None:
    """The baseline's tables, and what is for sale."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(SQL["make"])
        await connection.execute(SQL["stock"], sku, stock)
    finally:
        await connection.close()


async def reserve(pool: "asyncpg.Pool[asyncpg.Record]", wish: OrderReserved, key: str) -> bool:
    """True: reserved. False: sold out."""
    async with pool.acquire() as connection, connection.transaction():
        done = await connection.execute(SQL["take"], wish.sku, wish.quantity)
        if done == "UPDATE 0":
            return False
        await connection.execute(SQL["order"], key, wish.sku, wish.quantity, wish.amount_micros, wish.currency)
        return True


async def opened(dsn: str) -> "asyncpg.Pool[asyncpg.Record]":
    """Its connections."""
    return await asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS)


class _Wish(msgspec.Struct):
    sku: str
    quantity: int
    amount_micros: int
    currency: str


async def main(dsn: str) -> None:
    """An ordinary handler over the same."""
    decode = msgspec.json.Decoder(_Wish).decode
    pool = await opened(dsn)

    async def order(request: Request) -> Response:
        asked = decode(await request.body())
        wish = OrderReserved(
            sku=asked.sku, quantity=asked.quantity, amount_micros=asked.amount_micros, currency=asked.currency
        )
        is_reserved = await reserve(pool, wish, request.headers["idempotency-key"])
        return Response(b'{"status":"PENDING"}' if is_reserved else b'{"code":"sold_out"}', 201 if is_reserved else 409)

    app = Starlette(routes=[Route("/v1/orders", order, methods=["POST"])])
    try:
        await serve(app, "127.0.0.1", 0, on_listening=lambda _host, port: print(port, flush=True))  # noqa: T201
    finally:
        await pool.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
