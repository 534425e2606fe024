"""`checkout_shop` on our own parts: Starlette on our server, our adapter of the provider, our signature check.

Nobody who writes it himself has those. What is left between it and Tallystick is one transaction for each step.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tallystick import app
from tallystick.bench import ground
from tallystick.bench.checkout_shop import Shop, shop
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Charge, Done, Forged, Sending
from tallystick.secret import Secret
from tallystick.settings import LIMITS


class _Wish(msgspec.Struct):
    sku: str
    quantity: int
    amount_micros: int
    currency: str


class _Payment(msgspec.Struct):
    reservation_token: str
    payment_method: str


@asynccontextmanager
async def lean(dsn: str, simulator_url: str) -> AsyncIterator[ASGIApp]:
    """The application, over the simulator."""
    provider = app.simulator(simulator_url, Secret(ground.WEBHOOK_SECRET))
    try:
        async with shop(dsn) as opened:
            front = _Front(opened, provider)
            yield Starlette(
                routes=[
                    Route("/v1/orders", front.reserve, methods=["POST"]),
                    Route("/v1/orders/{id}/pay", front.pay, methods=["POST"]),
                    Route("/v1/orders/{id}/status", front.status, methods=["GET"]),
                    Route("/webhooks/simulator", front.receive, methods=["POST"]),
                ]
            )
    finally:
        await provider.close()


class _Front:
    def __init__(self, opened: Shop, provider: Provider) -> None:
        self._shop = opened
        self._provider = provider
        self._wish = msgspec.json.Decoder(_Wish).decode
        self._payment = msgspec.json.Decoder(_Payment).decode

    async def reserve(self, request: Request) -> Response:
        wish = self._wish(await request.body())
        key = request.headers["idempotency-key"]
        made = await self._shop.reserve(key, wish.sku, wish.quantity, wish.amount_micros, wish.currency)
        return _json({"code": "sold_out"}, 409) if made is None else _json(made, 201)

    async def pay(self, request: Request) -> Response:
        asked = self._payment(await request.body())
        order = UUID(request.path_params["id"])
        wanted = await self._shop.intend(order, UUID(asked.reservation_token))
        if wanted is None:
            return _json({"code": "order_unknown"}, 404)
        charge = Charge(
            key=wanted.key,
            amount_micros=wanted.amount_micros,
            currency=wanted.currency,
            payment_method=asked.payment_method,
        )
        now = datetime.now(UTC)
        until = timedelta(seconds=LIMITS.send_seconds)
        permit = Sending(first_sent_at=now, not_after=now + until, sendable_until=steady() + LIMITS.send_seconds)
        answer = await self._provider.send(charge, permit)
        if not isinstance(answer, Done):
            return _json({"code": "payment_pending"}, 202)
        await self._shop.charged(wanted, answer.id)
        return _json({"order_id": str(order), "status": "COMPLETED", "payment_intent_id": answer.id}, 201)

    async def receive(self, request: Request) -> Response:
        body = await request.body()
        events = self._provider.receive(request.headers.items(), body, now=datetime.now(UTC))
        if isinstance(events, Forged):
            return Response(status_code=400)
        for event in events:
            reference = "" if event.movement is None else event.movement.reference
            await self._shop.take(event.dedup_key, event.type, reference, body)
        return Response(status_code=200)

    async def status(self, request: Request) -> Response:
        return _json({"status": await self._shop.status(UUID(request.path_params["id"]))})


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
