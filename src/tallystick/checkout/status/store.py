"""How orders stand, on PostgreSQL: read many at once, tell apart what changed, announce it and hear of it."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID, uuid4

from tallystick import queries
from tallystick.checkout.payment import store as payment
from tallystick.checkout.status.rules import OrderStatus, order_status
from tallystick.database.pool import GONE, Connection, Database
from tallystick.errors import Unreachable

_SQL: Final = queries.load(__package__, "store.sql")

CHANNEL: Final = "tally_order"
# PostgreSQL takes payloads below 8,000 bytes.
_PAYLOAD_BYTES: Final = 7_900
# The announcement of more than can be named.
EVERYTHING: Final = "*"
# No tenant has this number.
_NOBODY: Final = -1

# An order of a tenant, by the tenant's number.
OrderName = tuple[int, UUID]


class Reader:
    """A connection of its own on which orders are read as their tenant. One caller at a time.

    What `Database.reading` says for every read is said here when the tenant changes: three round trips are one.
    """

    def __init__(self, database: Database) -> None:
        """Opened when first needed, and again when it was lost."""
        self._database = database
        self._connection: Connection | None = None
        self._tenant = _NOBODY

    async def read(self, places: Collection[OrderName]) -> dict[OrderName, OrderStatus]:
        """Those of them that there are, each behind the wall of its own tenant. Raises Unreachable."""
        by_tenant: dict[int, list[UUID]] = {}
        for tenant, id_ in places:
            by_tenant.setdefault(tenant, []).append(id_)
        found: dict[OrderName, OrderStatus] = {}
        try:
            for tenant, ids in by_tenant.items():
                connection = await self._as(tenant)
                for id_, view in (await payment.orders_with_payment(connection, tenant, ids)).items():
                    found[tenant, id_] = order_status(
                        id_=view.id,
                        status=view.status,
                        payment=view.payment,
                        refund=view.refund,
                        changed_at=view.changed_at,
                    )
        except BaseException as error:
            # Cut off in the middle, nobody can say what the session is.
            self.end()
            if isinstance(error, GONE):
                raise Unreachable(str(error) or type(error).__name__) from error
            raise
        return found

    async def _as(self, tenant: int) -> Connection:
        connection = self._connection
        if connection is None or connection.is_closed():
            self.end()
            connection = self._connection = await self._database.open()
            await connection.execute(_SQL["as_reader"])
        if tenant != self._tenant:
            await connection.execute(f"SET tally.tenant = '{tenant:d}'")
            self._tenant = tenant
        return connection

    def end(self) -> None:
        """Nothing is left of the session."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection, self._tenant = None, _NOBODY


async def marks(database: Database, places: Sequence[OrderName]) -> Mapping[OrderName, str]:
    """A mark of each that there is: another whenever a commit changed something of it. Raises Unreachable."""
    async with database.owning() as connection:
        rows = await connection.fetch(_SQL["marks"], [tenant for tenant, _ in places], [id_ for _, id_ in places])
    return {(row["tenant_id"], row["id"]): row["mark"] for row in rows}


def signature() -> str:
    """With what one process begins its announcements. Whoever does not know it takes it for an order of nobody's."""
    return f"{_NOBODY}:{uuid4().hex}"


def payloads(places: Iterable[OrderName], *, by: str, most: int) -> list[str]:
    """The announcements that name these orders; or the one that says everything, if they were more than `most`."""
    made: list[str] = []
    room = 0
    for tenant, id_ in places:
        named = f"{tenant}:{id_.hex}"
        if len(named) + 1 > room:
            if len(made) == most:
                return [EVERYTHING]
            made.append(f"{by} {named}")
            room = _PAYLOAD_BYTES - len(made[-1])
        else:
            made[-1] += f" {named}"
            room -= len(named) + 1
    return made


def named(payload: str) -> list[OrderName] | None:
    """The orders that an announcement names; None: any may have changed. So does one that nobody can read."""
    try:
        places = [(int(tenant), UUID(hex=id_)) for tenant, id_ in (one.split(":") for one in payload.split(" "))]
    except ValueError:
        return None
    return [place for place in places if place[0] != _NOBODY]


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
