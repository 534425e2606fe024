"""Orders over HTTP: put stock up for sale, reserve it, pay, look, and give it back."""

import msgspec

from tallystick.app import Service
from tallystick.checkout.order.rules import OrderReserved
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.idempotency_key import REPLAYED, read_keyed
from tallystick.http.reading import read
from tallystick.ledger.outcome import Rejected


class SkuRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many pieces were ever put up for sale, in all: those reserved and sold count towards it."""

    stock: int


class OrderRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to hold for a buyer. `amount_micros` is what he will pay for the whole order."""

    sku: str
    quantity: int
    amount_micros: int
    currency: str


class Orders:
    """The endpoints of orders and of the stock they draw on."""

    def __init__(self, service: Service) -> None:
        """Reads go to the database, as the caller's tenant."""
        self._orders = service.orders
        self._payments = service.payments
        self._decode = msgspec.json.Decoder(OrderRequest).decode
        self._decode_sku = msgspec.json.Decoder(SkuRequest).decode

    async def reserve(self, call: Call) -> Reply | Rejected:
        """Hold stock under the key in the header."""
        keyed = await read_keyed(call, self._decode)
        if isinstance(keyed, Rejected):
            return keyed
        asked, key = keyed
        wish = OrderReserved(
            sku=asked.sku, quantity=asked.quantity, amount_micros=asked.amount_micros, currency=asked.currency
        )
        made = await self._orders.reserve(call.access.tenant, wish, key)
        if isinstance(made, Rejected):
            return made
        reply = json_reply(201, made.view)
        return msgspec.structs.replace(reply, headers=REPLAYED) if made.is_replayed else reply

    async def read(self, call: Call) -> Reply | Rejected:
        """One order as it stands."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        return _told(await self._payments.order(call.access.tenant, call.path("id")))

    async def cancel(self, call: Call) -> Reply | Rejected:
        """Give a reservation back."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        return _told(await self._orders.cancel(call.access.tenant, call.path("id")))

    async def put_sku(self, call: Call) -> Reply | Rejected:
        """Put stock up for sale."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode_sku, body)
        if isinstance(asked, Rejected):
            return asked
        return _told(await self._orders.set_stock(call.access.tenant, call.path("sku"), asked.stock))

    async def read_sku(self, call: Call) -> Reply | Rejected:
        """What there is of a SKU."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        return _told(await self._orders.sku(call.access.tenant, call.path("sku")))


def _told(found: msgspec.Struct | Rejected) -> Reply | Rejected:
    return found if isinstance(found, Rejected) else json_reply(200, found)
