"""Orders on PostgreSQL: reserve for many in one transaction, cancel, sweep, and the stock they draw on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tallystick import queries
from tallystick.checkout.order import rules as order
from tallystick.checkout.order.rules import (
    Granted,
    OrderReserved,
    SkuName,
    Status,
    Stock,
    Swept,
    admit,
    hopeful,
    may_be_swept,
    order_id,
    order_name,
    order_unknown,
    place_of,
    reservation_token,
    restock_fault,
    sku_unknown,
    token_name,
)
from tallystick.checkout.payment.rules import PaymentView
from tallystick.checkout.refund.rules import RefundView
from tallystick.commit.group import SET_ASIDE, SetAside
from tallystick.commit.port import Contended, plain_errors
from tallystick.database import copying
from tallystick.database.literal import numbers, texts
from tallystick.database.pool import Connection, Database
from tallystick.errors import InFlight, InvariantBroken
from tallystick.ledger.claims import Claim, Record, Tenant
from tallystick.ledger.outcome import Duplicate, Rejected
from tallystick.ledger.store import PostgresTransaction
from tallystick.settings import LIMITS

_SQL = queries.load(__package__, "store.sql")
log = structlog.get_logger("tallystick.checkout")

# From here on two COPY streams are cheaper than one statement with array parameters.
_COPY_FROM: Final = 16
# How often a single step is tried again when it meets somebody else's.
_ROUNDS: Final = 5
# A gauge says "so many or more".
_MOST_COUNTED: Final = 10_000

T = TypeVar("T")

# Told after each commit which orders of which tenant it may have changed (`checkout.status.announcer`).
Changed = Callable[[int, Iterable[UUID]], None]


def unannounced(_tenant_number: int, _order_ids: Iterable[UUID]) -> None:
    """Nobody is told: whoever waits finds out by himself, a moment later."""


class OrderView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order as callers see it. `reservation_token` is what its payment must show; `payment` is there once begun.

    `refund` is the newest of `refunds`, the oldest first.
    """

    id: str
    status: Status
    sku: str
    quantity: int
    amount_micros: int
    currency: str
    reservation_token: str
    expires_at: datetime
    created_at: datetime
    changed_at: datetime
    payment: PaymentView | None = None
    refund: RefundView | None = None
    refunds: tuple[RefundView, ...] = ()
    is_backordered: bool = False


