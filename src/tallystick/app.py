"""Composition root: the only file that knows every adapter."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from tallystick import settings as configuration
from tallystick.access import store as tenant
from tallystick.checkout.order.flow import Orders
from tallystick.checkout.order.store import Changed, unannounced
from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.refund.flow import Refunds
from tallystick.checkout.refund.request.flow import RefundRequests
from tallystick.checkout.release.flow import Releases
from tallystick.checkout.saga.flow import Saga
from tallystick.checkout.status.announcer import Announcer
from tallystick.checkout.status.flow import OrderStatuses
from tallystick.checkout.watermark.flow import Log
from tallystick.database import pool as postgres
from tallystick.database.embedded import server as embedded
from tallystick.database.embedded.keeper import kept
from tallystick.database.migrate import Migration, grant, migrate, require_current
from tallystick.database.pool import Database
from tallystick.database.roles import Granted, might
from tallystick.errors import Misconfigured
from tallystick.leases.flow import Timekeeper
from tallystick.ledger.account import store as account
from tallystick.ledger.account.store import AccountView, EntryView, Put
from tallystick.ledger.claims import Tenant
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kind, Kinds
from tallystick.ledger.mysql.address import is_address as is_mysql
from tallystick.ledger.outcome import Rejected
from tallystick.ledger.store import PostgresLedger
from tallystick.ledger.velocity import VelocityLimit
from tallystick.money.currencies import Purpose
from tallystick.movement.flow import Sender
from tallystick.movement.steps import Patience
from tallystick.movement.witness import Witness
from tallystick.providers.declared import ProviderSettings
from tallystick.providers.known import KNOWN
from tallystick.providers.port import Provider
from tallystick.secret import Secret
from tallystick.settings import LIMITS, Limits, Settings
from tallystick.settlement.flow import Settlements
from tallystick.settlement.review.flow import Reviews
from tallystick.settlement.tick.flow import Settler
from tallystick.webhooks.flow import Events, Handler, SettlementNews
from tallystick.webhooks.intake import store as intake_store
from tallystick.webhooks.intake.flow import Intake
from tallystick.webhooks.log.port import EventLog
from tallystick.webhooks.log.postgres import PostgresLog


class Accounts(Protocol):
    """What `ledger.account.store` and `ledger.mysql.account` both are; each takes its own kind of database."""

    async def put(
        self,
        database: Any,  # noqa: ANN401
        tenant: Tenant,
        account_id: str,
        *,
        currency: str,
        floor_micros: int | None,
        limits: tuple[VelocityLimit, ...],
    ) -> Put | Rejected: ...

    async def read(
        self,
        database: Any,  # noqa: ANN401
        tenant: Tenant,
        account_id: str,
    ) -> AccountView | Rejected: ...

    async def balance_at(
        self,
        database: Any,  # noqa: ANN401
        tenant: Tenant,
        account_id: str,
        moment: datetime,
    ) -> tuple[int, int] | Rejected: ...

    async def list_entries(
        self,
        database: Any,  # noqa: ANN401
        tenant: Tenant,
        account_id: str,
        *,
        before: int | None,
        most: int,
    ) -> list[EntryView] | Rejected: ...


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the library needs, on either engine."""

    database: Any
    engine: Engine
    accounts: Accounts
    find_tenant: Callable[[Any, str], Awaitable[Tenant | None]]


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a process needs, running."""

    settings: Settings
    database: Database
    engine: Engine
    providers: Mapping[str, Provider]
    sender: Sender
    settlements: Settlements
    settler: Settler
    reviews: Reviews
    orders: Orders
    payments: Payments
    refunds: Refunds
    refund_requests: RefundRequests
    announcer: Announcer
    statuses: OrderStatuses
    log: EventLog
    events: Events
    notes: tuple[str, ...]
    # None: receivers store in the database themselves.
    intake: Intake | None = None

    async def tenant(self, name: str) -> Tenant | None:
        """The tenant of that name."""
        return await tenant.find_tenant(self.database, name)


def settings_with(*, database_url: str | None = None, home: str | Path | None = None) -> Settings:
    """The settings of the environment, with what the caller said himself on top."""
    settings = configuration.load()
    if database_url is not None:
        settings = replace(settings, database_url=database_url, database_direct_url=None)
    elif home is not None:
        settings = replace(settings, home=Path(home), database_url=None, database_direct_url=None)
    return settings


@asynccontextmanager
async def database_address(
    settings: Settings, *, making: bool, direct: bool = False
) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
    """The DSN to use, starting the embedded server if none is given, and what to tell the person about it.

    Not `making`: an embedded database must be there already. Raises Misconfigured where there is none. `direct`: the
    server's own address, also where there is a pooler.
    """
    if settings.database_url is not None:
        yield (direct and settings.database_direct_url) or settings.database_url, ()
        return
    if not making and not embedded.exists(settings.home):
        raise Misconfigured(
            f"There is no database in {settings.home.absolute()}, and none was made. `tally up` or `tally migrate` "
            f"makes one there; for another, set TALLY_HOME or TALLY_DATABASE_URL."
        )
    server = await asyncio.to_thread(embedded.start, settings.home)
    try:
        async with kept(server):
            yield server.dsn, server.notes
    finally:
        await asyncio.to_thread(server.close)


# The simulator speaks every dialect; as a provider of its own it speaks Stripe's. It has no rate limit.
_SIMULATED_PER_SECOND = 100_000.0
SIMULATOR_API_KEY = "sk_test_simulator"


def simulator(url: str, webhook_secret: Secret | None = None) -> Provider:
    """The simulator as a provider. Without the secret of its webhooks none of them is believed."""
    return KNOWN["stripe"].make(
        ProviderSettings(
            api_key=Secret(SIMULATOR_API_KEY),
            api_base=f"{url}/stripe",
            webhook_secrets=() if webhook_secret is None else (webhook_secret,),
            requests_per_second=_SIMULATED_PER_SECOND,
            more={},
        )
    )


@asynccontextmanager
async def providers(settings: Settings, *, simulator_url: str | None = None) -> AsyncIterator[Mapping[str, Provider]]:
    """Every configured provider by name, with the simulator among them unless a real one was chosen."""
    found: dict[str, Provider] = {}
    if settings.provider == "simulator":
        found["simulator"] = simulator(
            simulator_url or f"http://127.0.0.1:{settings.simulator_port}", settings.simulator_webhook_secret
        )
    for name, account_settings in settings.providers.items():
        try:
            found[name] = KNOWN[name].make(account_settings)
        except Misconfigured as error:
            raise Misconfigured(f"TALLY_{name.upper()}_...: {error}") from error
    try:
        yield found
    finally:
        for provider in found.values():
            await provider.close()


def patience(settings: Settings, names: Iterable[str]) -> dict[str, Patience]:
    """How long and how often each provider is tried with a payout."""
    found = {}
    for name in names:
        own = settings.providers.get(name)
        seconds = (own and own.settlement_timeout_seconds) or settings.settlement_timeout_seconds
        found[name] = Patience(stuck_after=timedelta(seconds=seconds), budget=settings.settlement_retry_budget)
    return found


def timekeeper(service: Service) -> Timekeeper:
    """Who bounds the leases, with the longest that the settings give."""
    longest = [of.stuck_after for of in patience(service.settings, service.providers).values()]
    lease = max([timedelta(seconds=service.settings.lease_seconds), *longest])
    return Timekeeper(service.database, list(service.providers), lease=lease)


def orders_of(
    settings: Settings,
    database: Database,
    known: Mapping[str, Provider],
    sender: Sender,
    *,
    changed: Changed = unannounced,
    reach: Log | None = None,
    limits: Limits = LIMITS,
) -> Orders:
    """The gate, with how long a reservation holds by the settings.

    `reach`: where webhooks go before the database. Before an order is swept, its payment is cancelled at the provider.
    """
    return Orders(
        database,
        ttl=timedelta(seconds=settings.reservation_ttl_seconds),
        grace=timedelta(seconds=settings.reservation_grace_seconds),
        changed=changed,
        log=reach,
        releases=Releases(database, known, sender, hold=timedelta(seconds=settings.sweep_hold_seconds), limits=limits),
        limits=limits,
    )


def handlers(reviews: Reviews, saga: Saga, witness: Witness) -> Mapping[Purpose, Handler]:
    """Who is told of events, by what they tell of. Events of no movement need nobody."""
    news = SettlementNews(reviews, witness)
    return {"charge": saga, "refund": saga, "transfer": news, "payout": news}


def _announce(announcer: Announcer, changed: Sequence[tuple[Tenant, UUID]]) -> None:
    by_tenant: dict[int, list[UUID]] = {}
    for owner, order_id in changed:
        by_tenant.setdefault(owner.number, []).append(order_id)
    for number, order_ids in by_tenant.items():
        announcer.changed(number, order_ids)


@asynccontextmanager
async def webhook_log(
    settings: Settings, database: Database, *, limits: Limits = LIMITS
) -> AsyncIterator[tuple[EventLog, Intake | None, Log | None]]:
    """Where webhooks are appended; and, where that is not the database, who brings them there, and how far that is."""
    if settings.kafka is None:
        async with PostgresLog(database, limits=limits) as direct:
            yield direct, None, None
        return
    try:
        # The client is an extra: nobody needs it who does not use it.
        from tallystick.webhooks.log.kafka import KafkaLog  # noqa: PLC0415
        from tallystick.webhooks.log.kafka_reach import KafkaReach  # noqa: PLC0415
        from tallystick.webhooks.log.kafka_reader import KafkaReader  # noqa: PLC0415
        from tallystick.webhooks.log.kafka_topic import KafkaTopic  # noqa: PLC0415
    except ImportError as error:
        message = "TALLY_KAFKA_BOOTSTRAP is set; Kafka's client is missing: pip install 'tallystick[kafka]'"
        raise Misconfigured(message) from error
    topic = KafkaTopic(settings.kafka, limits)
    stored = partial(intake_store.offsets, database, topic.name)
    reader = KafkaReader(topic, stored, limits=limits)
    intake = Intake(database, reader, limits=limits)
    async with KafkaLog(topic, limits=limits) as log:
        try:
            yield log, intake, KafkaReach(topic, stored)
        finally:
            await intake.close()


def worker_name() -> str:
    """How this process signs the rows it claims."""
    return f"{socket.gethostname()}:{os.getpid()}"


@asynccontextmanager
async def running(
    settings: Settings,
    *,
    kinds: Iterable[Kind] = (),
    limits: Limits = LIMITS,
    migrating: bool = False,
    writing: bool = True,
    simulator_url: str | None = None,
) -> AsyncIterator[Service]:
    """Database, engine and providers, closed again in reverse order.

    Database and schema must be there already; `migrating`, both are made or brought up to date first. Raises
    SchemaMismatch; and Misconfigured where there is no database, or where its role does not see every row or,
    `writing`, may not do all that the service does.
    """
    async with database_address(settings, making=migrating) as (dsn, notes):
        if migrating:
            await migrate(dsn)
        await require_current(settings.database_direct_url or dsn, writing=writing)
        # Lanes of the engine, of attempts, of their answers, of settlements, of orders, of payments, of theirs, of
        # refunds and of webhooks; a tick's chunks and its recorder; the sweepers and the collector, and what is done to
        # single orders; batches of events, and the renewal beside each; the intake from Kafka.
        connections = (
            9 * limits.lanes
            + 1
            + limits.settlement_lanes
            + 4
            + limits.order_steps
            + 2 * limits.event_workers
            + limits.readers
        )
        database = await postgres.connect(
            dsn, connections=connections, limits=limits, direct=settings.database_direct_url
        )
        try:
            async with (
                Engine(PostgresLedger(database), Kinds(kinds), limits=limits) as engine,
                providers(settings, simulator_url=simulator_url) as known,
                Sender(database, known, limits=limits) as sender,
                Settlements(database, known, limits=limits) as settlements,
                Announcer(database, limits=limits) as announcer,
                webhook_log(settings, database, limits=limits) as (log, intake, reach),
                orders_of(
                    settings, database, known, sender, changed=announcer.changed, reach=reach, limits=limits
                ) as orders,
                Payments(
                    database, known, sender, provider=settings.provider, changed=announcer.changed, limits=limits
                ) as payments,
                Refunds(database, known, sender, limits=limits, changed=partial(_announce, announcer)) as refunds,
                OrderStatuses(database, announcer, limits=limits) as statuses,
            ):
                settler = Settler(
                    database, known, sender, patience=patience(settings, known), by=worker_name(), limits=limits
                )
                reviews = Reviews(database)
                saga = Saga(database, refunds, sender.witness, limits=limits, changed=partial(_announce, announcer))
                events = Events(
                    database,
                    handlers(reviews, saga, sender.witness),
                    providers=known,
                    lease=timedelta(seconds=settings.lease_seconds),
                    by=worker_name(),
                )
                yield Service(
                    settings,
                    database,
                    engine,
                    known,
                    sender,
                    settlements,
                    settler,
                    reviews,
                    orders,
                    payments,
                    refunds,
                    RefundRequests(database, refunds, known, limits=limits, changed=partial(_announce, announcer)),
                    announcer,
                    statuses,
                    log,
                    events,
                    (*notes, *(await _might(settings, database) if writing else ())),
                    intake,
                )
        finally:
            await database.close()


async def _might(settings: Settings, database: Database) -> tuple[str, ...]:
    """What a service should know of the role it works as. The embedded database is its one user's anyway."""
    if owns_database(settings):
        return ()
    async with database.owning() as connection:
        note = await might(connection, settings.service_role)
    return () if note is None else (note,)


