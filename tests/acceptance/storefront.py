"""A shop as `tally up` runs it, and a provider beside it: everything between them, and with the buyer, is HTTP.

Storefront   the API, the receiver and every worker in this process, on a port of its own; the simulator tells it
             everything by signed webhooks
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import httpx2

from tallystick import app
from tallystick.access import store as tenants
from tallystick.audit.author import acting, at_terminal
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.settings import LIMITS, Limits, Settings
from tallystick.workers.crew import crew, working
from tests.checkouts import CARD, Halves, authorise, compare
from tests.deliveries import SECRET, TRUSTED, headers
from tests.ledgers import broken
from tests.payments import new_key
from tests.providers.worlds import Control
from tests.settlements import superuser

PRICE = 1_000_000_000
HOOK = "/webhooks/simulator"
# For what happens by itself in a second or two; a busy machine may take longer.
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Storefront:
    """What a buyer, the provider, and whoever looks into the books can do."""

    dsn: str
    control: Control
    service: app.Service
    port: int
    client: httpx2.AsyncClient
    stranger: httpx2.AsyncClient
    # How far orders were moved into the past.
    moved: dict[str, timedelta] = field(default_factory=dict)

    # --- the buyer

    async def stock(self, pieces: int, sku: str = "phone") -> None:
        answer = await self.client.put(f"/v1/skus/{sku}", json={"stock": pieces})
        assert answer.status_code == 200, answer.text

    async def ask_for(self, key: str, **fields: Any) -> httpx2.Response:
        wish = {"sku": "phone", "quantity": 1, "amount_micros": PRICE, "currency": "EUR", **fields}
        return await self.client.post("/v1/orders", json=wish, headers={"idempotency-key": key})

    async def reserve(self, key: str, **fields: Any) -> dict[str, Any]:
        answer = await self.ask_for(key, **fields)
        assert answer.status_code == 201, answer.text
        order: dict[str, Any] = answer.json()
        return order

    async def click(self, order: dict[str, Any], **other: Any) -> httpx2.Response:
        body = {"reservation_token": order["reservation_token"], **other}
        headers = {"idempotency-key": new_key()}
        return await self.client.post(f"/v1/orders/{order['id']}/pay", json=body, headers=headers)

    async def pay(self, order: dict[str, Any]) -> str:
        """With a card that is charged at once; the payment's id."""
        answer = await self.click(order, payment_method=CARD)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["payment_intent_id"])

    async def authorise(self, payment: str) -> None:
        """On the provider's own page, with what `pay` gave the buyer for it: the card is charged."""
        await authorise(self.control.url, payment)

    async def order(self, order: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.get(f"/v1/orders/{order['id']}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def becomes(self, order: dict[str, Any], status: str) -> dict[str, Any]:
        """Polled, as a buyer's page does."""
        return await self.until(order, lambda found: found["status"] == status)

    async def until(self, order: dict[str, Any], wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def is_so() -> bool:
            found.update(await self.order(order))
            return wanted(found)

        await eventually(is_so, found)
        return found

    # --- time

    async def later(self, order: dict[str, Any], **span: float) -> None:
        """That much of the reservation's time is over, by the database's clock."""
        moved = "created_at = created_at - $2::interval, expires_at = expires_at - $2::interval"
        await self._set(order["id"], moved, timedelta(**span))
        self.moved[order["id"]] = self.moved.get(order["id"], timedelta()) + timedelta(**span)

    async def held(self, order: dict[str, Any], **span: float) -> None:
        """It waits for the provider's word; and has, for that much longer, by the database's clock."""
        connection = await asyncpg.connect(superuser(self.dsn))
        id_ = order["id"].removeprefix("or_")

        async def is_held() -> bool:
            asked = (
                "SELECT 1 FROM tally.order_hold WHERE order_id = $1::uuid AND reason IS NOT NULL AND verdict IS NULL"
            )
            return await connection.fetchval(asked, id_) is not None

        try:
            await eventually(is_held, "the order is held")
            async with connection.transaction():
                await connection.execute("SET LOCAL session_replication_role = replica")
                await connection.execute(
                    "UPDATE tally.order_hold SET held_since = held_since - $2::interval, due_at = due_at - $2::interval"
                    " WHERE order_id = $1::uuid",
                    id_,
                    timedelta(**span),
                )
        finally:
            await connection.close()

    async def _set(self, order: str, what: str, value: object) -> None:
        connection = await asyncpg.connect(superuser(self.dsn))
        try:
            async with connection.transaction():
                # Without the triggers that keep an order as it was promised.
                await connection.execute("SET LOCAL session_replication_role = replica")
                await connection.execute(
                    f"UPDATE tally.orders SET {what} WHERE id = $1::uuid", order.removeprefix("or_"), value
                )
        finally:
            await connection.close()

    # --- the provider

    async def tells(self, raw: bytes, path: str = HOOK, **how: Any) -> httpx2.Response:
        """A webhook with this body, signed now unless told otherwise."""
        return await self.stranger.post(path, content=raw, headers=headers(raw, **how))

    async def told(self, payment: str, type_: str = "payment_intent.succeeded") -> bytes:
        """The provider's own words about a payment, as it would send them."""
        events = await asyncio.to_thread(
            self.control.call, "GET", f"events?dialect=stripe&object_id={payment}&limit=100"
        )
        return json.dumps(next(event["body"] for event in events if event["type"] == type_)).encode()

    async def plan(self, text: str) -> None:
        await asyncio.to_thread(self.control.plan, text)

    async def behave(self) -> None:
        await asyncio.to_thread(self.control.call, "DELETE", "faults")

    async def advance(self, **span: float) -> None:
        """The provider's clock. Returns when what was due by then was told."""
        await asyncio.to_thread(lambda: self.control.advance(**span))

    # --- the books

    async def ended(self, payment: str) -> dict[str, str]:
        """How the events of a payment stand, by their type."""
        async with self.service.database.owning() as connection:
            rows = await connection.fetch(
                "SELECT type, status FROM tally.webhook_events WHERE provider_id = $1 ORDER BY number", payment
            )
        return {row["type"]: row["status"] for row in rows}

    async def quiet(self) -> None:
        """Every event is at its end."""

        async def is_quiet() -> bool:
            async with self.service.database.owning() as connection:
                return not await connection.fetchval(
                    "SELECT count(*) FROM tally.webhook_events WHERE status IN ('UNPROCESSED', 'IN_PROCESSING')"
                )

        await eventually(is_quiet, "events are not at their end")

    async def halves(self) -> Halves:
        entries = []
        for kind in ("payment_intent", "refund"):
            entries += await asyncio.to_thread(self.control.made, "stripe", kind)
        return await compare(self.dsn, entries)

    async def books_match(self) -> Halves:
        """Charged is PAID and refunded, by the provider's books; and the constitution holds."""
        found = await self.halves()
        assert found.is_equal, found
        # The journal knows when an order was made: it is put back to that moment, as the ended order that it is.
        for order, span in self.moved.items():
            await self._set(
                order, "created_at = created_at + $2::interval, expires_at = expires_at + $2::interval", span
            )
        self.moved.clear()
        faults = await broken(self.dsn)
        assert faults == {}, faults
        return found

    async def metric(self, name: str) -> float:
        text = (await self.stranger.get("/metrics")).text
        (line,) = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return float(line.rsplit(" ", 1)[1])


async def eventually(is_so: Callable[[], Awaitable[bool]], what: object) -> None:
    """Ask until it is so, or for too long."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await is_so():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it did not happen: {what}") from None


@asynccontextmanager
async def storefront(dsn: str, control: Control, *, limits: Limits = LIMITS) -> AsyncIterator[Storefront]:
    """Open, with the settings that everybody begins with: ten minutes for a reservation, thirty seconds of grace."""
    settings = Settings(database_url=dsn, simulator_webhook_secret=TRUSTED)
    async with app.running(settings, limits=limits, simulator_url=control.url) as service:
        keys = {}
        for name in ("default", "other"):
            owner = await tenants.ensure_tenant(service.database, name)
            keys[name] = tenants.new_key()
            with acting(at_terminal("tests")):
                await tenants.add_key(service.database, owner, "admin", keys[name], owner=f"shop {name}")
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with working(crew(service)):
            serving = asyncio.create_task(
                serve(build(service), "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
            )
            port = await listening
            address = f"http://127.0.0.1:{port}"
            endpoint = {"url": f"{address}{HOOK}", "secrets": [SECRET]}
            await asyncio.to_thread(control.call, "PUT", "endpoints/stripe", endpoint)
            async with (
                httpx2.AsyncClient(
                    base_url=address, timeout=60, headers={"authorization": f"Bearer {keys['default']}"}
                ) as client,
                httpx2.AsyncClient(
                    base_url=address, timeout=60, headers={"authorization": f"Bearer {keys['other']}"}
                ) as stranger,
            ):
                yield Storefront(dsn, control, service, port, client, stranger)
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
