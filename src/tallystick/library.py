"""The library: `tallystick.open()` gives a `Tally`, the same engine the service uses."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from tallystick import app, caller
from tallystick.access import store as tenant
from tallystick.audit.author import acting, by_library
from tallystick.checkout.order.rules import OrderReserved
from tallystick.checkout.order.store import OrderView, Reserved, SkuView
from tallystick.checkout.payment.rules import Paying, PaymentPending
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending
from tallystick.checkout.status.rules import OrderStatus
from tallystick.errors import (
    CallerTransaction,
    Forked,
    Misconfigured,
    OutcomeUnknown,
    TallystickError,
    Unreachable,
)
from tallystick.ledger.account import store as account
from tallystick.ledger.account.store import AccountView, EntryView, Put
from tallystick.ledger.claims import Tenant
from tallystick.ledger.kinds import Kind, Operation
from tallystick.ledger.mysql.address import is_address as is_mysql
from tallystick.ledger.outcome import Outcome, Rejected
from tallystick.ledger.velocity import VelocityLimit
from tallystick.settings import Settings
from tallystick.settlement import store as settlement
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.store import Made, SettlementView

P = ParamSpec("P")
T = TypeVar("T")
# On every call that signs for itself.
SIGNED = "__signed__"
_LIBRARY = by_library("library")


def _signed(
    call: "Callable[Concatenate[Tally, P], Awaitable[T]]",
) -> "Callable[Concatenate[Tally, P], Coroutine[Any, Any, T]]":
    """A call of this library is the doing of the service that opened it."""

    @wraps(call)
    async def signed(self: "Tally", /, *arguments: P.args, **named: P.kwargs) -> T:
        self.require_own_process()
        with acting(self._author):
            return await call(self, *arguments, **named)

    setattr(signed, SIGNED, True)
    return signed


class Tally:
    """A tenant's ledger. Made by `tallystick.open()`; safe to share between tasks of one event loop."""

    def __init__(
        self, ledger: app.Ledger, tenant: Tenant, service: app.Service | None = None, *, author: str = _LIBRARY
    ) -> None:
        """Use `tallystick.open()`. There is no service on MariaDB and MySQL: they hold the ledger alone."""
        self._author = author
        self._process = os.getpid()
        self._database = ledger.database
        self._engine = ledger.engine
        self._accounts = ledger.accounts
        self._tenant = tenant
        self._service = service

    def require_own_process(self) -> None:
        """Raises Forked: what the parent opened answers nobody in a child, and a call would wait for ever."""
        if self._process != os.getpid():
            raise Forked(self._process)

    @_signed
    async def submit(
        self,
        operation: Operation,
        *,
        idempotency_key: str,
        connection: "asyncpg.Connection[Any] | None" = None,
    ) -> Outcome:
        """Run the operation once under this key: Committed, Duplicate or Rejected.

        With `connection` (an asyncpg connection inside an open transaction) it happens within that transaction,
        and is committed or rolled back with the caller's own rows: nothing is durable before his COMMIT.

        Raises Busy, InFlight, OutcomeUnknown, Unreachable or Faulted (`tallystick.errors`); after each of them
        the same call with the same key is safe.
        """
        if connection is None:
            return await self._engine.submit(self._tenant, operation, idempotency_key)
        own = _asyncpg(connection)
        claim = self._engine.claim(self._tenant, operation, idempotency_key)
        if isinstance(claim, Rejected):
            return claim
        return await caller.submit(own, claim)

    @_signed
    async def submit_many(self, operations: Iterable[tuple[Operation, str]]) -> Sequence[Outcome | TallystickError]:
        """Submit pairs of operation and key at once. Each stands alone; the answers keep the order."""
        return await self._engine.submit_many(self._tenant, operations)

    @_signed
    async def put_account(
        self,
        account_id: str,
        *,
        currency: str,
        floor_micros: int | None = 0,
        limits: Sequence[VelocityLimit] = (),
    ) -> AccountView | Rejected:
        """Make the account, or give it this floor (None: none) and these velocity limits."""
        done = await self._accounts.put(
            self._database,
            self._tenant,
            account_id,
            currency=currency,
            floor_micros=floor_micros,
            limits=tuple(limits),
        )
        if not isinstance(done, Put):
            return done
        try:
            return await self.account(account_id)
        except Unreachable as error:
            # It is made; only the look at it failed.
            raise OutcomeUnknown from error

    @_signed
    async def account(self, account_id: str) -> AccountView | Rejected:
        """The account with its balance now."""
        return await self._accounts.read(self._database, self._tenant, account_id)

    @_signed
    async def balance_at(self, account_id: str, moment: datetime) -> int | Rejected:
        """The balance in micros at the end of a moment."""
        found = await self._accounts.balance_at(self._database, self._tenant, account_id, moment)
        return found if isinstance(found, Rejected) else found[0]

    @_signed
    async def entries(
        self, account_id: str, *, before: int | None = None, most: int = 100
    ) -> Sequence[EntryView] | Rejected:
        """Entries with their running balance, newest first; `before` an entry's number continues a page."""
        return await self._accounts.list_entries(self._database, self._tenant, account_id, before=before, most=most)

    @_signed
    async def create_settlement(
        self,
        *,
        attribution_id: str,
        squad_id: str,
        gross_micros: int,
        currency: str,
        destination: str,
        provider: str | None = None,
        source: str | None = None,
        idempotency_key: str,
        connection: "asyncpg.Connection[Any] | None" = None,
    ) -> Made | Rejected:
        """Promise a payout, once; `tally settle` or a worker of `tally work` then pays it.

        The same attribution and squad are the same payout: under another key it is returned as it stands (`is_new`
        is False), and with another amount or destination it is refused. The fee is the tenant's policy's. Without
        `provider` it is that of TALLY_PROVIDER.

        `source` is the account whose money it is (without one, `settlement:clearing:CUR`): it is debited in the same
        commit, and refused with `insufficient_funds` when it holds too little. With `connection` (see `submit`) all of
        it happens in the caller's own transaction: "this seller is paid out" is then one commit with his own rows.

        Raises like `submit`, and Misconfigured on MariaDB and MySQL.
        """
        service = self._needed_service()
        wish = SettlementCreated(
            attribution_id=attribution_id,
            squad_id=squad_id,
            gross_micros=gross_micros,
            currency=currency,
            destination=destination,
            provider=service.settings.provider if provider is None else provider,
            source=source,
        )
        if connection is None:
            return await service.settlements.create(self._tenant, wish, idempotency_key)
        return await service.settlements.create_within(_asyncpg(connection), self._tenant, wish, idempotency_key)

    @_signed
    async def settlement(self, settlement_id: str) -> SettlementView | Rejected:
        """A settlement as it stands, by the id that creating it returned."""
        return await settlement.read(self._needed_service().database, self._tenant, settlement_id)

    @_signed
    async def set_stock(self, sku: str, stock: int) -> SkuView | Rejected:
        """Put so many pieces up for sale, in all: what is reserved and sold counts towards it. Safe to repeat.

        Less than is reserved and sold is refused. Raises InFlight, OutcomeUnknown, Unreachable, and Misconfigured on
        MariaDB and MySQL.
        """
        return await self._needed_service().orders.set_stock(self._tenant, sku, stock)

    @_signed
    async def sku(self, sku: str) -> SkuView | Rejected:
        """What there is of a SKU: in all, reserved, sold, available."""
        return await self._needed_service().orders.sku(self._tenant, sku)

    @_signed
    async def reserve(
        self, *, sku: str, quantity: int, amount_micros: int, currency: str, idempotency_key: str
    ) -> Reserved | Rejected:
        """Hold stock for a buyer, once, for TALLY_RESERVATION_TTL_SECONDS; `amount_micros` is for the whole order.

        Refused with `sold_out` it leaves no trace, and the key may be used again. Raises like `submit`, and
        Misconfigured on MariaDB and MySQL.
        """
        wish = OrderReserved(sku=sku, quantity=quantity, amount_micros=amount_micros, currency=currency)
        return await self._needed_service().orders.reserve(self._tenant, wish, idempotency_key)

    @_signed
    async def order(self, order_id: str) -> OrderView | Rejected:
        """An order as it stands, with its payment, by the id that reserving it returned."""
        return await self._needed_service().payments.order(self._tenant, order_id)

    @_signed
    async def order_status(
        self, order_id: str, *, wait: float = 0.0, after: str | None = None
    ) -> OrderStatus | Rejected:
        """How an order stands; with `wait`, as soon as it is worth telling, and after so many seconds at the latest.

        Without `after` that is when it is no longer PENDING, or has changed. With `after`, the `version` that a call
        before has returned: when it is another. Raises Busy (too many wait), Unreachable, and Misconfigured on MariaDB
        and MySQL.
        """
        return await self._needed_service().statuses.read(self._tenant, order_id, wait_seconds=wait, after=after)

    @_signed
    async def pay(
        self, order_id: str, *, reservation_token: str, payment_method: str | None = None, idempotency_key: str
    ) -> Paying | PaymentPending | Rejected:
        """Charge an order, once: whoever calls again, from wherever, gets the same payment.

        PaymentPending: nobody knows yet; call again, or look at `order`. PaymentRefused: the provider's final no, which
        this key has for ever; a new attempt needs a new key. A `payment_method` counts for an attempt that begins with
        this call. Raises like `submit`, and Misconfigured on MariaDB and MySQL.
        """
        payments = self._needed_service().payments
        return await payments.pay(
            self._tenant,
            order_id,
            reservation_token,
            idempotency_key=idempotency_key,
            payment_method=payment_method,
        )

    @_signed
    async def cancel_order(self, order_id: str) -> OrderView | Rejected:
        """Give a reservation back, once. A paid order is refused; a cancelled one stays as it is. Safe to repeat."""
        return await self._needed_service().orders.cancel(self._tenant, order_id)

    @_signed
    async def refund_order(
        self,
        order_id: str,
        *,
        amount_micros: int | None = None,
        reason: str,
        restock: bool = False,
        idempotency_key: str,
    ) -> RefundGiven | RefundPending | Rejected:
        """Give a paid order back, once for each key: so much of it, or all that is left.

        RefundPending: it is committed, and tried for as long as it takes; the same call again tells how it stands, and
        `order` shows it. RefundRefused: the provider's final no, which this key has for ever. With `restock` the
        order's pieces are for sale again, once. Raises like `submit`, and Misconfigured on MariaDB and MySQL.
        """
        return await self._needed_service().refund_requests.refund(
            self._tenant,
            order_id,
            amount_micros=amount_micros,
            reason=reason,
            restock=restock,
            idempotency_key=idempotency_key,
        )

    def _needed_service(self) -> app.Service:
        if self._service is None:
            raise Misconfigured(
                "Settlements and orders need PostgreSQL, and TALLY_DATABASE_URL is a MySQL address. "
                "Nothing was created."
            )
        return self._service


