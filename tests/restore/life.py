"""The service before and after a restore: one process for each provider that takes charges, on one database.

Ground   a database whose clock can be moved, a provider with a clock and books of its own, the same time in both
Life     what runs on it: callers, workers, people
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.checkout.payment.rules import Paid
from tallystick.checkout.refund import store as refunds_store
from tallystick.errors import TallystickError
from tallystick.ledger.claims import Tenant
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.movement.life import store as whereabouts
from tallystick.providers.declared import ProviderSettings
from tallystick.providers.words import Event, Movement
from tallystick.recovery.reading import Reader
from tallystick.secret import Secret
from tallystick.settings import Settings
from tallystick.settlement import store as settlements_store
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.store import Made, SettlementView
from tallystick.settlement.terms import Policy
from tallystick.simulator.process import RunningSimulator
from tallystick.webhooks import inbox
from tests.clocks import Movable
from tests.orders import wish
from tests.providers.worlds import API_KEY, FAST, HEX, WORLDS, Control
from tests.sagas import Told, uuid_of
from tests.settlements import open_clearing

# Longer than every provider's memory: an order can still be paid when its charge's key is forgotten.
TTL: Final = timedelta(days=90)
STOCK: Final = 1_000
WORLD: Final = {world.name: world for world in WORLDS}
CHARGING: Final = ("stripe", "adyen", "square")
# Providers whose memory of a key is not published forget after the shortest time they may be set to.
FORGETFUL: Final = {"square.key_retention": "1_hour", "wise.retention": "30_days"}


@dataclass
class Ground:
    """One database and one provider, and the same time in both."""

    server: Movable
    dsn: str
    simulator: RunningSimulator
    control: Control
    ahead: timedelta = timedelta()

    def pass_time(self, span: timedelta) -> None:
        self.ahead += span
        self.server.set_clock(self.ahead)
        self.control.advance(seconds=span.total_seconds())


def settings(dsn: str, url: str, provider: str) -> Settings:
    """All four providers, as one process is told of them; `provider` takes its charges."""

    def account(path: str, *secrets: str, **more: str) -> ProviderSettings:
        return ProviderSettings(
            api_key=Secret(API_KEY),
            api_base=f"{url}/{path}",
            webhook_secrets=tuple(Secret(secret) for secret in secrets),
            requests_per_second=FAST,
            more=more,
        )

    return Settings(
        database_url=dsn,
        home=Path("/nonexistent"),
        provider=provider,
        providers={
            "stripe": account("stripe", "whsec_contract"),
            "adyen": account(
                "adyen/checkout/v72",
                HEX,
                merchant_account="TestMerchant",
                balance_account="BA00000000000000000000001",
                transfer_api_base=f"{url}/adyen/btl/v4",
            ),
            "square": account("square", "sigkey", location_id="LMAIN"),
            "wise": account("wise", profile_id="1001"),
        },
        reservation_ttl_seconds=TTL.total_seconds(),
        reservation_grace_seconds=0.0,
    )


@dataclass
class Life:
    """Everything that a tenant's callers, workers and people do."""

    ground: Ground
    services: dict[str, app.Service]
    tenant: Tenant
    # Payouts of this one have a fee that is changed.
    fees: Tenant
    clicks: Counter[str] = field(default_factory=Counter)
    # What workers and people were told instead of an outcome.
    told: list[str] = field(default_factory=list)

    @property
    def main(self) -> app.Service:
        return self.services["stripe"]

    # --- callers

    async def payout(self, name: str, dialect: str, cents: int, tenant: Tenant | None = None) -> SettlementView:
        world = WORLD[dialect]
        asked = SettlementCreated(
            attribution_id=name,
            squad_id="amber",
            provider=dialect,
            destination=world.destination.replace(" ", ""),
            currency=world.currency,
            gross_micros=cents * 10_000,
        )
        await open_clearing(self.main.database, tenant or self.tenant, world.currency)
        made = await self.main.settlements.create(tenant or self.tenant, asked, f"create-{name}")
        assert isinstance(made, Made), made
        return made.view

    async def read_payout(self, name: str, tenant: Tenant | None = None) -> SettlementView:
        found = await settlements_store.read(self.main.database, tenant or self.tenant, name)
        assert isinstance(found, SettlementView), found
        return found

    async def change_fee(self, micros: int) -> None:
        for currency in {WORLD[dialect].currency for dialect in WORLD}:
            await settlements_store.put_policy(
                self.main.database, self.fees, currency, Policy(fixed_micros=micros), by="tests"
            )

    async def reserve(self, name: str, dialect: str, cents: int) -> OrderView:
        asked = wish("lamp", amount_micros=cents * 10_000, currency=WORLD[dialect].currency)
        made = await self.main.orders.reserve(self.tenant, asked, f"reserve-{name}")
        assert isinstance(made, Reserved), made
        return made.view

    async def pay(self, order: OrderView, dialect: str, method: str | None = None) -> Paid:
        """A click, under a key of its own: the first one of a life has the key that the first one had before it."""
        self.clicks[order.id] += 1
        return await self.services[dialect].payments.pay(
            self.tenant,
            order.id,
            order.reservation_token,
            payment_method=method or WORLD[dialect].payment_method,
            idempotency_key=f"click-{order.id}-{self.clicks[order.id]}",
        )

    async def give_back(self, order: OrderView, cents: int, key: str) -> Any:
        """A part of a paid order."""
        return await self.main.refund_requests.refund(
            self.tenant,
            order.id,
            amount_micros=cents * 10_000,
            reason="a part came broken",
            restock=False,
            idempotency_key=key,
        )

    async def order(self, order: OrderView) -> OrderView:
        found = await self.main.payments.order(self.tenant, order.id)
        assert isinstance(found, OrderView), found
        return found

    # --- the provider tells

    async def tell(self, dialect: str, payment: str, cents: int, event: str) -> None:
        """Its money has come: told as often as this is called, stored once."""
        movement = Movement(
            provider=dialect,
            purpose="charge",
            id=payment,
            amount_micros=cents * 10_000,
            currency=WORLD[dialect].currency,
            state="moved",
            status="succeeded",
        )
        told = Event(
            provider=dialect,
            type="charge.moved",
            dedup_key=event,
            change_key=event,
            object_id=payment,
            occurred_at=None,
            movement=movement,
            body=b"{}",
        )
        async with self.main.database.writing() as connection:
            await inbox.append(connection, [Told(dialect, (told,))])

    async def refunds(self, order: OrderView) -> list[Any]:
        return await refunds_store.read(self.main.database, self.tenant, uuid_of(order))

    # --- people

    async def another_generation(self, view: SettlementView) -> None:
        """One asks for it, another agrees."""
        asked = await self.main.reviews.resolve(
            self.tenant,
            view.id,
            resolution="retry",
            reason="the account is open again",
            evidence="mail",
            transfer_id=None,
            by="ann",
            idempotency_key=f"ask-{view.id}-{view.generation}",
        )
        assert isinstance(asked, Reviewed), asked
        approval = msgspec.json.decode(asked.body, type=ReviewView).approval
        assert approval is not None
        agreed = await self.main.reviews.decide(
            self.tenant,
            approval.id,
            decision="approve",
            reason="agreed",
            by="bob",
            idempotency_key=f"agree-{approval.id}",
        )
        assert isinstance(agreed, Reviewed), agreed

    async def refund_again(self, order: OrderView, payment: str) -> None:
        done = await self.main.refunds.decisions.decide(self.tenant, order.id, payment, "refund")
        assert not isinstance(done, Rejected), done

    # --- workers

    async def work(self) -> None:
        """One round of everybody. What cannot be done now is noted, and comes again."""
        await self._try(self.read_books)
        await self._try(self.main.events.run_once)
        await self._try(self.main.settler.tick)
        for service in self.services.values():
            await self._try(service.payments.collect)
        await self._try(self.main.refunds.sweep_all)

    def pass_time(self) -> None:
        """Ten minutes pass, for the processes too: to them no clock has jumped."""
        self.ground.pass_time(timedelta(minutes=10))
        whereabouts._SEEN.clear()

    async def read_books(self) -> None:
        await Reader(self.main.database, self.main.providers).run_once()

    async def _try(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except TallystickError as error:
            self.told.append(str(error))


@asynccontextmanager
async def alive(ground: Ground) -> AsyncIterator[Life]:
    async with AsyncExitStack() as stack:
        services = {}
        for dialect in CHARGING:
            how = settings(ground.dsn, ground.control.url, dialect)
            services[dialect] = await stack.enter_async_context(app.running(how))
        database = services["stripe"].database
        life = Life(ground, services, await ensure_tenant(database, "default"), await ensure_tenant(database, "fees"))
        await life.main.orders.set_stock(life.tenant, "lamp", STOCK)
        yield life
