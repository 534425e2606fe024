"""How orders stand, on PostgreSQL: read many at once, tell apart what changed, announce it and hear of it."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from tallystick import queries
from tallystick.core.order_status import OrderStatus, order_status
from tallystick.store import payment
from tallystick.store.database import Connection, Database

_SQL: Final = queries.load(__package__, "order_status.sql")

CHANNEL: Final = "tally_order"
# PostgreSQL takes payloads below 8,000 bytes.
_PAYLOAD_BYTES: Final = 7_900
# The announcement of more than can be named.
EVERYTHING: Final = "*"
# Tenants whose orders are read at the same time: each has a connection for it.
_TENANTS_AT_ONCE: Final = 4

# An order of a tenant, by the tenant's number.
Place = tuple[int, UUID]


async def read(database: Database, places: Collection[Place]) -> dict[Place, OrderStatus]:
    """Those of them that there are, each behind the wall of its own tenant. Raises Unreachable."""
    by_tenant: dict[int, list[UUID]] = {}
    for tenant, id_ in places:
        by_tenant.setdefault(tenant, []).append(id_)
    turns = asyncio.Semaphore(_TENANTS_AT_ONCE)

    async def of(tenant: int, ids: Sequence[UUID]) -> dict[Place, OrderStatus]:
        async with turns:
            found = await payment.orders_with_payment(database, tenant, ids)
        return {
            (tenant, id_): order_status(
                id_=view.id, status=view.status, payment=view.payment, changed_at=view.changed_at
            )
            for id_, view in found.items()
        }

    if len(by_tenant) == 1:
        ((tenant, ids),) = by_tenant.items()
        return await of(tenant, ids)
    read_: dict[Place, OrderStatus] = {}
    for one in await asyncio.gather(*(of(tenant, ids) for tenant, ids in by_tenant.items())):
        read_ |= one
    return read_


async def marks(database: Database, places: Sequence[Place]) -> Mapping[Place, str]:
    """A mark of each that there is: another whenever a commit changed something of it. Raises Unreachable."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["marks"], [tenant for tenant, _ in places], [id_ for _, id_ in places])
    return {(row["tenant_id"], row["id"]): row["mark"] for row in rows}


def payloads(places: Iterable[Place], *, most: int) -> list[str]:
    """The announcements that name these orders; or the one that says everything, if they were more than `most`."""
    made: list[str] = []
    room = 0
    for tenant, id_ in places:
        named = f"{tenant}:{id_.hex}"
        if len(named) + 1 > room:
            if len(made) == most:
                return [EVERYTHING]
            made.append(named)
            room = _PAYLOAD_BYTES - len(named)
        else:
            made[-1] += f" {named}"
            room -= len(named) + 1
    return made


def named(payload: str) -> list[Place] | None:
    """The orders that an announcement names; None: any may have changed. So does one that nobody can read."""
    try:
        return [(int(tenant), UUID(hex=id_)) for tenant, id_ in (one.split(":") for one in payload.split(" "))]
    except ValueError:
        return None


async def notify(database: Database, announcements: Sequence[str], *, channel: str = CHANNEL) -> None:
    """Announce, in a transaction of its own. Raises Unreachable."""
    async with database.owning() as connection:
        await connection.execute(_SQL["notify"], channel, list(announcements))


async def listen(
    database: Database,
    *,
    echoes: str,
    heard: Callable[[str], None],
    echoed: Callable[[str], None],
    lost: Callable[[], None],
    within_seconds: float,
) -> Connection:
    """A connection that calls `heard` with each announcement and `echoed` with what comes in over the channel `echoes`.

    `lost` is called when it breaks. The caller ends it.
    """
    connection = await database.open()
    try:
        connection.add_termination_listener(lambda _connection: lost())
        async with asyncio.timeout(within_seconds):
            await connection.add_listener(CHANNEL, lambda _connection, _pid, _channel, payload: heard(str(payload)))
            await connection.add_listener(echoes, lambda _connection, _pid, _channel, payload: echoed(str(payload)))
    except BaseException:
        connection.terminate()
        raise
    return connection