def _asyncpg(connection: "asyncpg.Connection[Any]") -> "asyncpg.Connection[Any]":
    if not isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        raise CallerTransaction("connection=... takes an asyncpg connection: it is for PostgreSQL only.")
    return connection


@asynccontextmanager
async def open(  # noqa: A001 - read as tallystick.open()
    *,
    database_url: str | None = None,
    home: str | Path | None = None,
    tenant: str = "default",
    kinds: Iterable[Kind] = (),
    service: str = "library",
) -> AsyncIterator[Tally]:
    """A ledger, ready to use: the embedded PostgreSQL, or the one at `database_url`.

    `service` is the name of the program that uses it: the journal has everything it does under that name. What is not
    given comes from the settings (`TALLY_DATABASE_URL`, `TALLY_HOME`, `tally.toml`). The embedded one's schema is
    brought up to date; at any other address `tally migrate` does that, and SchemaMismatch says when it is needed.
    Leaving the block answers what is queued and closes everything.
    """
    settings = app.settings_with(database_url=database_url, home=home)
    async with _opened(settings, kinds) as (ledger, running):
        found = await ledger.find_tenant(ledger.database, tenant)
        if found is None:
            message = f"There is no tenant {tenant!r}. Make it with `tally keys create --tenant {tenant} --for NAME`."
            raise Misconfigured(message)
        yield Tally(ledger, found, running, author=by_library(service))


@asynccontextmanager
async def _opened(settings: Settings, kinds: Iterable[Kind]) -> AsyncIterator[tuple[app.Ledger, app.Service | None]]:
    if settings.database_url is not None and is_mysql(settings.database_url):
        async with app.ledger(settings, kinds=kinds) as ledger:
            yield ledger, None
        return
    async with app.running(settings, kinds=kinds, migrating=app.owns_database(settings)) as service:
        yield app.Ledger(service.database, service.engine, account, tenant.find_tenant), service
