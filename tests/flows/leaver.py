"""A process of its own that cancels an order, and is killed when it would announce it: after COMMIT, before NOTIFY.

python -m tests.flows.leaver DSN ORDER
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from tallystick.flows.order import Orders
from tallystick.store import database as postgres
from tallystick.store.tenant import ensure_tenant


def dies(_tenant_number: int, _order_ids: Iterable[UUID]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(dsn: str, order: str) -> None:
    database = await postgres.connect(dsn, connections=4)
    tenant = await ensure_tenant(database, "default")
    async with Orders(database, ttl=timedelta(minutes=10), grace=timedelta(), changed=dies) as orders:
        await orders.cancel(tenant, order)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