def owns_database(settings: Settings) -> bool:
    """Whether the database is the embedded one, of this home alone: it is migrated by whoever opens it.

    Any other may serve processes of another version: `tally migrate` is run when somebody decides it.
    """
    return settings.database_url is None


async def migrate_database(settings: Settings) -> tuple[list[Migration], Granted | None]:
    """Bring the database of the settings, of whatever engine, to this version's schema, and grant the service its part.

    Returns what was applied; and what the service's role may do, where there is to be one.
    """
    async with database_address(settings, making=True, direct=True) as (dsn, _notes):
        if not is_mysql(dsn):
            applied = await migrate(dsn)
            return applied, await grant(dsn, settings.service_role) if settings.service_role else None
        with _mysql_driver():
            from tallystick.ledger.mysql import migrate as mysql  # noqa: PLC0415
        return await mysql.migrate(dsn), None


@contextmanager
def _mysql_driver() -> Iterator[None]:
    # The driver is an extra: nobody needs it who does not use it.
    try:
        yield
    except ImportError as error:
        message = "TALLY_DATABASE_URL is a MySQL address; its driver is missing: pip install 'tallystick[mysql]'"
        raise Misconfigured(message) from error


@asynccontextmanager
async def ledger(settings: Settings, *, kinds: Iterable[Kind] = (), limits: Limits = LIMITS) -> AsyncIterator[Ledger]:
    """The ledger alone, on PostgreSQL or, by its address, on MariaDB or MySQL."""
    dsn = settings.database_url
    if dsn is None or not is_mysql(dsn):
        async with running(settings, kinds=kinds, limits=limits, migrating=owns_database(settings)) as service:
            yield Ledger(service.database, service.engine, account, tenant.find_tenant)
        return
    with _mysql_driver():
        from tallystick.ledger.mysql import account as accounts  # noqa: PLC0415
        from tallystick.ledger.mysql import database, migrate, operation  # noqa: PLC0415
        from tallystick.ledger.mysql.tenant import find_tenant  # noqa: PLC0415
    await migrate.require_current(dsn)
    opened = await database.connect(dsn, connections=limits.lanes + limits.readers)
    try:
        async with Engine(operation.MysqlLedger(opened), Kinds(kinds), limits=limits) as engine:
            yield Ledger(opened, engine, accounts, find_tenant)
    finally:
        await opened.close()
