"""A process of its own that cancels an order, and is killed when it would announce it: after COMMIT, before NOTIFY.

python -m tests.checkout.status.leaver DSN ORDER
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from tallystick.access.store import ensure_tenant
from tallystick.checkout.order.flow import Orders
from tallystick.database import pool as postgres


def dies(_tenant_number: int, _order_ids: Iterable[UUID]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(dsn: str, order: str) -> None:
    database = await postgres.connect(dsn, connections=4)
    tenant = await ensure_tenant(database, "default")
    async with Orders(database, ttl=timedelta(minutes=10), grace=timedelta(), changed=dies) as orders:
        await orders.cancel(tenant, order)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
