"""`checkout_shop` of the parts that everybody takes: FastAPI on uvicorn as it comes, and the provider's own package.

None of it is a dependency of ours. Where one is missing, it is not measured.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Annotated, Any, Final
from uuid import UUID

import uvicorn
from starlette.requests import Request

from tallystick.bench import ground
from tallystick.bench.checkout_shop import shop

IS_HERE: Final = all(find_spec(name) is not None for name in ("fastapi", "pydantic", "stripe", "aiohttp"))
_BACKLOG: Final = 2048
# Everything here is sold in EUR.
_MICROS_OF_A_CENT: Final = 10_000


async def serve(dsn: str, simulator_url: str, on_listening: Callable[[str, int], None]) -> None:
    """Until SIGTERM. Without a log of each request, in its favour."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    on_listening("127.0.0.1", listener.getsockname()[1])
    config = uvicorn.Config(_application(dsn, simulator_url), log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listener])


def _application(dsn: str, simulator_url: str) -> Any:  # noqa: ANN401 - FastAPI, no dependency of ours
    import stripe  # noqa: PLC0415 - like it
    from fastapi import FastAPI, Header, HTTPException, Response  # noqa: PLC0415
    from pydantic import BaseModel  # noqa: PLC0415

    class Wish(BaseModel):
        sku: str
        quantity: int
        amount_micros: int
        currency: str

    class Payment(BaseModel):
        reservation_token: UUID
        payment_method: str

    @asynccontextmanager
    async def lifespan(_made: Any) -> AsyncIterator[None]:  # noqa: ANN401
        addresses: Any = {"api": f"{simulator_url}/stripe"}
        # The fastest of those that the package has.
        transport = stripe.AIOHTTPClient()
        made.state.stripe = stripe.StripeClient("sk_test_bench", base_addresses=addresses, http_client=transport).v1
        async with shop(dsn) as opened:
            made.state.shop = opened
            yield
        await transport.close_async()  # type: ignore[no-untyped-call]

    made = FastAPI(lifespan=lifespan)

    @made.post("/v1/orders", status_code=201)
    async def reserve(wish: Wish, idempotency_key: Annotated[str, Header()]) -> dict[str, str]:
        opened = made.state.shop
        order = await opened.reserve(idempotency_key, wish.sku, wish.quantity, wish.amount_micros, wish.currency)
        if order is None:
            raise HTTPException(409, "sold out")
        return {"id": order.id, "status": order.status, "reservation_token": order.reservation_token}

    @made.post("/v1/orders/{order}/pay", status_code=201)
    async def pay(order: UUID, payment: Payment) -> dict[str, str]:
        wanted = await made.state.shop.intend(order, payment.reservation_token)
        if wanted is None:
            raise HTTPException(404, "no such order")
        intent = await made.state.stripe.payment_intents.create_async(
            params={
                "amount": wanted.amount_micros // _MICROS_OF_A_CENT,
                "currency": wanted.currency.lower(),
                "confirm": True,
                "payment_method": payment.payment_method,
                "metadata": {"reference": wanted.key.hex()},
            },
            options={"idempotency_key": wanted.key.hex()},
        )
        await made.state.shop.charged(wanted, intent.id)
        return {"order_id": str(order), "status": "COMPLETED", "payment_intent_id": intent.id}

    @made.get("/v1/orders/{order}/status")
    async def status(order: UUID) -> dict[str, str]:
        return {"status": await made.state.shop.status(order)}

    @made.post("/webhooks/simulator")
    async def receive(request: Request, stripe_signature: Annotated[str, Header()]) -> Response:
        body = await request.body()
        try:
            event = stripe.Webhook.construct_event(body, stripe_signature, ground.WEBHOOK_SECRET)
        except (ValueError, stripe.SignatureVerificationError) as error:
            raise HTTPException(400, "forged") from error
        reference = getattr(event.data.object.metadata, "reference", "")
        await made.state.shop.take(event.id, event.type, reference, body)
        return Response(status_code=200)

    return made