class SkuView(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of a SKU: `stock` in all, of which `available` may still be reserved.

    `backordered` was paid for too late and is to be delivered when there is stock again; it is in none of the others.
    """

    sku: str
    stock: int
    reserved: int
    sold: int
    available: int
    backordered: int = 0


class Reserved(msgspec.Struct, frozen=True):
    """An order that exists, as it was when it was made. `is_replayed`: this very key made it before."""

    view: OrderView
    is_replayed: bool = False


class ReserveWork:
    """Group commit's work: let wishes through the gate, one transaction for all that ask."""

    def __init__(self, database: Database, ttl: timedelta) -> None:
        """`ttl` is how long a new reservation holds."""
        self._database = database
        self._ttl = ttl

    async def commit(
        self, items: Sequence[Claim], *, patient: bool
    ) -> Sequence[Reserved | Rejected | Literal[SetAside.SET_ASIDE]]:
        """Each claim's order: made now, or before; or why there is none."""
        async with self._database.writing() as connection:
            answers = await reserve(connection, items, ttl=self._ttl, patient=patient)
        # Only now is COMMIT behind us.
        return answers  # noqa: RET504


async def reserve(
    connection: Connection, claims: Sequence[Claim], *, ttl: timedelta, patient: bool = True
) -> list[Reserved | Rejected | Literal[SetAside.SET_ASIDE]]:
    """Reserve inside the caller's transaction. Order of the answers is that of the claims, and so is precedence.

    Stock is read before the keys: a claim that finds too little, and its key unused, was sold out at that moment. Who
    could be served takes the SKU's lock first; everybody else is answered without one, and nothing is written.
    """
    transaction = PostgresTransaction(connection)
    stocks = await _stocks(connection, {place_of(claim) for claim in claims})
    wanted = hopeful(claims, stocks)
    at, blocked, secrets = None, frozenset[SkuName](), dict[int, bytes]()
    if wanted:
        locked, at, secrets = await _locked(connection, wanted, patient=patient)
        blocked = frozenset(wanted - locked.keys())
        stocks |= locked
    known, held = await transaction.claim(claims, patient=patient)
    decided = await _decided(connection, claims) if wanted else frozenset()
    answers: list[Reserved | Rejected | Literal[SetAside.SET_ASIDE]] = [SET_ASIDE] * len(claims)
    open_ = []
    for position, claim in enumerate(claims):
        name = (claim.tenant.number, claim.id)
        if (claim.tenant.number, claim.key) in decided:
            answers[position] = _of_something_else(claim)
        # A used key is answered whoever holds its SKU.
        elif name in known or not ((held and name in held) or (blocked and place_of(claim) in blocked)):
            open_.append(position)
    verdicts = admit([claims[position] for position in open_], stocks, known)
    granted = [claims[position] for position, verdict in zip(open_, verdicts, strict=True) if verdict is order.GRANTED]
    orders: dict[tuple[int, bytes], OrderView] = {}
    if granted:
        if at is None:
            raise InvariantBroken("the gate granted stock that nobody holds")
        orders = await _record(connection, granted, secrets, at=at, ttl=ttl)
    used = [claims[position] for position, v in zip(open_, verdicts, strict=True) if isinstance(v, Duplicate)]
    if used:
        orders = await _as_created(connection, used) | orders
    for position, verdict in zip(open_, verdicts, strict=True):
        answers[position] = verdict if isinstance(verdict, Rejected) else _answer(claims[position], verdict, orders)
    return answers


def _answer(
    claim: Claim, verdict: Granted | Duplicate, orders: Mapping[tuple[int, bytes], OrderView]
) -> Reserved | Rejected:
    view = orders.get((claim.tenant.number, claim.id))
    return _of_something_else(claim) if view is None else Reserved(view, is_replayed=isinstance(verdict, Duplicate))


def _of_something_else(claim: Claim) -> Rejected:
    # The key belongs to a person's decision, or to an operation of a user's own kind that happens to look alike.
    return Rejected(
        "key_reused",
        f"The idempotency key {claim.key!r} was used for something that is no order.",
        "Use a new key for a new request.",
    )


async def _stocks(connection: Connection, places: set[SkuName]) -> dict[SkuName, Stock]:
    rows = await connection.fetch(_SQL["stocks"], *_columns(places))
    return {(row["tenant_id"], row["sku"]): _stock(row) for row in rows}


async def _locked(
    connection: Connection, places: set[SkuName], *, patient: bool
) -> tuple[dict[SkuName, Stock], datetime | None, dict[int, bytes]]:
    """What is held now, since when, and the secrets of the tenants."""
    rows = await connection.fetch(_SQL["lock_stocks" if patient else "lock_free_stocks"], *_columns(places))
    at = max((row["locked_at"] for row in rows), default=None)
    secrets = {row["tenant_id"]: row["secret"] for row in rows}
    return {(row["tenant_id"], row["sku"]): _stock(row) for row in rows}, at, secrets


async def _decided(connection: Connection, claims: Sequence[Claim]) -> frozenset[tuple[int, str]]:
    rows = await connection.fetch(
        _SQL["decided"], numbers([claim.tenant.number for claim in claims]), texts([claim.key for claim in claims])
    )
    return frozenset((row["tenant_id"], row["key"]) for row in rows)


async def _record(
    connection: Connection, granted: Sequence[Claim], secrets: Mapping[int, bytes], *, at: datetime, ttl: timedelta
) -> dict[tuple[int, bytes], OrderView]:
    """Write the orders under their keys, sorted: the primary key of the operation is the lock on a key."""
    granted = sorted(granted, key=lambda claim: (claim.tenant.number, claim.id))
    wishes: list[OrderReserved] = [claim.operation for claim in granted]  # type: ignore[misc]
    tokens = [reservation_token(secrets[claim.tenant.number], claim.id) for claim in granted]
    if len(granted) < _COPY_FROM:
        await connection.execute(
            _SQL["reserve"],
            numbers([claim.tenant.number for claim in granted]),
            [UUID(bytes=claim.id) for claim in granted],
            texts([claim.key for claim in granted]),
            [claim.request for claim in granted],
            [order.recorded(claim, at) for claim in granted],
            at,
            texts([wish.sku for wish in wishes]),
            numbers([wish.quantity for wish in wishes]),
            numbers([wish.amount_micros for wish in wishes]),
            texts([wish.currency for wish in wishes]),
            tokens,
            ttl,
            texts([claim.author for claim in granted]),
        )
    else:
        await _copy(connection, granted, tokens, at=at, expires_at=at + ttl)
    expires_at = at + ttl
    return {
        (claim.tenant.number, claim.id): OrderView(
            id=order_name(claim.id),
            status="PENDING",
            sku=wish.sku,
            quantity=wish.quantity,
            amount_micros=wish.amount_micros,
            currency=wish.currency,
            reservation_token=token_name(token),
            expires_at=expires_at,
            created_at=at,
            changed_at=at,
        )
        for claim, wish, token in zip(granted, wishes, tokens, strict=True)
    }


async def _copy(
    connection: Connection, granted: Sequence[Claim], tokens: Sequence[UUID], *, at: datetime, expires_at: datetime
) -> None:
    """Two streams, each far cheaper per row. The second is packed while the server works on the first."""
    time = copying.moment(at)
    rows = b""

    async def operations() -> AsyncIterator[bytes]:
        nonlocal rows
        yield copying.operations([Record(claim, order.recorded(claim, at), (), None) for claim in granted], time)
        rows = copying.orders(granted, [token.bytes for token in tokens], time, copying.moment(expires_at))

    async def orders() -> AsyncIterator[bytes]:
        yield rows

    # Streams, because asyncpg would read a file in a thread.
    for table, columns, source in (
        ("operation", copying.OPERATION_COLUMNS, operations()),
        ("orders", copying.ORDER_COLUMNS, orders()),
    ):
        await connection.copy_to_table(table, schema_name="tally", columns=columns, source=source, format="binary")


async def _as_created(connection: Connection, claims: Sequence[Claim]) -> dict[tuple[int, bytes], OrderView]:
    """As they were when they were made: a replay is the same to the byte, whatever has become of them."""
    rows = await connection.fetch(
        _SQL["by_ids"], [claim.tenant.number for claim in claims], [UUID(bytes=claim.id) for claim in claims]
    )
    return {
        (row["tenant_id"], row["id"].bytes): msgspec.structs.replace(
            view(row), status="PENDING", changed_at=row["created_at"]
        )
        for row in rows
    }


async def cancel(
    database: Database, tenant: Tenant, name: str, *, changed: Changed = unannounced
) -> OrderView | Rejected:
    """Give a reservation back, once; one that holds nothing any more is told as it stands.

    Raises InFlight, OutcomeUnknown and Unreachable; the same call again is then safe.
    """
    id_ = order_id(name)
    if id_ is None:
        return order_unknown(name)

    async def act(connection: Connection) -> OrderView | Rejected:
        row = await connection.fetchrow(_SQL["lock_order"], tenant.number, id_)
        if row is None:
            return order_unknown(name)
        wanted = order.cancel(name, row["status"])
        if isinstance(wanted, Rejected):
            return wanted
        if wanted is not None:
            (row,) = await connection.fetch(_SQL["finish"], [tenant.number], [id_], wanted)
        return view(row)

    try:
        return await _stepped(database, act)
    finally:
        # Also when nobody can say whether it was committed: to look once too often harms nobody.
        changed(tenant.number, [id_])


class Sweep:
    """One sweep, chunk by chunk: of what is overdue by the database's clock when it begins."""

    def __init__(
        self, database: Database, *, grace: timedelta, watermark: datetime | None, changed: Changed = unannounced
    ) -> None:
        """Nothing happens yet. `watermark`: see `checkout.watermark.rules`; without one no charged order is touched."""
        self._database = database
        self._grace = grace
        self._watermark = watermark
        self._changed = changed
        # What the chunk under way may have cancelled.
        self._touched: list[tuple[int, UUID]] = []
        self._until: datetime | None = None
        # They stay, and the next chunk passes them over.
        self._passed_over: list[UUID] = []

    async def chunk(self, most: int) -> Swept:
        """Cancel up to `most`, in one transaction; those that others hold are passed over."""
        try:
            return await _stepped(self._database, lambda connection: self._chunk(connection, most))
        finally:
            for tenant_number, id_ in self._touched:
                self._changed(tenant_number, [id_])
            self._touched = []

    async def _chunk(self, connection: Connection, most: int) -> Swept:
        grace = self._grace
        rows = await connection.fetch(_SQL["overdue"], grace, most, self._until, self._passed_over, self._watermark)
        if not rows:
            return Swept()
        self._until = self._until or rows[0]["now"]
        ids = [row["id"] for row in rows]
        tenants = [row["tenant_id"] for row in rows]
        charged = {row["id"]: row for row in await connection.fetch(_SQL["charged"], tenants, ids)}
        due = [row for row in rows if self._is_due(row, charged.get(row["id"]))]
        self._passed_over += {*ids} - {row["id"] for row in due}
        # In one order with everybody else who holds several orders.
        places = self._touched = sorted((row["tenant_id"], row["id"]) for row in due)
        done, refused = await _swept(connection, places)
        self._passed_over += refused
        released = sum(row["quantity"] for row in done)
        return Swept(len(done), released, len(refused), is_complete=len(rows) < most)

    def _is_due(self, row: asyncpg.Record, charged: asyncpg.Record | None) -> bool:
        return may_be_swept(
            row["expires_at"],
            now=row["now"],
            grace=self._grace,
            is_charged=charged is not None,
            is_live=charged is not None and charged["is_live"],
            is_released=charged is not None and charged["is_released"],
            watermark=self._watermark,
        )


async def _swept(connection: Connection, places: Sequence[tuple[int, UUID]]) -> tuple[list[asyncpg.Record], list[UUID]]:
    """All at once; if the database refuses that, one by one, so that a damaged SKU holds up no other."""
    await connection.execute("SAVEPOINT sweep")
    try:
        of, ids = [of for of, _ in places], [id_ for _, id_ in places]
        return await connection.fetch(_SQL["finish"], of, ids, "CANCELLED_BY_SWEEPER"), []
    except asyncpg.CheckViolationError as error:
        await connection.execute("ROLLBACK TO SAVEPOINT sweep")
        if len(places) == 1:
            log.error("reservation_not_released", order=order_name(places[0][1].bytes), reason=str(error))
            return [], [places[0][1]]
    middle = len(places) // 2
    first, second = await _swept(connection, places[:middle]), await _swept(connection, places[middle:])
    return first[0] + second[0], first[1] + second[1]


async def set_stock(database: Database, tenant: Tenant, sku: str, stock: int) -> SkuView | Rejected:
    """Put so many up for sale, in all. Raises InFlight, OutcomeUnknown and Unreachable; safe to repeat."""

    async def act(connection: Connection) -> SkuView | Rejected:
        made = await connection.fetchrow(_SQL["add_sku"], tenant.number, sku, stock)
        if made is not None:
            return sku_view(made)
        (row,) = await connection.fetch(_SQL["lock_stocks"], *_columns({(tenant.number, sku)}))
        refusal = restock_fault(sku, stock, _stock(row))
        if refusal is not None:
            return refusal
        if row["stock"] != stock:
            (row,) = await connection.fetch(_SQL["restock"], tenant.number, sku, stock)
        return sku_view(row)

    return await _stepped(database, act)


async def _stepped(database: Database, act: Callable[[Connection], Awaitable[T]]) -> T:
    """One transaction, again when it met another's."""
    with plain_errors():
        for _ in range(_ROUNDS):
            try:
                async with database.writing() as connection:
                    done = await act(connection)
            except Contended:
                continue
            # Only now is COMMIT behind us.
            return done
    raise InFlight(LIMITS.lock_wait_seconds)


async def read(database: Database, tenant: Tenant, name: str) -> OrderView | Rejected:
    """One order by its id."""
    id_ = order_id(name)
    if id_ is not None:
        async with database.reading(tenant.number) as connection:
            rows = await connection.fetch(_SQL["by_ids"], [tenant.number], [id_])
        if rows:
            return view(rows[0])
    return order_unknown(name)


async def read_sku(database: Database, tenant: Tenant, sku: str) -> SkuView | Rejected:
    """What there is of one SKU."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(_SQL["stocks"], *_columns({(tenant.number, sku)}))
    return sku_view(rows[0]) if rows else sku_unknown(sku)


async def figures(database: Database) -> tuple[dict[str, int], int, float]:
    """Counts of all days; orders that are pending (bounded); seconds the oldest of them is past its deadline."""
    async with database.owning() as connection:
        counts = {row["name"]: row["value"] for row in await connection.fetch(_SQL["counts"])}
        ((pending, overdue),) = await connection.fetch(_SQL["waiting"], _MOST_COUNTED)
    return counts, pending, overdue


def view(row: asyncpg.Record) -> OrderView:
    """A stored row as callers see it."""
    return OrderView(
        id=order_name(row["id"].bytes),
        status=row["status"],
        sku=row["sku"],
        quantity=row["quantity"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        reservation_token=token_name(row["reservation_token"]),
        expires_at=row["expires_at"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        is_backordered=row["is_backordered"],
    )


def sku_view(row: asyncpg.Record) -> SkuView:
    """A SKU's row as callers see it."""
    now = _stock(row)
    return SkuView(
        sku=row["sku"],
        stock=now.stock,
        reserved=now.reserved,
        sold=now.sold,
        available=now.available,
        backordered=row["backordered"],
    )


def _stock(row: asyncpg.Record) -> Stock:
    return Stock(row["stock"], row["reserved"], row["sold"])


def _columns(places: set[SkuName]) -> tuple[str, str]:
    ordered = sorted(places)
    return numbers([of for of, _ in ordered]), texts([sku for _, sku in ordered])
