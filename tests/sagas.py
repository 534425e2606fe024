"""A shop whose payments come to their end: the saga on a real database, against a real simulator.

Desk   one process's worth of saga and financial sweeper, beside a Checkout; several on one database are several
tell   what a provider would tell, as an event in the log; in any order, as often as a test likes
"""

import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import asyncpg

from tallystick.audit.author import acting
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.order.rules import order_id
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.refund import store
from tallystick.checkout.refund.flow import Refunds
from tallystick.checkout.refund.review.rules import Decision
from tallystick.checkout.refund.store import RefundRow
from tallystick.checkout.saga.flow import Saga
from tallystick.ledger.outcome import Rejected
from tallystick.money.currencies import Purpose
from tallystick.movement.flow import Sender
from tallystick.providers.words import Event, Movement
from tallystick.settings import Limits
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events, Processed
from tests.checkouts import given_up
from tests.payments import HURRIED, STRIPE, Checkout, checkout
from tests.providers.worlds import API_KEY, Control, World
from tests.settlements import superuser

LEASE = timedelta(minutes=5)


@dataclass(frozen=True)
class Told:
    """A page of events from one provider."""

    provider: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Desk:
    """Whoever works off the events of a shop."""

    shop: Checkout
    refunds: Refunds
    saga: Saga
    events: Events

    @property
    def dsn(self) -> str:
        return self.shop.dsn

    async def decided(
        self,
        order: OrderView,
        payment: str,
        decision: Decision,
        *,
        refund_id: str | None = None,
        part: str | None = None,
    ) -> Any:
        """What two persons decide: one asks, another agrees. Their word, or why it does not count."""
        with acting("anna/tsk_anna"):
            asked = await self.refunds.decisions.decide(
                self.shop.tenant, order.id, payment, decision, refund_id=refund_id, part=part
            )
        if not isinstance(asked, ApprovalView):
            return asked
        done = await self.refunds.decisions.approve(
            self.shop.tenant,
            asked,
            is_approved=True,
            reason="Looked.",
            by="bert/tsk_bert",
            idempotency_key=f"approve-{asked.id}",
        )
        return done if isinstance(done, Rejected) else "KEPT" if decision == "keep" else "REFUND"

    async def bought(
        self, key: str = "k", *, by: Mapping[str, Any] | None = None, **fields: Any
    ) -> tuple[OrderView, str]:
        """An order whose payment the provider has, and that payment's id. `by`: how it is paid."""
        order = await self.shop.order(key, **fields)
        paying = await self.shop.paying(order, **(by or {}))
        assert paying.payment.payment_intent_id is not None
        return order, paying.payment.payment_intent_id

    async def bought_for(self, micros: int, key: str = "k") -> tuple[OrderView, str]:
        """The same, but the provider took another amount of it: somebody changed it there before the customer paid."""
        order = await self.shop.order(key)
        payment = (await self.shop.paying(order, payment_method=None)).payment.payment_intent_id
        assert payment is not None
        self.at_the_provider(payment, "", f"amount={micros // 10_000}")
        self.at_the_provider(payment, "/confirm", "payment_method=pm_card_visa")
        return order, payment

    def at_the_provider(self, payment: str, what: str, fields: str = "") -> None:
        """As somebody else does it, with the provider's dashboard or on its page. Stripe's alone."""
        url = f"{self.shop.control.url}/stripe/v1/payment_intents/{payment}{what}"
        request = urllib.request.Request(url, fields.encode(), {"authorization": f"Bearer {API_KEY}"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert reply.status == 200

    async def ghost(self, key: str = "k", **fields: Any) -> tuple[OrderView, str]:
        """The same, cancelled by the sweeper since: the shop's reservations must hold a moment only, see `late`."""
        order, payment = await self.bought(key, **fields)
        await expire(self.dsn, order)
        await given_up(self.dsn, order.id)
        await self.shop.orders.sweep()
        assert await self.status(order) == "CANCELLED_BY_SWEEPER"
        return order, payment

    async def tell(self, payment: str, event: str = "evt_1", **more: Any) -> None:
        """The provider says that a payment has become something: by default, that its money has come."""
        await tell(self.shop, payment, event, **more)

    async def run(self) -> Processed:
        return await self.events.run_once()

    async def status(self, order: OrderView) -> str:
        found = await self.shop.payments.order(self.shop.tenant, order.id)
        assert isinstance(found, OrderView), found
        return found.status

    async def refunds_of(self, order: OrderView) -> list[RefundRow]:
        return await store.read(self.shop.database, self.shop.tenant, uuid_of(order))

    async def refund_statuses(self, order: OrderView) -> list[str]:
        return [row.view.status for row in await self.refunds_of(order)]

    def given_back(self) -> list[dict[str, Any]]:
        """Every refund in the provider's own books."""
        return self.shop.control.made(self.shop.world.name, "refund")

    async def balances(self) -> dict[str, int]:
        """What is taken, sold and owed."""
        async with self.shop.database.owning() as connection:
            rows = await connection.fetch(
                "SELECT split_part(id, ':', 2) AS place, sum(balance_micros)::bigint AS sum FROM tally.account"
                " WHERE id LIKE 'checkout:%' GROUP BY 1"
            )
        return {row["place"]: row["sum"] for row in rows}

    async def ended(self) -> dict[str, str]:
        """Status of each event by its id."""
        async with self.shop.database.owning() as connection:
            rows = await connection.fetch("SELECT event_id, status FROM tally.webhook_events ORDER BY number")
        return {row["event_id"]: row["status"] for row in rows}

    async def breaks(self) -> list[str]:
        async with self.shop.database.owning() as connection:
            rows = await connection.fetch("SELECT kind FROM tally.payment_break WHERE resolved_at IS NULL ORDER BY 1")
        return [row["kind"] for row in rows]


def uuid_of(order: OrderView) -> Any:
    return order_id(order.id)


async def expire(dsn: str, order: OrderView) -> None:
    """The time of this order is over, by the database's clock."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                "UPDATE tally.orders SET expires_at = created_at + interval '1 microsecond' WHERE id = $1",
                uuid_of(order),
            )
    finally:
        await connection.close()


async def tell(shop: Checkout, payment: str, event: str = "evt_1", **more: Any) -> None:
    async with shop.database.writing() as connection:
        await inbox.append(connection, [told(shop, payment, event, **more)])


def told(
    shop: Checkout,
    payment: str,
    event: str = "evt_1",
    *,
    purpose: Purpose = "charge",
    state: Any = "moved",
    micros: int = 25_000_000,
    currency: str | None = None,
    reference: str = "",
    parent: str = "",
    provider: str | None = None,
    word: str = "",
) -> Told:
    movement = Movement(
        provider=shop.world.name,
        purpose=purpose,
        id=payment,
        amount_micros=micros,
        currency=currency or shop.world.currency,
        state=state,
        status=word or f"as_told_{state}",
        reference=reference,
        parent=parent,
    )
    one = Event(
        provider=shop.world.name,
        type=f"{purpose}.{state}",
        dedup_key=event,
        change_key=event,
        object_id=payment,
        occurred_at=None,
        movement=movement,
        body=b"{}",
    )
    return Told(provider or shop.world.name, (one,))


@asynccontextmanager
async def desk(
    dsn: str, control: Control, world: World = STRIPE, *, limits: Limits = HURRIED, by: str = "one", **how: Any
) -> AsyncIterator[Desk]:
    """Open for business, with a checkout of its own."""
    limits = replace(limits, saga_wait_seconds=20.0)
    async with checkout(dsn, control, world, limits=limits, **how) as shop, AsyncExitStack() as stack:
        known = {world.name: shop.provider}
        sender = await stack.enter_async_context(Sender(shop.database, known, limits=limits))
        refunds = await stack.enter_async_context(
            Refunds(shop.database, known, sender, limits=limits, jitter=lambda: 0.0)
        )
        saga = Saga(shop.database, refunds, sender.witness, limits=limits)
        events = Events(shop.database, {"charge": saga, "refund": saga}, lease=LEASE, by=by, limits=limits)
        yield Desk(shop, refunds, saga, events)
